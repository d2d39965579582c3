"""The worker process of a benchmark: load one candidate and the test rows, predict, and time batches on

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
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from compress import plugins, tasks
from compress.benchmarking import competitors
from compress.benchmarking.hardware import matmul_peak_tflops, peak_gpu_memory, peak_memory, reset_peak_memory
from compress.data.examples import Example
from compress.data.tokenization import pad, shared_encoder
from compress.data.truncation import counting
from compress.data.windows import WindowRows
from compress.errors import CompressError, Unavailable
from compress.host import end_with_parent, installed_versions, library_versions
from compress.inference.batching import run_by_length
from compress.inference.speedup_intervals import is_stable
from compress.inference.threads import pin
from compress.models.manifest import MANIFEST_NAME, Manifest
from compress.models.model_dir import Model

WARM_UP_SECONDS, WARM_UP_RUNS = 2.0, 10
TOKENIZER_WARM_UP_MS, MODEL_WARM_UP_MS, EARLIER_BATCHES = 1.0, 4.0, 32
PREDICT_ROWS = 32
TEXTS_NAME, TRAIN_NAME, GOLD_NAME = "texts.json", "train.json", "train-gold.npy"  # of a benchmark's scratch
MOST_ALONE_ROWS = 1000  # classified one at a time too, which costs as much as several thousand rows in batches

S = TypeVar("S")
T = TypeVar("T")

# How rows are made: {} as they are, or "length" and "width" of compress.inference.runners.
Shape = Mapping[str, int]


class RequestHandler:
    """Answers requests, each by the method of its name."""

    runner: Any  # a Runner
    model: Any = None  # a Model, of runtimes
    handicap = 0.0

    def __init__(self) -> None:
        self.earlier: dict[tuple[Any, ...], deque[list[int]]] = {}  # batches by their size and shape

    def build(self, *, folder: str, plugin: str, directory: str, model: str, rows: str, encoder: str = "") -> Any:
        """Fit a baseline or convert a model for a competitor: afterwards ``directory`` can be loaded.

        Args:
            model: the model that a competitor runs; for baselines the teacher.
            rows: the folder of :func:`write_rows`.
            encoder: for baselines that read a pretrained one (``READS_ENCODER``); by default the teacher's.
        """
        target, place, train = Path(directory), Path(model), Path(rows) / TRAIN_NAME
        target.mkdir(parents=True)
        # The parent has checked it, and the environment of a competitor may lack what checking needs.
        source = Model(place, Manifest.read(place / MANIFEST_NAME))
        examples, labels = (read_texts(train), np.load(train.with_name(GOLD_NAME))) if train.is_file() else ([], None)
        module = plugins.find(folder, plugin).load()
        import_required(module)
        if folder == "baselines":
            read = {"encoder": encoder} if getattr(module, "READS_ENCODER", False) else {}
            module.fit(target, examples, labels, source.task, len(source.labels), source, **read)
        else:
            competitors.build(module, target, source, examples, labels)

    def prepare(self, *, folder: str, plugin: str) -> Any:
        """Import what a candidate needs, which takes longer than loading it."""
        import_plugin(folder, plugin)

    def load(
        self,
        *,
        folder: str,
        plugin: str,
        directory: str,
        device: str,
        threads: int,
        cores: Sequence[int],
        rows: str,
        **options: Any,
    ) -> Any:
        """Load the rows and the candidate. Pins this process first, so that thread pools obey.

        Args:
            folder, plugin: what starts the directory: a runtime, a baseline or a competitor.
            cores: the CPU cores that the process is pinned to; none leaves it free.
            rows: the folder of :func:`write_rows`.
            options: ``task``, and ``head``, what a config says of its labels (:meth:`Task.head_settings`).
                ``windows`` in place of those of its config.
                ``max_length`` and ``lengths``, see :class:`compress.inference.runners.LoadedModel`; runtimes only.
                ``handicap`` lengthens each run by this share of its time, to test whether a benchmark detects it.
        """
        max_length, lengths = options.get("max_length", 0), options.get("lengths", ())
        self.cores, self.handicap = cores, options.get("handicap", 0.0)
        pin(cores)
        self.examples = read_texts(Path(rows) / TEXTS_NAME)
        self.labels = tasks.labels_of(options["head"])
        self.task = tasks.find_task(options["task"]).of_model(options["head"])
        place, tokens = Path(directory), None
        module, required = import_plugin(folder, plugin)
        if folder == "runtimes":
            from compress.inference.batching import open_runtime
            from compress.inference.compute import Compute
            from compress.inference.runners import NATIVE, open_runner, serving_runtime
            from compress.models.model_dir import open_model

            def opened() -> Model:
                found = replace(open_model(place, verify=False), compute=Compute(device, threads))
                return found.with_windows(options.get("windows") or None)

            self.model = opened()
            is_native = plugin == NATIVE and serving_runtime(self.model, device) == NATIVE
            # Of the native library another one counts tokens, as loading is timed below.
            tokens = opened().runner if is_native else open_runner(self.model, max_length, lengths)
        characters = [len(row.text) + len(row.text_pair or "") for row in self.examples]
        with counting() as truncation:
            self.sizes = tokens.lengths(self.examples) if tokens else characters
        self.memory_before = reset_peak_memory()
        started = time.perf_counter_ns()
        if tokens and is_native:
            self.runner = self.model.runner
            if 0 < max_length < self.model.max_length:
                raise Unavailable(f"it reads {self.model.max_length} tokens of a text; leave out --max-length")
        elif tokens:
            tokens.start(lambda model: open_runtime(model.path, plugin, threads=threads, device=device))
            self.runner = tokens
        else:
            self.runner = module.start(place, threads=threads, device=device)
            if max_length and folder == "competitors":
                if not self.runner.max_length:
                    raise Unavailable("it reads texts whole; leave out --max-length to measure it")
                self.runner.max_length = min(max_length, self.runner.max_length)
        shortest = min(range(len(self.sizes)), key=lambda row: self.sizes[row])
        self.runner.run(self.inputs([shortest], {}))
        return {
            "load_ms": round((time.perf_counter_ns() - started) / 1e6, 5),
            "parameters": int(self.runner.parameters),
            "tokenizer_inside": bool(self.runner.tokenizer_inside),
            "max_length": int(self.runner.max_length),
            "lengths": self.sizes if tokens else None,
            "truncated_rows": truncation.cut_rows(self.examples) if tokens else None,
            "versions": library_versions()
            | installed_versions(re.split(r"[^A-Za-z0-9._-]", one)[0] for one in required.values()),
        }

    def inputs(self, rows: Sequence[int], shape: Shape) -> Any:
        return self.runner.prepare(self._examples(rows), **shape)

    def predict(self, *, logits: str, cores: Sequence[int] = ()) -> Any:
        """Write the logits ``[N, C]`` of all answers; rows of like length share a batch.

        Returns which share of the rows each member of a cascade answered, nothing for other models, and the share of
        the rows, up to 1,000 spread evenly, whose answer is another when they are alone.

        This may run on any of ``cores``; afterwards the process is pinned as before.
        """
        pin(cores)
        words = self.task.answer_counts(self.examples)

        def run(rows: list[int]) -> np.ndarray:
            return np.asarray(self.runner.run(self.inputs(rows, {})))

        rows, before = len(self.sizes), np.array(getattr(self.runner, "answered", ()))
        found = run_by_length(self.sizes, run, PREDICT_ROWS, words)
        np.save(logits, found)
        answered = ((getattr(self.runner, "answered", before) - before) / rows).tolist()
        together = np.split(found, np.cumsum(words or [1] * rows)[:-1])
        sample = sorted({round(row) for row in np.linspace(0, rows - 1, MOST_ALONE_ROWS)})
        changed = [self.task.differ(together[row], run([row])) for row in sample]
        if cores:
            pin(self.cores)
        return {"answered": answered, "batch_dependent_share": sum(changed) / len(changed)}

    def warm_up(self, *, probe: list[int], shape: Shape) -> Any:
        """Run one batch until it no longer gets faster, after what a runtime does once for all batches of its size."""
        if hasattr(self.runner, "prepare_shapes"):
            self.runner.prepare_shapes(len(probe), shape.get("length") or max(*self.sizes, shape.get("width", 0)))
        inputs, samples = self._given(probe, shape), list[float]()
        end = time.perf_counter() + WARM_UP_SECONDS
        while len(samples) < 2 or time.perf_counter() < end:
            samples.append(self._time(inputs)[1][0])
            if len(samples) >= WARM_UP_RUNS and is_stable(samples):
                break
        return {"stable": is_stable(samples)}

    def measure(self, *, batches: list[list[int]], shape: Shape, warm_up: bool = True) -> Any:
        """Time batches back to back, in milliseconds of the wall clock and of this process's CPU time.

        ``tokenize_ms`` is what else there is from text to label: to tokenise, and to make labels of logits.
        Neither the tokenizer nor a fast model is at its speed after one call, so that both first go on with batches of
        earlier turns, for a while and once at least. The first run finds the caches as another model left them: its
        wall time is ``cold_ms``.
        """
        earlier = self.earlier.setdefault((len(batches[0]), *shape.items()), deque(batches, maxlen=EARLIER_BATCHES))
        ready = for_a_while(TOKENIZER_WARM_UP_MS, lambda rows: self._given(rows, shape), earlier if warm_up else ())
        prepared = [timed(partial(self._given, rows, shape)) for rows in batches]
        earlier.extend(batches)
        before_ms = for_a_while(MODEL_WARM_UP_MS, lambda inputs: self._time(inputs)[1][0], ready)
        ran = [(*self._time(inputs), getattr(self.runner, "device_ms", None)) for inputs, _ in prepared]
        latency = [(*times, device_ms) for _, times, device_ms in ran]
        tokenized = [(0.0, 0.0) if self.runner.tokenizer_inside else times for _, times in prepared]
        labelled = [
            (0.0, 0.0) if self._gives_labels else timed(partial(self._label, rows, one[0]))[1]
            for rows, one in zip(batches, ran, strict=True)
        ]
        around = [tuple(map(sum, zip(*both, strict=True))) for both in zip(tokenized, labelled, strict=True)]
        return {
            "cold_ms": before_ms[:1],
            **dict(zip(("latency_ms", "latency_cpu_ms", "device_ms"), zip(*latency, strict=True), strict=True)),
            **dict(zip(("tokenize_ms", "tokenize_cpu_ms"), zip(*around, strict=True), strict=True)),
        }

    def memory(self) -> Any:
        """Return the peak resident memory since loading began, and what this process held before the model."""
        return {
            "peak_memory_bytes": peak_memory(),
            "memory_before_bytes": self.memory_before,
            "peak_gpu_memory_bytes": peak_gpu_memory(),
        }

    def arithmetic(self, *, directory: str, windows: str, jobs: list[dict[str, Any]]) -> Any:
        """Return the operations of a row on average over the batches of each job; null where they cannot be counted.

        Args:
            windows: in place of those of the config of the model.
            jobs: ``batches``, of which only the lengths of the rows count, and the ``width`` they are padded to.
        """
        from compress.inference.runners import widen
        from compress.models.components import count_flops

        opened = Model.open(directory, verify=False).with_windows(windows or None)
        model = opened.load()

        @cache
        def count(lengths: tuple[int, ...], width: int) -> float | None:
            rows = [{"input_ids": np.ones(length, np.int64)} for length in lengths]
            if opened.windows:
                ends = shared_encoder(opened.tokenizer).ends(pairs=False)
                rows = [*WindowRows(opened.windows, {"input_ids": [row["input_ids"] for row in rows]}, ends)]
            flops = count_flops(model, widen(pad(rows, 0), width, 0))
            return flops and flops * len(rows) / len(lengths)

        counted = [[count(tuple(lengths), job["width"]) for lengths in job["batches"]] for job in jobs]
        return {"flops": [None if None in one else sum(flops or 0.0 for flops in one) / len(one) for one in counted]}

    def peak(self, *, device: str, precision: str, threads: int) -> Any:
        return {"tflops": matmul_peak_tflops(device, precision, threads)}

    @property
    def _is_public_call(self) -> bool:
        """Whether ``Model.predict`` is timed: where a runtime takes texts, there is no less that a user could call."""
        return self.model is not None and bool(self.runner.tokenizer_inside)

    @property
    def _gives_labels(self) -> bool:
        return self._is_public_call or bool(getattr(self.runner, "labels_inside", False))

    def _given(self, rows: Sequence[int], shape: Shape) -> Any:
        """Return what :meth:`_time` takes: inputs, or a text or several for the public call."""
        if not self._is_public_call:
            return self.inputs(rows, shape)
        texts = [row.text if row.text_pair is None else (row.text, row.text_pair) for row in self._examples(rows)]
        return texts[0] if len(texts) == 1 else texts

    def _time(self, inputs: Any) -> tuple[Any, tuple[float, float]]:
        """Return what a run returns, and its times."""
        call = self.model.predict if self._is_public_call else self.runner.run

        def run() -> Any:
            started = time.process_time_ns()
            found = call(inputs)
            end = started + (1 + self.handicap) * (time.process_time_ns() - started)
            while time.process_time_ns() < end:
                pass
            return found

        return timed(run if self.handicap else partial(call, inputs))

    def _label(self, rows: Sequence[int], logits: Any) -> None:
        """Make the predictions of logits, as ``Model.predict`` does."""
        [*self.task.described(self._examples(rows), logits, self.labels)]

    def _examples(self, rows: Sequence[int]) -> list[Example]:
        return [self.examples[row] for row in rows]


def timed(work: Callable[[], T]) -> tuple[T, tuple[float, float]]:
    """Return what work returns, and its milliseconds by the wall clock and of CPU time of this process; never 0."""
    result, taken_ns = _timed(work)
    wall_ms, cpu_ms = (max(round((ns - own) / 1e6, 5), 1e-5) for ns, own in zip(taken_ns, _clocks_ns(), strict=True))
    return result, (wall_ms, cpu_ms)


def _timed(work: Callable[[], T]) -> tuple[T, tuple[int, int]]:
    cpu_ns = time.process_time_ns()
    started_ns = time.perf_counter_ns()
    result = work()
    wall_ns = time.perf_counter_ns() - started_ns
    return result, (wall_ns, time.process_time_ns() - cpu_ns)


@cache
def _clocks_ns() -> list[float]:
    """Return what the clocks themselves take, a fifth of the time of the fastest students."""
    return np.median([_timed(lambda: None)[1] for _ in range(1000)], axis=0).tolist()  # type: ignore[no-any-return]


def for_a_while(least_ms: float, work: Callable[[S], T], items: Collection[S]) -> list[T]:
    """Return what work makes of items, in turn, until so much time has passed."""
    end_ns = time.perf_counter_ns() + 1e6 * least_ms
    return [
        work(item) for item in itertools.takewhile(lambda _: time.perf_counter_ns() < end_ns, itertools.cycle(items))
    ]


def write_rows(
    folder: Path, test: Sequence[Example], train: Sequence[Example] = (), gold: np.ndarray | None = None
) -> None:
    """Write what children read: the texts of the test rows, and of the training rows if they have gold labels."""
    for name, examples in ((TEXTS_NAME, test), (TRAIN_NAME, train if gold is not None else ())):
        if examples:
            (folder / name).write_text(json.dumps([[row.text, row.text_pair] for row in examples]), encoding="utf-8")
    if gold is not None:
        np.save(folder / GOLD_NAME, gold)


def read_texts(path: Path) -> list[Example]:
    return [Example(*pair) for pair in json.loads(path.read_text(encoding="utf-8"))]


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
