"""Mean squared error between the raw logits of student and teacher, without a temperature.

Tang et al. 2019 (arXiv:1903.12136), equation 4, after Ba and Caruana 2014.
"""

from torch import Tensor, nn

from compress.models.batch import Batch, Outputs

NEEDS = frozenset({"logits", "exact"})  # it would fit what stands for the logit of a probability of 0


def loss(student: Outputs, teacher: Outputs, batch: Batch) -> Tensor:
    """Return the mean over batch and classes of ``(z_student - z_teacher)**2``."""
    return nn.functional.mse_loss(student.logits.float(), teacher.logits.float())
