"""How a shape is built, timed, trained and judged.

A model is as fast with random weights as with trained ones, so that a shape is timed before anything is trained: with
the weights that its training begins with it is exported, made int8, and timed in turns with the teacher in torch, which
is what the user runs today. Training it is a request with the steps of a rung.
"""

import random
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from logging import WARNING
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from compress import plugins
from compress.data import Example
from compress.errors import CompressError
from compress.evaluation.metrics import Metric, paired_difference, score
from compress.exporting.export import write_onnx
from compress.inference.compute import Compute
from compress.inference.native.write import write_native
from compress.inference.runners import load_runner, served_bytes, time_side_by_side
from compress.inference.threads import core_count
from compress.labelling.label_dir import LabelDir
from compress.models.manifest import ONNX_NAME, is_whole, keep, kept
from compress.models.model_dir import Model, open_model
from compress.models.output_dir import places_of
from compress.models.saving import save_model
from compress.models.training_log import read_training
from compress.progress import Progress, logger, silent
from compress.pruning.prune import RECOVERY, prune, recovery_training
from compress.quantization.quantize import quantize
from compress.recipes import StudentRecipe, Training
from compress.requests.compression import Prune, Quantize, export
from compress.requests.training import Distill
from compress.searching.space import PRECISIONS, QUANTIZER, Shape
from compress.searching.trials import LAST, RUNGS, ShapeTiming, TrainedRung, ValidationScore
from compress.training.build_student import build_student
from compress.training.distill import distill
from compress.training.phases import steps_for
from compress.training.training_data import LabelledPool

SHAPE_TEXTS = 50_000  # of the pool and of train each, whose vocabulary small students are timed with
SCORING_ROWS = 256  # of heads and neurons
FAULT = "fault"  # in the record of a training that failed


@dataclass(frozen=True)
class ValidationRows:
    """The rows that candidates are judged on, and what the teacher predicts for them."""

    teacher: Model
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
        return self.judge(self.reference).value

    def predicted(self, directory: Path) -> np.ndarray:
        """Return what the directory of a model or a cascade predicts ``[N]``, in the runtime that opens it."""
        model = open_model(directory, verify=False)
        logits = load_runner(model, Compute("cpu", self.threads)).logits(self.examples)
        return model.task.judged(logits, self.metric)

    def judge(self, predicted: np.ndarray) -> ValidationScore:
        sentences = self.teacher.task.clusters(self.examples, self.metric)
        compared: dict[str, Any] = {"metric": self.metric, "classes": len(self.teacher.labels), "sentences": sentences}
        difference = paired_difference(predicted, self.reference, self.gold, **compared, seed=self.seed)
        value = score(predicted, self.gold, **compared)
        return ValidationScore(value, difference.points, difference.low, difference.high)


def at_rung(recipe: StudentRecipe, rung: int, rows: int, classes: int) -> tuple[StudentRecipe, int | None]:
    """Return a recipe with the steps of a rung, and how many unlabelled rows it reads; None for all.

    A lower rung reads no more text than its steps take: to open and tokenise a large pool may take longer than they do.

    Args:
        rows: of the text with the gold rows.
    """
    if rung == LAST:
        return recipe, None
    training, read = recipe.training.part(RUNGS[rung]).for_classes(classes), None
    steps = steps_for(rows, training)
    if steps * training.batch_size < rows:
        read = steps * training.batch_size
        training = replace(training, min_steps=steps, max_steps=steps, max_epochs=100.0)
    return replace(recipe, training=training), read


def pruning_of(shape: Shape, rung: int) -> dict[str, Any]:
    """Return what is removed from the teacher, and by how much training it recovers.

    Many shapes are tried, so that heads and neurons are scored on fewer rows and less often than by default.
    """
    step = {"step": 0.25} if shape.options["heads"] or shape.options["ffn"] else {}
    return {**shape.options, **step, "examples": SCORING_ROWS, "recover": RUNGS[rung]}


