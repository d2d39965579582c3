"""Predict with a model directory, torch or ONNX: labels and probabilities, scores, or tags of words.

Predictions that are worse than chance say that labels do not mean what a model calls them.

What the native library runs needs nothing else: its answers come without NumPy, which is imported for others. An ONNX
directory needs ONNX Runtime and ``tokenizers``: nothing here imports torch or transformers for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from compress.arrays import np
from compress.data.examples import Example, batched
from compress.data.tokenization import check_one_kind
from compress.data.truncation import READS_NO_MORE, Truncation, counting
from compress.errors import CompressError, MissingPackage, refuse, some_of
from compress.evaluation.metrics import ACCURACY, Array, interval
from compress.inference.compute import Compute
from compress.inference.native import NOT_FINITE, NativeRunner
from compress.models.manifest import MANIFEST_NAME
from compress.models.model_dir import Model, Prediction, open_model
from compress.progress import logger

if TYPE_CHECKING:
    from compress.data import TextSource
    from compress.tasks import Task

_ONE = (str, tuple, Example)
CHECKED_ROWS = 64  # of a label check
CHUNK_ROWS = 2048


class _Columns(TypedDict, total=False):
    """How the data of a prediction is read."""

    label_column: str | None
    text_column: str | None
    text_pair_column: str | None
    format: str | None


def acceptance_thresholds(model: Model) -> tuple[float, ...] | None:
    """Return the confidence from which the prediction of each class is accepted; infinite where it never is.

    None where ``compress calibrate --accept-at`` wrote no such thing into the manifest.

    Raises:
        CompressError: the manifest has something else there.
    """
    if (noted := model.manifest.notes.get("acceptance")) is None:
        return None
    try:
        overall = {"overall": True, "class": False}[noted["by"]]
        found = [noted["threshold"] if overall else noted["thresholds"][label] for label in model.labels]
        if not all(value is None or type(value) in (int, float) and 0 <= value <= 1 for value in found):
            raise ValueError
    except (TypeError, KeyError, ValueError):
        raise CompressError(
            f"{model.path / MANIFEST_NAME} has no thresholds that 'compress calibrate' writes; calibrate it again"
        ) from None
    return tuple(math.inf if value is None else float(value) for value in found)


def load(model: Model | str | Path, *, compute: Compute = Compute(), windows: str | None = None) -> Model:
    """Open and load a model, torch or ONNX, or a cascade, for prediction.

    Args:
        model: its directory.
        compute: device and threads. ``auto`` is the CPU for an ONNX model.
        windows: see :meth:`Model.with_windows`.

    Raises:
        CompressError: it is no classifier or does not open, or lacks a package (extra ``onnx``, of torch ``train``).
    """
    try:
        opened = replace(open_model(model), compute=compute).with_windows(windows)
        acceptance_thresholds(opened)
        logger.debug("%s reads %s tokens of a text", opened.name, opened.max_length or "all")
    except ModuleNotFoundError as error:
        raise MissingPackage(error) from None
    return opened


# What Model.predict and Model.predict_proba do.


def predictor(model: Model) -> Callable[[Any, bool], Prediction | list[Prediction]]:
    """Return what predicts texts, with the probabilities of all labels or without."""
    task, labels, thresholds = model.task, model.labels, acceptance_thresholds(model)

    def described(texts: Any, probabilities: bool) -> Any:
        if probabilities:
            _check_probabilities(model)
        examples = as_examples(texts, task)
        with counting(tokens=True) as truncation:
            logits = _logits(model, examples)
        accepted_from = None if thresholds is None else np.array(thresholds)
        found = [*task.described(examples, logits, labels, accepted_from, probabilities)]
        for number in np.flatnonzero(np.isnan(logits[:, 0])) if asks else ():
            found[number] = {"label": None, "probability": None, "unanswered": last.why(examples[number])}
        for prediction, example in zip(found, examples, strict=True):
            if unread := truncation.unread_tokens(example):
                prediction |= {"truncated": True, "unread_tokens": unread}
        return found[0] if isinstance(texts, _ONE) else found

    first, *others = getattr(model.runner, "members", [model.runner])
    last = (others or [first])[-1]
    asks = hasattr(last, "why")  # a language model, which may give no label

    def spans(texts: Any, probabilities: bool) -> Any:
        """Leave to Python what the native library does not read."""
        rows = [texts] if isinstance(texts, str) else texts
        if probabilities or not isinstance(rows, list) or not all(type(one) is str for one in rows):
            return described(texts, probabilities)
        try:
            found = first.core.entities(rows, *task.native_spans)
        except (ArithmeticError, UnicodeEncodeError):  # which Python says in a sentence
            return described(texts, probabilities)
        if left := [number for number, one in enumerate(found) if one is None]:
            for number, one in zip(left, described([rows[number] for number in left], False), strict=True):
                found[number] = one
        return found[0] if isinstance(texts, str) else found

    if isinstance(first, NativeRunner) and task.native_spans:
        return spans
    if not isinstance(first, NativeRunner) or not task.native_answers:
        return described
    predict, several = first.core.predict, task.native_answers == "several"
    accept = (model.runner.thresholds[0],) * len(labels) if others else thresholds

    def native(texts: Any, probabilities: bool) -> Any:
        if probabilities:
            _check_probabilities(model)
        try:
            return predict(texts, accept, probabilities, several)
        except ArithmeticError:
            raise CompressError(NOT_FINITE) from None
        except (TypeError, UnicodeEncodeError):  # another kind of texts, or none
            check_one_kind(rows := as_examples(texts, task))
        found = predict([*map(_text, rows)], accept, probabilities, several)
        return found[0] if isinstance(texts, _ONE) else found

    def joined(texts: Any, probabilities: bool) -> Any:
        """Leave to all members what the first, which is native, is not sure of."""
        given: Any = texts if isinstance(texts, (*_ONE, list)) else as_examples(texts, task)
        found = native(given, probabilities)
        is_one = isinstance(given, _ONE)
        rows, many = ([found], [given]) if is_one else (found, given)
        if unsure := [number for number, one in enumerate(rows) if not one.pop("accepted")]:
            answers = described([many[number] for number in unsure], probabilities)
            for number, answer in zip(unsure, answers, strict=True):
                rows[number] = answer
        return rows[0] if is_one else rows

    return joined if others else native


def label_probabilities(model: Model, texts: Any) -> np.ndarray:
    _check_probabilities(model)
    return np.asarray(model.task.probabilities(_logits(model, as_examples(texts, model.task))), np.float32)


def _check_probabilities(model: Model) -> None:
    said = f"a model made for {model.task} has no probabilities of its labels; leave them out"
    refuse((not model.task.label_probabilities, said))


def _logits(model: Model, examples: Sequence[Example]) -> np.ndarray:
    return np.asarray(model.runner.logits(examples)) if examples else np.zeros((0, len(model.labels)), np.float32)


def predict(
    model: Model | str | Path,
    texts: Iterable[Any] | None = None,
    *,
    data: Any = None,
    probabilities: bool = False,
    device: str = "auto",
    threads: int = 0,
    windows: str | None = None,
    **columns: Unpack[_Columns],
) -> Iterator[Prediction]:
    """Yield the prediction of each text, with its text, in order.

    Args:
        model: its directory.
        texts: texts or pairs of texts, or one.
        data: a file or whatever else holds rows, instead.
        probabilities: add those of all labels of a classifier.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: CPU threads; 0 for one a free core.
        windows: read long documents by windows, such as ``256,128,mean``.
        columns: ``label_column``, ``text_column``, ``text_pair_column`` and ``format`` of data.

    Raises:
        CompressError: as :meth:`Model.predict`; or neither texts nor data are there, or both.
    """
    rows = None if texts is None else [texts] if isinstance(texts, _ONE) else texts
    found = predictions(
        model,
        None if rows is None else batched(rows, CHUNK_ROWS, _characters),
        data,
        probabilities=probabilities,
        device=device,
        threads=threads,
        windows=windows,
        **columns,
    )
    return chain.from_iterable(found)


def predictions(
    model: Model | str | Path,
    chunks: Iterable[list[Any]] | None,
    data: Any,
    *,
    probabilities: bool,
    device: str,
    threads: int,
    windows: str | None = None,
    audit: Any = None,
    **columns: Unpack[_Columns],
) -> Iterator[list[Prediction]]:
    """Return the predictions of lists of texts or pairs, or of data, as lists; see :func:`predict`.

    ``audit`` is an :class:`compress.inference.audit.AgreementAudit` of this model.
    """
    from compress.data import open_text

    chosen: dict[str, Any] = {name: value for name, value in columns.items() if value is not None}
    names = _Columns.__annotations__
    flags = [f"--{name.replace('_', '-')}" for name in chosen if data is None]
    refuse(
        *((name not in names, f"predict takes no {name}; of data it takes {', '.join(names)}") for name in columns),
        *((True, f"{flag} changes nothing without --data FILE; add it, or leave {flag} out") for flag in flags),
        ((data is None) == (chunks is None), "predict needs either TEXT arguments or --data FILE"),
    )
    source = None if data is None else open_text(data, role="data", keep_empty=True, **chosen)
    opened = audit.model if audit else load(model, compute=Compute(device, threads), windows=windows)
    if source is not None:
        task = opened.task  # a tagger says where entities are in the text as it was given
        chunks = batched(iter(source.read_by(task.row)) if task.by_word else source.texts(), CHUNK_ROWS, _characters)
    return _answers(opened, chunks or (), source, partial((audit or opened).predict, probabilities=probabilities))


def _answers(
    model: Model,
    chunks: Iterable[list[Any]],
    source: TextSource | None,
    answer: Callable[[list[Any]], list[Prediction]],
) -> Iterator[list[Prediction]]:
    """Yield the predictions of lists of texts or pairs, each with its text, and say what was read of ``source``."""
    truncation, silent = Truncation(), 0
    for texts in chunks:
        found = answer(texts)
        truncation.add_counts(model.max_length, len(texts), sum("truncated" in one for one in found))
        for given, prediction in zip(texts, found, strict=True):
            text = given if isinstance(given, str) else getattr(given, "given", "") or _text(given)
            if type(text) is tuple:
                prediction["text"], prediction["text_pair"] = text
            else:
                prediction["text"] = text
        silent += sum("unanswered" in one for one in found)
        yield found
    if silent:
        logger.warning("%s got no label; their lines say why", f"{silent:,} text{'s' * (silent > 1)}")
    if bill := getattr(model.runner, "bill", None):
        logger.info("%s", bill())
    if said := truncation.sentence(READS_NO_MORE):
        logger.info("%s", said)
    if source is not None:
        logger.info("read: %s", source.describe())  # with the rows that were skipped, which is known by now


def as_examples(texts: Any, task: Task) -> list[Example]:
    """Return texts, pairs, examples or a table as the rows that a model of this task reads."""
    rows = [texts] if isinstance(texts, _ONE) else list(texts) if isinstance(texts, Iterator) else texts
    if isinstance(rows, list) and not any(isinstance(row, Mapping) for row in rows[:1]):
        return [row if isinstance(row, Example) else task.row(_example(row)) for row in rows]
    from compress.data import open_text

    return [*open_text(rows, role=None, keep_empty=True, read=task.row)]


def _characters(given: Any) -> int:
    return len(given) if isinstance(given, str) else sum(map(len, _text(given))) if isinstance(given, _ONE) else 0


def _text(given: Any) -> str | tuple[str, str]:
    row = _example(given)
    return row.text if row.text_pair is None else (row.text, row.text_pair)


def _example(text: Any) -> Example:
    if isinstance(text, Example):
        return text
    parts = (text,) if isinstance(text, str) else text if isinstance(text, tuple) and len(text) == 2 else (None,)
    if not all(
        isinstance(one, str) and (one.isascii() or one == one.encode(errors="ignore").decode()) for one in parts
    ):
        raise CompressError(f"{ascii(text)[:80]} is neither a text nor a tuple of two texts that are UTF-8")
    return Example(*parts)


def check_gold(model: Model, rows: Sequence[Example], name: str, compute: Compute) -> None:
    """Refuse rows whose labels mean something else than the classes of a model; looks at a few, spread evenly.

    Raises:
        CompressError: see :func:`check_label_meaning`.
    """
    if rows and model.task.has_classes:
        some = rows[:: -(-len(rows) // CHECKED_ROWS)]
        gold = model.task.column(model.task.gold(some, model.labels, name))
        from compress.inference.runners import load_runner

        sentences = model.task.clusters(some, model.task.metric())
        predicted = model.task.predictions(load_runner(model, compute).logits(some), sentences)
        check_label_meaning(predicted, gold, model.labels, name)


def check_label_meaning(predicted: Array, gold: Array, labels: Sequence[str], name: str) -> None:
    """Refuse labels that mean something else than the classes of a model, and warn where another order fits better.

    Chance is what a draw of as many classes gets right, or one that predicts each class as often as the model does: a
    model that always says the same is not refused for it. Scores, which are no integers, are not looked at.

    Args:
        predicted: classes that the model predicts, ``[N]``; those of no class, -1, count as wrong.
        gold: the labels, ``[N]``.
        name: what the rows are called, such as ``validation``.

    Raises:
        CompressError: the 95% interval of the accuracy is below chance.
    """
    from scipy.optimize import linear_sum_assignment

    if not np.issubdtype(predicted.dtype, np.integer):
        return
    gold, answered = gold.astype(int), predicted >= 0
    counts = np.zeros((len(labels), len(labels)))
    np.add.at(counts, (gold[answered], predicted[answered]), 1)
    best = linear_sum_assignment(-counts)[1]  # what each label would have to be for most predictions to be right
    right, fitting = ((order[gold] == predicted).astype(int) for order in (np.arange(len(labels)), best))
    bounds = [interval(one, np.ones_like(one), metric=ACCURACY, classes=2) for one in (right, fitting)]
    found = f"the model predicts {100 * right.mean():.1f}% of {name} right"
    drawn = float(counts.sum(axis=0) @ counts.sum(axis=1)) / max(1.0, counts.sum()) ** 2
    refuse(
        (
            bounds[0][1] < min(1 / len(labels), drawn),
            f"{found}, less than by chance with {len(labels):,} classes: the labels of these {len(gold):,} rows mean "
            f"something else than {', '.join(labels[:3])}{', ...' * (len(labels) > 3)}; say what they mean with "
            "--label-map FILE, or give other rows",
        )
    )
    most = counts.sum(axis=1).max() / len(gold)  # what one answer for all rows reaches, which is no order of labels
    if bounds[1][0] > max(bounds[0][1], most):
        names = [f"{labels[one]} is {labels[other]}" for one, other in enumerate(best) if one != other]
        logger.warning(
            "%s; if %s, it would be %.1f%%: --label-map FILE says it", found, some_of(names), 100 * fitting.mean()
        )
