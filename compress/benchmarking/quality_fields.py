"""Quality fields of result lines: metric, paired difference to the teacher, calibration error and flips.

N rows, C classes. What each field means is said in :mod:`compress.benchmarking.results.schema`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compress.benchmarking.results.schema import Fields, groups, interval_fields
from compress.data.tokenization import NO_ANSWER
from compress.errors import CompressError
from compress.evaluation import metrics
from compress.evaluation.calibration_error import calibration_error, calibration_interval
from compress.evaluation.cluster_bootstrap import Array
from compress.evaluation.metrics import METRICS, Difference, Metric

FLIPS_KEPT = 100
NO_DIFFERENCE = Difference(0.0, 0.0, 0.0, None)  # of the teacher to itself


@dataclass(frozen=True)
class ModelPredictions:
    """What a model says about every row: ``predicted [N]`` and, of a classifier, ``probabilities [N, C]``."""

    predicted: Array
    probabilities: Array | None


def quality_fields(
    logits: Mapping[str, np.ndarray | None],
    gold: np.ndarray,
    *,
    baseline: str,
    metric: Metric,
    task: str,
    labels: Sequence[str],
    sentences: np.ndarray | None = None,
) -> dict[str, Fields]:
    """Return the quality fields that follow from logits and gold labels, of every model by its title.

    Args:
        logits: logits or log-probabilities ``[N, C]`` by title, ``[N, 1]`` for regression; None for random weights,
            whose fields are null and whose lists are empty.
        gold: class indices, or scores, ``[N]``.
        baseline: title of the teacher that the others are compared with.
        metric: what to measure.
        task: ``classification``, ``regression`` or ``tagging``, where N counts words.
        labels: names of the classes in order.
        sentences: for tagging, the sentence of every word, ``[N]``.

    Raises:
        CompressError: there are fewer than two rows, or a model's output is not a number.
        ValueError: the baseline has no logits, or shapes differ.
    """
    teacher_logits = logits.get(baseline)
    if teacher_logits is None:
        raise ValueError(f"the baseline {baseline} has no logits")
    if len(gold) < 2:
        raise CompressError(f"the test data have {len(gold)} row, and an interval needs two or more; give more --data")
    teacher = read_answers(baseline, teacher_logits, len(gold), task=task, labels=labels)
    found: dict[str, Fields] = {}
    for title, values in logits.items():
        if values is None:
            found[title] = _no_quality()
            continue
        model = teacher if title == baseline else read_answers(title, values, len(gold), task=task, labels=labels)
        found[title] = {
            **_metric_fields(model, teacher, gold, metric, len(labels), sentences),
            **_calibration_fields(model, gold, sentences),
            "classes": _class_fields(model, teacher, gold, labels, sentences) if task != "regression" else [],
            **_flip_fields(model, teacher, gold, sentences),
        }
    return found


def read_answers(title: str, logits: np.ndarray, rows: int, *, task: str, labels: Sequence[str]) -> ModelPredictions:
    """Turn logits into predictions and probabilities.

    Raises:
        CompressError: one of them is not a number.
        ValueError: their shape is not ``[rows, C]``.
    """
    from scipy.special import softmax

    values = np.asarray(logits, dtype=np.float64)
    width = 1 if task == "regression" else len(labels)
    if values.shape != (rows, width):
        raise ValueError(f"{title} has logits of shape {values.shape}, not {(rows, width)}")
    predicted = metrics.predictions(values, task)
    if task == "tagging":  # a word without an answer: all tags are as likely
        values = np.where(predicted[:, None] == NO_ANSWER, 0.0, values)
    # A log-probability may be minus infinity; its softmax is a number all the same.
    with np.errstate(invalid="ignore"):
        probabilities = None if task == "regression" else softmax(values, axis=1)
    broken = ~np.isfinite(values if probabilities is None else probabilities).all(axis=1)
    if broken.any():
        raise CompressError(
            f"{title} answers row {int(broken.argmax()) + 1} and {int(broken.sum()) - 1} others with something that is "
            "not a number; leave this model out, or make it again"
        )
    return ModelPredictions(predicted, probabilities)


def _no_quality() -> Fields:
    """Return the fields of a model with random weights."""
    empty = {"integer": 0, "array": []}
    return {f.name: None if f.null else empty[f.kind] for f in groups()["Quality"] if not f.optional}


def _metric_fields(
    model: ModelPredictions,
    teacher: ModelPredictions,
    gold: Array,
    metric: Metric,
    classes: int,
    sentences: Array | None,
) -> Fields:
    mine, reference = model.predicted, teacher.predicted
    value = metrics.score(mine, gold, metric=metric, classes=classes)
    reached = metrics.score(reference, gold, metric=metric, classes=classes)
    bounds = metrics.interval(mine, gold, metric=metric, classes=classes, sentences=sentences)
    difference = NO_DIFFERENCE
    if model is not teacher:
        difference = metrics.paired_difference(
            mine, reference, gold, metric=metric, classes=classes, sentences=sentences
        )
    return {
        "metric_name": metric.name,
        **interval_fields("metric", (value, *bounds)),
        "metric_rows": len(gold),
        "metric_kept_percent": 100 * value / reached if reached > 0 else None,
        **interval_fields("difference_points", (difference.points, difference.low, difference.high)),
        "mcnemar_p": difference.mcnemar_p,
        "agreement": metrics.agreement(mine, reference),
    }


def _calibration_fields(model: ModelPredictions, gold: Array, sentences: Array | None) -> Fields:
    """Of the probability of the predicted class; a regression has none."""
    if model.probabilities is None:
        return interval_fields("calibration_error", None)
    confidence, correct = model.probabilities.max(axis=1), model.predicted == gold
    bounds = calibration_interval(confidence, correct, sentences=sentences)
    return interval_fields("calibration_error", (calibration_error(confidence, correct), *bounds))


def _class_fields(
    model: ModelPredictions, teacher: ModelPredictions, gold: Array, labels: Sequence[str], sentences: Array | None
) -> list[dict[str, Any]]:
    """Compare recall class by class: recall is the accuracy on the rows of a class, and so is its paired interval.

    A class without rows has no recall, and one row, or words of one sentence, no interval: null.
    """
    found = []
    for index, label in enumerate(labels):
        held = gold == index
        mine, reference, rows = model.predicted[held], teacher.predicted[held], int(held.sum())
        one: dict[str, Any] = {"label": label, "rows": rows, "recall": None, "teacher_recall": None}
        one |= {"difference_points": None, "low": None, "high": None}
        if rows:
            right, before = (mine == index).mean(), (reference == index).mean()
            one |= {"recall": float(right), "teacher_recall": float(before)}
            one["difference_points"] = float(100 * (right - before))
        own = None if sentences is None else sentences[held]
        if (rows if own is None else len(np.unique(own))) > 1:
            paired = NO_DIFFERENCE
            if model is not teacher:
                paired = metrics.paired_difference(
                    mine, reference, gold[held], metric=METRICS["accuracy"], classes=len(labels), sentences=own
                )
            one |= {"low": paired.low, "high": paired.high}
        found.append(one)
    return found


def _flip_fields(model: ModelPredictions, teacher: ModelPredictions, gold: Array, sentences: Array | None) -> Fields:
    """List the rows that the model gets wrong and the teacher right, and the reverse, largest change first.

    Of a classifier, a row is lost that the teacher has right and the model wrong, and ``change`` is how the probability
    of the gold label changed, in points. Of a regression, a row is lost when its absolute error grew, and ``change`` is
    how much smaller the error became, in units of the score; a change of 0 in four digits counts on neither side.
    Either way a change below 0 is for the worse. For tagging, ``row`` is the sentence and ``word`` the number of the
    word in it, from 0.
    """
    mine, reference = model.predicted, teacher.predicted
    if model.probabilities is None or teacher.probabilities is None:
        change = np.round(np.abs(reference - gold) - np.abs(mine - gold), 4)
        lost, won = change < 0, change > 0
    else:
        rows = np.arange(len(gold))
        change = np.round(100 * (model.probabilities[rows, gold] - teacher.probabilities[rows, gold]), 4)
        lost, won = (reference == gold) & (mine != gold), (reference != gold) & (mine == gold)

    def place(row: int) -> dict[str, int]:
        if sentences is None:
            return {"row": row}
        return {"row": int(sentences[row]), "word": row - int(np.searchsorted(sentences, sentences[row]))}

    def listed(chosen: Array, rank: Array) -> list[dict[str, Any]]:
        rows = np.flatnonzero(chosen)
        first = rows[np.argsort(rank[rows], kind="stable")][:FLIPS_KEPT]
        return [
            {
                **place(int(row)),
                "gold": gold[row].item(),
                "predicted": round(mine[row].item(), 5),
                "change": change[row].item(),
            }
            for row in first
        ]

    return {
        "flips_lost": listed(lost, change),
        "flips_won": listed(won, -change),
        "flips_lost_rows": int(lost.sum()),
        "flips_won_rows": int(won.sum()),
    }
