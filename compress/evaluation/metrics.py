"""Metrics, their confidence intervals, and paired comparison of two models on the same rows. N rows, C classes.

Every metric is one NumPy function over the last axis, so that the bootstrap evaluates thousands of resamples
at once; the tests hold each of them against scikit-learn and SciPy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compress.data.tokenization import NO_ANSWER
from compress.errors import CompressError, did_you_mean
from compress.evaluation.cluster_bootstrap import (
    BATCH_VALUES,
    CONFIDENCE,
    RESAMPLES,
    Array,
    percentiles,
    sentence_bootstrap,
    sentence_mean_interval,
)

FEW_CLASSES = 10
Statistic = Callable[[Array, Array, int], Array]


@dataclass(frozen=True)
class Metric:
    """A metric by the name a user types: a function of predictions ``[..., N]``, gold ``[..., N]`` and C."""

    name: str
    task: str
    statistic: Statistic


@dataclass(frozen=True)
class Difference:
    """A model minus its reference on the same rows, in points (a metric of 0.90 is 90 points)."""

    points: float
    low: float
    high: float
    mcnemar_p: float | None  # None for regression, where no row is simply right or wrong


def _accuracy(predicted: Array, gold: Array, classes: int) -> Array:
    return np.asarray((predicted == gold).mean(axis=-1))


def _counts(labels: Array, classes: int) -> NDArray[np.int64]:
    """Return how often each class occurs in labels ``[..., N]``, ``[..., C]``; a label that is no class is not counted.

    Of many classes in one pass over all resamples, of few in one each, which is faster.
    """
    if classes < FEW_CLASSES:
        return np.stack([(labels == label).sum(axis=-1) for label in range(classes)], axis=-1)
    rows = np.clip(labels, -1, classes).astype(np.int64).reshape(-1, labels.shape[-1])
    bins = classes + 2
    rows += 1 + bins * np.arange(len(rows))[:, None]
    counted = np.bincount(rows.ravel(), minlength=len(rows) * bins)
    return counted.reshape(*labels.shape[:-1], bins)[..., 1:-1]


def _f1(predicted: Array, gold: Array, classes: int) -> Array:
    is_predicted, is_gold = predicted == classes - 1, gold == classes - 1
    total = is_predicted.sum(axis=-1) + is_gold.sum(axis=-1)
    return np.asarray(2 * (is_predicted & is_gold).sum(axis=-1) / np.maximum(total, 1))


def _macro_f1(predicted: Array, gold: Array, classes: int) -> Array:
    # A class that occurs in neither column has no F1; like scikit-learn, it is left out of the mean.
    hits = _counts(np.where(predicted == gold, gold, NO_ANSWER), classes)
    total = _counts(predicted, classes) + _counts(gold, classes)
    found = 2 * hits / np.maximum(total, 1)
    return np.asarray(found.sum(axis=-1) / np.maximum((total > 0).sum(axis=-1), 1))


def _matthews(predicted: Array, gold: Array, classes: int) -> Array:
    # Gorodkin (2004), equation 8: the correlation of two one-hot matrices.
    rows = float(predicted.shape[-1])  # its fourth power is no int64 beyond 55,000 rows
    of_predicted, of_gold = _counts(predicted, classes).astype(float), _counts(gold, classes).astype(float)
    spread = (rows**2 - (of_predicted**2).sum(axis=-1)) * (rows**2 - (of_gold**2).sum(axis=-1))
    covariance = (predicted == gold).sum(axis=-1) * rows - (of_predicted * of_gold).sum(axis=-1)
    return np.where(spread > 0, covariance / np.sqrt(np.maximum(spread, 1)), 0.0)


def _pearson(predicted: Array, gold: Array, classes: int) -> Array:
    x = predicted - predicted.mean(axis=-1, keepdims=True)
    y = gold - gold.mean(axis=-1, keepdims=True)
    spread = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    # A constant prediction ranks nothing: no correlation, rather than a NaN that travels into reports.
    return np.where(spread > 0, (x * y).sum(axis=-1) / np.where(spread > 0, spread, 1.0), 0.0)


def _spearman(predicted: Array, gold: Array, classes: int) -> Array:
    from scipy.stats import rankdata

    return _pearson(rankdata(predicted, axis=-1), rankdata(gold, axis=-1), classes)


def _both(predicted: Array, gold: Array, classes: int) -> Array:
    return (_pearson(predicted, gold, classes) + _spearman(predicted, gold, classes)) / 2


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "classification", _accuracy),
        Metric("f1", "classification", _f1),  # of the last label
        Metric("macro-f1", "classification", _macro_f1),
        Metric("matthews", "classification", _matthews),
        Metric("pearson", "regression", _pearson),
        Metric("spearman", "regression", _spearman),
        Metric("pearson-spearman", "regression", _both),  # the mean, as GLUE reports STS-B
    )
}
DEFAULTS: Mapping[str, str] = {"classification": "accuracy", "regression": "pearson"}


def find_metric(name: str | None, *, task: str, classes: int | None = None) -> Metric:
    """Return a metric by name, or the task's default; for tagging those of classification, over words.

    Raises:
        CompressError: it is unknown, of the other task, or ``f1`` with more than two labels.
    """
    kind = "classification" if task == "tagging" else task  # of words
    allowed = [metric.name for metric in METRICS.values() if metric.task == kind]
    key = (name or DEFAULTS[kind]).replace("_", "-")
    if key not in allowed:
        raise CompressError(
            f"metric {name!r} does not fit {task}; choose one of {', '.join(allowed)} with --metric."
            f"{did_you_mean(key, allowed)}"
        )
    if key == "f1" and classes is not None and classes != 2:
        raise CompressError(f"metric 'f1' needs two labels, not {classes}; use --metric macro-f1")
    return METRICS[key]


def predictions(logits: ArrayLike, task: str) -> Array:
    """Return what logits ``[N, C]`` predict ``[N]``: class indices as int64, or scores as float64.

    For tagging a word without an answer, whose logits are not numbers, is predicted to be -1, which no tag is.
    """
    values = np.asarray(logits)
    if values.ndim != 2:
        raise ValueError(f"logits must be [N, C], not of shape {values.shape}")
    if task == "regression":
        return values[:, 0].astype(np.float64)
    if task == "tagging":
        unanswered = np.isnan(values).all(axis=1)
        return np.where(unanswered, NO_ANSWER, values.argmax(axis=1)).astype(np.int64)
    return np.asarray(values.argmax(axis=1), dtype=np.int64)


def evaluate(logits: ArrayLike, gold: ArrayLike, *, task: str, metric: str | None = None) -> float:
    """Return a metric as a fraction (0.89, not 89) of logits ``[N, C]`` and gold labels or scores ``[N]``."""
    values = np.asarray(logits)
    chosen = find_metric(metric, task=task, classes=values.shape[-1])
    return score(predictions(values, task), gold, metric=chosen, classes=values.shape[-1])


def score(predicted: ArrayLike, gold: ArrayLike, *, metric: Metric, classes: int) -> float:
    """Return a metric of predictions ``[N]`` and gold ``[N]``."""
    first, second = _rows(predicted, gold)
    return float(metric.statistic(first, second, classes))


def agreement(first: ArrayLike, second: ArrayLike) -> float:
    """Return the share of rows where two models predict the same class; of scores, their correlation."""
    one, other = _rows(first, second)
    if np.issubdtype(one.dtype, np.floating):
        return float(_pearson(one, other, 1))
    return float((one == other).mean())


def interval(
    predicted: ArrayLike,
    gold: ArrayLike,
    *,
    metric: Metric,
    classes: int,
    sentences: Array | None = None,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the 95% interval of a metric: Wilson's for accuracy, else bootstrap percentiles over rows.

    With ``sentences`` ``[N]``, the sentence of every row, rows are words and whole sentences are drawn again.
    """
    first, second = _rows(predicted, gold)
    if metric.name != "accuracy":
        return bootstrap((first, second), lambda p, g: metric.statistic(p, g, classes), sentences=sentences, seed=seed)
    if sentences is None:
        from scipy.stats import binomtest

        ci = binomtest(int((first == second).sum()), len(first)).proportion_ci(CONFIDENCE, method="wilson")
        return float(ci.low), float(ci.high)
    return sentence_mean_interval(first == second, sentences, seed=seed)


