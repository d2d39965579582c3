"""The long run: see :mod:`tests.fuzzing.commands`."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from compress.host import describe_host
from tests.fuzzing.commands import MEMORY_LIMIT_BYTES, TIME_LIMIT_SECONDS, USES, Case, Run, run_cases

Result = tuple[Run, list[str]]


def until_interrupted(runs: Iterator[Result]) -> Iterator[Result]:
    """Yield until the end or Ctrl-C, so that there is a summary of what was run."""
    with suppress(KeyboardInterrupt):
        yield from runs


def write_summary(summary: dict[str, Any], output: Path | None) -> NoReturn:
    """Print a summary, write it, and exit with 1 if anything is wrong."""
    print(json.dumps({**summary, "faults": len(summary["faults"])}, indent=1))
    if output is not None:
        output.write_text(json.dumps(summary, indent=1) + "\n")
    sys.exit(bool(summary["faults"]))


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the summary of all parts of a run: counts are added up, and times are those of the longest part."""
    counts: dict[str, Counter[str]] = {}
    for command, outcomes in (item for part in parts for item in part["commands"].items()):
        counts.setdefault(command, Counter()).update(outcomes)
    largest = ("seconds", "slowest_seconds", "largest_memory_mb")
    return {
        **parts[0],
        "command": f"{parts[0]['command'].partition(' --part ')[0]}, in {len(parts)} parts",
        **{key: max(part[key] for part in parts) for key in largest},
        "commands": {name: dict(sorted(counts[name].items())) for name in sorted(counts)},
        "faults": [fault for part in parts for fault in part["faults"]],
    }


@click.command()
@click.option("--cases", default=300, show_default=True, help="How many cases.")
@click.option("--case", "only", type=int, help="Run this one alone, and print what it prints.")
@click.option("--seed", default=0, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="Cases at a time.")
@click.option("--part", default="1/1", show_default=True, metavar="K/N", help="Every Nth case alone, from the Kth on.")
@click.option("--join", multiple=True, type=click.Path(path_type=Path), help="Join summaries of parts; run nothing.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Summary to write: JSON.")
def main(
    cases: int, only: int | None, seed: int, jobs: int, part: str, join: tuple[Path, ...], output: Path | None
) -> None:
    """Change one input of a command at random, many times; exit code 1 if anything is wrong.

    In parts: --part 1/2 -o one.json and --part 2/2 -o two.json, then --join one.json --join two.json -o all.json
    """
    if join:
        write_summary(joined([json.loads(path.read_text()) for path in join]), output)
    first, step = map(int, part.split("/"))
    numbers = range(-len(USES), cases)[first - 1 :: step] if only is None else [only]
    begin = time.monotonic()
    counts: dict[str, Counter[str]] = {}
    found = []
    slowest = largest = 0.0
    chosen = [Case(seed, number) for number in numbers]
    with tempfile.TemporaryDirectory(prefix="fuzzing-") as folder:
        for run, faults in until_interrupted(run_cases(chosen, Path(folder), jobs)):
            outcome = "faults" if faults else "refused" if run.code == 2 else "worked"
            if run.case.number >= 0 or faults:
                counts.setdefault(run.words[0], Counter()).update([outcome])
            slowest, largest = max(slowest, run.seconds), max(largest, run.memory_mb)
            if faults:
                found.append({"case": run.case.number, "command": run.words, "change": run.change, "faults": faults})
                print(
                    f"case {run.case.number}: {' '.join(run.words)!r} [{run.change}]: {'; '.join(faults)!r}", flush=True
                )
            if only is not None:
                print(repr(run.words), run.change, run.code, f"{run.seconds:.1f} s")
                sys.stdout.writelines((run.folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    summary = {
        "command": f"python -m tests.fuzzing --cases {cases} --seed {seed} --jobs {jobs}"
        + (f" --part {part}" if step > 1 else ""),
        "host": describe_host(),
        "seconds": round(time.monotonic() - begin),
        "limit_seconds": TIME_LIMIT_SECONDS,
        "limit_memory_mb": MEMORY_LIMIT_BYTES // 10**6,
        "slowest_seconds": round(slowest, 1),
        "largest_memory_mb": round(largest),
        "commands": {name: dict(sorted(counts[name].items())) for name in sorted(counts)},
        "faults": found,
    }
    write_summary(summary, output)


if __name__ == "__main__":
    main()
