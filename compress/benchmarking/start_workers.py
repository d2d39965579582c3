"""Start a worker process for each configuration, side by side, and load its model."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from compress.benchmarking.candidates import Entry
from compress.benchmarking.comparison_entries import left_out_entry
from compress.benchmarking.results.files import grouped
from compress.benchmarking.rounds import WorkerRun
from compress.benchmarking.worker import Worker
from compress.benchmarking.worker_main import LoadRequest, write_texts
from compress.errors import CompressError, Unavailable
from compress.inference.cores import available_cores, core_count, quietest_first
from compress.models.model_dir import ModelDir
from compress.progress import Progress, logger
from compress.recipes import BenchmarkSettings


@dataclass(frozen=True)
class Files:
    """What children read: the test rows, and the training rows with their labels, if there are any."""

    scratch: Path
    texts: Path
    train: Path | None
    gold: Path | None

    @classmethod
    def write(cls, scratch: Path, rows: Sequence[Any], train: Sequence[Any], gold: np.ndarray | None) -> Self:
        labels = scratch / "train-gold.npy"
        if gold is not None:
            np.save(labels, gold)
        return cls(
            scratch,
            write_texts(scratch / "texts.json", rows),
            write_texts(scratch / "train.json", train) if train else None,
            labels if gold is not None else None,
        )


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
    files: Files,
    left_out: list[dict[str, str]],
    progress: Progress,
) -> Iterator[tuple[list[WorkerRun], dict[str, np.ndarray | None]]]:
    """Give a loaded process for each entry and thread count, and the logits ``[N, C]`` of each entry by its title.

    A baseline or competitor that cannot be had here is added to ``left_out`` with the reason. All processes are ended
    on the way out, whatever happens.
    """
    cores = quietest_first(available_cores())
    side_by_side = max(1, core_count() // max(settings.thread_counts))
    with ExitStack() as stack:
        # Processes are started here and not by the threads, which only wait for their answers.
        starting = [Starting.of(entry, settings, files, cores, stack) for entry in entries]
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


@dataclass(eq=False)
class Starting:
    """The processes of an entry: one a thread count, and one that builds it where it is to be built.

    ``logits`` ``[N, C]`` are there after :meth:`predict`; None where weights are random.
    """

    entry: Entry
    settings: BenchmarkSettings
    files: Files
    cores: Sequence[int]
    runs: list[WorkerRun]
    builder: Worker | None
    processes: ExitStack
    logits: np.ndarray | None = None

    @classmethod
    def of(
        cls, entry: Entry, settings: BenchmarkSettings, files: Files, cores: Sequence[int], stack: ExitStack
    ) -> Self:
        """Start the processes, which end with ``stack`` at the latest."""
        processes = stack.enter_context(ExitStack())

        def process(threads: int) -> Worker:
            worker = Worker(entry.title, threads=threads, scratch=files.scratch, python=entry.python)
            processes.callback(worker.close)
            return worker

        builder = process(core_count()) if entry.source else None
        runs = [WorkerRun(entry, count, process(count)) for count in settings.thread_counts]
        return cls(entry, settings, files, cores, runs, builder, processes)

    def prepare(self) -> None:
        """Build what is to be built, and import what loading needs."""
        if self.builder and self.entry.source:
            _build(self.entry, self.builder, self.entry.source, self.files)
        for run in self.runs:
            run.worker.ask("prepare", folder=self.entry.folder, plugin=self.entry.plugin)

    def load(self) -> None:
        """Load it with each thread count, on the cores that it is to be measured on."""
        options = {"max_length": self.settings.max_length, "lengths": self.settings.lengths}
        for run in self.runs:
            own = sorted(self.cores[: run.threads])
            run.loaded = load_candidate(run, self.files.texts, cores=own, **options)

    def predict(self) -> None:
        """Predict all rows with one thread count, on all cores."""
        if self.entry.has_random_weights:
            return
        path = self.files.scratch / f"logits-{id(self)}.npy"
        task = (self.entry.source or self.entry.directory).task
        found = self.runs[0].worker.ask("predict", logits=str(path), task=task, cores=list(self.cores))
        for run in self.runs:
            run.answered, run.batch_dependent_share = found["answered"], found["batch_dependent_share"]
        self.logits = np.asarray(np.load(path))


def load_candidate(run: WorkerRun, texts: Path, *, cores: Sequence[int], **options: Any) -> dict[str, Any]:
    """Load a run's model in its process; ``options`` are those of a :class:`LoadRequest`."""
    request = LoadRequest(
        folder=run.entry.folder,
        plugin=run.entry.plugin,
        directory=str(run.entry.directory.path.resolve()),
        device=run.entry.device,
        threads=run.threads,
        cores=list(cores),
        texts=str(texts),
        **options,
    )
    return run.worker.ask("load", **asdict(request))


def _build(entry: Entry, worker: Worker, source: ModelDir, files: Files) -> None:
    """Build in a process that ends: what conversion takes must not count as memory of the model."""
    logger.info("%s: building", entry.title)
    worker.ask(
        "build",
        folder=entry.folder,
        plugin=entry.plugin,
        directory=str(entry.directory.path),
        model=str(source.path.resolve()),
        train=str(files.train or ""),
        gold=str(files.gold or ""),
        task=source.task,
        classes=len(source.labels),
    )
    worker.close()