def paired_difference(
    predicted: ArrayLike,
    reference: ArrayLike,
    gold: ArrayLike,
    *,
    metric: Metric,
    classes: int,
    sentences: Array | None = None,
    seed: int = 0,
) -> Difference:
    """Return the difference of two models on the same rows, in points, with its 95% interval.

    Rows are resampled together for both models. For accuracy the interval is never narrower than that of
    Bonett and Price (2012, "Adjusted Wald confidence interval for a difference of binomial proportions based on paired
    data"): when two models hardly ever differ, resampling their few differences pretends a certainty that N rows cannot
    give. With ``sentences`` rows are words, whole sentences are drawn again, and there is no test of McNemar's, which
    takes rows to be independent.
    """
    model, gold_rows = _rows(predicted, gold)
    other, _ = _rows(reference, gold)
    p = None
    if metric.task == "classification":
        won, lost = discordant(model, other, gold_rows)
        p = mcnemar_p(won, lost) if sentences is None else None
        if metric.name == "accuracy":
            change = (model == gold_rows).astype(float) - (other == gold_rows)
            resampled = (
                _resampled_difference(won, lost, len(gold_rows), seed)
                if sentences is None
                else sentence_mean_interval(change, sentences, seed=seed)
            )
            low, high = _at_least_bonett_price(resampled, won, lost, len(gold_rows))
            return Difference(100 * (won - lost) / len(gold_rows), 100 * low, 100 * high, p)

    def statistic(p: Array, r: Array, g: Array) -> Array:
        return np.asarray(metric.statistic(p, g, classes) - metric.statistic(r, g, classes))

    columns = (model, other, gold_rows)
    low, high = bootstrap(columns, statistic, sentences=sentences, seed=seed)
    points = 100 * float(statistic(model, other, gold_rows))
    return Difference(points, 100 * low, 100 * high, p)


