"""What a search found: as JSON values, as a model directory, and measured on rows that took no part."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compress.benchmarking.benchmark import BenchmarkOutput, benchmark
from compress.benchmarking.results.formatting import plural
from compress.benchmarking.results.schema import Measurement
from compress.data import Example
from compress.inference.compute import Compute
from compress.models.manifest import MANIFEST_NAME, Manifest
from compress.models.output_dir import finish
from compress.progress import logger
from compress.recipes import BenchmarkSettings
from compress.searching.commands import BEST
from compress.searching.exploration import Exploration
from compress.searching.halving import RUNGS
from compress.searching.joining import Joined
from compress.searching.making import quiet_stages
from compress.searching.selection import closest, closest_shape, front_of
from compress.searching.trials import Trial

MEASURING_S = 60.0


def content_of(
    explored: Exploration, winner: Trial | None, joined: Joined | None, rows: Mapping[str, int], command: str
) -> dict[str, Any]:
    """Return what was found, as JSON values that the page is made of; ``rows`` are counts by role."""
    budget, judged, trials, trainer = explored.budget, explored.judged, explored.trials, explored.trainer
    timed = [trial for trial in trials if not trial.timing.fault]
    near = None if winner else closest(judged, budget) or closest_shape(timed, budget)
    return {
        "teacher": trainer.teacher.name,
        "metric": trainer.validation.metric.name,
        "teacher_value": explored.teacher_value,
        "rows": dict(rows),
        "threads": trainer.validation.threads,
        "seed": trainer.compute.seed,
        "budget": budget.asked,
        "asked": budget.describe(),
        "limits": budget.ends,
        "command": command,
        "seconds": round(explored.clock.spent_s, 1),
        "trials": [trial.row for trial in trials],
        "front": [trial.number for trial in front_of(judged)],
        "rungs": list(RUNGS),
        "winner": winner.number if winner else None,
        "closest": near.number if near else None,
        "cascade": joined and joined.row,
        "certainty": budget.certainty(winner.score, rows["validation"]) if winner else "",
        "test": None,
        "met": winner is not None or joined is not None,
        "again": "",
    }


def deploy(source: Path, best: Path, trial: Trial, content: Mapping[str, Any]) -> None:
    """Copy the winner, and write into its manifest how it was chosen."""
    shutil.copytree(source, best, ignore=shutil.ignore_patterns(".*"))
    manifest = Manifest.read(best / MANIFEST_NAME)
    notes = {key: value for key, value in manifest.notes.items() if key != "warning"}  # the search has checked it
    candidates = plural(sum(bool(row["rungs"]) for row in content["trials"]), "candidate")
    notes |= {"checked": True, "chosen": f"among {candidates} on validation rows", "trial": trial.number}
    rows = content["rows"]["validation"]
    metric = {"name": content["metric"], "value": trial.score.value, "split": "validation", "rows": rows}
    finish(best, replace(manifest, name=BEST, notes=notes, metrics=(metric,)))


def deploy_cascade(joined: Joined, best: Path) -> None:
    """Copy a cascade, which is called as its directory is."""
    shutil.copytree(joined.model.path, best, ignore=shutil.ignore_patterns(".*"))
    finish(best, replace(joined.model.manifest, name=BEST))


def measure(explored: Exploration, best: Path, rows: Sequence[Example], results: Path, command: str) -> dict[str, Any]:
    """Measure teacher and winner on test rows, and return what is said of the winner; ``results`` gets all figures."""
    trainer, validation = explored.trainer, explored.trainer.validation
    settings = BenchmarkSettings(
        baselines=False,
        padded_teacher=False,
        threads=validation.threads,
        batch_sizes=(1,),
        time_limit=MEASURING_S,
        metric=validation.metric.name,
    )
    output = BenchmarkOutput(results, force=True, data_name="test", command=command)
    for file in output.files:  # of an earlier start
        file.unlink(missing_ok=True)
    logger.info("measuring the winner on %d test rows ...", len(rows))
    with quiet_stages():
        compute = Compute("cpu", seed=trainer.compute.seed)
        lines = benchmark(trainer.teacher, [best], list(rows), settings, output=output, compute=compute)
    line: Measurement = next(line for line in lines if line.is_compressed)
    difference = line.difference
    assert difference is not None
    return {
        "value": line.metric,
        "points": difference.value,
        "low": difference.low,
        "high": difference.high,
        "speedup": line.speedups._asdict(),
        "latency_ms": {
            "value": line.latency_p50_ms,
            "low": line.latency_p50_low_ms,
            "high": line.latency_p50_high_ms,
        },
        "rows": len(rows),
    }
