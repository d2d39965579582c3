"""Open a model in a runtime of this process, and run it in batches: rows of similar length share one.

A run function takes token arrays to logits. It may carry two things beside: ``device_ms``, the time of its last call on
the GPU alone, and ``prepare_shapes(rows, length)``, which does beforehand what the first batches of so many rows, of
up to so many tokens, would cost in addition.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compress import plugins
from compress.data.examples import Example
from compress.data.stored_tokenizer import AnyTokenizer
from compress.data.tokenization import at_words, by_sentence, encode, in_parts, pad, word_counts
from compress.data.windows import WindowRows, Windows
from compress.errors import CompressError, refuse
from compress.files import fault_of
from compress.host import memory_bytes
from compress.inference.native import NOT_FINITE
from compress.inference.threads import default_threads
from compress.models.graph_files import graph_file
from compress.models.loading import CONFIG_NAME, read_config, sigmoid_of
from compress.models.networks import is_network
from compress.progress import Advance, logger
from compress.tasks import labels_of, of_config

BATCH_ROWS = 64
_WIDTH, _HEADS = 768, 12  # of BERT-base, whose activations tell how many rows fit into memory
# Families whose attention leaves padding out, which parity tests hold; others, such as XLNet, FNet and MobileBERT, are
# tried.
_INDIFFERENT = frozenset(
    {"albert", "bert", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet", "roberta", "xlm-roberta"}
)
# Largest difference of a logit that rounding makes, as a share of the row's largest logit: of float32, of others.
_ROUNDING, _COARSE_ROUNDING = 1e-3, 5e-2

TokenArrays = dict[str, np.ndarray]  # [B, T] by input name
Run = Callable[[TokenArrays], np.ndarray]  # -> logits [B, C], or [B, T, C] of a model that tags words


def logits_of(
    examples: Sequence[Example],
    run: Run,
    tokenizer: AnyTokenizer,
    *,
    max_length: int,
    batch_rows: int = BATCH_ROWS,
    by_word: bool = False,
    windows: Windows | None = None,
    advance: Advance = lambda rows: None,
) -> np.ndarray:
    """Return logits ``[N, C]`` float32 in the order of the examples; ``advance`` by the rows of each batch.

    With ``by_word`` the model answers words, and N counts those of all texts in order; a word without an answer has no
    numbers (:mod:`compress.data.tokenization`). With ``windows`` texts are read whole, some at a time, and a batch
    holds windows.
    """
    words = word_counts(examples) if by_word else None

    def run_rows(row_of: Callable[[int], TokenArrays], rows: list[int]) -> np.ndarray:
        arrays = pad([row_of(row) for row in rows], tokenizer.pad_token_id or 0)
        logits = run(arrays)
        return logits if words is None else at_words(logits, arrays["words"], [words[row] for row in rows])

    if windows is None:
        tokens = encode(tokenizer, examples, max_length, by_word=by_word)

        def run_texts(rows: list[int]) -> np.ndarray:
            logits = run_rows(lambda row: {key: ids[row] for key, ids in tokens.items()}, rows)
            advance(len(rows))
            return logits

        return run_by_length([len(ids) for ids in tokens["input_ids"]], run_texts, batch_rows, words)

    found = list[np.ndarray]()
    for some in list(in_parts(examples, lambda example: len(example.text))) or [[]]:
        cut = WindowRows.of_texts(windows, tokenizer, some)

        def run_windows(rows: list[int], cut: WindowRows = cut) -> np.ndarray:
            logits = run_rows(cut.row, rows)
            advance(int(cut.begins[rows].sum()))
            return logits

        found.append(windows.pool(run_by_length(cut.lengths.tolist(), run_windows, batch_rows), cut.counts))
    return np.concatenate(found)


def rows_in_memory(length: int) -> int:
    """Return how many rows of so many tokens half of the memory of this machine or container holds, at least one."""
    row_bytes = 4 * length * (_HEADS * length + 12 * _WIDTH)  # scores of attention, and inner and hidden states
    return max(1, memory_bytes() // 2 // max(1, row_bytes))


def run_by_length(
    lengths: Sequence[int],
    run: Callable[[list[int]], np.ndarray],
    batch_rows: int,
    words: Sequence[int] | None = None,
) -> np.ndarray:
    """Return logits ``[N, C]`` float32 in the order of the rows; rows of similar length share a batch.

    Args:
        lengths: the size of each row, by which rows are sorted.
        run: returns the logits of the rows of these numbers.
        batch_rows: rows of a batch, fewer where these do not fit into memory.
        words: for tagging, the words of each row; N then counts words.

    Raises:
        CompressError: there is no row, or logits are not finite. A word without an answer has no numbers
            (:mod:`compress.data.tokenization`), so that ``run`` checks those of words itself.
    """
    refuse((not lengths, "there are no rows to predict; give one or more"))
    order, found, start = sorted(range(len(lengths)), key=lengths.__getitem__), list[np.ndarray](), 0
    while start < len(order):
        rows = order[start : start + batch_rows]
        rows = rows[: rows_in_memory(lengths[rows[-1]])]
        found.append(run(rows))
        start += len(rows)
    logits = (np.concatenate(found) if len(found) > 1 else found[0]).astype(np.float32, copy=False)
    if words is not None:
        of_rows = by_sentence(logits, [words[row] for row in order])
        return np.concatenate([of_rows[place] for place in np.argsort(order)])
    refuse((not np.isfinite(logits).all(), NOT_FINITE))
    return logits[np.argsort(order)] if len(order) > 1 else logits


def exact_batches(run: Run, config: Mapping[str, Any], precision: str = "") -> Run:
    """Return a run function whose logits of a row do not depend on the rows beside it.

    Args:
        run: the model in a runtime; rows are padded on the right.
        config: the ``config.json`` of the model.
        precision: ``float32`` where logits of a row are always the same but for their last digits.
    """
    tolerance = _ROUNDING if precision == "float32" else _COARSE_ROUNDING
    return EqualLengths(run, tolerance) if may_read_padding(config) else run


def may_read_padding(config: Mapping[str, Any]) -> bool:
    """Tell whether a model is to be tried, by its ``config.json``."""
    family = str(config.get("model_type", "")).removeprefix("compress-pruned-")
    return family not in _INDIFFERENT and not is_network(config)


class EqualLengths:
    """A run function that tries once whether padding changes logits, and then runs rows of one length together.

    ``device_ms`` is that of all groups of a call together; what else the run function has is its own.
    """

    device_ms: float | None = None

    def __init__(self, run: Run, tolerance: float, padding_matters: bool | None = None) -> None:
        self._run, self._tolerance, self._padding_matters = run, tolerance, padding_matters

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def __call__(self, arrays: TokenArrays) -> np.ndarray:
        lengths, width = arrays["attention_mask"].sum(axis=1), arrays["attention_mask"].shape[1]
        if lengths.min() < width and self._padding_matters is None:
            self._padding_matters = padding_changes(self._run, arrays, self._tolerance)
            if self._padding_matters:
                logger.info("padding changes the logits of this model: texts of one length are batched together")
        if lengths.min() == width or not self._padding_matters:
            logits = self._run(arrays)
            self.device_ms = getattr(self._run, "device_ms", None)
            return logits
        groups = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
        answers, times = list[np.ndarray](), list[Any]()
        for rows in groups:
            length = int(lengths[rows[0]])
            logits = self._run(_cut(arrays, rows, length))
            times.append(getattr(self._run, "device_ms", None))
            tokens = [(0, width - length)] * (logits.ndim - 2)  # of a tagger, which answers tokens
            answers.append(np.pad(logits, [(0, 0), *tokens, (0, 0)]) if tokens else logits)
        self.device_ms = None if None in times else sum(times)
        return np.concatenate(answers)[np.argsort(np.concatenate(groups))]


def padding_changes(run: Run, arrays: TokenArrays, tolerance: float = _ROUNDING) -> bool:
    """Tell whether the logits of the shortest row alone are others than padded to the longest."""
    lengths = arrays["attention_mask"].sum(axis=1)
    shortest, longest = int(lengths.argmin()), int(lengths.argmax())
    length = int(lengths[shortest])
    alone = run(_cut(arrays, np.array([shortest]), length))[0]
    try:
        beside = run(_cut(arrays, np.array([shortest, longest]), int(lengths[longest])))[0]
    except ValueError:  # decoders without a padding token refuse such batches
        return True
    beside = beside[:length] if beside.ndim == 2 else beside
    return bool(np.abs(alone - beside).max() > tolerance * np.abs(alone).max())


def _cut(arrays: TokenArrays, rows: np.ndarray, length: int) -> TokenArrays:
    # Arrays with one value a row are counts of words, which the model does not read.
    return {name: values[rows, :length] for name, values in arrays.items() if values.ndim == 2}


class WindowsRun:
    """A run function of the windows of documents, with their ``counts``, that gives logits ``[N, C]`` of documents.

    It runs :data:`BATCH_ROWS` windows at a time, those of similar length together. ``device_ms`` is that of all of them
    together; what else the run function has is its own.
    """

    device_ms: float | None = None

    def __init__(self, run: Run, windows: Windows) -> None:
        self._run, self._windows = run, windows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def __call__(self, arrays: TokenArrays) -> np.ndarray:
        lengths, times = arrays["attention_mask"].sum(axis=1), list[Any]()

        def run(rows: list[int]) -> np.ndarray:
            logits = self._run(_cut(arrays, np.array(rows), int(lengths[rows[-1]])))
            times.append(getattr(self._run, "device_ms", None))
            return logits

        logits = run_by_length(lengths.tolist(), run, BATCH_ROWS)
        self.device_ms = None if None in times else sum(times)
        return self._windows.pool(logits, arrays["counts"])


def open_runtime(
    directory: Path,
    runtime: str = "",
    *,
    threads: int = 0,
    device: str = "cpu",
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Return a function from token arrays to logits.

    Args:
        directory: a model directory that the runtime opens.
        runtime: a name from ``compress list runtimes``; by default :func:`runtime_for`.
        threads: CPU threads; 0 for :func:`default_threads`.
        device: ``cpu`` or ``cuda``.
        config: the ``config.json`` of the model, where it does not lie in the directory yet.
        options: what this runtime alone takes, such as ``precision`` of ``torch``.

    Raises:
        CompressError: the runtime does not work on that device, or cannot open the directory.
    """
    plugin = plugins.find("runtimes", runtime or runtime_for(directory))
    module: Any = plugin.load()
    if device not in module.DEVICES:
        instead = "" if "cpu" in module.DEVICES else ", or --runtime torch --device cpu"
        raise CompressError(
            f"device {device!r} is not one that {plugin.name} runs on here; use --device "
            f"{' or '.join(module.DEVICES)}{instead}"
        )
    run: Run = plugin.function(directory, threads=threads or default_threads(), device=device, **options)
    config = read_config(directory) if config is None else config
    precision = options.get("precision", getattr(module, "PRECISION", ""))
    return _Answers(exact_batches(run, config, precision), directory, config)


