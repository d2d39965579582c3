"""Start a worker process for each configuration, side by side, and load its model."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np

from compress.benchmarking.candidates import Entry
from compress.benchmarking.comparison_entries import left_out_entry
from compress.benchmarking.results.files import grouped
from compress.benchmarking.rounds import WorkerRun
from compress.benchmarking.worker import Worker
from compress.benchmarking.worker_main import LoadRequest, write_texts
from compress.errors import CompressError, Unavailable
from compress.inference.cores import available_cores, quietest_first
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
    runs: list[WorkerRun] = []
    logits: dict[str, np.ndarray | None] = {}
    loading = Lock()
    side_by_side = max(1, len(cores) // max(settings.thread_counts))
    with ExitStack() as stack:
        # Processes are started here and not by the threads, which only wait for their answers.
        starting = [Starting.of(entry, settings, files, stack) for entry in entries]
        with ThreadPoolExecutor(side_by_side) as pool, progress("Loading and predicting", len(entries)) as advance:
            answers = [pool.submit(one.load_and_predict, settings, files, cores, loading) for one in starting]
            try:
                for one, answer in zip(starting, answers, strict=True):
                    try:
                        logits[one.entry.title] = answer.result()
                    except CompressError as error:
                        one.processes.close()
                        # A competitor is somebody else's tool: that it fails here is no reason to measure nothing.
                        if one.entry.is_reference or not (
                            one.entry.kind == "competitor" or isinstance(error, Unavailable)
                        ):
                            raise
                        left_out.append(left_out_entry(one.entry.title, error, one.entry.directory.path))
                    else:
                        runs += one.runs
                    advance(1)
            except BaseException:
                stack.close()  # or the threads would wait for what nobody wants any more
                pool.shutdown(cancel_futures=True)
                raise
        yield runs, logits


@dataclass(frozen=True)
class Starting:
    """The processes of an entry: one a thread count, and one that builds it where it is to be built."""

    entry: Entry
    runs: list[WorkerRun]
    builder: Worker | None
    processes: ExitStack

    @classmethod
    def of(cls, entry: Entry, settings: BenchmarkSettings, files: Files, stack: ExitStack) -> Self:
        """Start the processes, which end with ``stack`` at the latest."""
        processes = stack.enter_context(ExitStack())

        def process(threads: int) -> Worker:
            worker = Worker(entry.title, threads=threads, scratch=files.scratch, python=entry.python)
            processes.callback(worker.close)
            return worker

        builder = process(len(available_cores())) if entry.source else None
        runs = [WorkerRun(entry, count, process(count)) for count in settings.thread_counts]
        return cls(entry, runs, builder, processes)

    def load_and_predict(
        self, settings: BenchmarkSettings, files: Files, cores: Sequence[int], loading: Lock
    ) -> np.ndarray | None:
        """Build what is to be built, load it with each thread count, and return the logits of one.

        Imports and predictions of several entries run at the same time, on all cores; one at a time is loaded, on the
        cores that it is to be measured on.
        """
        entry = self.entry
        if self.builder and entry.source:
            _build(entry, self.builder, entry.source, files)
        for run in self.runs:
            run.worker.ask("prepare", folder=entry.folder, plugin=entry.plugin)
            with loading:
                own = sorted(cores[: run.threads])
                options = {"max_length": settings.max_length, "lengths": settings.lengths}
                run.loaded = load_candidate(run, files.texts, cores=own, **options)
        if entry.has_random_weights:
            return None
        path = files.scratch / f"logits-{id(self)}.npy"
        task = (entry.source or entry.directory).task
        self.runs[0].worker.ask("predict", logits=str(path), task=task, cores=list(cores))
        return np.asarray(np.load(path))


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
