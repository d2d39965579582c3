"""Which estimator of a speed-up gives on a busy machine the number of the quiet one?

    python benchmarks/speed/estimators.py --teacher DIR --int8 DIR --bilstm DIR --data FILE --records DIR -o OUT.jsonl

Every model is a worker process of its own, several of each, all pinned to one core as in ``compress benchmark``, and
they take turns in short slices of the same fixed rows. Pairs of the same model have the true ratio 1; copies that burn
a known share of CPU time more after every run have a known ratio; the teacher in torch against its int8 and against a
BiLSTM have the ratio that the quiet machine shows. Every call is recorded by both clocks, wall and CPU time of the
process, in five conditions: quiet; beside one busy loop; beside one a core; beside a process that writes through 64
MB again and again; beside bursts of work on every core. All estimators then read the same records.

One line of JSON is written for each condition, slice and estimator: the median of the estimates over pairs and segments
for each kind of pair, its bias against the truth, the median width of the intervals, the share of intervals of equal
models that hold 1 (coverage), the standard deviation of the logarithms of their estimates, the share of intervals that
tell a model from its copy that is 10% slower, and the seconds that a pair took. The chosen estimator is there a second
time, stopped at the round at which a benchmark would stop because the interval is precise enough. A further line has
what ``compress check`` would say of budgets from half to twice the true speed-up, as outcomes counted over pairs and
segments.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from compress.benchmarking.candidates import Candidate, Entry
from compress.benchmarking.results.verdict import judge_speedup
from compress.benchmarking.rounds import CHECKED_ROUNDS
from compress.benchmarking.worker import Worker, WorkerRun, load_candidate
from compress.benchmarking.worker_main import write_rows
from compress.files import write_json_lines
from compress.inference.speedup_intervals import PROCESS_SPREAD, Interval, bootstrap_interval, speedup
from compress.inference.threads import available_cores, quietest_first
from compress.models.model_dir import Model
from compress.recipes import BenchmarkSettings

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import provenance, read_options, read_rows  # noqa: I001

ROWS = 10
ROUNDS = 12  # of a segment, from which one estimate of every pair is made
# Ends with its parent, whatever happens.
DISTURBERS = {
    "quiet": ("", 0),
    "one loop": ("while os.getppid() == parent: sum(range(1000))", 1),
    "a loop a core": ("while os.getppid() == parent: sum(range(1000))", os.cpu_count() or 1),
    "cache wiper": ("block = bytearray(64 << 20)\nwhile os.getppid() == parent: block[:] = bytes(64 << 20)", 1),
    "bursts": (
        "import random, time\n"
        "while os.getppid() == parent:\n"
        "    end = time.monotonic() + random.uniform(0, 1)\n"
        "    while time.monotonic() < end: sum(range(1000))\n"
        "    time.sleep(random.uniform(0, 1))",
        os.cpu_count() or 1,
    ),
}
BUDGETS = (0.5, 0.8, 0.95, 1.05, 1.25, 2.0)  # times the true speed-up
CLOCKS = ("latency_ms", "latency_cpu_ms")


@dataclass(frozen=True)
class Copy:
    """One process: a model, how much longer every run takes, and how many processes of this kind there are."""

    model: str
    handicap: float
    processes: int

    @property
    def name(self) -> str:
        return f"{self.model} x{1 + self.handicap:g}"


COPIES = (
    Copy("teacher", 0.0, 3),
    Copy("int8", 0.0, 6),
    Copy("int8", 0.1, 2),
    Copy("int8", 0.5, 1),
    Copy("int8", 2.0, 1),
    Copy("bilstm", 0.0, 7),
    Copy("bilstm", 0.1, 2),
)
Records = dict[str, list[np.ndarray]]  # name of a copy: one array [2 clocks, rounds, rows] a process


# Estimators: the milliseconds of each row of two models by both clocks, arrays [2, ..., rounds, rows] -> ratios [...].
Estimator = Callable[[np.ndarray, np.ndarray], np.ndarray]


def median_of_rounds(clock: int) -> Estimator:
    """The median over rounds of the ratio of the medians of a round."""
    return lambda a, b: np.asarray(np.median(np.median(a[clock], axis=-1) / np.median(b[clock], axis=-1), axis=-1))


def of_rows(clock: int, quantile: float) -> Estimator:
    """A quantile over rounds of each row, summed over rows."""

    def total(samples: np.ndarray) -> np.ndarray:
        return np.asarray(np.quantile(samples[clock], quantile, axis=-2).sum(axis=-1))

    return lambda a, b: total(a) / total(b)


def middle_mean(clock: int) -> Estimator:
    """The mean of the middle half over rounds of each row, summed over rows."""

    def total(samples: np.ndarray) -> np.ndarray:
        return np.asarray(stats.trim_mean(samples[clock], 0.25, axis=-2)).sum(axis=-1)

    return lambda a, b: np.asarray(total(a) / total(b))


def paired(clock: int) -> Estimator:
    """The median over rounds of the ratio of each row, its geometric mean over rows: ``speedup``, by either clock."""
    return lambda a, b: np.asarray(np.exp(np.median(np.log(a[clock] / b[clock]), axis=-2).mean(axis=-1)))


def uninterrupted(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The median wall time of each row over the calls that had the CPU all the time, summed over rows.

    Not a number where a row of one of the two has no such call.
    """

    def total(samples: np.ndarray) -> np.ndarray:
        wall, cpu = samples
        return np.asarray(np.nanmedian(np.where(cpu > 0.98 * wall - 0.002, wall, np.nan), axis=-2)).sum(axis=-1)

    return np.asarray(total(a) / total(b))


