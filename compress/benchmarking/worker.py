"""Worker processes of a benchmark: start one for each configuration, side by side, load its model, and let it predict.

Each candidate has a process of its own, so that they share no threads, memory or cache. It runs
:mod:`compress.benchmarking.worker_main`: one JSON line is the request, one the answer. Arrays and texts are passed as
files in a directory of the parent.
"""

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from compress.benchmarking.candidates import Entry, left_out_entry
from compress.benchmarking.results.files import grouped
from compress.errors import CompressError, Unavailable
from compress.inference.threads import available_cores, core_count, quietest_first
from compress.progress import Progress, logger
from compress.recipes import BenchmarkSettings

Samples = list[list[float]]  # milliseconds, one list a round
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_PACKAGE = Path(__file__).parent.parent


class Worker:
    """A model in a child process; calls block until it has answered."""

    def __init__(self, title: str, *, threads: int, scratch: Path, python: Path | None = None) -> None:
        """Start the child.

        Args:
            title: names it in errors.
            threads: what its libraries are told before they are imported.
            scratch: keeps what it prints.
            python: an interpreter of another environment, which holds no ``compress`` of its own.
        """
        self.title = title
        self._log = scratch / f"{id(self)}.log"
        # A checkout that is not installed is found from any folder; it comes last, so that it hides nothing.
        package_last = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(_PACKAGE.parent))))
        if python:  # this package alone: beside it may lie libraries that another environment must not see
            (scratch / "package").mkdir(exist_ok=True)
            with suppress(FileExistsError):
                (scratch / "package" / _PACKAGE.name).symlink_to(_PACKAGE.resolve(), target_is_directory=True)
        environment = {
            **os.environ,
            **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": str(scratch / "package") if python else package_last,
        }
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C reaches the parent only, which then ends its children in order.
            self._process = subprocess.Popen(
                [str(python or sys.executable), "-P", "-m", "compress.benchmarking.worker_main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                encoding="utf-8",
                start_new_session=True,
            )

    def ask(self, request: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return its answer.

        Raises:
            Unavailable: the child lacks something optional, and says so.
            CompressError: the child says so, or it ended: then with the last line it printed.
        """
        assert self._process.stdin and self._process.stdout
        answer = ""
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"request": request, **arguments}) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            code = self._process.wait()
            reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            if code == -9:
                reason += ", most often for want of memory"
            lines = [line for line in self._log.read_text("utf-8", "replace").splitlines() if line.strip()]
            said = lines[-1].strip() if lines else "nothing"
            raise CompressError(f"{self.title}: its process {reason}; it said last: {said}")
        found = json.loads(answer)
        if "unavailable" in found:
            raise Unavailable(found["unavailable"])
        if "error" in found:
            raise CompressError(f"{self.title}: {found['error']}")
        return dict(found)

    def close(self) -> None:
        """End the child at once: it has nothing to save."""
        self._process.kill()
        self._process.wait()
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            with suppress(BrokenPipeError):
                pipe.close()


@dataclass(frozen=True)
class Workload:
    """How rows are put before a model.

    ``length`` is the tokens of every row, or None for the data's own. ``width`` is what rows are padded to whatever
    their length; 0 means to the longest of their batch.
    """

    batch_size: int
    length: int | None = None
    width: int = 0

    @property
    def padding(self) -> str:
        return "max_length" if self.width else "longest"

    @property
    def shape(self) -> dict[str, int]:
        """The arguments of a runner's ``prepare``."""
        return {**({"length": self.length} if self.length else {}), **({"width": self.width} if self.width else {})}

    @property
    def plain(self) -> Self:
        """The same rows without padding that is not needed: what it is compared with."""
        return replace(self, width=0)


@dataclass
class Round:
    """Batches, and what a run took for each in milliseconds: ``latency_ms`` and so on, as its process measures them."""

    batches: Sequence[list[int]]
    times: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))

    @property
    def measured(self) -> Sequence[list[int]]:
        return self.batches[: len(self.times["latency_ms"])]


@dataclass
class WorkerRun:
    """An entry with a thread count, its process, and what was measured so far."""

    entry: Entry
    threads: int
    worker: Worker
    loaded: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    warm: dict[Workload, bool] = field(default_factory=dict)
    rounds: dict[Workload, list[Round]] = field(default_factory=dict)
    joules_per_row: dict[Workload, float] = field(default_factory=dict)
    answered: Sequence[float] = ()  # of a cascade: the share of the rows that each member answers
    batch_dependent_share: float | None = None  # of the rows, those with another answer alone than in a batch

    @property
    def uses_cpu_time(self) -> bool:
        """Whether runs are compared by CPU time: one thread on a CPU, on a system that counts it."""
        return self.threads == 1 and self.entry.device == "cpu" and hasattr(time, "CLOCK_PROCESS_CPUTIME_ID")

    def milliseconds(self, workload: Workload, by_cpu_time: bool = False, with_tokenizer: bool = False) -> Samples:
        """Return what every batch took, a list a round, by CPU time or the wall clock."""
        unit = "cpu_ms" if by_cpu_time else "ms"
        names = [f"latency_{unit}", f"tokenize_{unit}"] if with_tokenizer else [f"latency_{unit}"]
        rounds = ([one.times[name] for name in names] for one in self.rounds[workload])
        return [[sum(parts) for parts in zip(*times, strict=True)] for times in rounds]