class _Answers:
    """A run function whose logits have the form that the config says; what else it has is its own."""

    def __init__(self, run: Run, directory: Path, config: Mapping[str, Any]) -> None:
        self._run, self._directory = run, directory
        self._labels, self._by_word = len(labels_of(config)), of_config(config).by_word
        self._sigmoid = graph_file(directory).is_file() and sigmoid_of(config)  # of torch it is part of the network

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def __call__(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        try:  # no context manager, whose time shows beside that of a small student
            logits = self._run(arrays)
        except Exception as error:
            fault = fault_of(error, self._directory, "run on these texts", "copy it again", own=False)
            if fault is error:
                raise
            raise fault from error
        rows, length = arrays["input_ids"].shape
        expected = (rows, length, self._labels) if self._by_word else (rows, self._labels)
        if logits.shape != expected or logits.dtype.kind != "f":
            raise CompressError(
                f"{self._directory} answers {rows} texts of {length} tokens with {logits.dtype} {[*logits.shape]}, and "
                f"its {CONFIG_NAME} asks for float logits {[*expected]}: copy the files of one model"
            )
        return (1 + np.tanh(logits / 2)) / 2 if self._sigmoid else logits


def runtime_for(directory: Path) -> str:
    return "onnxruntime" if graph_file(directory).is_file() else "torch"