CHOSEN = "CPU, median of the ratio of each row"
ESTIMATORS = {
    "wall, median of round medians": median_of_rounds(0),
    "wall, minimum of each row": of_rows(0, 0.0),
    "wall, lower quartile of each row": of_rows(0, 0.25),
    "wall, median of each row": of_rows(0, 0.5),
    "wall, middle mean of each row": middle_mean(0),
    "wall, median of the ratio of each row": paired(0),
    "wall, uninterrupted calls": uninterrupted,
    "CPU, median of round medians": median_of_rounds(1),
    "CPU, minimum of each row": of_rows(1, 0.0),
    "CPU, lower quartile of each row": of_rows(1, 0.25),
    "CPU, median of each row": of_rows(1, 0.5),
    "CPU, middle mean of each row": middle_mean(1),
    CHOSEN: paired(1),
}


def estimate(estimator: Estimator, a: np.ndarray, b: np.ndarray) -> Interval:
    """Return the speed-up with its interval, made as ``speedup`` makes it."""
    return bootstrap_interval(
        lambda drawn: estimator(a[:, drawn], b[:, drawn]), a.shape[1], seed=0, widened_by=PROCESS_SPREAD
    )


def until_precise(a: np.ndarray, b: np.ndarray) -> tuple[Interval, int]:
    """Return the speed-up as a benchmark stops at it, and after how many rounds.

    It stops where the interval is precise enough at one of the rounds at which it looks, or where the records end.
    """
    rounds = a.shape[1]
    for number in [*sorted(one for one in CHECKED_ROUNDS if one < rounds), rounds]:
        figure = speedup(a[1, :number].tolist(), b[1, :number].tolist())
        if figure.half_width <= BenchmarkSettings().half_width:
            break
    return figure, number


def pairs_of(records: Records) -> Iterator[tuple[str, float | None, np.ndarray, np.ndarray]]:
    """Yield the name of a kind of pair, its true ratio if it is known, and the records of both."""
    for name in ("teacher", "int8", "bilstm"):
        same = records[f"{name} x1"]
        for a, b in itertools.combinations(same, 2):
            yield f"{name} and itself", 1.0, a, b
    for copy in COPIES:
        if copy.handicap:
            for a, b in itertools.product(records[f"{copy.model} x1"], records[copy.name]):
                yield f"{copy.model} and x{1 + copy.handicap:g}", 1 / (1 + copy.handicap), a, b
    for name in ("int8", "bilstm"):
        for a, b in itertools.product(records["teacher x1"], records[f"{name} x1"]):
            yield f"teacher and {name}", None, a, b


