"""What `compress label --engine ray` takes beside one process, in interleaved rounds, and how fast its driver is.

    python benchmarks/speed/ray_labelling.py --teacher DIR --unlabeled FILE [--rounds 3] [-o results.jsonl]

Every round runs the whole command for each engine and each of two lengths, in a random order. The time of a row is the
difference of both lengths; what is left is the start-up, which includes Python, and Ray where it is started. The
teacher is exported once before, because every command would spend the same time on that.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from compress.data import ExampleSource, TextSource, open_source
from compress.files import write_json_lines
from compress.labelling.label import Engine, Job, Labelled, Shard
from compress.labelling.label_dir import SHARD_ROWS
from compress.models.model_dir import Model
from compress.progress import Advance
from compress.requests.compression import export
from compress.requests.labelling import label

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import in_turns, provenance, read_options  # noqa: I001

ENGINES = {
    "one process": [],
    "ray, 1 worker": ["--engine", "ray", "--workers", "1"],
    "ray, 2 workers": ["--engine", "ray", "--workers", "2"],
}
LENGTHS = (2 * SHARD_ROWS, 6 * SHARD_ROWS)
DRIVEN_ROWS = 200_000


def main() -> None:
    arguments = read_options(__doc__, None, teacher=str, unlabeled=str, rounds=3, seed=0)
    seconds: dict[tuple[str, int], list[float]] = {(name, rows): [] for name in ENGINES for rows in LENGTHS}
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        teacher = export(Model.open(arguments.teacher), folder / "teacher").path
        source = open_source(arguments.unlabeled, role="unlabeled", labelled=False)
        for rows in LENGTHS:
            texts = (f"{example.text}\n" for example in itertools.islice(source, rows))
            (folder / f"{rows}.txt").write_text("".join(texts), encoding="utf-8")
        for _, (name, rows) in in_turns(seconds, arguments.rounds, arguments.seed):
            loads.append(os.getloadavg()[0])
            seconds[name, rows].append(_label(teacher, folder, rows, ENGINES[name]))
            print(f"{name}, {rows:,} rows: {seconds[name, rows][-1]:.1f} s, load {loads[-1]:.1f}", flush=True)
        driven = [_drive(teacher, source, folder) for _ in range(arguments.rounds)]
    lines = [_line(name, {rows: seconds[name, rows] for rows in LENGTHS}) for name in ENGINES]
    lines.append({"engine": "driver alone", "rows_per_second": median(driven), "rows_per_second_by_round": driven})
    told = {**provenance(), "load": [min(loads), median(loads), max(loads)]}
    for line in lines:
        print(json.dumps(line))
    if arguments.output:
        write_json_lines(Path(arguments.output), [{**line, **told} for line in lines])


def _label(teacher: Path, folder: Path, rows: int, options: list[str]) -> float:
    """Return the seconds of a whole command."""
    given = ["--teacher", teacher, "--unlabeled", folder / f"{rows}.txt", "--threads", "1", *options, "--force", "-q"]
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "compress", "label", *given, "-o", folder / "labels"], check=True)
    return time.perf_counter() - begun


def _line(name: str, seconds: dict[int, list[float]]) -> dict[str, Any]:
    short, long = LENGTHS
    rates = [(long - short) / (two - one) for one, two in zip(seconds[short], seconds[long], strict=True)]
    rate = (long - short) / (median(seconds[long]) - median(seconds[short]))
    return {
        "engine": name,
        "seconds": {str(rows): taken for rows, taken in seconds.items()},
        "rows_per_second": rate,
        "rows_per_second_by_round": rates,
        "start_up_seconds": median(seconds[short]) - short / rate,
    }


class Workers(Engine):
    """Workers that answer at once: what remains is what the driver does for a row."""

    def run(self, job: Job, shards: Iterator[Shard], advance: Advance) -> Labelled:
        for number, examples in shards:
            pickle.dumps(examples)
            yield number, examples, np.zeros((len(examples), 2), np.float32)


def _drive(teacher: Path, source: TextSource, folder: Path) -> float:
    """Return the rows a second that the driver reads, sends and writes."""
    begun = time.perf_counter()
    rows = ExampleSource([*itertools.islice(source, DRIVEN_ROWS)], source.name)
    made = label(teacher, rows, folder / "driven", engine=Workers(), force=True)
    return made.rows / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