@dataclass(frozen=True)
class Trainer:
    """Times and trains shapes, each once: ``folder`` keeps what is finished.

    Args:
        labels: of the pool and of the gold rows, which the teacher has made once for all.
        train: gold rows to train on.
        validation: rows that select checkpoints, and that models are timed and judged on; not on train, whose texts may
            be of other lengths, on which speed-ups depend.
    """

    teacher: Model
    folder: Path
    labels: tuple[LabelDir, ...]
    train_rows: Sequence[Example]
    validation: ValidationRows
    compute: Compute
    progress: Progress = silent

    def known_timing(self, shape: Shape) -> ShapeTiming | None:
        """Return what a shape was found to cost, None before it is timed."""
        found = kept(self._record(shape, "timing"))
        return None if found is None else ShapeTiming(**found)

    def time(self, shape: Shape) -> ShapeTiming:
        """Return what a shape costs; both precisions take turns at once, because building takes longer than timing."""
        if (found := self.known_timing(shape)) is not None:
            return found
        with TemporaryDirectory(dir=self.folder) as work:
            try:
                timed = self._timed(shape, Path(work))
            except CompressError as error:  # such as a tokenizer of which no vocabulary is learned
                timed = dict.fromkeys(PRECISIONS, ShapeTiming(fault=str(error)))
        for precision, timing in timed.items():
            keep(self._record(replace(shape, precision=precision), "timing"), asdict(timing))
        return timed[shape.precision]

    def _timed(self, shape: Shape, work: Path) -> dict[Any, ShapeTiming]:
        torch_form, directories = work / "torch", {str(precision): work / precision for precision in PRECISIONS}
        self._build(shape, torch_form)
        directories["fp32"].mkdir()
        write_onnx(Model.open(torch_form), directories["fp32"])
        shutil.copytree(directories["fp32"], directories["int8"], ignore=shutil.ignore_patterns(f"{ONNX_NAME}*"))
        plugins.find("quantizers", QUANTIZER).function(directories["fp32"] / ONNX_NAME, directories["int8"] / ONNX_NAME)
        for directory in directories.values():
            write_native(directory)
        examples, threads = self.validation.examples, self.validation.threads
        rows = random.Random(self.compute.seed).sample(examples, len(examples))
        places = {"teacher": self.teacher.path, **directories}
        teacher, *speeds = time_side_by_side(places, rows, runtime="", threads=threads, batch_sizes=(1,))
        sizes = {name: served_bytes(Model.open(path, verify=False)) for name, path in directories.items()}
        return {
            one.name: ShapeTiming(one.latency_ms, one.speedup, one.low, one.high, sizes[one.name], teacher.latency_ms)
            for one in speeds
        }

    def _build(self, shape: Shape, directory: Path) -> None:
        """Write the model as its training begins.

        Raises:
            CompressError: the teacher or the text do not allow this shape.
        """
        if shape.is_pruned:
            asked = {**pruning_of(shape, 0), "recover": 0.0, "train": list(self.train_rows[:SCORING_ROWS])}
            with quiet_stages():
                prune(Prune(self.teacher, directory, measure=False, **asked, **vars(self.compute)))
            return

        def texts() -> Iterable[Example]:
            return chain(LabelledPool(self.labels[:1]).sample(SHAPE_TEXTS), self.train_rows[:SHAPE_TEXTS])

        torch.manual_seed(self.compute.seed)
        teacher, tokenizer = self.teacher.load(), self.teacher.tokenizer
        built, tokenizer, _ = build_student(shape.recipe(), teacher, tokenizer, texts, seed=self.compute.seed)
        save_model(built, tokenizer, directory)

    def recipe(self, shape: Shape, rung: int) -> tuple[StudentRecipe, int | None]:
        """Return the recipe of a student at a rung, and how many unlabelled rows it reads; None for all."""
        return at_rung(shape.recipe(), rung, self._rows, len(self.teacher.labels))

    def training(self, shape: Shape, rung: int) -> tuple[Training, int]:
        """Return the hyperparameters of a rung's training, and how many rows it reads."""
        if shape.is_pruned:
            return recovery_training(RECOVERY, RUNGS[rung]), self._rows
        recipe, read = self.recipe(shape, rung)
        return recipe.training.for_classes(len(self.teacher.labels)), read or self._rows

    def steps(self, shape: Shape, rung: int) -> int:
        training, rows = self.training(shape, rung)
        return steps_for(rows, training)

    @property
    def _rows(self) -> int:
        return sum(directory.rows for directory in self.labels)

    def expected_seconds(self, shape: Shape, latency_ms: float) -> float:
        """Return about how long the steps of the first rung take on a CPU at least, by a row's latency; 0 on a GPU.

        Forward and backward pass take three times as long as a forward pass, and a large model does not gain much by
        batches. A small one takes longer: much of its time goes elsewhere.
        """
        if self.compute.device != "cpu":
            return 0.0
        cores = 1 if self.compute.threads else core_count()  # with which latency was not measured
        return 3 * self.steps(shape, 0) * self.training(shape, 0)[0].batch_size * latency_ms / 1000 / cores

    def deployed(self, shape: Shape, rung: int) -> Path:
        """Return where the directory lies that is judged, and may be the result."""
        return self.folder / f"deployed-{shape.key}-{rung}"

    def is_trained(self, shape: Shape, rung: int) -> bool:
        """Tell whether a shape has taken the steps of a rung, for this precision or the other one."""
        return self._student(shape, rung).is_dir()

    def taken_share(self, shape: Shape, rung: int) -> float:
        """Return the share of a rung's steps that a training which was killed has taken and kept."""
        _, unfinished = places_of(self._student(shape, rung))
        taken: dict[Path, int] = {}  # by phase
        for path in unfinished.rglob("checkpoint-*"):
            taken[path.parent] = max(taken.get(path.parent, 0), int(path.name.rpartition("-")[2]))
        return min(1.0, sum(taken.values()) / self.steps(shape, rung))

    def known(self, shape: Shape) -> list[TrainedRung]:
        """Return what is finished of a shape, in the order of rungs."""
        found = [values for values in self._records(shape) if FAULT not in values]
        return [TrainedRung(**{**values, "score": ValidationScore(**values["score"])}) for values in found]

    def fault(self, shape: Shape) -> str:
        """Return why a training of a shape failed, empty where none did."""
        return next((values[FAULT] for values in self._records(shape) if FAULT in values), "")

    def train(self, shape: Shape, rung: int) -> TrainedRung:
        """Train a shape for the steps of a rung, make of it what is deployed, and judge that.

        Raises:
            CompressError: the training diverged, or its result cannot be deployed; a search that goes on knows it.
        """
        if fault := self.fault(shape):
            raise CompressError(fault)
        try:
            made = self._trained(shape, rung)
        except CompressError as error:
            keep(self._record(shape, rung), {FAULT: str(error)})
            raise
        keep(self._record(shape, rung), asdict(made))
        return made

    def _trained(self, shape: Shape, rung: int) -> TrainedRung:
        begun = time.monotonic()
        student, deployed = self._student(shape, rung), self.deployed(shape, rung)
        with quiet_stages():
            if not is_whole(student):
                self._train(shape, rung, student)
            if not is_whole(deployed):
                if shape.precision == "int8":
                    quantize(Quantize(student, deployed, method=QUANTIZER))
                else:
                    export(student, deployed)
        score = self.validation.judge(self.validation.predicted(deployed))
        notes = Model.open(student, verify=False).manifest.notes
        notes = notes.get("recovery") or notes
        # The notes have the seconds of the last start alone.
        speeds = [line["rows_per_second"] for line in read_training(student).lines if line.get("rows_per_second")]
        at_speed = notes["steps"] * self.training(shape, rung)[0].batch_size / median(speeds) if speeds else 0.0
        training = round(max(notes["seconds"], at_speed), 1)
        seconds, size = round(time.monotonic() - begun, 1), served_bytes(Model.open(deployed, verify=False))
        return TrainedRung(rung, notes["steps"], max(seconds, training), training, size, score)

    def _train(self, shape: Shape, rung: int, directory: Path) -> None:
        """Write the model after the training of a rung; what a killed process left is gone on with."""
        asked: dict[str, Any] = {
            "train": list(self.train_rows),
            "validation": list(self.validation.examples),
            "metric": self.validation.metric.name,
            "labels": self.labels,
            "progress": self.progress,
            **vars(self.compute),
        }
        if shape.is_pruned:
            prune(Prune(self.teacher, directory, measure=False, **pruning_of(shape, rung), **asked))
            return
        recipe, read = self.recipe(shape, rung)
        distill(Distill(self.teacher, recipe, directory, rows=read, **asked))

    def _student(self, shape: Shape, rung: int) -> Path:
        """Return where a training lies, which both precisions of a shape are of."""
        return self.folder / f"trained-{Shape(shape.family, shape.options).key}-{rung}"

    def _records(self, shape: Shape) -> list[dict[str, Any]]:
        return list(filter(None, (kept(self._record(shape, rung)) for rung in range(len(RUNGS)))))

    def _record(self, shape: Shape, of: int | str) -> Path:
        return self.folder / f"{shape.key}-{of}.json"


@contextmanager
def quiet_stages() -> Iterator[None]:
    """Keep the notes of single trainings off the terminal, where a search says what came of them."""
    before = logger.level
    logger.setLevel(max(before, WARNING) if before else WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
