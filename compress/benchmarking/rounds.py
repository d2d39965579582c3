"""Start a worker process for each configuration, and measure them in interleaved rounds."""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from compress.benchmarking.candidates import Entry
from compress.benchmarking.comparison_entries import left_out_entry
from compress.benchmarking.energy import EnergyMeter
from compress.benchmarking.results.files import grouped
from compress.benchmarking.worker import Worker
from compress.benchmarking.worker_main import LoadRequest, write_texts
from compress.errors import CompressError, Unavailable
from compress.inference.cores import available_cores, quietest_first
from compress.inference.speedup_intervals import batches_per_round, draw_batches
from compress.models.model_dir import ModelDir
from compress.progress import Progress, logger
from compress.recipes import BenchmarkSettings

PADDED_WIDTH = 128  # what people commonly pad to
ENERGY_READINGS = 5
# Reference models are there for scale: one of seconds a row would take most of a benchmark's time.
REFERENCE_BATCHES = 4


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
class WorkerRun:
    """An entry with a thread count, its process, and what was measured so far."""

    entry: Entry
    threads: int
    worker: Worker
    loaded: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    warm: dict[Workload, bool] = field(default_factory=dict)
    turns: dict[Workload, list[dict[str, Any]]] = field(default_factory=dict)

    def latency_ms(self, workload: Workload) -> list[list[float]]:
        return [turn["latency_ms"] for turn in self.turns[workload]]

    def tokenize_ms(self, workload: Workload) -> list[list[float]]:
        return [turn["tokenize_ms"] for turn in self.turns[workload]]

    def total_ms(self, workload: Workload) -> list[list[float]]:
        """Tokenisation and model together, batch by batch."""
        pairs = zip(self.latency_ms(workload), self.tokenize_ms(workload), strict=True)
        return [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]


def workloads_of(run: WorkerRun, settings: BenchmarkSettings) -> list[Workload]:
    """Return the workloads of a loaded run.

    Baselines and competitors read texts, so that they have the data's own lengths only; pruning steps serve the
    breakdown of a speed-up, which is of these. Reference models are measured for latency: a large batch of BERT-large
    takes as long as the whole benchmark of another model.
    """
    entry = run.entry
    at_lengths = entry.folder == "runtimes" and entry.kind != "pruning-step"
    lengths = [None, *settings.lengths] if at_lengths else [None]
    sizes = [min(settings.batch_sizes)] if entry.kind == "reference-model" else settings.batch_sizes
    workloads = [Workload(size, length) for length in lengths for size in sizes]
    if entry.is_reference and settings.padded_teacher:
        # Rows are padded as is common, to at least 128 tokens, and none is cut for it.
        readable = int(run.loaded["max_length"])
        width = readable if settings.max_length else min(readable, max(PADDED_WIDTH, *run.loaded["lengths"]))
        workloads += [Workload(size, None, width) for size in sizes]
    return workloads


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
    with ExitStack() as stack:
        runs: list[WorkerRun] = []
        logits: dict[str, np.ndarray | None] = {}
        cores = quietest_first(available_cores())
        with progress("Loading and predicting", len(entries)) as advance:
            for entry in entries:
                try:
                    with ExitStack() as own:
                        found, answers = _start(entry, settings, files, cores, own)
                        stack.push(own.pop_all())
                except CompressError as error:
                    # A competitor is somebody else's tool: that it fails on this model is no reason to measure nothing.
                    if entry.is_reference or not (entry.kind == "competitor" or isinstance(error, Unavailable)):
                        raise
                    left_out.append(left_out_entry(entry.title, error, entry.directory.path))
                else:
                    runs += found
                    logits[entry.title] = answers
                advance(1)
        yield runs, logits


def _start(
    entry: Entry, settings: BenchmarkSettings, files: Files, cores: Sequence[int], stack: ExitStack
) -> tuple[list[WorkerRun], np.ndarray | None]:
    """Build what is to be built, load it with each thread count, and predict once."""
    if entry.source:
        _build(entry, entry.source, files)
    runs = []
    for count in settings.thread_counts:
        worker = Worker(entry.title, threads=count, scratch=files.scratch, python=entry.python)
        stack.callback(worker.close)
        run = WorkerRun(entry, count, worker)
        run.loaded = load_candidate(
            run, files.texts, cores=sorted(cores[:count]), max_length=settings.max_length, lengths=settings.lengths
        )
        runs.append(run)
    if entry.has_random_weights:
        return runs, None
    path = files.scratch / "logits.npy"
    runs[0].worker.ask("predict", logits=str(path), task=(entry.source or entry.directory).task)
    return runs, np.load(path)


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


def _build(entry: Entry, source: ModelDir, files: Files) -> None:
    """Build in a process that ends: what conversion takes must not count as memory of the model."""
    logger.info("%s: building", entry.title)
    threads = len(available_cores())
    with closing(Worker(entry.title, threads=threads, scratch=files.scratch, python=entry.python)) as worker:
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


def take_turns(
    runs: Sequence[WorkerRun],
    workloads: Sequence[Sequence[Workload]],
    *,
    rows: int,
    rounds: int,
    seed: int,
    progress: Progress,
) -> None:
    """Warm up, then take turns: within a round, all that have the same rows before them follow in a random order.

    Args:
        runs: loaded processes; what is measured is added to them.
        workloads: of each run.
        rows: how many rows they loaded.
    """
    generator = random.Random(seed)
    pairs = ((run, workload) for run, own in zip(runs, workloads, strict=True) for workload in own)
    groups = grouped(pairs, lambda pair: pair[1].plain)
    turns = sum(map(len, groups.values()))
    probes = {size: draw_batches(generator, rows, size, 1)[0] for size in dict.fromkeys(g.batch_size for g in groups)}
    with progress("Warming up", turns) as advance:
        for run, workload in (pair for group in groups.values() for pair in group):
            probe = probes[workload.batch_size]
            run.warm[workload] = run.worker.ask("warm_up", probe=probe, shape=workload.shape)["stable"]
            run.turns[workload] = []
            advance(1)
    meters = {device: EnergyMeter.open(device) for device in {run.entry.device for run in runs}}
    with progress("Measuring", rounds * turns) as advance:
        for _ in range(rounds):
            for plain in generator.sample(list(groups), len(groups)):
                batches = draw_batches(generator, rows, plain.batch_size, batches_per_round(plain.batch_size))
                for run, workload in generator.sample(groups[plain], len(groups[plain])):
                    meter = meters[run.entry.device]
                    mine = batches[:REFERENCE_BATCHES] if run.entry.kind == "reference-model" else batches
                    run.turns[workload].append(_turn(run, workload, probes[plain.batch_size], mine, meter))
                    advance(1)


def _turn(
    run: WorkerRun, workload: Workload, probe: list[int], batches: list[list[int]], meter: EnergyMeter | None
) -> dict[str, Any]:
    """Measure the batches of one turn; the energy is that of the turn as a whole, its probe included.

    A turn that is over before the counter is renewed several times has none: it would get that of its neighbours.
    """
    before, started = meter.joules() if meter else 0.0, time.perf_counter()
    turn = run.worker.ask("measure", probe=probe, batches=batches, shape=workload.shape)
    counted = meter is not None and time.perf_counter() - started >= ENERGY_READINGS * meter.resolution_s
    return {**turn, "batches": batches, "joules": meter.joules() - before if meter and counted else None}
