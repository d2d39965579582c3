"""How a shape becomes a model in torch: as a student that learns from the teacher, or by pruning the teacher.

Each is made in two ways: as its training begins, which is enough to time it, and with the training of a rung.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import WARNING
from pathlib import Path

import torch

from compress.data import Example, LabelledData
from compress.inference.compute import Compute
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import ModelDir
from compress.models.saving import save_model
from compress.progress import Progress, logger
from compress.pruning.prune import RECOVERY, PruningData, prune, recovery_training
from compress.recipes import Pruning, StudentRecipe, Training
from compress.requests.training import Distill
from compress.searching.halving import RUNGS, at_rung
from compress.searching.space import Shape
from compress.training.build_student import build_student
from compress.training.distill import distill


@dataclass(frozen=True)
class Maker:
    """Makes models of shapes.

    Args:
        labels: of the pool and of the gold rows, which the teacher has made once for all.
        texts: gives the texts that students are trained on, whose tokens are the vocabulary of small ones.
    """

    teacher: ModelDir
    labels: tuple[LabelDir, ...]
    labelled: LabelledData
    texts: Callable[[], Iterable[Example]]
    compute: Compute
    progress: Progress

    def build(self, shape: Shape, directory: Path) -> None:
        """Write the model as its training begins.

        Raises:
            CompressError: the teacher or the text do not allow this shape.
        """
        if shape.is_pruned:
            pruning = replace(pruning_of(shape, 0), recover=0.0)
            few = PruningData(self.labelled.train[: pruning.examples])
            with quiet_stages():
                prune(self.teacher, pruning, directory, data=few, measure=False, compute=self.compute)
            return
        torch.manual_seed(self.compute.seed)
        teacher, tokenizer = self.teacher.load(), self.teacher.tokenizer
        built = build_student(shape.recipe(), teacher, tokenizer, self.texts, seed=self.compute.seed)
        save_model(built.model, built.tokenizer, directory)

    def recipe(self, shape: Shape, rung: int) -> tuple[StudentRecipe, int]:
        """Return the recipe of a student at a rung, and how many unlabelled rows it reads; 0 for all."""
        return at_rung(shape.recipe(), rung, self._rows, len(self.teacher.labels))

    def training(self, shape: Shape, rung: int) -> tuple[Training, int]:
        """Return the hyperparameters of a rung's training, and how many rows it reads."""
        if shape.is_pruned:
            return recovery_training(RECOVERY, pruning_of(shape, rung).recover), self._rows
        recipe, read = self.recipe(shape, rung)
        return recipe.training.for_classes(len(self.teacher.labels)), read or self._rows

    def train(self, shape: Shape, rung: int, directory: Path) -> None:
        """Write the model after the training of a rung; what a killed process left is gone on with."""
        compute, progress = self.compute, self.progress
        if shape.is_pruned:
            rows = self.labelled
            data = PruningData(rows.train, rows.validation, rows.metric, labels=self.labels)
            pruning = pruning_of(shape, rung)
            prune(self.teacher, pruning, directory, data=data, measure=False, compute=compute, progress=progress)
        else:
            recipe, read = self.recipe(shape, rung)
            rows = self.labelled
            asked = Distill(
                self.teacher,
                recipe,
                directory,
                labels=self.labels,
                rows=read,
                train=rows.train,
                validation=rows.validation,
                metric=rows.metric,
                overlap=rows.overlap,
                progress=progress,
                **vars(compute),
            )
            distill(asked)

    @property
    def _rows(self) -> int:
        """How many rows have labels of the teacher."""
        return sum(directory.rows for directory in self.labels)


def pruning_of(shape: Shape, rung: int) -> Pruning:
    """Return what is removed from the teacher, and by how much training it recovers.

    Many shapes are tried, so that heads and neurons are scored on fewer rows and less often than by default.
    """
    step = 0.25 if shape.options["heads"] or shape.options["ffn"] else Pruning.step
    return Pruning(**shape.options, step=step, examples=256, recover=RUNGS[rung])


@contextmanager
def quiet_stages() -> Iterator[None]:
    """Keep the notes of single trainings off the terminal, where a search says what came of them."""
    before = logger.level
    logger.setLevel(max(before, WARNING) if before else WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
