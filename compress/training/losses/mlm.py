"""Masked language modelling: cross-entropy with the tokens that masking hid or replaced.

Devlin et al. 2019, "BERT" (arXiv:1810.04805), section 3.1; the second of DistilBERT's three losses (Sanh et al. 2019,
arXiv:1910.01108). The mean over the masked tokens of the batch. The head is learned here and thrown away at the end;
its output matrix is the student's own embeddings, which therefore learn too.
"""

from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.models.batch import Batch, Outputs
from compress.training.losses._common import VocabularyHead, masked_tokens, require_outputs, zero

NEEDS = frozenset({"targets"})
STUDENT_NEEDS = frozenset({"hidden"})
MEAN_OVER = "targets"


def loss(student: Outputs, teacher: Outputs, batch: Batch, head: nn.Module) -> Tensor:
    """Return the mean cross-entropy over the masked tokens; zero when the batch has none.

    Raises:
        CompressError: the student has no hidden states.
    """
    require_outputs("hidden", loss="mlm", student=student)
    hidden, targets = masked_tokens(student, batch)
    return nn.functional.cross_entropy(head(hidden), targets) if len(targets) else zero(student)


def learned(student: PreTrainedModel, teacher: PreTrainedModel) -> nn.Module:
    return VocabularyHead(student)