def evaluate(segments: Sequence[Records]) -> dict[str, dict[str, Any]]:
    """Return for each estimator the intervals of each kind of pair, over pairs and segments, and the seconds it took.

    The chosen one is there twice: over all rounds, and until it is precise enough.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in (*ESTIMATORS, f"{CHOSEN}, until precise")}
    with np.errstate(all="ignore"):
        for kind, truth, a, b in chain.from_iterable(map(pairs_of, segments)):
            figures = {name: (estimate(one, a, b), a.shape[1]) for name, one in ESTIMATORS.items()}
            figures[f"{CHOSEN}, until precise"] = until_precise(a, b)
            for name, (figure, rounds) in figures.items():
                one = found[name].setdefault(kind, {"truth": truth, "figures": [], "seconds": [], "rounds": []})
                one["figures"].append(figure)
                one["seconds"].append((a[0, :rounds].sum() + b[0, :rounds].sum()) / 1000)
                one["rounds"].append(rounds)
    return found


def typical(figures: Sequence[Interval]) -> float:
    return float(np.nanmedian([figure.value for figure in figures]))


def summarise(found: Mapping[str, Any], quiet: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of one estimator in one condition; ``quiet`` are its estimates when nothing else runs."""
    ratios, bias, width, seconds = {}, {}, {}, {}
    for kind, one in found.items():
        ratios[kind] = round(typical(one["figures"]), 4)
        bias[kind] = round(typical(one["figures"]) / (one["truth"] or typical(quiet[kind]["figures"])) - 1, 4)
        seconds[kind] = round(float(np.mean(one["seconds"])), 2)
        width[kind] = round(float(np.nanmedian([figure.half_width for figure in one["figures"]])), 4)
    equal = [f.low <= 1 <= f.high for one in found.values() if one["truth"] == 1 for f in one["figures"]]
    same = [f.value for one in found.values() if one["truth"] == 1 for f in one["figures"]]
    slower = [f.high < 1 for one in found.values() if one["truth"] == 1 / 1.1 for f in one["figures"]]
    return {
        "speedup": ratios,
        "bias": bias,
        "half_width": width,
        "pair_seconds": seconds,
        "median_rounds": float(np.median([rounds for one in found.values() for rounds in one["rounds"]])),
        "equal_pairs": len(equal),
        "process_spread": round(float(np.nanstd(np.log(same))), 4),
        "coverage": round(float(np.mean(equal)), 4),
        "slower_pairs": len(slower),
        "decided": round(float(np.mean(slower)), 4),
    }


def gate(segments: Sequence[Records], truths: Mapping[str, float]) -> dict[str, Any]:
    """Return how often ``compress check`` would say what of budgets around the true speed-ups over the teacher."""
    outcomes: dict[str, Counter[str]] = {str(factor): Counter() for factor in BUDGETS}
    for kind, truth, a, b in chain.from_iterable(map(pairs_of, segments)):
        if truth is None:
            figure = estimate(ESTIMATORS[CHOSEN], a, b)
            for factor in BUDGETS:
                outcomes[str(factor)][judge_speedup(*figure, factor * truths[kind]).outcome] += 1
    return {factor: dict(counted) for factor, counted in outcomes.items()}


@contextmanager
def disturbed(condition: str) -> Iterator[None]:
    code, processes = DISTURBERS[condition]
    with ExitStack() as stack:
        for _ in range(processes):
            started = subprocess.Popen([sys.executable, "-c", f"import os\nparent = os.getppid()\n{code}"])
            stack.callback(started.wait)
            stack.callback(started.kill)
        time.sleep(1)
        yield


def record(
    runs: Mapping[str, list[WorkerRun]], rows: Sequence[int], slice_rows: int, generator: random.Random, rounds: int
) -> Records:
    """Let all processes take turns for a segment and return its records."""
    every = [(name, number) for name, copies in runs.items() for number in range(len(copies))]
    kept: dict[tuple[str, int], list[np.ndarray]] = {one: [] for one in every}
    for _ in range(rounds):
        parts: dict[tuple[str, int], list[np.ndarray]] = {one: [] for one in every}
        for first in range(0, len(rows), slice_rows):
            batches = [[row] for row in rows[first : first + slice_rows]]
            for name, number in generator.sample(every, len(every)):
                turn = runs[name][number].worker.ask("measure", batches=batches, shape={})
                parts[name, number].append(np.array([turn[clock] for clock in CLOCKS]))
        for one, slices in parts.items():
            kept[one].append(np.concatenate(slices, axis=1))
    records: Records = {}
    for (name, _), arrays in kept.items():
        records.setdefault(name, []).append(np.stack(arrays, axis=1))
    return records


