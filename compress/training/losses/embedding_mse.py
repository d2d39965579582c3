"""Mean squared error between embeddings, through a learned projection where the widths differ.

Jiao et al. 2020, "TinyBERT" (arXiv:1909.10351), equation 9: ``MSE(E_S W_e, E_T)``, where E is what enters the first
layer. ``W_e`` is another matrix than hidden-mse's, as in the paper; the authors' code learns one for both. The mean
over width and all real tokens of the batch.
"""

from torch import Tensor, nn

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import require_outputs, token_mean, width_projection

NEEDS = frozenset({"hidden"})
MEAN_OVER = "tokens"
learned = width_projection


def loss(student: Outputs, teacher: Outputs, batch: Batch, projection: nn.Module, *, projected: bool = False) -> Tensor:
    """Return the mean squared difference; ``projected`` asks for a projection at equal widths.

    It does not depend on the layers that are taught now: what is frozen takes no gradient.

    Raises:
        CompressError: a side without hidden states.
    """
    require_outputs("hidden", loss="embedding-mse", student=student, teacher=teacher)
    difference = projection(student.hidden[0].float()) - teacher.hidden[0].float()
    return token_mean(difference.square().mean(dim=-1), batch)
