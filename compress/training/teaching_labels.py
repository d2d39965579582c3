"""Label directories that a student learns from: of its teacher, or from elsewhere.

Labels from elsewhere are the only source of logits then: the teacher gives tokenizer, start and hidden states, and its
own logits never mix with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compress import plugins
from compress.errors import CompressError
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import ModelDir
from compress.models.pretrained import load_classifier
from compress.recipes import Phase
from compress.requests import Model
from compress.tasks import Task, default

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class BareEncoder(ModelDir):
    """A pretrained encoder in the place of a teacher, where labels from elsewhere say what its classes are."""

    classes: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return self.classes

    @property
    def task(self) -> Task:
        return default()

    def load(self, *, plain: bool = False) -> "PreTrainedModel":
        """Load it with a head of the classes, which is random."""
        model: PreTrainedModel = load_classifier(self, self.classes, self.task).eval()
        return model


def open_teacher(path: Model, labels: Sequence[LabelDir]) -> ModelDir:
    """Open a teacher; where all labels are imported, a pretrained encoder will do."""
    if not labels or any(directory.teacher_sha256 for directory in labels):
        return ModelDir.open(path)
    opened = ModelDir.open(path, classifier=False)
    if opened.is_classifier:
        return ModelDir.open(path, verify=False)
    return BareEncoder(opened.path, opened.manifest, labels[0].manifest.labels)


def check_foreign_labels(model: ModelDir, phases: Sequence[Phase], labels: Sequence[LabelDir], student: str) -> None:
    """Refuse phases that need logits which labels from elsewhere do not hold.

    Raises:
        CompressError: the model would have to say something of a changed text, or a loss compares logits and the labels
            have probabilities of 0.
    """
    if not labels:
        return
    for phase in phases:
        if "mixed" in phase.needs or phase.masking and "logits" in phase.needs:
            raise CompressError(
                f"the student {student!r} learns from the logits of changed text (masked, or in two vocabularies), and "
                f"{labels[0].path} holds logits that are not of {model.name}, which cannot label that text; use a "
                "student without it, such as distilbert-6"
            )
        for choice in phase.losses:
            zeros = next((one for one in labels if one.has_zeros), None)
            if zeros and "exact" in plugins.find("losses", choice.name).needs:
                raise CompressError(
                    f"the student {student!r} compares logits (the loss {choice.name}), and {zeros.path} has classes "
                    "with a probability of 0, whose logit is minus infinity; import the file again with --smoothing "
                    "0.01, which gives every class a share, or use a student that learns by kl, such as pd"
                )
