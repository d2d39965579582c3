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
from compress.models.manifest import is_whole
from compress.models.model_dir import MOST_MEMBERS, CascadeDir, Model
from compress.progress import logger
from compress.quantization.quantize import quantize
from compress.requests.compression import Cascade, Quantize
from compress.searching.exploration import Exploration
from compress.searching.making import quiet_stages
from compress.searching.space import QUANTIZER
from compress.searching.trials import ShapeTiming, Trial, ValidationScore, front_of

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
        choice, timing = choice_of(self.model), asdict(self.timing)
        return {
            **{name: choice[name] for name in ("members", "thresholds")},
            "answered": choice["validation"]["answered"],
            **{name: timing[name] for name in ("speedup", "latency_ms", "size_bytes")},
            **asdict(self.score),
        }


def join(explored: Exploration, folder: Path, winner: Trial | None) -> Joined | None:
    """Return a cascade that meets the budget and is faster than the winner; None where there is none.

    Only where the fastest within a drop of accuracy is asked for, of a classifier, and no limit of latency: what a
    cascade takes is a mean.
    """
    budget, no_cascade = explored.budget, explored.trainer.teacher.task.no_cascade
    if budget.max_accuracy_drop is None or budget.max_latency_ms is not None or no_cascade:
        return None
    # Of a long front some are left out, so that the committed students are joined by themselves too.
    groups = {"cascade": _of_front(explored.judged), "cascade-committed": _of_front(explored.whole)}
    if groups["cascade"] == groups["cascade-committed"]:
        del groups["cascade-committed"]
    found = [_joined(explored, students, folder / name) for name, students in groups.items() if students]
    # Certainly so: several models that are hardly faster than one are not worth it.
    least = 0.0 if winner is None else winner.timing.high
    able = [one for one in found if one and one.timing.speedup > least and budget.met_by(one.score, one.timing)]
    return max(able, key=lambda one: one.timing.speedup, default=None)


def _of_front(judged: Sequence[Trial]) -> list[Trial]:
    """Return the members that are tried: of the front, and first those that were trained for all steps."""
    front, most = front_of(judged), MOST_MEMBERS - 1
    complete, rest = ([one for one in front if one.is_complete is whole] for whole in (True, False))
    chosen = [*_spread(complete, most), *_spread(rest, max(0, most - len(complete)))]
    return sorted(chosen, key=front.index)


def _spread(front: Sequence[Trial], most: int) -> list[Trial]:
    """Return at most so many of a front, the fastest and the best one among them, others evenly between."""
    if len(front) <= most:
        return list(front)
    return [front[round(place)] for place in np.linspace(0, len(front) - 1, most)]


def _joined(explored: Exploration, students: Sequence[Trial], place: Path) -> Joined | None:
    trainer, validation = explored.trainer, explored.trainer.validation
    last = place.with_name("teacher-int8")
    try:
        with quiet_stages():
            if not is_whole(last):
                quantize(Quantize(trainer.teacher, last, method=QUANTIZER))
            named = {one.shape.name: trainer.deployed(one.shape, one.last.rung) for one in students}
            request = Cascade(
                tuple(_named(path, name) for name, path in {**named, TEACHER: last}.items()),
                place,
                validation=list(validation.examples),
                metric=validation.metric.name,
                max_accuracy_drop=explored.budget.max_accuracy_drop or 0.0,
                device="cpu",
                threads=validation.threads,
                force=True,  # one of an earlier start may be of other students
            )
            made = cascade(request)
    except CompressError as error:
        logger.info("no cascade: %s", error)
        return None
    choice = choice_of(made)
    members = [one for name in made.member_names for one in students if one.shape.name == name]
    # By how much it is faster than its first student, times the speed-up of that one.
    alone_ms = next(model["latency_ms"] for model in choice["models"] if model["name"] == members[0].shape.name)
    share, first = alone_ms / choice["validation"]["latency_ms"], members[0].timing
    speedup = first.speedup * share
    timing = ShapeTiming(first.latency_ms / share, speedup, speedup, speedup, made.size_bytes, first.teacher_ms)
    return Joined(made, members, timing, validation.judge(validation.predicted(made.path)))


def _named(directory: Path, name: str) -> Model:
    model = Model.open(directory, verify=False)
    return replace(model, manifest=replace(model.manifest, name=name))
