"""What a search found: as JSON values, as a model directory, and measured on rows that took no part."""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compress.benchmarking.benchmark import BenchmarkOutput, benchmark
from compress.benchmarking.results.schema import Measurement
from compress.data import Example
from compress.escaping.uris import text_without_secrets
from compress.host import without_home
from compress.inference.compute import Compute
from compress.models.manifest import MANIFEST_NAME, Manifest
from compress.models.output_dir import finish, write_atomically
from compress.progress import logger
from compress.recipes import BenchmarkSettings
from compress.recipes.writing import student_toml
from compress.searching.exploration import Exploration
from compress.searching.halving import RUNGS
from compress.searching.joining import TEACHER, Joined
from compress.searching.selection import closest, front_of
from compress.searching.space import QUANTIZER
from compress.searching.trials import Trial, quiet_stages

BEST = "best"
_OF_TRAINING = ("teacher", "unlabeled", "train", "seed")  # what a cascade does not take of a search's options
MEASURING_S = 60.0


def content_of(
    explored: Exploration, winner: Trial | None, joined: Joined | None, rows: Mapping[str, int]
) -> dict[str, Any]:
    """Return what was found, as JSON values that the page is made of; ``rows`` are counts by role."""
    budget, judged, trials, trainer = explored.budget, explored.judged, explored.trials, explored.trainer
    timed = [trial for trial in trials if not trial.timing.fault]
    near = None if winner else closest(judged, budget)
    fastest = max(timed, key=lambda trial: trial.timing.speedup, default=None)
    return {
        "teacher": trainer.teacher.name,
        "metric": trainer.validation.metric.name,
        "teacher_value": explored.teacher_value,
        "rows": dict(rows),
        "threads": trainer.validation.threads,
        "seed": trainer.compute.seed,
        "budget": budget.asked,
        "asked": budget.describe(),
        "limits": explored.settings.request,
        "command": explored.settings.command,
        "seconds": round(explored.clock.spent_s, 1),
        "trials": [trial.row for trial in trials],
        "front": [judged[index].number for index in front_of(judged)],
        "rungs": list(RUNGS),
        "winner": winner.number if winner else None,
        "closest": judged[near].number if near is not None else None,
        "fastest": fastest.number if fastest else None,
        "cascade": joined and joined.row,
        "certainty": budget.certainty(winner.score, rows["validation"]) if winner else "",
        "test": None,
        "met": winner is not None or joined is not None,
        "again": "",
    }


def making_again(
    explored: Exploration, chosen: Sequence[Trial], joined: Joined | None, working: Path, output: Path
) -> str:
    """Write the recipes of the students that were chosen, and return the commands that make ``best`` of them again.

    Args:
        working: the folder that becomes ``output``.
    """
    typed, commands, members = explored.settings.typed, [], []
    for number, trial in enumerate(chosen, 1):
        one = f"-{number}" if joined else ""
        recipe, read = explored.trainer.planned(trial.shape, trial.last.rung)
        write_atomically(working / f"{BEST}{one}.toml", student_toml(recipe))
        student = {**typed, "rows": read or None, "student": output / f"{BEST}{one}.toml"}
        members.append(f"model{one}" if joined else BEST)
        commands += [_words("distill", student, f"student{one}"), trial.shape.deploying(f"student{one}", members[-1])]
    if joined:
        if TEACHER in joined.model.member_names:
            teacher = {"model": typed["teacher"], "method": QUANTIZER}
            members.append("teacher-int8")
            commands.append(_words("quantize", teacher, members[-1]))
        options = {name: value for name, value in typed.items() if name not in _OF_TRAINING}
        options |= {"model": tuple(members), "max_accuracy_drop": explored.budget.max_accuracy_drop}
        commands.append(_words("cascade", options, BEST))
    return without_home(" && ".join(map(shlex.join, commands)))


def _words(command: str, options: Mapping[str, Any], output: str) -> list[str]:
    """Return a command with its options as words; those that are None or False are not given."""
    words = ["compress", command]
    for name, value in {**options, "output": output}.items():
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, tuple) else [value]:
            given = text_without_secrets(f"{one:g}" if isinstance(one, float) else str(one))
            words += [option] if one is True else [] if one is None or one is False else [option, given]
    return words


def deploy(source: Path, best: Path, trial: Trial, content: Mapping[str, Any]) -> None:
    """Copy the winner, and write into its manifest how it was chosen."""
    shutil.copytree(source, best, ignore=shutil.ignore_patterns(".*"))
    manifest = Manifest.read(best / MANIFEST_NAME)
    notes = {key: value for key, value in manifest.notes.items() if key != "warning"}  # the search has checked it
    candidates = sum(bool(row["rungs"]) for row in content["trials"])
    notes |= {"checked": True, "chosen": f"among {candidates} candidates on validation rows", "trial": trial.number}
    rows = content["rows"]["validation"]
    metric = {"name": content["metric"], "value": trial.score.value, "split": "validation", "rows": rows}
    finish(best, replace(manifest, name=BEST, notes=notes, metrics=(metric,)))


def deploy_cascade(joined: Joined, best: Path) -> None:
    """Copy a cascade, which is called as its directory is."""
    shutil.copytree(joined.model.path, best, ignore=shutil.ignore_patterns(".*"))
    finish(best, replace(joined.model.manifest, name=BEST))


def measure(explored: Exploration, best: Path, rows: Sequence[Example], results: Path) -> dict[str, Any]:
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
    output = BenchmarkOutput(results, force=True, data_name="test", command=explored.settings.command)
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
