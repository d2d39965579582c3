"""Mean squared error between hidden states, through a learned projection where the widths differ.

Jiao et al. 2020, "TinyBERT" (arXiv:1909.10351), equation 8: ``MSE(H_S W_h, H_T)``, one ``W_h`` for all layers, with a
bias as in the authors' code; the sum over layers of the mean over width and all real tokens of the batch (the
authors' code counts padding too). ``normalised`` compares after a layer norm without parameters: the feature-map
transfer of Sun et al. 2020, "MobileBERT" (arXiv:2004.02984), section 3.5, as in the authors' code.
"""

from torch import Tensor, nn
from torch.nn.functional import layer_norm

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import hidden_pairs, token_mean, width_projection, zero

NEEDS = frozenset({"hidden"})
MEAN_OVER = "tokens"
learned = width_projection


def loss(
    student: Outputs,
    teacher: Outputs,
    batch: Batch,
    projection: nn.Module,
    *,
    layers: str = "uniform",
    projected: bool = False,
    normalised: bool = False,
) -> Tensor:
    """Return the sum over layers of the mean squared difference; ``projected`` asks for a projection at equal widths.

    Raises:
        CompressError: a side without hidden states.
    """
    total = zero(student)
    for ours, theirs in hidden_pairs(student, teacher, layers, loss="hidden-mse"):
        pair = projection(ours), theirs
        ours, theirs = (layer_norm(one, one.shape[-1:]) for one in pair) if normalised else pair
        total = total + token_mean((ours - theirs).square().mean(dim=-1), batch)
    return total
