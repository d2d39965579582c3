"""Models that are ready to run: texts → inputs → logits.

A runtime opens a model directory and returns a function of token arrays. :class:`LoadedModel` joins it with the
tokenizer, and :class:`CascadeRunner` joins several models. The native library, baselines and competitors have inputs of
their own, such as texts. N rows, B rows of a batch, T tokens, C classes.

:func:`time_side_by_side` times some in turns within one process: a quick estimate for decisions within a stage.
``compress benchmark`` is more exact: there every model has a process of its own.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from compress.data.examples import Example
from compress.data.stored_tokenizer import AnyTokenizer
from compress.data.tokenization import TokenRows, at_words, encode, maximum_length, pad, shared_encoder, word_counts
from compress.data.windows import READS_WHOLE, WindowRows, Windows, whole_rows
from compress.errors import refuse
from compress.evaluation.metrics import confidence
from compress.inference.batching import BATCH_ROWS, Run, TokenArrays, WindowsRun, logits_of, open_runtime
from compress.inference.compute import Compute, resolve_device
from compress.inference.native import NativeRunner, runs_natively
from compress.inference.speedup_intervals import by_length, draw_batches, percentile, speedup
from compress.models.manifest import NATIVE_NAME
from compress.models.model_dir import CascadeDir, Model
from compress.progress import Advance

# The number of a member, and those of the n rows that it reads -> logits [n, C].
Ask = Callable[[int, np.ndarray], np.ndarray]

NATIVE = "native"  # the runtime
ROWS = 2000  # that are timed
LEAST_ROUNDS, MOST_ROUNDS = 5, 60
SECONDS = 5.0  # after which no further round begins
PRECISION = 0.05  # share of a speed-up that its interval is to be within
_ROOM_FOR_SPECIAL_TOKENS = 16  # tokenizers refuse to cut to fewer tokens than they add


@dataclass
class Runner:
    """A model that is ready to run.

    Args:
        prepare: turns B texts or pairs into whatever ``run`` takes.
        run: returns logits ``[B, C]``, or log-probabilities, or scores ``[B, 1]`` for regression. Of a tagger there is
            a row for every word of the B sentences, ``[W, C]``, not a number where it has no answer.
        parameters: the number of its weights.
        tokenizer_inside: whether ``prepare`` does next to nothing because ``run`` takes texts.
        labels_inside: whether ``run`` makes labels too.
        max_length: tokens that ``run`` cuts a text to, as it then says; 0 where it reads texts whole.
    """

    prepare: Callable[[Sequence[Example]], Any]
    run: Callable[[Any], np.ndarray]
    parameters: int
    tokenizer_inside: bool = False
    max_length: int = 0
    labels_inside: bool = False


@dataclass
class LoadedModel:
    """A :class:`Runner` of a model's own tokenizer and a function of token arrays, which :meth:`start` opens.

    The function of a tagger answers tokens, ``[B, T, C]``; ``run`` then gives what words are answered, ``[W, C]``.
    ``max_length`` is what rows are cut to, 0 where ``windows`` read them whole. ``model`` is there where :meth:`open`
    made it.
    """

    tokenizer: AnyTokenizer
    max_length: int
    function: Any = None  # a Run
    parameters: int = 0
    tokenizer_inside: bool = False
    by_word: bool = False
    model: Any = None  # a Model
    windows: Windows | None = None

    @classmethod
    def open(cls, model: Model, max_length: int = 0, lengths: Sequence[int] = ()) -> Self:
        """Load the tokenizer of a model directory.

        Args:
            model: of any runtime.
            max_length: tokens a row is cut to; 0 for as many as the model can read.
            lengths: fixed lengths that will be asked for.

        Raises:
            CompressError: the model cannot read a row of such a length.
        """
        tokenizer, windows = model.plain_tokenizer, model.windows
        refuse((windows and max_length, READS_WHOLE.format(model.name, windows)))
        if windows:
            return cls(tokenizer, 0, model=model, windows=windows)
        longest, asked = maximum_length(tokenizer, model.config), max(lengths, default=0)
        refuse((asked > longest, f"--length {asked} is more than the {longest} tokens that it can read"))
        return cls(tokenizer, min(max_length or longest, longest), by_word=model.task.by_word, model=model)

    def start(self, open_one: Callable[[Model], Run]) -> None:
        self.function = open_one(self.model)

    def logits(self, examples: Sequence[Example], advance: Advance = lambda rows: None) -> np.ndarray:
        """Return logits ``[N, C]``; advances by the rows."""
        limits: dict[str, Any] = {"max_length": self.max_length, "by_word": self.by_word, "windows": self.windows}
        return logits_of(examples, self.function, self.tokenizer, **limits, advance=advance)

    def lengths(self, examples: Sequence[Example]) -> list[int]:
        """Return the tokens of each row, after cutting."""
        return [*map(len, self._encoded(examples)["input_ids"])]

    def _encoded(self, examples: Sequence[Example]) -> TokenRows:
        if self.windows:
            return whole_rows(self.tokenizer, examples)
        return encode(self.tokenizer, examples, self.max_length, by_word=self.by_word)

    def prepare(self, examples: Sequence[Example], *, length: int | None = None, width: int = 0) -> TokenArrays:
        """Tokenise and pad to the longest row.

        Args:
            examples: B texts or pairs.
            length: make every row exactly so many tokens.
            width: pad to so many tokens at least.
        """
        tokens = self._tokens(examples, length)
        if not self.windows:
            rows = [{key: ids[row] for key, ids in tokens.items()} for row in range(len(examples))]
            return self._padded(rows, examples, width)
        cut = WindowRows(self.windows, tokens, shared_encoder(self.tokenizer).ends(pairs=False))
        return {**self._padded([*cut], examples, width), "counts": cut.counts}

    def _tokens(self, examples: Sequence[Example], length: int | None = None) -> TokenRows:
        if length is None:
            tokens = self._encoded(examples)
        else:
            read = encode(self.tokenizer, examples, max(length, _ROOM_FOR_SPECIAL_TOKENS), counted=False)
            ends = shared_encoder(self.tokenizer).ends(pairs=any(one.text_pair is not None for one in examples))
            empty = {"input_ids": int(self.tokenizer.unk_token_id or 0), "token_type_ids": 0}
            tokens = TokenRows(
                {
                    key: [np.array(resize(row.tolist(), ends, length, empty[key])) for row in rows]
                    for key, rows in read.items()
                }
            )
        return tokens

    def _padded(self, rows: Sequence[TokenArrays], examples: Sequence[Example], width: int = 0) -> TokenArrays:
        padding_id = int(self.tokenizer.pad_token_id or 0)
        arrays = widen(pad(rows, padding_id), width, padding_id)
        if "words" in arrays:
            arrays["counts"] = np.array(word_counts(examples), dtype=np.int64)
        return arrays

    def run(self, inputs: TokenArrays) -> np.ndarray:
        if self.windows:
            return self._windows_run(inputs)
        logits: np.ndarray = self.function(inputs)
        return at_words(logits, inputs["words"], inputs["counts"].tolist()) if "words" in inputs else logits

    @cached_property
    def _windows_run(self) -> WindowsRun:
        return WindowsRun(self.function, cast(Windows, self.windows))

    def prepare_shapes(self, rows: int, length: int) -> None:
        """Let a runtime that prepares for shapes, such as one of CUDA graphs, do so for batches up to ``[B, T]``."""
        shape = (BATCH_ROWS, self.windows.size) if self.windows else (rows, length)
        getattr(self.function, "prepare_shapes", lambda *_: None)(*shape)

    @property
    def device_ms(self) -> float | None:
        """Time of the last run on the GPU alone, in milliseconds, if the runtime takes it."""
        return getattr(self._windows_run if self.windows else self.function, "device_ms", None)


@dataclass
class CascadeRunner:
    """A :class:`Runner` of a cascade: every member reads the rows that those before it were not sure of.

    ``prepare`` makes the inputs of the first member, and ``run`` those of the others, of the rows that they read.
    Lengths are those of the first member.

    Args:
        members: a :class:`Runner` that has ``logits`` too, for each member.
        thresholds: of all but the last.
        answered: how many rows each member answered so far.
    """

    members: Sequence[Any]
    thresholds: Sequence[float]
    answered: np.ndarray
    parameters: int = 0

    def start(self, open_one: Callable[[Model], Run]) -> None:
        for member in self.members:
            member.start(open_one)

    @property
    def bill(self) -> Any:
        """A function that says what a language model was asked; None where no member is one."""
        return getattr(self.members[-1], "bill", None)

    @property
    def tokenizer_inside(self) -> bool:
        return any(member.tokenizer_inside for member in self.members)

    @property
    def max_length(self) -> int:
        return int(self.members[0].max_length)

    def logits(self, examples: Sequence[Example], advance: Advance = lambda rows: None) -> np.ndarray:
        """Return logits ``[N, C]``; advances by the rows of the first member."""

        def ask(number: int, rows: np.ndarray) -> np.ndarray:
            logits: np.ndarray = self.members[number].logits([examples[row] for row in rows])
            return logits

        return ask_in_turn(self.members[0].logits(examples, advance), self.thresholds, ask)[0]

    def lengths(self, examples: Sequence[Example]) -> list[int]:
        return list(self.members[0].lengths(examples))

    def prepare(self, examples: Sequence[Example], **shape: Any) -> tuple[Sequence[Example], TokenArrays, Any]:
        """Return the rows, their inputs for the first member, and ``shape``: that of :meth:`LoadedModel.prepare`."""
        return examples, self.members[0].prepare(examples, **shape), shape

    def run(self, inputs: tuple[Sequence[Example], TokenArrays, Any]) -> np.ndarray:
        """Return logits ``[B, C]``, and count in ``answered`` which member they are of."""
        examples, arrays, shape = inputs

        def ask(number: int, rows: np.ndarray) -> np.ndarray:
            member = self.members[number]
            logits: np.ndarray = member.run(member.prepare([examples[row] for row in rows], **shape))
            return logits

        logits, answered = ask_in_turn(self.members[0].run(arrays), self.thresholds, ask)
        self.answered += answered
        return logits


def open_runner(model: Model, max_length: int = 0, lengths: Sequence[int] = ()) -> LoadedModel | CascadeRunner:
    """Return what reads the texts of a model or a cascade, and runs it once it is started."""
    if not isinstance(model, CascadeDir):
        return LoadedModel.open(model, max_length, lengths)
    members = [LoadedModel.open(member, max_length, lengths) for member in model.members]
    return CascadeRunner(members, model.thresholds, np.zeros(len(members), np.int64))


def load_runner(model: Model, compute: Compute = Compute()) -> LoadedModel | CascadeRunner | NativeRunner:
    """Load a model or a cascade to predict; on ``auto`` an ONNX one runs on the CPU, and needs no PyTorch.

    There the native library runs what it can, also of the members of a cascade.
    """
    return cast("LoadedModel | CascadeRunner | NativeRunner", replace(model, compute=compute).runner)


def load_graph(model: Model, compute: Compute = Compute()) -> LoadedModel | CascadeRunner:
    """Load a model to predict in ONNX Runtime or torch, or a cascade, whose members run wherever they do."""
    if isinstance(model, CascadeDir):
        members = [load_runner(member, compute) for member in model.members]
        return CascadeRunner(members, model.thresholds, np.zeros(len(members), np.int64))
    device = resolve_device(compute.device, for_onnx=model.is_onnx)
    loaded = LoadedModel.open(model)
    loaded.start(lambda one: open_runtime(one.path, threads=compute.threads, device=device))
    return loaded


def serving_runtime(model: Model, device: str = "cpu") -> str:
    """Return the runtime that answers the texts of a model: the native library where it runs it, or a member of it."""
    members = model.members if isinstance(model, CascadeDir) else (model,)
    if model.is_native or (device == "cpu" and any(map(runs_natively, members))):
        return NATIVE
    return "onnxruntime" if model.is_onnx else "torch"


def served_bytes(model: Model, runtime: str = "") -> int:
    """Return the bytes of what answers the texts of a model, by default on a CPU: its container or its weights."""
    container = model.path / NATIVE_NAME
    is_read = (runtime or serving_runtime(model)) == NATIVE and container.is_file()
    return container.stat().st_size if is_read else model.size_bytes


def ask_in_turn(first: np.ndarray, thresholds: Sequence[float], ask: Ask) -> tuple[np.ndarray, list[int]]:
    """Ask each member but the first for the rows of which those before were less confident than their threshold.

    Viola and Jones (2001, "Rapid object detection using a boosted cascade of simple features"); for encoders of text
    with the confidence of the softmax as here, Li et al. (2021, arXiv:2012.14682).

    Args:
        first: logits ``[N, C]`` of the first member, which reads all rows.

    Returns:
        Logits ``[N, C]`` of the member that answered each row, and how many rows each member answered.
    """
    found, waiting, logits = first, np.arange(len(first)), first.copy()
    answered = [0] * (len(thresholds) + 1)
    for number, threshold in enumerate(thresholds, 1):
        unsure = waiting[confidence(found) < threshold]
        answered[number - 1], waiting = len(waiting) - len(unsure), unsure
        if not len(waiting):
            break
        found = ask(number, waiting)
        logits[waiting] = found
    answered[-1] = len(waiting)
    return logits, answered


def widen(arrays: TokenArrays, width: int, padding_id: int) -> TokenArrays:
    """Pad arrays ``[B, T]`` on the right to ``[B, width]``; wider ones stay as they are."""
    missing = width - arrays["input_ids"].shape[1]
    if missing <= 0:  # np.pad takes longer than a tokenizer, also where it adds nothing
        return arrays
    return {
        key: np.pad(values, ((0, 0), (0, missing)), constant_values=padding_id if key == "input_ids" else 0)
        for key, values in arrays.items()
    }


def resize(tokens: Sequence[int], ends: tuple[int, int], length: int, empty: int) -> list[int]:
    """Return a row of exactly ``length`` tokens: its own, repeated between the special tokens and cut.

    Where speed is measured at fixed lengths, what a model reads is so spread over the vocabulary as text is.

    Args:
        tokens: a row with its special tokens.
        ends: special tokens at its start and end, which keep their places.
        length: tokens wanted.
        empty: what is repeated where the row has nothing but special tokens.
    """
    before, after = ends
    end = len(tokens) - after
    repeated = itertools.islice(itertools.cycle(tokens[before:end] or [empty]), max(length - before - after, 0))
    return [*tokens[:before], *repeated, *tokens[end:]][:length]


def time_in_turns(
    models: Mapping[str, Any], examples: Sequence[Example], batch_size: int, threads: int
) -> dict[str, list[list[float]]]:
    """Return the milliseconds of every model on the same rows, a list a round, until the speed-ups are precise.

    They are compared with the first model. One thread is timed by its CPU time, which other programs hardly lengthen;
    several wait for each other and are timed by the wall clock. What is timed is all from text to logits.

    Args:
        models: a :class:`Runner` each that has ``lengths`` too.
        threads: 0 where the work is not done by threads, but by a GPU.
    """
    is_precise = hasattr(time, "CLOCK_THREAD_CPUTIME_ID")
    clock = time.thread_time if threads == 1 and is_precise else time.perf_counter
    generator = random.Random(0)
    rows, reference = examples[:ROWS], next(iter(models))
    ordered = by_length(models[reference].lengths(rows), generator)
    samples: dict[str, list[list[float]]] = {name: [] for name in models}
    started = time.perf_counter()
    for number in range(MOST_ROUNDS + 1):
        took: dict[str, list[float]] = {name: [] for name in models}
        for batch in draw_batches(ordered, batch_size, generator):
            for name in generator.sample(list(models), len(models)):
                model, some = models[name], [rows[row] for row in batch]
                model.run(model.prepare(some))  # brings it back into the caches
                before = clock()
                model.run(model.prepare(some))
                took[name].append(1000 * (clock() - before))
        if not number:  # the first round warms up
            continue
        for name, values in took.items():
            samples[name].append(values)
        if number >= LEAST_ROUNDS and (
            time.perf_counter() - started > SECONDS
            or all(speedup(samples[reference], own).half_width <= PRECISION for own in samples.values())
        ):
            break
    return samples


@dataclass(frozen=True)
class Speed:
    """How fast a model is in a runtime, and how many times as fast as the first of those it took turns with.

    ``latency_ms`` is the median, by the clock of :func:`time_in_turns`.
    """

    name: str
    runtime: str
    threads: int
    batch_size: int
    latency_ms: float
    speedup: float
    low: float
    high: float


def time_side_by_side(
    directories: Mapping[str, Path],
    examples: Sequence[Example],
    *,
    runtime: str,
    threads: int,
    batch_sizes: Sequence[int],
    device: str = "cpu",
) -> list[Speed]:
    """Return the speeds of model directories on rows of text; the first is the reference.

    All run in ``runtime``, or each where its texts are answered.

    The threads of this process are as before afterwards.
    """
    import torch

    models: dict[str, Any] = {}
    before = torch.get_num_threads()
    try:
        for name, path in directories.items():
            model = Model.open(path, verify=False)
            if runtime:
                models[name] = LoadedModel.open(model)
                models[name].start(lambda one: open_runtime(one.path, runtime, threads=threads, device=device))
            else:
                models[name] = load_runner(model, Compute(device, threads))
        samples = {
            size: time_in_turns(models, examples, size, threads if device == "cpu" else 0) for size in batch_sizes
        }
    finally:
        torch.set_num_threads(before)
    return [
        Speed(name, runtime, threads, size, percentile(own, 50).value, *speedup(next(iter(by_name.values())), own))
        for size, by_name in samples.items()
        for name, own in by_name.items()
    ]
