"""The worker process of a benchmark: load one candidate and the test rows, predict, and time batches on request.

``python -m compress.benchmarking.worker_main`` answers one JSON line on standard output for each on standard input; see
:class:`compress.benchmarking.worker.Worker`. At the top it imports NumPy and nothing heavier: a baseline needs no
torch, and the environment of a competitor may not have it.
"""

import importlib
import itertools
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from compress import plugins
from compress.benchmarking.memory import peak_gpu_memory, peak_memory, reset_peak_memory
from compress.data.examples import Example
from compress.data.tokenization import pad, word_counts
from compress.data.truncation import counting
from compress.errors import CompressError, Unavailable
from compress.evaluation.metrics import predictions
from compress.host import end_with_parent, installed_versions, library_versions
from compress.inference.cores import pin
from compress.inference.runner import run_by_length
from compress.inference.speedup_intervals import is_stable
from compress.models.manifest import MANIFEST_NAME, Manifest
from compress.models.model_dir import ModelDir

WARM_UP_SECONDS, WARM_UP_RUNS = 2.0, 10
TOKENIZER_WARM_UP_MS, MODEL_WARM_UP_MS, EARLIER_BATCHES = 1.0, 4.0, 32
PREDICT_ROWS = 32
MOST_ALONE_ROWS = 1000  # classified one at a time too, which costs as much as several thousand rows in batches
LARGEST_SCORE_CHANGE = 1e-3  # of a regression: more is another answer

S = TypeVar("S")
T = TypeVar("T")

# How rows are made: {} as they are, or "length" and "width" of compress.inference.token_runner.
Shape = Mapping[str, int]


@dataclass(frozen=True)
class LoadRequest:
    """The candidate that a worker loads, and how.

    Args:
        folder, plugin: the plug-in that starts the directory: a runtime, a baseline or a competitor.
        cores: the CPU cores that the process is pinned to; none leaves it free.
        texts: a file of texts.
        max_length, lengths: see :class:`compress.inference.token_runner.TokenRunner`; runtimes only.
        handicap: lengthen each run by this share of its time, to test whether a benchmark detects it.
    """

    folder: str
    plugin: str
    directory: str
    device: str
    threads: int
    cores: Sequence[int]
    texts: str
    max_length: int = 0
    lengths: Sequence[int] = ()
    handicap: float = 0.0


