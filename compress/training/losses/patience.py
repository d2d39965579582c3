"""Squared distance between the normalised hidden states of the first token, below the last layer.

Sun et al. 2019, "Patient Knowledge Distillation for BERT Model Compression" (arXiv:1908.09355), equation 7:
``sum_l || h_S / ||h_S|| - h_T / ||h_T|| ||^2``, the sum over the pairs of the layer map; here the mean over rows.
The authors' code takes the mean over rows, layers and width instead, and the published factors beta (10 to 1000)
belong to that: here the same weight is beta / (layers * width), so 0.13 for beta = 500, five layers and width 768.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import normalize

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import first_tokens, require, require_equal_widths, sum_over_layers

NEEDS = frozenset({"first"})
STUDENT_NEEDS = frozenset({"hidden"})


def loss(student: Outputs, teacher: Outputs, batch: Batch, *, layers: str = "skip", normalised: bool = True) -> Tensor:
    """Return the sum over layers of the mean over rows of the squared distance between vectors of length 1.

    Args:
        layers: ``skip`` compares with layers from all over the teacher, ``last`` with those just below its last.
        normalised: false compares the states as they are, which the authors did on the larger tasks.

    Raises:
        CompressError: the student has no hidden states, or is not as wide as the teacher.
    """
    require("hidden", loss="patience", student=student, teacher=teacher)
    ours, theirs = first_tokens(student), first_tokens(teacher)
    require_equal_widths(ours, theirs, loss="patience")
    if normalised:
        ours, theirs = normalize(ours, dim=-1), normalize(theirs, dim=-1)
    return sum_over_layers(
        student, teacher, layers, lambda m, n: (ours[:, m] - theirs[:, n]).square().sum(dim=-1).mean()
    )
