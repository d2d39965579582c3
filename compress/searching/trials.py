"""Trials of a search: a shape, what it costs, and what it was worth at each rung that it reached."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.inference.threads import core_count
from compress.models.model_dir import ModelDir
from compress.models.output_dir import places_of
from compress.models.resumption import is_whole, keep, kept
from compress.models.training_log import read_training
from compress.quantization.candidates import Quantization
from compress.quantization.quantize import quantize
from compress.requests.exporting import export
from compress.searching.halving import LAST, RUNGS
from compress.searching.judging import ValidationRows, ValidationScore
from compress.searching.making import Maker, quiet_stages
from compress.searching.shapes import ShapeTiming
from compress.searching.space import QUANTIZER, Shape
from compress.training.step_plan import steps_for

FAULT = "fault"  # in the record of a training that failed


@dataclass(frozen=True)
class TrainedRung:
    """A student that was trained for the steps of a rung, and judged as it is deployed: exported, or in int8.

    ``seconds`` are those of the whole work; ``training_seconds`` alone grow with the steps. ``size_bytes`` may be more
    than was found when the shape was timed, with the vocabulary of a part of the text.
    """

    rung: int
    steps: int
    seconds: float
    training_seconds: float
    size_bytes: int
    score: ValidationScore


@dataclass
class Trial:
    """A shape that was tried."""

    number: int
    shape: Shape
    timing: ShapeTiming
    rungs: list[TrainedRung] = field(default_factory=list)
    missed: Sequence[str] = ()  # limits of speed and size, in words
    refused: str = ""  # why it was not trained further, though it is within the limits

    def add(self, trained: TrainedRung) -> None:
        """Add what is known of the next rung."""
        self.rungs.append(trained)
        self.timing = replace(self.timing, size_bytes=trained.size_bytes)

    @property
    def ended(self) -> str:
        """Why it ended, in words."""
        if self.missed:
            return "; ".join(self.missed)
        reached = f"stopped at rung {self.last.rung + 1}" if self.rungs else "not trained"
        if self.refused:
            return f"{reached}: {self.refused}"
        return "done" if self.is_complete else reached if self.rungs else f"{reached}: there was no time"

    @property
    def last(self) -> TrainedRung:
        """What is known of the longest training."""
        return self.rungs[-1]

    @property
    def score(self) -> ValidationScore:
        return self.last.score

    @property
    def is_complete(self) -> bool:
        return bool(self.rungs) and self.last.rung == LAST

    def seconds_for(self, steps: int) -> float:
        """Return about how long the work of more steps will take."""
        training = self.last.training_seconds
        return max(0.0, self.last.seconds - training) + training * steps / self.last.steps

    @property
    def row(self) -> dict[str, Any]:
        """The trial as JSON values, the longest training last."""
        row: dict[str, Any] = {
            "trial": self.number,
            "name": self.shape.name,
            "family": self.shape.family,
            "precision": self.shape.precision,
            "options": dict(self.shape.options),
            "speedup": self.timing.speedup,
            "low_speedup": self.timing.low,
            "high_speedup": self.timing.high,
            "latency_ms": self.timing.latency_ms,
            "teacher_ms": self.timing.teacher_ms,
            "size_bytes": self.timing.size_bytes,
            "rungs": [
                {"share": RUNGS[one.rung], "steps": one.steps, "seconds": one.seconds, **asdict(one.score)}
                for one in self.rungs
            ],
            "ended": self.ended,
        }
        return row | ({"steps": self.last.steps, **asdict(self.score)} if self.rungs else {})


@dataclass(frozen=True)
class Trainer:
    """Trains shapes for the steps of a rung. What is finished is found again in ``folder`` and not repeated."""

    teacher: ModelDir
    folder: Path
    maker: Maker
    validation: ValidationRows
    compute: Compute

    def deployed(self, shape: Shape, rung: int) -> Path:
        """Return where the directory lies that is judged, and may be the result."""
        return self.folder / f"deployed-{shape.key}-{rung}"

    def expected_seconds(self, shape: Shape, latency_ms: float) -> float:
        """Return about how long the steps of the first rung take on a CPU at least, by a row's latency; 0 on a GPU.

        Forward and backward pass take three times as long as a forward pass, and a large model does not gain much by
        batches. A small one takes longer: much of its time goes elsewhere.
        """
        if self.compute.device != "cpu":
            return 0.0
        batch_size = self.maker.training(shape, 0)[0].batch_size
        cores = 1 if self.compute.threads else core_count()  # with which latency was not measured
        return 3 * self.steps(shape, 0) * batch_size * latency_ms / 1000 / cores

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

    def steps(self, shape: Shape, rung: int) -> int:
        """Return how many steps a rung has."""
        training, rows = self.maker.training(shape, rung)
        return steps_for(rows, training)

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
            found = asdict(made := self._trained(shape, rung))
        except CompressError as error:
            keep(self._record(shape, rung), {FAULT: str(error)})
            raise
        keep(self._record(shape, rung), found)
        return made

    def _trained(self, shape: Shape, rung: int) -> TrainedRung:
        begun = time.monotonic()
        student = self._student(shape, rung)
        deployed = self.deployed(shape, rung)
        with quiet_stages():
            if not is_whole(student):
                self.maker.train(shape, rung, student)
            if not is_whole(deployed):
                if shape.precision == "int8":
                    quantize(student, deployed, quantization=Quantization(QUANTIZER))
                else:
                    export(student, deployed)
        score = self.validation.judge(self.validation.predicted(deployed))
        notes = ModelDir.open(student, verify=False).manifest.notes
        notes = notes.get("recovery") or notes
        # The notes have the seconds of the last start alone.
        speeds = [line["rows_per_second"] for line in read_training(student).lines if line.get("rows_per_second")]
        at_speed = notes["steps"] * self.maker.training(shape, rung)[0].batch_size / median(speeds) if speeds else 0.0
        training = round(max(notes["seconds"], at_speed), 1)
        seconds, size = round(time.monotonic() - begun, 1), ModelDir.open(deployed, verify=False).size_bytes
        return TrainedRung(rung, notes["steps"], max(seconds, training), training, size, score)

    def _student(self, shape: Shape, rung: int) -> Path:
        """Return where a training lies, which both precisions of a shape are of."""
        return self.folder / f"trained-{Shape(shape.family, shape.options).key}-{rung}"

    def _records(self, shape: Shape) -> list[dict[str, Any]]:
        return list(filter(None, (kept(self._record(shape, rung)) for rung in range(len(RUNGS)))))

    def _record(self, shape: Shape, rung: int) -> Path:
        return self.folder / f"{shape.key}-{rung}.json"
