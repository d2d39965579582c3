"""Student recipe: the architecture of a published system and its training phases."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

import pydantic
from pydantic import PositiveFloat, PositiveInt

from compress import plugins
from compress.errors import CompressError
from compress.fields import validated
from compress.recipes.benchmark_settings import REFERENCE_MODELS
from compress.recipes.parsing import AS_TABLE, Checked, Choice, of_folder
from compress.recipes.training import Training, TrainingChanges

# Of a student in another shape, or with other phases: nothing published belongs to it any longer.
UNPUBLISHED: Mapping[str, Any] = {"missing": (), "limits": "", "published": (), "survey": ()}
# Modifiers that round weights or activations in the forward pass.
ROUNDING = frozenset(("fake-quantization", "groupwise-quantization"))
# Modifiers that mask units, which only the prune stage takes out of the weights.
PRUNING = frozenset(("gradual-pruning",))


def needs_of(losses: Iterable[Choice]) -> frozenset[str]:
    """Return what losses read of teacher and batch, ``logits``, ``hidden``, ``labels`` and so on, as they name it."""
    return frozenset().union(*(plugins.find("losses", choice.name).needs for choice in losses))


@validated
class Published:
    """What the authors reported. A label beside our measurement, never a threshold."""

    dataset: str
    metric: str
    value: float
    teacher: float
    source: str


@validated
class Survey(Checked):
    """A row of the survey of Rogers et al. 2020, "A Primer in BERTology", Table 1, as published.

    Figures are relative to ``baseline``: how many times smaller, the share of performance kept in percent, how many
    times faster (0 where none was reported). ``reference_model`` names a published shape that is measured for its speed
    only.
    """

    family: Literal["distillation", "quantization", "other"]
    system: str
    compression: float
    performance_kept: float
    speedup: float
    model: str
    evaluated_on: str
    baseline: str = "BERT-base"
    reference_model: str = ""

    @property
    def in_short(self) -> str:
        """Times smaller, performance kept, times as fast."""
        speed = f", ×{self.speedup:g}" if self.speedup else ""
        return f"÷{self.compression:g}, {self.performance_kept:g}%{speed}"

    def faults(self) -> Iterator[str]:
        if self.reference_model and self.reference_model not in REFERENCE_MODELS:
            yield f"unknown reference model {self.reference_model!r}; there is {', '.join(REFERENCE_MODELS)}"


@validated
class Phase(Checked):
    """One phase of a student's training: its text, its losses and teacher, and the layers they train.

    Args:
        losses: their weighted sum is minimised.
        text: ``all`` is the pool and the gold rows, ``pool`` the unlabelled text alone, ``gold`` the labelled rows
            alone.
        share: how much of the student's steps this phase takes, in proportion to the shares of the others.
        teacher: ``task`` is the fine-tuned teacher; ``encoder`` the pretrained model it was fine-tuned from, for
            general distillation before the task.
        masking: the share of tokens that masked language modelling hides from student and teacher (0: none).
        frozen: parts of the student that this phase does not train.
        by_layer: teach one layer after the other, from the lowest, each for an equal part of the phase: ``progressive``
            teaches that layer only and freezes what lies below; ``stacked`` goes on teaching the layers before it
            (Aguilar et al. 2020, arXiv:1910.03723, section 3.2).
        modifier: what happens inside the student's forward pass meanwhile, such as module replacing.
        training: values that replace the recipe's during this phase.
    """

    losses: tuple[Annotated[Choice, of_folder("losses"), AS_TABLE], ...]
    name: str = ""
    text: Literal["all", "pool", "gold"] = "all"
    share: PositiveFloat = 1.0
    teacher: Literal["task", "encoder"] = "task"
    masking: float = 0.0
    frozen: tuple[Literal["embeddings", "layers", "head"], ...] = ()
    by_layer: Literal["", "progressive", "stacked"] = ""
    modifier: Annotated[Choice, of_folder("modifiers"), AS_TABLE] | None = None
    training: TrainingChanges = field(default_factory=dict)

    @property
    def needs(self) -> frozenset[str]:
        """What the losses read of the teacher and the batch."""
        return needs_of(self.losses)

    @property
    def general(self) -> bool:
        """Whether the phase needs no task: only unlabelled text, and at most the pretrained encoder as its teacher."""
        # A loss that reads no output of the teacher may read its weights.
        reads_teacher = self.modifier or any(needs_of([choice]) != {"targets"} for choice in self.losses)
        by_task = reads_teacher and self.teacher == "task"
        return self.text == "pool" and not by_task and not self.needs & {"logits", "labels", "mixed"}

    def faults(self) -> Iterator[str]:
        if not self.losses:
            yield "losses is empty; a phase needs at least one"
        if not 0 <= self.masking < 1:
            yield f"masking = {self.masking} must be at least 0 and below 1"
        for choice in self.losses:
            if not choice.weight > 0:
                yield f"{choice.name}: weight = {choice.weight} must be above 0; leave the loss out instead"
            if not (temperature := choice.options.get("temperature", 1.0)) > 0:
                yield f"{choice.name}: temperature = {temperature} must be above 0"
        if "targets" in self.needs and not self.masking:
            yield "a loss predicts masked tokens, and masking is 0; set masking = 0.15"
        if self.teacher == "encoder" and self.needs & {"logits", "labels"}:
            yield "a loss reads logits or labels, which an encoder does not give; use teacher = 'task'"
        for name in ("epochs", "min_steps", "min_steps_per_class", "max_epochs", "max_steps"):
            if name in self.training:
                yield f"training.{name} cannot differ between phases; set share"
        if "max_length" in self.training:
            yield "training.max_length cannot differ between phases, which read the same tokens; set it for all"
        for name in {"class_weights", "logit_adjustment"} & {*self.training}:
            yield f"training.{name} cannot differ between phases, which read the same gold labels; set it for all"


@validated
class Augmentation:
    """Variants of the unlabelled text, which the teacher labels too: ``copies`` of each row by one of the
    augmenters.
    """

    by: Annotated[Choice, of_folder("augmenters"), AS_TABLE]
    copies: PositiveInt = 1


@validated
class Vocabulary:
    """A WordPiece vocabulary of ``size`` subword tokens, learned from the corpus, in place of the teacher's.

    With ``replaces = "other"`` it replaces only a vocabulary that is not WordPiece, which the native library cannot
    read.
    """

    size: Annotated[int, pydantic.Field(ge=100)]
    replaces: Literal["any", "other"] = "any"


@validated
class StudentRecipe(Checked):
    """One published system: an architecture, and the phases in which it learns.

    ``training`` holds for all phases together: its epochs or steps are divided among them. ``missing`` names what of
    the paper's method the recipe does not do; ``limits`` says in one line how its start, steps or text differ from the
    paper's or its control's, and is shown beside figures below the control's.
    """

    description: str
    architecture: Annotated[Choice, of_folder("architectures"), AS_TABLE]
    phases: tuple[Phase, ...]
    paper: str = ""
    training: Training = Training()
    missing: tuple[str, ...] = ()
    limits: str = ""
    published: tuple[Published, ...] = ()
    survey: tuple[Survey, ...] = ()
    augmentation: Augmentation | None = None
    vocabulary: Vocabulary | None = None
    name: str = ""

    @property
    def is_rounded(self) -> bool:
        """Whether the student is trained for what quantization will make of it."""
        return any(phase.modifier and phase.modifier.name in ROUNDING for phase in self.phases)

    def learns_vocabulary(self, tokenizer_kind: str) -> bool:
        """Whether it learns a vocabulary where the teacher's tokenizer is of this kind, such as ``WordPiece``."""
        return self.vocabulary is not None and (self.vocabulary.replaces == "any" or tokenizer_kind != "WordPiece")

    @property
    def losses(self) -> tuple[Choice, ...]:
        """The losses of all phases."""
        return tuple(choice for phase in self.phases for choice in phase.losses)

    @property
    def needs(self) -> frozenset[str]:
        """What the losses of all phases read of the teacher and the batch."""
        return needs_of(self.losses)

    @property
    def reads_pool(self) -> bool:
        """Whether a phase reads unlabelled text."""
        return any(phase.text != "gold" for phase in self.phases)

    @property
    def command(self) -> str:
        """What trains it, before the teacher and the data."""
        encoder = " --encoder DIR" if any(phase.teacher == "encoder" for phase in self.phases) else ""
        return f"compress distill --student {self.name}{encoder}"

    def faults(self) -> Iterator[str]:
        if not self.phases:
            yield "phases is empty; a student needs at least one"
        for name in (phase.modifier.name for phase in self.phases if phase.modifier):
            if name.replace("_", "-") in PRUNING:
                yield (
                    f"{name} masks units that a student would keep all the same; 'compress prune' removes them, so "
                    "prune the student afterwards"
                )
        live = self.needs & {"hidden", "first", "attention"}
        if self.vocabulary and (live or any(phase.masking and "logits" in phase.needs for phase in self.phases)):
            yield "with [vocabulary] student and teacher read other tokens: use losses on logits of whole text only"
        if not self.vocabulary and "mixed" in self.needs:
            yield "the loss mixed-vocabulary needs [vocabulary]"


