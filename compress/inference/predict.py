"""Predict with a model directory, torch or ONNX: labels and probabilities, scores, or tags of words.

Predictions that are worse than chance say that labels do not mean what a model calls them.

An ONNX directory needs ONNX Runtime and ``tokenizers`` alone: nothing here imports torch or transformers for it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from compress.data import Example, TextSource, batched, open_text
from compress.data.truncation import READS_NO_MORE, Truncation, counting
from compress.errors import CompressError, refuse, some_of
from compress.evaluation.metrics import ACCURACY, Array, interval
from compress.evaluation.metrics import probabilities as softmax
from compress.inference.batching import NOT_FINITE
from compress.inference.compute import Compute
from compress.inference.native import NativeRunner
from compress.inference.runners import load_runner
from compress.models.manifest import MANIFEST_NAME
from compress.models.model_dir import Model, Prediction, open_model
from compress.progress import logger
from compress.requests.measuring import Predict

_ONE = (str, tuple, Example)
CHECKED_ROWS = 64  # of a label check
CHUNK_ROWS = 2048


def acceptance_thresholds(model: Model) -> np.ndarray | None:
    """Return the confidence from which the prediction of each class is accepted ``[C]``; infinite where it never is.

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
    return np.array([math.inf if value is None else value for value in found], float)


def load(model: Model | str | Path, *, compute: Compute = Compute()) -> Model:
    """Open and load a model, torch or ONNX, or a cascade, for prediction.

    Args:
        model: its directory.
        compute: device and threads. ``auto`` is the CPU for an ONNX model.

    Raises:
        CompressError: it is no classifier or does not open, or a torch model lacks the extra ``train``.
    """
    opened = replace(open_model(model), compute=compute)
    acceptance_thresholds(opened)
    logger.debug("%s reads %d tokens of a text", opened.name, opened.max_length)
    return opened


# What Model.predict and Model.predict_proba do.


def native_answer(model: Model) -> Callable[[str], Prediction] | None:
    """Return what answers one text by the native library; None for other models and tasks."""
    if not isinstance(model.runner, NativeRunner) or not model.task.label_probabilities:
        return None
    best, labels, thresholds = model.runner.core.best, model.labels, acceptance_thresholds(model)

    def answer(text: str) -> Prediction:
        try:
            label, probability, truncated = best(text)
        except UnicodeEncodeError:
            _example(text)  # says what is wrong
            raise
        refuse((not probability > 0, NOT_FINITE))
        found: Prediction = {"label": labels[label], "probability": round(probability, 4)}
        if thresholds is not None:
            found["accepted"] = bool(probability >= thresholds[label])
        if truncated:
            found["truncated"] = True
        return found

    return answer


def predictions(model: Model, texts: Any, *, probabilities: bool) -> Prediction | list[Prediction]:
    if probabilities:
        _check_probabilities(model)
    examples, logits, cut = _read(model, texts)
    found = [*model.task.described(examples, logits, model.labels, acceptance_thresholds(model), probabilities)]
    for number in cut:
        found[number]["truncated"] = True
    return found[0] if isinstance(texts, _ONE) else found


def _read(model: Model, texts: Any) -> tuple[Sequence[Example], np.ndarray, Sequence[int]]:
    """Return examples, their logits ``[N, C]``, and the numbers of those that were cut.

    The native library reads texts of a list as they are, in less time than examples are made of them: there are none.
    """
    if type(texts) is list and isinstance(model.runner, NativeRunner):
        with suppress(TypeError, UnicodeEncodeError):  # no texts, or wrong ones: said below
            logits, truncated = model.runner.read(texts)
            return (), logits, truncated.nonzero()[0].tolist()
    examples = _examples(texts)
    with counting() as truncation:
        logits = _logits(model, examples)
    return examples, logits, [number for number, example in enumerate(examples) if truncation.has_cut(example)]


def label_probabilities(model: Model, texts: Any) -> np.ndarray:
    _check_probabilities(model)
    return softmax(_logits(model, _examples(texts))).astype(np.float32, copy=False)


def _check_probabilities(model: Model) -> None:
    said = f"a model made for {model.task} has no probabilities of its labels; leave them out"
    refuse((not model.task.label_probabilities, said))


def _logits(model: Model, examples: Sequence[Example]) -> np.ndarray:
    return np.asarray(model.runner.logits(examples)) if examples else np.zeros((0, len(model.labels)), np.float32)


def predict(request: Predict) -> Iterator[Prediction]:
    """Yield the prediction of each text of a request, with its text, in order.

    Raises:
        CompressError: as :meth:`Model.predict`.
    """
    data = request.open_text("data", keep_empty=True)
    rows = map(_example, request.texts) if data is None else data
    classifier, truncation = load(cast(Any, request.model), compute=request.compute), Truncation()
    for chunk in batched(rows, CHUNK_ROWS):
        found = classifier.predict(chunk, probabilities=request.probabilities)
        truncation.add_counts(classifier.max_length, len(chunk), sum("truncated" in one for one in found))
        for example, prediction in zip(chunk, found, strict=True):
            pair = {} if example.text_pair is None else {"text_pair": example.text_pair}
            yield {**prediction, "text": example.text, **pair}
    if said := truncation.sentence(READS_NO_MORE):
        logger.info("%s", said)
    if isinstance(rows, TextSource):
        logger.info("read: %s", rows.describe())  # with the rows that were skipped, which is known by now


def _examples(texts: Any) -> list[Example]:
    rows = [texts] if isinstance(texts, _ONE) else list(texts) if isinstance(texts, Iterator) else texts
    if isinstance(rows, list) and not any(isinstance(row, Mapping) for row in rows[:1]):
        return [*map(_example, rows)]
    return [*open_text(rows, role=None, keep_empty=True)]


def _example(text: Any) -> Example:
    if isinstance(text, Example):
        return text
    parts = (text,) if isinstance(text, str) else text if isinstance(text, tuple) and len(text) == 2 else (None,)
    if not all(isinstance(part, str) and part == part.encode(errors="ignore").decode() for part in parts):
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
        predicted = model.task.predictions(load_runner(model, compute).logits(some))
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
    if bounds[1][0] > bounds[0][1]:
        names = [f"{labels[one]} is {labels[other]}" for one, other in enumerate(best) if one != other]
        logger.warning(
            "%s; if %s, it would be %.1f%%: --label-map FILE says it", found, some_of(names), 100 * fitting.mean()
        )