class RequestHandler:
    """Answers requests, each by the method of its name."""

    runner: Any  # a Runner
    handicap = 0.0

    def __init__(self) -> None:
        self.earlier: dict[tuple[Any, ...], deque[list[int]]] = {}  # batches by their size and shape

    def build(
        self, *, folder: str, plugin: str, directory: str, model: str, train: str, gold: str, task: str, classes: int
    ) -> Any:
        """Fit a baseline or convert a model for a competitor: afterwards ``directory`` can be loaded.

        Args:
            model: the model that a competitor runs; for baselines the teacher.
            train: a file of texts, or empty; ``gold`` the file of their labels.
        """
        target = Path(directory)
        target.mkdir(parents=True)
        # The parent has checked it, and the environment of a competitor may lack what checking needs.
        source = ModelDir(Path(model), Manifest.read(Path(model) / MANIFEST_NAME))
        examples = read_texts(train) if train else []
        labels = np.load(gold) if gold else None
        module = plugins.find(folder, plugin).load()
        import_required(module)
        if folder == "baselines":
            module.fit(target, examples, labels, task, classes, source)
        else:
            module.build(target, source, examples, labels)

    def prepare(self, *, folder: str, plugin: str) -> Any:
        """Import what a candidate needs, which takes longer than loading it."""
        import_plugin(folder, plugin)

    def load(self, **fields: Any) -> Any:
        """Load the rows and the candidate of a :class:`LoadRequest`. Pins this process first, so that thread pools
        obey.
        """
        request = LoadRequest(**fields)
        self.cores = request.cores
        pin(self.cores)
        self.handicap = request.handicap
        self.examples = read_texts(request.texts)
        place = Path(request.directory)
        module, required = import_plugin(request.folder, request.plugin)
        tokens = None
        if request.folder == "runtimes":
            from compress.inference.cascade import open_runner
            from compress.inference.open_runtime import open_runtime

            tokens = open_runner(place, request.max_length, request.lengths)
        characters = [len(row.text) + len(row.text_pair or "") for row in self.examples]
        with counting() as truncation:
            self.sizes = tokens.lengths(self.examples) if tokens else characters
        self.memory_before = reset_peak_memory()
        started = time.perf_counter_ns()
        if tokens:
            tokens.start(
                lambda model: open_runtime(model.path, request.plugin, threads=request.threads, device=request.device)
            )
            self.runner = tokens
        else:
            self.runner = module.start(place, threads=request.threads, device=request.device)
            if request.max_length and request.folder == "competitors":
                cut_to(self.runner, request.max_length)
        shortest = min(range(len(self.sizes)), key=lambda row: self.sizes[row])
        self.runner.run(self.inputs([shortest], {}))
        return {
            "load_ms": _since(started),
            "parameters": int(self.runner.parameters),
            "tokenizer_inside": bool(self.runner.tokenizer_inside),
            "max_length": int(getattr(self.runner, "max_length", 0)),
            "lengths": self.sizes if tokens else None,
            "truncated_rows": sum(map(truncation.has_cut, self.examples)) if tokens else None,
            "versions": library_versions() | installed_versions(map(_name_in, required.values())),
        }

    def inputs(self, rows: Sequence[int], shape: Shape) -> Any:
        return self.runner.prepare([self.examples[row] for row in rows], **shape)

    def predict(self, *, logits: str, task: str = "classification", cores: Sequence[int] = ()) -> Any:
        """Write the logits ``[N, C]`` of all rows; rows of like length share a batch. For tagging N counts words.

        Returns which share of the rows each member of a cascade answered, nothing for other models, and the share of
        the rows, up to 1,000 spread evenly, whose answer is another when they are alone.

        This may run on any of ``cores``; afterwards the process is pinned as before.
        """
        pin(cores)
        words = word_counts(self.examples) if task == "tagging" else None

        def run(rows: list[int]) -> np.ndarray:
            return np.asarray(self.runner.run(self.inputs(rows, {})))

        before = np.array(getattr(self.runner, "answered", ()))
        found = run_by_length(self.sizes, run, PREDICT_ROWS, words)
        np.save(logits, found)
        answered = ((getattr(self.runner, "answered", before) - before) / len(self.sizes)).tolist()
        rows = len(self.sizes)
        together = np.split(found, np.cumsum(words or [1] * rows)[:-1])
        sample = sorted({round(row) for row in np.linspace(0, rows - 1, MOST_ALONE_ROWS)})
        changed = [_differ(together[row], run([row]), task) for row in sample]
        if cores:
            pin(self.cores)
        return {"answered": answered, "batch_dependent_share": sum(changed) / len(changed)}

    def warm_up(self, *, probe: list[int], shape: Shape) -> Any:
        """Run one batch until it no longer gets faster, after what a runtime does once for all batches of its size."""
        if hasattr(self.runner, "prepare_shapes"):
            self.runner.prepare_shapes(len(probe), shape.get("length") or max(*self.sizes, shape.get("width", 0)))
        inputs, samples = self.inputs(probe, shape), list[float]()
        end = time.perf_counter() + WARM_UP_SECONDS
        while len(samples) < 2 or time.perf_counter() < end:
            samples.append(self._time(inputs)[0])
            if len(samples) >= WARM_UP_RUNS and is_stable(samples):
                break
        return {"stable": is_stable(samples)}

    def measure(self, *, batches: list[list[int]], shape: Shape, warm_up: bool = True) -> Any:
        """Time batches back to back, in milliseconds of the wall clock and of this process's CPU time.

        Neither the tokenizer nor a fast model is at its speed after one call, so that both first go on with batches of
        earlier turns, for a while and once at least. The first run finds the caches as another model left them: its
        wall time is ``cold_ms``.
        """
        earlier = self.earlier.setdefault((len(batches[0]), *shape.items()), deque(batches, maxlen=EARLIER_BATCHES))
        ready = for_a_while(TOKENIZER_WARM_UP_MS, lambda rows: self.inputs(rows, shape), earlier if warm_up else ())
        prepared, tokenize_ms, tokenize_cpu_ms = [], [], []
        for rows in batches:
            inputs, (wall_ms, cpu_ms) = timed(partial(self.inputs, rows, shape))
            prepared.append(inputs)
            tokenize_ms.append(0.0 if self.runner.tokenizer_inside else wall_ms)
            tokenize_cpu_ms.append(0.0 if self.runner.tokenizer_inside else cpu_ms)
        earlier.extend(batches)
        before_ms = for_a_while(MODEL_WARM_UP_MS, lambda inputs: self._time(inputs)[0], ready)
        latency_ms, latency_cpu_ms, device_ms = [], [], []
        for inputs in prepared:
            wall_ms, cpu_ms = self._time(inputs)
            latency_ms.append(wall_ms)
            latency_cpu_ms.append(cpu_ms)
            device_ms.append(getattr(self.runner, "device_ms", None))
        return {
            "cold_ms": before_ms[:1],
            "latency_ms": latency_ms,
            "latency_cpu_ms": latency_cpu_ms,
            "tokenize_ms": tokenize_ms,
            "tokenize_cpu_ms": tokenize_cpu_ms,
            "device_ms": device_ms,
        }

    def memory(self) -> Any:
        """Return the peak resident memory since loading began, and what this process held before the model."""
        return {
            "peak_memory_bytes": peak_memory(),
            "memory_before_bytes": self.memory_before,
            "peak_gpu_memory_bytes": peak_gpu_memory(),
        }

    def arithmetic(self, *, directory: str, jobs: list[dict[str, Any]]) -> Any:
        """Return the operations of a row on average over the batches of each job; null where they cannot be counted.

        Args:
            jobs: ``batches``, of which only the lengths of the rows count, and the ``width`` they are padded to.
        """
        from compress.inference.token_runner import widen
        from compress.models.flops import count_flops

        model = ModelDir.open(directory, verify=False).load()
        counted: list[float | None] = []
        for job in jobs:
            batches = [tuple(lengths) for lengths in job["batches"]]
            known = {}
            for lengths in set(batches):
                rows = [{"input_ids": [1] * length} for length in lengths]
                known[lengths] = count_flops(model, widen(pad(rows, 0), job["width"], 0))
            found = [value for lengths in batches if (value := known[lengths]) is not None]
            counted.append(sum(found) / len(found) if len(found) == len(batches) else None)
        return {"flops": counted}

    def peak(self, *, device: str, precision: str, threads: int) -> Any:
        """Return the fastest matrix product of a device."""
        from compress.benchmarking.peak_flops import matmul_peak_tflops

        return {"tflops": matmul_peak_tflops(device, precision, threads)}

    def _time(self, inputs: Any) -> tuple[float, float]:
        """Run a batch and return its milliseconds by the wall clock and of CPU time."""

        def run() -> None:
            started = time.process_time_ns()
            self.runner.run(inputs)
            if self.handicap:
                end = started + (1 + self.handicap) * (time.process_time_ns() - started)
                while time.process_time_ns() < end:
                    pass

        return timed(run if self.handicap else partial(self.runner.run, inputs))[1]


