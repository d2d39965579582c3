"""Inputs of a distillation, opened and checked: teacher, student, start, and labels of the teacher or from elsewhere.

Labels from elsewhere are the only source of logits then: the teacher gives tokenizer, start and hidden states, and its
own logits never mix with them.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from transformers import PreTrainedModel

from compress import plugins, recipes
from compress.data import Example
from compress.errors import CompressError, refuse
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import ModelDir
from compress.progress import logger
from compress.recipes import Phase, StudentRecipe, of_phases, resolved
from compress.requests import Model, is_given
from compress.requests.training import Distill
from compress.tasks import Task, default


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

    def load(self, *, plain: bool = False) -> PreTrainedModel:
        """Load it with a head of the classes, which is random."""
        model: PreTrainedModel = self.with_head(self.classes, self.task).eval()
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
    zeros = next((one for one in labels if one.has_zeros), None)
    for phase in phases if labels else ():
        if "mixed" in phase.needs or phase.masking and "logits" in phase.needs:
            raise CompressError(
                f"the student {student!r} learns from the logits of changed text (masked, or in two vocabularies), and "
                f"{labels[0].path} holds logits that are not of {model.name}, which cannot label that text; use a "
                "student without it, such as distilbert-6"
            )
        for choice in phase.losses:
            if zeros and "exact" in plugins.find("losses", choice.name).needs:
                raise CompressError(
                    f"the student {student!r} compares logits (the loss {choice.name}), and {zeros.path} has classes "
                    "with a probability of 0, whose logit is minus infinity; import the file again with --smoothing "
                    "0.01, which gives every class a share, or use a student that learns by kl, such as pd"
                )


def open_student(student: Any) -> StudentRecipe:
    """Return the recipe of a student, given itself, by its name or as a file."""
    if isinstance(student, StudentRecipe):
        return student
    return cast(StudentRecipe, recipes.load_recipe("students", os.fspath(student)))


def open_start(start: Model, recipe: StudentRecipe) -> tuple[ModelDir, StudentRecipe]:
    """Open the output of ``compress pretrain``; return the recipe without the phases that have run there.

    The other phases keep their steps.
    """
    opened = ModelDir.open(start, classifier=False)
    pretrained = opened.manifest.stage == "pretrain"
    done = opened.manifest.recipe["phases"] if pretrained else ()
    left = [phase for phase in recipe.phases if resolved(phase) not in done]
    refuse(
        (
            not pretrained,
            f"{start} was not made by 'compress pretrain', which --start needs; to start from another checkpoint use a "
            "student of the architecture checkpoint",
        ),
        (
            recipe.vocabulary,
            f"the student {recipe.name!r} learns a vocabulary of its own, which {opened.path} does not read; leave "
            "--start out",
        ),
        (not left, f"{opened.path} has gone through all phases of the student {recipe.name!r} already"),
    )
    for phase in recipe.phases:
        if phase not in left:
            logger.info("phase %s: done in %s", phase.name or "without a name", opened.name)
    return opened, of_phases(recipe, left)


def possible_phases(recipe: StudentRecipe, train: Sequence[Example]) -> tuple[Phase, ...]:
    """Return the phases of a recipe; without gold rows those that use nothing else are left out, with a warning.

    There is also a warning where a loss on gold labels, beside other losses, has no effect.
    """
    if train:
        return recipe.phases
    left = []
    for phase in recipe.phases:
        gold = [choice.name for choice in phase.losses if "labels" in plugins.find("losses", choice.name).needs]
        of_phase = f"the phase {phase.name} of {recipe.name}" if phase.name else recipe.name
        if phase.text == "gold" or phase.needs == {"labels"}:
            logger.warning("%s learns from gold rows and there are none (--train FILE): it is left out", of_phase)
            continue
        if gold:
            logger.warning("%s: no gold rows (--train FILE), so that %s adds nothing", of_phase, ", ".join(gold))
        left.append(phase)
    return tuple(left)


def check_request(model: ModelDir, recipe: StudentRecipe, request: Distill, opened: Sequence[LabelDir]) -> None:
    """Refuse what this teacher and this student do not allow."""
    control, train, student = request.control, is_given(request.train), f"the student {recipe.name!r}"
    has_pool, has_validation = is_given(request.unlabeled), is_given(request.validation)
    has_text, reads_pool = has_pool or opened, recipe.reads_pool or recipe.vocabulary
    losses = () if control else [plugins.find("losses", choice.name) for choice in recipe.losses]
    refuse(
        (
            not has_text and (reads_pool or not train),
            "distill needs text: give --unlabeled FILE, which it labels first, or --labels DIR",
        ),
        (
            not has_text and not has_validation and not control,
            "without unlabelled text the best checkpoint is selected by labelled rows; give --validation FILE",
        ),
        (  # the text of phases that have run plans the steps of those that are left
            has_pool and has_validation and not reads_pool and not request.start,
            f"no phase of {student} reads unlabelled text; leave --unlabeled out",
        ),
        *(
            (need in loss.needs, f"{student} {reason.format(loss=loss.name, model=model.name)}")
            for loss in losses
            for need, reason in model.task.unfit_losses.items()
        ),
        (
            request.encoder is not None and not control and all(phase.teacher != "encoder" for phase in recipe.phases),
            f"no phase of {student}{' that --start leaves' * bool(request.start)} reads the encoder; leave --encoder "
            "out",
        ),
        *(
            (
                directory.teacher_sha256 not in {model.sha256, ""} and not request.combine,
                f"{directory.path} was labelled by another teacher ({directory.teacher_name}) than {model.name}; label "
                "the text again with 'compress label --teacher ...', or average several teachers of the same text with "
                "--combine mean",
            )
            for directory in opened
        ),
        (
            request.labels and recipe.augmentation and not request.variants,
            f"{student} varies the text before the teacher labels it, so that it cannot use finished labels; give the "
            "text with --unlabeled FILE",
        ),
        (
            not control
            and not train
            and all(phase.text == "gold" or phase.needs == {"labels"} for phase in recipe.phases),
            f"{student} learns from gold labels, and there are none; give --train FILE",
        ),
    )