def groups_of(entries: Sequence[Entry], together: int) -> list[list[Entry]]:
    """Part entries into groups of so many models (0: one group of all), each with the teacher in all its runtimes.

    Pruning steps are in the group of the model that they became, and not counted.
    """
    teacher = [entry for entry in entries if entry.kind == "teacher"]
    others = (entry for entry in entries if entry.kind != "teacher")
    models = list(grouped(others, lambda entry: entry.candidate.step_of or entry.candidate.name).values())
    size = together or max(1, len(models))
    parts = [models[start : start + size] for start in range(0, len(models), size)] or [[]]
    return [[*teacher, *(entry for model in part for entry in model)] for part in parts]


@contextmanager
def started(
    entries: Sequence[Entry],
    settings: BenchmarkSettings,
    scratch: Path,
    left_out: list[dict[str, str]],
    progress: Progress,
) -> Iterator[tuple[list[WorkerRun], dict[str, np.ndarray | None]]]:
    """Give a loaded process for each entry and thread count, and the logits ``[N, C]`` of each entry by its title.

    They read the rows that lie in ``scratch``, see :func:`compress.benchmarking.worker_main.write_rows`.
    A baseline or competitor that cannot be had here is added to ``left_out`` with the reason. All processes are ended
    on the way out, whatever happens.
    """
    cores = quietest_first(available_cores())
    side_by_side = max(1, core_count() // max(settings.thread_counts))
    with ExitStack() as stack:
        # Processes are started here and not by the threads, which only wait for their answers.
        starting = [Starting(entry, settings, scratch, cores, stack) for entry in entries]
        together, alone = ThreadPoolExecutor(side_by_side), ThreadPoolExecutor(1)
        for pool in (together, alone):
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        steps = ((together, Starting.prepare), (alone, Starting.load), (together, Starting.predict))
        with progress("Loading and predicting", len(steps) * len(entries)) as advance:
            for pool, step in steps:
                answers = [pool.submit(step, one) for one in starting]
                for one, answer in zip(list(starting), answers, strict=True):
                    try:
                        answer.result()
                    except CompressError as error:
                        one.processes.close()
                        # A competitor is somebody else's tool: that it fails here is no reason to measure nothing.
                        if one.entry.is_reference or not (
                            one.entry.kind == "competitor" or isinstance(error, Unavailable)
                        ):
                            raise
                        left_out.append(left_out_entry(one.entry.title, error, one.entry.directory.path))
                        starting.remove(one)
                    advance(1)
        yield [run for one in starting for run in one.runs], {one.entry.title: one.logits for one in starting}


class Starting:
    """The processes of an entry: one a thread count, and one that builds it where it is to be built."""

    logits: np.ndarray | None = None  # [N, C], after predict; none where weights are random

    def __init__(
        self, entry: Entry, settings: BenchmarkSettings, scratch: Path, cores: Sequence[int], stack: ExitStack
    ) -> None:
        self.entry, self.settings, self.scratch, self.cores = entry, settings, scratch, cores
        self.processes = stack.enter_context(ExitStack())
        self.builder = self._start(core_count()) if entry.source else None
        self.runs = [WorkerRun(entry, count, self._start(count)) for count in settings.thread_counts]

    def _start(self, threads: int) -> Worker:
        worker = Worker(self.entry.title, threads=threads, scratch=self.scratch, python=self.entry.python)
        self.processes.callback(worker.close)
        return worker

    def prepare(self) -> None:
        # In a process that ends: what conversion takes must not count as memory of the model.
        if self.builder and (source := self.entry.source):
            logger.info("%s: building", self.entry.title)
            self.builder.ask(
                "build",
                folder=self.entry.folder,
                plugin=self.entry.plugin,
                directory=str(self.entry.directory.path),
                model=str(source.path.resolve()),
                rows=str(self.scratch),
                encoder=self.settings.encoder,
            )
            self.builder.close()
        for run in self.runs:
            run.worker.ask("prepare", folder=self.entry.folder, plugin=self.entry.plugin)

    def load(self) -> None:
        """Load it with each thread count, on the cores that it is to be measured on."""
        options = {"max_length": self.settings.max_length, "lengths": self.settings.lengths}
        for run in self.runs:
            run.loaded = load_candidate(run, self.scratch, cores=sorted(self.cores[: run.threads]), **options)

    def predict(self) -> None:
        """Predict all rows with one thread count, on all cores."""
        if self.entry.kind in {"reference-model", "pruning-step"}:
            return
        path = self.scratch / f"logits-{id(self)}.npy"
        found = self.runs[0].worker.ask("predict", logits=str(path), cores=list(self.cores))
        for run in self.runs:
            run.answered, run.batch_dependent_share = found["answered"], found["batch_dependent_share"]
        self.logits = np.asarray(np.load(path))


def load_candidate(run: WorkerRun, rows: Path, *, cores: Sequence[int], **options: Any) -> dict[str, Any]:
    """Load a run's model in its process; ``options`` are further ones of :meth:`RequestHandler.load`."""
    answers = run.entry.source or run.entry.directory
    return run.worker.ask(
        "load",
        folder=run.entry.folder,
        plugin=run.entry.plugin,
        directory=str(run.entry.directory.path.resolve()),
        device=run.entry.device,
        threads=run.threads,
        cores=list(cores),
        rows=str(rows),
        task=answers.task,
        head=answers.task.head_settings(answers.labels),
        windows=str(run.entry.directory.given_windows or ""),
        **options,
    )
