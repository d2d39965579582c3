"""How long stages take beside other work: on one thread a core, as many as they choose themselves, and one thread.

    python benchmarks/speed/beside_other_work.py --teacher DIR --train FILE [--repeats 3] [--lock FILE] [-o OUT.jsonl]

Bounded work of four stages (rows to label, training steps, a pruning without timing) is repeated in four processes,
each with its libraries loaded, which take turns in a random order:

* ``before``: one thread a core, which spins while it waits;
* ``sleeping``: one thread a core, which sleeps while it waits (``OMP_WAIT_POLICY=passive``);
* ``now``: the commands' own choice, a thread for every core that is free;
* ``one thread``.

Other work is one or two processes that compute in a loop, of normal or of the lowest priority.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from compress.files import write_json_lines
from compress.inference.threads import RENEWED_AFTER_S, available_cores, busy_seconds

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import provenance, read_options, read_rows  # noqa: I001

CORES = len(available_cores())
VARIANTS = {"before": CORES, "sleeping": CORES, "now": 0, "one thread": 1}  # how many threads the stage is asked for
LOADS = {
    "idle": (0, 0),
    "one of low priority": (1, 19),
    "two of low priority": (2, 19),
    "one": (1, 0),
    "two": (2, 0),
}  # processes, and their niceness
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")
BUSY = "import os\nparent = os.getppid()\nos.nice({})\nwhile os.getppid() == parent: sum(range(1000))"
QUIET = 0.2
LABELLED_ROWS, TRAINING_STEPS, SCORING_ROWS, VALIDATION_ROWS = 2048, 8, 32, 64


def main() -> None:
    # The lock is a file to hold in each repeat, where experiments share a machine.
    given = {"loads": (list(LOADS),), "repeats": 3, "seed": 0, "lock": None, "client": (None, *VARIANTS)}
    options = read_options(__doc__, None, hidden="client", teacher=str, train=str, **given)
    if options.client:
        client(options.client, Path(options.teacher), options.train)
        return
    took: dict[tuple[str, str, str], list[float]] = {}
    before: dict[str, list[float]] = {}
    workers: dict[str, Any] = {}
    generator = random.Random(options.seed)
    with ExitStack() as stack:
        for number in range(options.repeats):
            with held(options.lock):
                workers = workers or {name: stack.enter_context(started(name, options)) for name in VARIANTS}
                for load in generator.sample(options.loads, len(options.loads)):
                    before.setdefault(load, []).append(settled_load())
                    with busy(*LOADS[load]):
                        for command in STAGES:
                            for name in generator.sample(list(VARIANTS), len(VARIANTS)):
                                seconds = ask(workers[name], command)
                                took.setdefault((load, command, name), []).append(seconds)
                                print(f"{number + 1}: {load}: {command}, {name}: {seconds:.1f} s", flush=True)
        for worker in workers.values():
            worker.stdin.close()
    lines = list(results(took, before, options))
    for line in lines:
        span = f"({min(line['all_seconds']):.1f} to {max(line['all_seconds']):.1f})"
        print(f"{line['load']:20} {line['command']:9} {line['variant']:11} {line['seconds']:6.1f} s {span}")
    if options.output:
        write_json_lines(Path(options.output), lines)


def results(
    took: dict[tuple[str, str, str], list[float]], before: dict[str, list[float]], options: Any
) -> Iterator[dict[str, Any]]:
    """Yield a line for every load, command and variant."""
    known = provenance()
    common = {
        "rows_labelled": LABELLED_ROWS,
        "training_steps": TRAINING_STEPS,
        "scoring_rows": SCORING_ROWS,
        "validation_rows": VALIDATION_ROWS,
        "model": Path(options.teacher).name,
        "data": Path(options.train).name,
        "command_line": known.pop("command"),
        **known,
    }
    for (load, command, variant), seconds in sorted(took.items()):
        processes, niceness = LOADS[load]
        of_load = {"load": load, "processes": processes, "niceness": niceness, "other_cores_busy": before[load]}
        yield {
            "study": "beside-other-work",
            **of_load,
            "command": command,
            "variant": variant,
            "seconds": round(median(seconds), 2),
            "all_seconds": [round(value, 2) for value in seconds],
            **common,
        }


@contextmanager
def held(lock: str | None) -> Iterator[None]:
    """Hold a file's lock within the block, if one is named."""
    if lock is None:
        yield
        return
    with Path(lock).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def settled_load() -> float:
    """Wait for an idle machine, at most half a minute, and return how many cores something else keeps busy."""
    for _ in range(10):
        if (load := others_load()) < QUIET:
            break
        time.sleep(2)
    print(f"cores busy with anything else: {load:.2f}", flush=True)
    return round(load, 2)


