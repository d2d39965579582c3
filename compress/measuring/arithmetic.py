"""How much arithmetic the measured torch models do, counted when all timing and all memory has been taken."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from compress.errors import CompressError
from compress.measuring.contenders import precision_of
from compress.measuring.lines import Arithmetic, token_lengths
from compress.measuring.rounds import Run, Setting
from compress.measuring.worker import Worker
from compress.progress import Progress

logger = logging.getLogger("compress")


def count_arithmetic(runs: Sequence[Run], device: str, progress: Progress) -> Arithmetic:
    """Count the operations of every torch model at every setting, and measure the peak of a card.

    The batches of the first round are counted, by the process of the teacher. What a model does is the same in every
    runtime; a graph of another model, such as int8, has no count.
    """
    worker = max((run for run in runs if run.is_baseline), key=lambda run: run.threads).worker
    models: dict[str, list[Run]] = {}
    for run in runs:
        if run.entry.folder == "runtimes" and not run.entry.contender.model.is_onnx:
            models.setdefault(run.entry.contender.name, []).append(run)
    flops: dict[tuple[str, Setting], float] = {}
    with progress("Counting operations", len(models)) as advance:
        for mine in models.values():
            counted = _flops(worker, mine, runs)
            for run in mine:
                flops |= {(run.entry.title, setting): counted[setting] for setting in run.turns if setting in counted}
            advance(1)
    return Arithmetic(flops, _peaks(worker, runs) if device == "cuda" else {})


def _flops(worker: Worker, mine: Sequence[Run], runs: Sequence[Run]) -> dict[Setting, float]:
    """Count one model at every setting that it was measured at anywhere."""
    lengths = token_lengths(mine[0], runs)
    batches = {setting: run.turns[setting][0]["batches"] for run in mine for setting in run.turns}
    jobs = [
        {"batches": [[setting.length or lengths[row] for row in batch] for batch in drawn], "width": setting.width}
        for setting, drawn in batches.items()
    ]
    directory = str(mine[0].entry.contender.model.path.resolve())
    try:
        found = worker.ask("arithmetic", directory=directory, jobs=jobs)["flops"]
    except CompressError as error:  # what was timed is worth more than this
        logger.warning("the operations of %s are not counted: %s", mine[0].entry.contender.name, error)
        return {}
    return {setting: value for setting, value in zip(batches, found, strict=True) if value is not None}


def _peaks(worker: Worker, runs: Sequence[Run]) -> dict[str, float]:
    """Measure the card's peak in each precision that a runtime multiplies in."""
    precisions = dict.fromkeys(filter(None, (precision_of(run.entry) for run in runs)))
    return {p: float(worker.ask("peak", device="cuda", precision=p, threads=1)["tflops"]) for p in precisions}
