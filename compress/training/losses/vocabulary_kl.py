"""Divergence between what teacher and student expect in the place of a masked token.

General DistilBERT (Sanh et al. 2019, arXiv:1910.01108, section 3): ``T**2 KL(p_teacher || p_student)`` over the
vocabulary; the mean over the masked tokens of the batch (the authors' code: over all tokens unless told otherwise, for
which the heads cost about seven times as much).

A classifier or a sentence encoder has lost its head for masked tokens, so that the teacher's head is trained
meanwhile, on the same text: its cross-entropy with the true tokens is added, which changes the head alone and neither
the teacher nor its embeddings. In the first steps the teacher's distribution is therefore worth little. ``mlm`` adds
that multiple of the student's own cross-entropy through the same student head, as DistilBERT's triple loss does (2 of
mlm to 5 of this: 0.4).
"""

from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.errors import refuse
from compress.models.batch import Batch, Outputs
from compress.models.components import input_embeddings
from compress.tasks import default
from compress.training.losses._common import VocabularyHead, masked_tokens, require_outputs, zero

NEEDS = frozenset({"hidden", "targets"})
MEAN_OVER = "targets"


def loss(
    student: Outputs,
    teacher: Outputs,
    batch: Batch,
    heads: nn.ModuleDict,
    *,
    temperature: float = 2.0,
    mlm: float = 0.0,
) -> Tensor:
    """Return the divergence, plus the cross-entropy of the teacher's head; zero when no token is masked.

    Raises:
        CompressError: a side has no hidden states.
    """
    require_outputs("hidden", loss="vocabulary-kl", student=student, teacher=teacher)
    learner, targets = masked_tokens(student, batch)
    model, _ = masked_tokens(teacher, batch)
    if not len(targets):
        return zero(student)
    ours, theirs = heads["student"](learner), heads["teacher"](model.detach())
    total = nn.functional.cross_entropy(theirs, targets)
    if mlm:
        total = total + mlm * nn.functional.cross_entropy(ours, targets)
    return total + default().divergence(ours, theirs.detach(), temperature)


def learned(student: PreTrainedModel, teacher: PreTrainedModel) -> nn.ModuleDict:
    """Return a head over the vocabulary for each side.

    Raises:
        CompressError: the two read different vocabularies.
    """
    ours, theirs = (input_embeddings(model).num_embeddings for model in (student, teacher))
    refuse(
        (
            ours != theirs,
            f"the loss vocabulary-kl needs one vocabulary; the student has {ours} pieces and the teacher {theirs}: "
            "leave [vocabulary] out of the recipe, or use the loss mixed-vocabulary",
        )
    )
    return nn.ModuleDict({"student": VocabularyHead(student), "teacher": VocabularyHead(teacher, frozen=True)})
