"""Judge candidates on validation rows: anything with a prediction for every row, be it one model or several.

A candidate is what it predicts and what it costs; how it came to be does not matter here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from compress.data import Example
from compress.evaluation.metrics import Metric, paired_difference, score
from compress.inference.compute import Compute
from compress.inference.predict import load
from compress.inference.runners import LoadedModel
from compress.models.cascade_dir import CascadeDir, open_model
from compress.models.model_dir import ModelDir


@dataclass(frozen=True)
class ValidationScore:
    """The metric on validation rows, and its difference to the teacher's in points with the paired 95% interval."""

    value: float
    points: float
    low: float
    high: float


@dataclass(frozen=True)
class ValidationRows:
    """The rows that candidates are judged on, and what the teacher predicts for them."""

    teacher: ModelDir
    examples: Sequence[Example]
    metric: Metric
    threads: int
    seed: int

    @cached_property
    def gold(self) -> np.ndarray:
        """Gold labels or scores ``[N]``."""
        task = self.teacher.task
        return task.column(task.gold(self.examples, self.teacher.labels, "validation"))

    @cached_property
    def reference(self) -> np.ndarray:
        """What the teacher predicts ``[N]``."""
        return self.predicted(self.teacher.path)

    @cached_property
    def teacher_value(self) -> float:
        """The teacher's metric."""
        return self.judge(self.reference).value

    def predicted(self, directory: Path) -> np.ndarray:
        """Return what the directory of a model or a cascade predicts ``[N]``, in the runtime that opens it."""
        model, compute = open_model(directory, verify=False), Compute("cpu", self.threads)
        if isinstance(model, CascadeDir):
            found = load(model, compute=compute).predict(list(self.examples))
            return np.array([model.labels.index(one["label"]) for one in found])
        return model.task.predictions(LoadedModel.load(model, compute).logits(self.examples))

    def judge(self, predicted: np.ndarray) -> ValidationScore:
        """Judge predictions ``[N]``."""
        classes = len(self.teacher.labels)
        value = score(predicted, self.gold, metric=self.metric, classes=classes)
        difference = paired_difference(
            predicted, self.reference, self.gold, metric=self.metric, classes=classes, seed=self.seed
        )
        return ValidationScore(value, difference.points, difference.low, difference.high)