def of_phases(recipe: StudentRecipe, kept: Sequence[Phase]) -> StudentRecipe:
    """Return a recipe of some of its phases, with the part of its epochs and steps that their shares give them."""
    part = sum(phase.share for phase in kept) / sum(phase.share for phase in recipe.phases)
    return dataclasses.replace(recipe, phases=tuple(kept), training=recipe.training.part(part))


def in_phases(recipe: StudentRecipe, phases: Sequence[Phase], *, source: str) -> StudentRecipe:
    """Return the student of a recipe with other phases."""
    own = {"description": f"The student of {recipe.name}, with phases of its own.", "paper": "", **UNPUBLISHED}
    try:
        return dataclasses.replace(recipe, phases=tuple(phases), **own)
    except CompressError as error:
        raise CompressError(f"{source}: {error}") from None


# Of a student's recipe. Variants of the text count too: they are in the number of steps and in a learned vocabulary.
_OF_CONTROL = ("architecture", "vocabulary", "augmentation", "training")


def control_key(recipe: Mapping[str, Any], seed: int | None) -> str:
    """Return a fingerprint of all that decides a student's control, from its recipe as a manifest holds it.

    The control is the same student trained on gold labels alone. It does not see the phases of its student, so that
    students which differ in these only share one. Empty where the recipe is not one of a student.
    """
    if "architecture" not in recipe:
        return ""
    deciding = [seed, *(recipe.get(key) for key in _OF_CONTROL)]
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