def timed(work: Callable[[], T]) -> tuple[T, tuple[float, float]]:
    """Return what work returns, and its milliseconds by the wall clock and of CPU time of this process; never 0."""
    cpu_ns = time.process_time_ns()
    started_ns = time.perf_counter_ns()
    result = work()
    wall_ns = time.perf_counter_ns() - started_ns
    cpu_ns = time.process_time_ns() - cpu_ns
    wall_ms, cpu_ms = (max(round(ns / 1e6, 5), 1e-5) for ns in (wall_ns, cpu_ns))
    return result, (wall_ms, cpu_ms)


def for_a_while(least_ms: float, work: Callable[[S], T], items: Collection[S]) -> list[T]:
    """Return what work makes of items, in turn, until so much time has passed."""
    end_ns = time.perf_counter_ns() + 1e6 * least_ms
    return [
        work(item) for item in itertools.takewhile(lambda _: time.perf_counter_ns() < end_ns, itertools.cycle(items))
    ]


def write_texts(path: Path, examples: Sequence[Example]) -> Path:
    """Write texts without their labels for :func:`read_texts` and return the path."""
    path.write_text(json.dumps([[row.text, row.text_pair] for row in examples]), encoding="utf-8")
    return path


def read_texts(path: str) -> list[Example]:
    return [Example(*pair) for pair in json.loads(Path(path).read_text(encoding="utf-8"))]


def import_plugin(folder: str, plugin: str) -> tuple[Any, Mapping[str, str]]:
    """Import a plug-in and what it needs to open a model; return it and its requirements."""
    module = plugins.find(folder, plugin).load()
    required = import_required(module)
    if folder == "runtimes":
        import transformers  # noqa: F401  for the tokenizer
    # A runtime says that it opens torch models; a competitor in this environment does if it required torch.
    own_torch = "torch" in sys.modules and not getattr(module, "ENVIRONMENT", "")
    if module.OPENS == "torch" if hasattr(module, "OPENS") else own_torch:
        from compress.models.modeling.registration import register_models

        register_models()  # imports 140 MB of code that are no part of a model
    return module, required


def import_required(module: Any) -> Mapping[str, str]:
    """Import what a plug-in requires, before its memory is counted, and return it.

    Raises:
        Unavailable: it is not installed.
    """
    required: Mapping[str, str] = getattr(module, "REQUIRES", {})
    for name, requirement in required.items():
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise Unavailable(f"{name} cannot be imported ({error}); type pip install '{requirement}'") from None
    return required


def cut_to(runner: Any, max_length: int) -> None:
    """Make a competitor truncate rows as the others do."""
    if not hasattr(runner, "max_length"):
        raise Unavailable("it reads texts whole; leave out --max-length to measure it")
    runner.max_length = min(max_length, runner.max_length)


def _differ(logits: np.ndarray, others: np.ndarray, task: str) -> bool:
    """Tell whether two logits ``[N, C]`` of the same rows are different answers."""
    if task == "regression":
        return bool(np.abs(logits - others).max() > LARGEST_SCORE_CHANGE)
    return not np.array_equal(predictions(logits, task), predictions(others, task))


def _name_in(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0]


def _since(started_ns: int) -> float:
    return round((time.perf_counter_ns() - started_ns) / 1e6, 5)


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until the parent closes them, or is gone."""
    handler = RequestHandler()
    for line in requests:
        arguments = json.loads(line)
        try:
            answer = getattr(handler, arguments.pop("request"))(**arguments)
        except Unavailable as error:
            answer = {"unavailable": str(error)}
        except CompressError as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer or {}) + "\n")
        answers.flush()


if __name__ == "__main__":
    end_with_parent()
    # What a library prints or asks must not mix with requests and answers: those get channels of their own, prints
    # go to the log, and a question on standard input finds it at its end.
    incoming, outgoing = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    serve(incoming, outgoing)
