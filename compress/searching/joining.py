"""Join students of the front, and the teacher in int8, into a cascade that is faster than the best student alone.

The teacher is the last member, so that a cascade may be within a drop of accuracy that no student is within. It is
chosen by ``compress cascade``, whose rule is stricter than that for students: among thousands of cascades the one that
looks good enough by its estimate is so by luck.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from compress.cascades.cascade import cascade, choice_of
from compress.errors import CompressError
from compress.models.cascade_dir import MOST_MEMBERS, CascadeDir
from compress.models.model_dir import ModelDir
from compress.models.resumption import is_whole
from compress.progress import logger
from compress.quantization.candidates import Quantization
from compress.quantization.quantize import quantize
from compress.requests.calibration import Cascade
from compress.searching.exploration import Exploration
from compress.searching.judging import ValidationScore
from compress.searching.making import quiet_stages
from compress.searching.selection import front_of
from compress.searching.shapes import ShapeTiming
from compress.searching.space import QUANTIZER
from compress.searching.trials import Trial

TEACHER = "the teacher in int8"


@dataclass(frozen=True)
class Joined:
    """A cascade, the students in it in the order in which they are asked, and what it costs and is worth.

    ``timing`` is of the mean time of a row, against the teacher in torch; it follows from the typical times of the
    members, so that no interval of it is known.
    """

    model: CascadeDir
    students: Sequence[Trial]
    timing: ShapeTiming
    score: ValidationScore

    @property
    def row(self) -> dict[str, Any]:
        """What the page shows, as JSON values."""
        choice = choice_of(self.model)
        return {
            "members": choice["members"],
            "thresholds": choice["thresholds"],
            "answered": choice["validation"]["answered"],
            "speedup": self.timing.speedup,
            "latency_ms": self.timing.latency_ms,
            "size_bytes": self.timing.size_bytes,
            **asdict(self.score),
        }


def join(explored: Exploration, folder: Path, winner: Trial | None) -> Joined | None:
    """Return a cascade that meets the budget and is faster than the winner; None where there is none.

    Only where the fastest within a drop of accuracy is asked for, of a classifier, and no limit of latency: what a
    cascade takes is a mean.
    """
    budget, trainer = explored.budget, explored.trainer
    drop = budget.max_accuracy_drop
    if drop is None or budget.max_latency_ms is not None or trainer.teacher.task.no_cascade:
        return None
    # Of a long front some are left out, so that the committed students are joined by themselves too.
    groups = {"cascade": _of_front(explored.judged), "cascade-committed": _of_front(explored.whole)}
    if groups["cascade"] == groups["cascade-committed"]:
        del groups["cascade-committed"]
    found = [_joined(explored, students, folder / name, drop) for name, students in groups.items() if students]
    # Certainly so: several models that are hardly faster than one are not worth it.
    least = 0.0 if winner is None else winner.timing.high
    able = [one for one in found if one and one.timing.speedup > least and budget.met_by(one.score, one.timing)]
    return max(able, key=lambda one: one.timing.speedup, default=None)


def _of_front(judged: Sequence[Trial]) -> list[Trial]:
    """Return the members that are tried: of the front, and first those that were trained for all steps."""
    front = front_of(judged)
    complete, most = [one for one in front if one.is_complete], MOST_MEMBERS - 1
    rest = _spread([one for one in front if not one.is_complete], max(0, most - len(complete)))
    return sorted([*_spread(complete, most), *rest], key=front.index)


def _joined(explored: Exploration, students: Sequence[Trial], place: Path, drop: float) -> Joined | None:
    validation = explored.trainer.validation
    try:
        with quiet_stages():
            made = _made(explored, students, place, drop)
    except CompressError as error:
        logger.info("no cascade: %s", error)
        return None
    score = validation.judge(validation.predicted(made.path))
    members = [one for name in made.member_names for one in students if one.shape.name == name]
    return Joined(made, members, _timing(made, students), score)


def _made(explored: Exploration, students: Sequence[Trial], place: Path, drop: float) -> CascadeDir:
    trainer = explored.trainer
    members = [_named(trainer.deployed(one.shape, one.last.rung), one.shape.name) for one in students]
    last = place.with_name("teacher-int8")
    if not is_whole(last):
        quantize(trainer.teacher, last, quantization=Quantization(QUANTIZER))
    return cascade(
        Cascade(
            (*members, _named(last, TEACHER)),
            place,
            validation=list(trainer.validation.examples),
            metric=trainer.validation.metric.name,
            max_accuracy_drop=drop,
            device="cpu",
            threads=trainer.validation.threads,
            force=True,  # one of an earlier start may be of other students
        )
    )


def _named(directory: Path, name: str) -> ModelDir:
    model = ModelDir.open(directory, verify=False)
    return replace(model, manifest=replace(model.manifest, name=name))


def _spread(front: Sequence[Trial], most: int) -> list[Trial]:
    """Return at most so many of a front, the fastest and the best one among them, others evenly between."""
    if len(front) <= most:
        return list(front)
    return [front[round(place)] for place in np.linspace(0, len(front) - 1, most)]


def _timing(made: CascadeDir, students: Sequence[Trial]) -> ShapeTiming:
    """Return the timing of a cascade: by how much it is faster than its first student, times that one's speed-up."""
    choice = choice_of(made)
    first = next(one for one in students if one.shape.name == choice["members"][0])
    alone_ms = next(model["latency_ms"] for model in choice["models"] if model["name"] == first.shape.name)
    share, timing = alone_ms / choice["validation"]["latency_ms"], first.timing
    speedup = timing.speedup * share
    return ShapeTiming(timing.latency_ms / share, speedup, speedup, speedup, made.size_bytes, timing.teacher_ms)
