"""Whether labels mean what a model calls them: predictions that are worse than chance say that they do not."""

from collections.abc import Sequence

import numpy as np

from compress.errors import CompressError
from compress.evaluation.cluster_bootstrap import Array
from compress.evaluation.metrics import METRICS, interval
from compress.progress import logger


def check_labels(predicted: Array, gold: Array, labels: Sequence[str], name: str) -> None:
    """Refuse labels that mean something else than the classes of a model, and warn where another order fits better.

    Chance is what a draw of as many classes gets right, or one that predicts each class as often as the model does: a
    model that always says the same is not refused for it.

    Args:
        predicted: classes that the model predicts, ``[N]``; those of no class, -1, count as wrong.
        gold: the labels, ``[N]``.
        name: what the rows are called, such as ``validation``.

    Raises:
        CompressError: the 95% interval of the accuracy is below chance.
    """
    counts = np.zeros((len(labels), len(labels)))
    np.add.at(counts, (gold[predicted >= 0], predicted[predicted >= 0]), 1)
    drawn = float(counts.sum(axis=0) @ counts.sum(axis=1)) / max(1.0, counts.sum()) ** 2
    right, (low, high) = _share(predicted == gold)
    found, best = f"the model predicts {100 * right:.1f}% of {name} right", _best_order(counts)
    names = ", ".join(f"{labels[one]} is {labels[other]}" for one, other in enumerate(best[:3]) if one != other)
    if high < min(1 / len(labels), drawn):
        raise CompressError(
            f"{found}, less than by chance with {len(labels):,} classes: the labels of these {len(gold):,} rows mean "
            f"something else than {', '.join(labels[:3])}{', ...' * (len(labels) > 3)}; say what they mean with "
            "--label-map FILE, or give other rows"
        )
    other, (least, _) = _share(best[gold] == predicted)
    if least > high:
        logger.warning("%s; if %s, it would be %.1f%%: --label-map FILE says it", found, names, 100 * other)


def _share(right: Array) -> tuple[float, tuple[float, float]]:
    ones = right.astype(int)
    return float(ones.mean()), interval(ones, np.ones_like(ones), metric=METRICS["accuracy"], classes=2)


def _best_order(counts: Array) -> Array:
    """Return the class ``[C]`` that each label would have to be for most predictions to be right."""
    from scipy.optimize import linear_sum_assignment

    return np.asarray(linear_sum_assignment(-counts)[1])
