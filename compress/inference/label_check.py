"""Whether labels mean what a model calls them: predictions that are worse than chance say that they do not."""

from collections.abc import Sequence

import numpy as np

from compress.data import Example, encode_gold
from compress.data.tokenization import one_column
from compress.errors import CompressError, some_of
from compress.evaluation.cluster_bootstrap import Array
from compress.evaluation.metrics import METRICS, interval, predictions
from compress.inference.compute import Compute
from compress.inference.runners import LoadedModel
from compress.models.model_dir import ModelDir
from compress.progress import logger

CHECKED_ROWS = 64


def check_gold(model: ModelDir, rows: Sequence[Example], name: str, compute: Compute) -> None:
    """Refuse rows whose labels mean something else than the classes of a model; looks at a few, spread evenly.

    Raises:
        CompressError: see :func:`check_label_meaning`.
    """
    if rows and model.task != "regression":
        some = rows[:: -(-len(rows) // CHECKED_ROWS)]
        gold = one_column(encode_gold(some, model.labels, task=model.task, name=name))
        predicted = predictions(LoadedModel.load(model, compute).logits(some), model.task)
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
    bounds = [interval(one, np.ones_like(one), metric=METRICS["accuracy"], classes=2) for one in (right, fitting)]
    found = f"the model predicts {100 * right.mean():.1f}% of {name} right"
    drawn = float(counts.sum(axis=0) @ counts.sum(axis=1)) / max(1.0, counts.sum()) ** 2
    if bounds[0][1] < min(1 / len(labels), drawn):
        raise CompressError(
            f"{found}, less than by chance with {len(labels):,} classes: the labels of these {len(gold):,} rows mean "
            f"something else than {', '.join(labels[:3])}{', ...' * (len(labels) > 3)}; say what they mean with "
            "--label-map FILE, or give other rows"
        )
    if bounds[1][0] > bounds[0][1]:
        names = [f"{labels[one]} is {labels[other]}" for one, other in enumerate(best) if one != other]
        logger.warning(
            "%s; if %s, it would be %.1f%%: --label-map FILE says it", found, some_of(names), 100 * fitting.mean()
        )