def main() -> None:
    # Slices are rows in a turn, each with its segments; of the records what is there is not made again.
    given = {"slices": [5, 1, 10], "segments": [6, 2, 2], "conditions": list(DISTURBERS), "seed": 0}
    options = read_options(__doc__, teacher=str, int8=str, bilstm=str, data=str, records=Path, **given)
    options.records.mkdir(parents=True, exist_ok=True)
    places = {
        (condition, size): options.records / f"{condition} {size}.npz"
        for size in options.slices
        for condition in options.conditions
    }
    if not all(place.exists() for place in places.values()):
        record_all(options, places)
    lines: list[dict[str, Any]] = []
    quiet: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
    for (condition, size), place in places.items():
        segments = load(place)
        for together in (1, 3, 6):
            rounds = together * ROUNDS
            if len(segments) % together:
                continue
            found = evaluate(joined(segments, together))
            undisturbed = quiet.setdefault((size, rounds), found)
            for name, one in found.items():
                about = {"condition": condition, "slice_rows": size, "rounds": rounds, "estimator": name}
                lines.append({**about, **summarise(one, undisturbed[name])})
                print(json.dumps(lines[-1]), flush=True)
            ours = undisturbed[CHOSEN].items()
            truths = {kind: typical(one["figures"]) for kind, one in ours if one["truth"] is None}
            about = {"condition": condition, "slice_rows": size, "rounds": rounds, "truths": truths}
            lines.append({**about, "gate": gate(joined(segments, together), truths)})
            print(json.dumps(lines[-1]), flush=True)
    common = {"rows": ROWS, **provenance()}
    write_json_lines(options.output, [{**line, **common} for line in lines])


def record_all(options: argparse.Namespace, places: Mapping[tuple[str, int], Path]) -> None:
    """Record what is not there yet, with the same processes."""
    texts = sorted(read_rows(options.data, "test", labelled=False), key=lambda row: len(row.text))
    texts = [texts[int((i + 0.5) / ROWS * len(texts))] for i in range(ROWS)]
    segments = dict(zip(options.slices, options.segments, strict=True))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        runs = start(options, Path(folder), texts, stack)
        for (condition, size), place in places.items():
            if place.exists():
                continue
            generator = random.Random(options.seed)
            started = time.perf_counter()
            with disturbed(condition):
                record(runs, range(ROWS), size, generator, 1)
                save(place, [record(runs, range(ROWS), size, generator, ROUNDS) for _ in range(segments[size])])
            print(f"{condition}, {size} rows a turn: {time.perf_counter() - started:.0f} s", flush=True)


def joined(segments: Sequence[Records], together: int) -> list[Records]:
    """Return longer segments, each of so many that follow each other."""
    return [
        {
            name: [np.concatenate(parts, axis=1) for parts in zip(*(one[name] for one in group), strict=True)]
            for name in group[0]
        }
        for group in (segments[first : first + together] for first in range(0, len(segments), together))
    ]


def save(path: Path, segments: Sequence[Records]) -> None:
    """Keep every call: an array [2 clocks, rounds, rows] for each segment, copy and process."""
    arrays = {
        f"{number}/{name}/{process}": array
        for number, records in enumerate(segments)
        for name, processes in records.items()
        for process, array in enumerate(processes)
    }
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> list[Records]:
    """Return what :func:`save` kept."""
    segments: dict[int, Records] = {}
    with np.load(path) as arrays:
        for key in arrays:
            number, name, _ = key.split("/")
            segments.setdefault(int(number), {}).setdefault(name, []).append(arrays[key])
    return [segments[number] for number in sorted(segments)]


def start(options: Any, scratch: Path, texts: Sequence[Any], stack: ExitStack) -> dict[str, list[WorkerRun]]:
    """Start and warm up all processes, pinned to the quietest core."""
    write_rows(scratch, texts)
    core = quietest_first(available_cores())[:1]
    runs: dict[str, list[WorkerRun]] = {}
    for copy in COPIES:
        model = Model.open(getattr(options, copy.model))
        runtime = "onnxruntime" if model.is_onnx else "torch"
        for number in range(copy.processes):
            worker = Worker(f"{copy.name} {number}", threads=1, scratch=scratch)
            stack.callback(worker.close)
            entry = Entry(Candidate(model, copy.name, "model"), runtime, model, runtime, "cpu")
            run = WorkerRun(entry, 1, worker)
            run.loaded = load_candidate(run, scratch, cores=core, handicap=copy.handicap)
            worker.ask("warm_up", probe=[0], shape={})
            runs.setdefault(copy.name, []).append(run)
    return runs


if __name__ == "__main__":
    main()
