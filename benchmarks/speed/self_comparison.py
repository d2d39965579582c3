"""Does the benchmark say 1.0 of a model and itself, and something else of a model that is 10% slower?

    python benchmarks/speed/self_comparison.py --model DIR --data FILE -o benchmarks/results/self-comparison.jsonl

Each repeat starts two fresh processes of the same model and lets them take turns as `compress benchmark` does. There
are three conditions:

* quiet: nothing else runs, as far as this script knows;
* disturbed: another process loads all cores in bursts of random length;
* slower: quiet, and every run of the second process takes 10% longer, by waiting in a loop.

One line of JSON is written for each: the interval of every repeat, the share of intervals that hold 1.0 and the true
ratio, the share that lie wholly below 1.0, the noise, and how many repeats were marked too noisy to decide.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compress.benchmarking.candidates import Candidate, Entry
from compress.benchmarking.results.files import host_id
from compress.benchmarking.rounds import WorkerRun, Workload, load_candidate, take_turns
from compress.benchmarking.worker import Worker
from compress.benchmarking.worker_main import write_texts
from compress.data import Example, open_source, read_examples
from compress.host import describe_host, library_versions, typed_command
from compress.inference.cores import available_cores, quietest_first
from compress.inference.speedup_intervals import Interval, is_noisy, noise, speedup
from compress.models.model_dir import ModelDir
from compress.models.output_dir import write_atomically
from compress.progress import silent

# Works and rests for up to so many seconds each, on every core, until it is ended or its parent is gone.
BURST_SECONDS = 1.0
DISTURBER = """
import os, random, sys, time
parent, longest, seed = os.getppid(), float(sys.argv[1]), int(sys.argv[2])
for number in range(1, int(sys.argv[3])):
    if os.fork() == 0:
        seed += number
        parent = os.getppid()
        break
generator = random.Random(seed)
while os.getppid() == parent:
    end = time.monotonic() + generator.uniform(0, longest)
    while time.monotonic() < end:
        sum(range(1000))
    time.sleep(generator.uniform(0, longest))
"""


@dataclass(frozen=True)
class Condition:
    """What is compared: ``handicap`` is the share of time by which the second process is slower."""

    name: str
    disturbed: bool = False
    handicap: float = 0.0

    @property
    def true_ratio(self) -> float:
        return 1 / (1 + self.handicap)


CONDITIONS = (Condition("quiet"), Condition("disturbed", disturbed=True), Condition("slower", handicap=0.10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model directory")
    parser.add_argument("--data", required=True, help="file of texts")
    parser.add_argument("--runtime", default="", help="default: torch, or onnxruntime for an ONNX model")
    parser.add_argument("--repeats", type=int, default=20, help="of each condition")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", required=True, help="JSON lines to write")
    arguments = parser.parse_args()
    output = Path(arguments.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    model = ModelDir.open(arguments.model)
    runtime = arguments.runtime or ("onnxruntime" if model.is_onnx else "torch")
    source = open_source(arguments.data, role="test", labelled=False)
    rows = read_examples(source)
    common = {
        "model": model.name,
        "model_sha256": model.sha256,
        "runtime": runtime,
        "data": source.name,
        "batch_size": arguments.batch_size,
        "rounds": arguments.rounds,
        "repeats": arguments.repeats,
        "seed": arguments.seed,
        "command": typed_command("python"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": describe_host(),
        "host_id": host_id(describe_host()),
        "versions": library_versions(),
    }
    lines = []
    for condition in CONDITIONS:
        found = []
        for number in range(arguments.repeats):
            found.append(
                repeat(
                    model,
                    runtime,
                    rows,
                    condition,
                    batch_size=arguments.batch_size,
                    rounds=arguments.rounds,
                    seed=arguments.seed + number,
                )
            )
            print(f"{condition.name}: {found[-1]}", flush=True)
        lines.append({**asdict(condition), **summary(found, condition.true_ratio), **common})
    write_atomically(output, "".join(json.dumps(line) + "\n" for line in lines))
    for line in lines:
        print(
            f"{line['name']}: {line['holds_one_share']:.0%} of intervals hold 1.0, {line['holds_truth_share']:.0%} "
            f"hold {line['true_ratio']:.3f}, {line['slower_share']:.0%} say slower; "
            f"median noise {line['noise_median']:.1%}, {line['noisy_share']:.0%} too noisy to decide"
        )


@dataclass(frozen=True)
class Comparison:
    """What one repeat found: the speed-up of the second process and the larger noise of both.

    ``noisy`` says that a report would not let it decide.
    """

    value: float
    low: float
    high: float
    noise: float
    noisy: bool


def summary(found: Sequence[Comparison], true_ratio: float) -> dict[str, Any]:
    """Return the shares over repeats, and every repeat."""

    def share(hits: Sequence[bool]) -> float:
        return sum(hits) / len(hits)

    return {
        "true_ratio": true_ratio,
        "holds_one_share": share([c.low <= 1.0 <= c.high for c in found]),
        "holds_truth_share": share([c.low <= true_ratio <= c.high for c in found]),
        "slower_share": share([c.high < 1.0 for c in found]),
        "noisy_share": share([c.noisy for c in found]),
        "noise_median": sorted(c.noise for c in found)[len(found) // 2],
        "comparisons": [asdict(c) for c in found],
    }


def repeat(
    model: ModelDir,
    runtime: str,
    rows: Sequence[Example],
    condition: Condition,
    *,
    batch_size: int,
    rounds: int,
    seed: int,
) -> Comparison:
    """Compare the model with itself once, in two fresh processes."""
    workload = Workload(batch_size)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        texts = write_texts(Path(folder) / "texts.json", rows)
        core = quietest_first(available_cores())[:1]
        runs = []
        for name, handicap in (("model", 0.0), ("itself", condition.handicap)):
            worker = Worker(name, threads=1, scratch=Path(folder))
            stack.callback(worker.close)
            entry = Entry(Candidate(model, name, "model"), runtime, model, runtime, "cpu")
            runs.append(WorkerRun(entry, 1, worker))
            runs[-1].loaded = load_candidate(runs[-1], texts, cores=core, handicap=handicap)
        if condition.disturbed:
            stack.enter_context(disturber(seed))
        order = random.Random(seed).sample(runs, 2)
        take_turns(order, [[workload]] * 2, rows=len(rows), rounds=rounds, seed=seed, progress=silent)
    ratio: Interval = speedup(runs[0].latency_ms(workload), runs[1].latency_ms(workload), seed=seed)
    noises = [noise([turn["probe_ms"] for turn in run.turns[workload]]) for run in runs]
    return Comparison(ratio.value, ratio.low, ratio.high, max(noises), is_noisy(ratio, *noises))


@contextmanager
def disturber(seed: int) -> Iterator[None]:
    """Load all cores in random bursts for as long as the context lasts."""
    cores = os.cpu_count() or 1
    process = subprocess.Popen([sys.executable, "-c", DISTURBER, str(BURST_SECONDS), str(seed), str(cores)])
    try:
        yield
    finally:
        process.kill()  # its children see that they have lost their parent
        process.wait()


if __name__ == "__main__":
    main()