def discordant(predicted: Array, reference: Array, gold: Array) -> tuple[int, int]:
    """Return how many rows only the model has right (won), and how many only the reference (lost)."""
    right, reference_right = predicted == gold, reference == gold
    return int((right & ~reference_right).sum()), int((~right & reference_right).sum())


def mcnemar_p(won: int, lost: int) -> float:
    """Return the exact two-sided McNemar p of the rows that only the one, or only the other, has right."""
    from scipy.stats import binomtest

    return float(binomtest(min(won, lost), won + lost, 0.5).pvalue) if won + lost else 1.0


def bootstrap(
    samples: tuple[Array, ...],
    statistic: Callable[..., Array],
    *,
    sentences: Array | None = None,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the 95% percentile interval of a statistic over the last axis of arrays ``[N]``, drawn together.

    With ``sentences`` ``[N]``, the sentence of every row, whole sentences are drawn.
    """
    if sentences is not None:
        return sentence_bootstrap(samples, statistic, sentences, seed=seed)
    from scipy import stats

    rows = samples[0].shape[-1]
    if rows < 2:
        raise CompressError(f"{rows} labelled row has no interval; give at least 2, better some hundreds")
    result = stats.bootstrap(
        samples,
        lambda *drawn, axis: statistic(*drawn),
        paired=True,
        vectorized=True,
        axis=-1,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
        batch=max(1, BATCH_VALUES // rows),  # of a column
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def _resampled_difference(won: int, lost: int, rows: int, seed: int) -> tuple[float, float]:
    """Return the bootstrap interval of a difference of accuracies, as fractions.

    A resample of rows holds a multinomial number of won and lost ones, so the counts are drawn instead of the rows.
    """
    shares = [won / rows, lost / rows, (rows - won - lost) / rows]
    drawn = np.random.default_rng(seed).multinomial(rows, shares, RESAMPLES)
    return percentiles((drawn[:, 0] - drawn[:, 1]) / rows)


def _at_least_bonett_price(resampled: tuple[float, float], won: int, lost: int, rows: int) -> tuple[float, float]:
    """Return the wider of a bootstrap interval and Bonett-Price's on either side, as fractions."""
    from scipy.stats import norm

    low, high = resampled
    p_won, p_lost = (won + 1) / (rows + 2), (lost + 1) / (rows + 2)
    half = norm.ppf((1 + CONFIDENCE) / 2) * np.sqrt((p_won + p_lost - (p_won - p_lost) ** 2) / (rows + 2))
    # Of few rows the interval would reach beyond all rows lost, or won.
    return float(max(-1, min(low, p_won - p_lost - half))), float(min(1, max(high, p_won - p_lost + half)))


def _rows(first: ArrayLike, second: ArrayLike) -> tuple[Array, Array]:
    one, other = np.asarray(first), np.asarray(second)
    if one.shape != other.shape or one.ndim != 1 or not len(one):
        raise ValueError(f"expected two columns [N] of equal length, got {one.shape} and {other.shape}")
    return one, other
