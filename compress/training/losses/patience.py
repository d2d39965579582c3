"""Squared distance between the normalised hidden states of the first token, below the last layer.

Sun et al. 2019, "Patient Knowledge Distillation for BERT Model Compression" (arXiv:1908.09355), equation 7:
``sum_l || h_S / ||h_S|| - h_T / ||h_T|| ||^2``, the sum over the pairs of the layer map; here the mean over rows.
The authors' code takes the mean over rows, layers and width instead, and the published factors beta (10 to 1000)
belong to that: here the same weight is beta / (layers * width), so 0.13 for beta = 500, five layers and width 768.
"""

from torch import Tensor
from torch.nn.functional import normalize

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import first_token_pairs, zero

NEEDS = frozenset({"first"})
MEAN_OVER = "texts"


def loss(student: Outputs, teacher: Outputs, batch: Batch, *, layers: str = "skip", normalised: bool = True) -> Tensor:
    """Return the sum over layers of the mean over rows of the squared distance between vectors of length 1.

    Args:
        layers: ``skip`` compares with layers from all over the teacher, ``last`` with those just below its last.
        normalised: false compares the states as they are, which the authors did on the larger tasks.

    Raises:
        CompressError: the student has no hidden states, or is not as wide as the teacher.
    """
    pairs = first_token_pairs(student, teacher, layers, loss="patience")
    if normalised:
        pairs = ((normalize(ours, dim=-1), normalize(theirs, dim=-1)) for ours, theirs in pairs)
    return sum(((ours - theirs).square().sum(dim=-1).mean() for ours, theirs in pairs), start=zero(student))