def others_load() -> float:
    """Return how many cores are busy now, while the processes of this script wait."""
    before, begun = busy_seconds(available_cores()), time.monotonic()
    time.sleep(1)
    return (busy_seconds(available_cores()) - before) / (time.monotonic() - begun)


@contextmanager
def busy(processes: int, niceness: int) -> Iterator[None]:
    """Let so many processes compute within the block."""
    command = [sys.executable, "-c", BUSY.format(niceness)]
    with ExitStack() as stack:
        for _ in range(processes):
            stack.callback(subprocess.Popen(command).kill)
        time.sleep(RENEWED_AFTER_S)  # no earlier count of free cores serves any more
        yield


@contextmanager
def started(name: str, options: Any) -> Iterator[Any]:
    """Give a process that has done every stage once."""
    plain = {key: value for key, value in os.environ.items() if key not in CHOICES}
    if name == "sleeping":
        plain["OMP_WAIT_POLICY"] = "passive"
    command = [sys.executable, __file__, "--client", name, "--teacher", options.teacher, "--train", options.train]
    with subprocess.Popen(command, env=plain, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        for stage in STAGES:
            ask(worker, stage)
        yield worker


def ask(worker: Any, command: str) -> float:
    print(command, file=worker.stdin, flush=True)
    return float(worker.stdout.readline())


def client(name: str, teacher: Path, train: str) -> None:
    """Answer each line of standard input, the name of a stage, with the seconds that it took."""
    from compress.inference.compute import Compute
    from compress.requests.compression import export

    compute = Compute("cpu", VARIANTS[name])
    with tempfile.TemporaryDirectory() as folder:
        work = Work(teacher, train, Path(folder))
        export(teacher, work.onnx)
        for line in sys.stdin:
            output = Path(folder) / "output"
            started = time.perf_counter()
            STAGES[line.strip()](work, compute, output)
            print(time.perf_counter() - started, flush=True)
            shutil.rmtree(output)


class Work:
    """The inputs of the stages: disjoint rows of one labelled file, and the teacher, also as ONNX."""

    def __init__(self, teacher: Path, train: str, folder: Path) -> None:
        from compress.data.examples import row_key, without_label

        rows = read_rows(train, "train")
        random.Random(0).shuffle(rows)
        rows = list({row_key(row): row for row in rows}.values())
        self.teacher, self.onnx, self.labels = teacher, folder / "onnx", folder / "labels"
        self.validation, rows = rows[:VALIDATION_ROWS], rows[VALIDATION_ROWS:]
        self.train, rows = rows[:SCORING_ROWS], rows[SCORING_ROWS:]
        self.pool = list(map(without_label, rows[:LABELLED_ROWS]))


def run_label(work: Work, compute: Any, output: Path) -> None:
    from compress.data import ExampleSource
    from compress.requests.labelling import label

    label(work.onnx, ExampleSource(work.pool, "pool"), output, device=compute.device, threads=compute.threads)


def run_finetune(work: Work, compute: Any, output: Path) -> None:
    from compress.requests.training import finetune

    rows = {"train": work.train, "validation": work.validation}
    finetune(work.teacher, output, **rows, training=bounded(), device=compute.device, threads=compute.threads)


def run_distill(work: Work, compute: Any, output: Path) -> None:
    from compress import recipes
    from compress.data import ExampleSource
    from compress.requests.labelling import label
    from compress.requests.training import distill

    if not work.labels.is_dir():
        label(work.teacher, ExampleSource(work.pool, "pool"), work.labels, device=compute.device, threads=1)
    recipe = replace(recipes.load_recipe("students", "minilm-3"), training=bounded())
    placed = {"device": compute.device, "threads": compute.threads}
    distill(work.teacher, recipe, output, labels=(work.labels,), validation=work.validation, **placed)


def run_prune(work: Work, compute: Any, output: Path) -> None:
    from compress.requests.compression import prune

    placed = {"device": compute.device, "threads": compute.threads}
    rows = {"train": work.train, "validation": work.validation}
    prune(work.teacher, output, heads="60%", measure=False, **rows, **placed)


STAGES: dict[str, Callable[[Work, Any, Path], None]] = {
    "label": run_label,
    "finetune": run_finetune,
    "distill": run_distill,
    "prune": run_prune,
}


def bounded() -> Any:
    from compress.recipes import Training

    return Training(epochs=100.0, max_steps=TRAINING_STEPS, batch_size=32, evaluations=1)


if __name__ == "__main__":
    main()
