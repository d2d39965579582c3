"""Labels that are likely wrong, and classes that look alike, by what a classifier says of rows that it has not seen.

N rows, C classes.

*Confident learning* (Northcutt et al. 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels",
arXiv:1911.00068, section 3.1). The threshold of a class is the mean probability of the class over the rows that are
labelled with it. A row belongs confidently to the likeliest class whose threshold it reaches, and is suspect where that
is not its label, and likelier than it. The counts of labels by confident classes, scaled to the rows of each label,
estimate how many labels are wrong. Of several labels a text each is judged by itself: a text has it or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compress.benchmarking.baselines import _linear_head
from compress.evaluation.acceptance import CERTAINTY
from compress.evaluation.metrics import Array, set_members
from compress.tasks import Task

FOLDS = 5
CONFUSED = 0.1  # of the rows of two classes that are taken for the other: more than this is reported


@dataclass(frozen=True)
class Suspects:
    """Suspect labels, the surest first: numbers of rows, classes and their probabilities, all ``[S]``.

    ``estimated`` is how many labels are wrong, by the confident joint; of several labels a text, ``label`` is the one
    that is judged, and ``given`` and ``suggested`` are 1 where a text has it.
    """

    rows: Array
    given: Array
    suggested: Array
    given_chance: Array
    suggested_chance: Array
    label: Array | None
    estimated: float


def assign_folds(groups: Array, gold: Array, seed: int) -> Array:
    """Return the fold of each row ``[N]``: rows of a group share it, and folds have like shares of each label."""
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    answers = np.unique(gold, return_inverse=True)[1]
    order = np.lexsort((np.random.default_rng(seed).random(len(gold)), answers))
    rank = np.empty(len(gold), int)
    rank[order] = np.arange(len(gold))
    return np.asarray(rank[first][group] % FOLDS)


def cross_validated(features: Any, gold: Array, task: Task, classes: int, folds: Array) -> Array:
    """Return logits ``[N, C]`` of logistic regressions, each row's by the rows of the other folds.

    Of three strengths of regularisation the one is taken whose loss on the first fold is lowest.
    """
    logits, best = np.empty((len(gold), classes)), np.inf
    strengths: Sequence[float] = _linear_head.STRENGTHS
    for fold in np.unique(folds):
        held_out, chosen = folds == fold, strengths
        for strength in chosen:
            head = _linear_head.fit_linear_head(features[~held_out], gold[~held_out], task, classes, (strength,))
            answers = head(features[held_out]).astype(float)
            loss = task.surprise(answers, gold[held_out]).mean()
            if len(chosen) == 1 or loss < best:
                logits[held_out], best, strengths = answers, loss, (strength,)
    return logits


def confident_joint(chances: Array, given: Array) -> tuple[Array, Array]:
    """Return the counts of labels by confident classes ``[C, C]``, and each row's confident class ``[N]``, -1 for none.

    Args:
        chances: of rows that the classifier has not seen, ``[N, C]``.
        given: the labels, ``[N]``.
    """
    counts = np.bincount(given, minlength=chances.shape[1])
    own = np.bincount(given, weights=chances[np.arange(len(given)), given], minlength=len(counts))
    thresholds = np.where(counts > 0, own / np.maximum(counts, 1), np.inf)
    reached = np.where(chances >= thresholds, chances, -1.0)
    confident = np.where(reached.max(axis=1) >= 0, reached.argmax(axis=1), -1)
    joint = np.zeros((len(counts), len(counts)), int)
    np.add.at(joint, (given[confident >= 0], confident[confident >= 0]), 1)
    return joint, confident


def wrong_labels(joint: Array, given: Array) -> float:
    """Return how many labels are wrong by a confident joint, each row of it scaled to the rows of its label."""
    totals = joint.sum(axis=1)
    off = (totals - joint.diagonal()) / np.maximum(totals, 1)
    return float((off * np.bincount(given, minlength=len(joint))).sum())


def find_suspects(chances: Array, gold: Array) -> Suspects:
    """Return the suspect labels of rows.

    Args:
        chances: as of :func:`confident_joint`.
        gold: class indices, or sets of labels, ``[N]``.
    """
    held = set_members(gold)
    several = held.ndim == 2
    found, estimated = [], 0.0
    for label in range(held.shape[1] if several else 1):
        given = (held[:, label] if several else gold).astype(int)
        chance = np.stack([1 - chances[:, label], chances[:, label]], axis=1) if several else chances
        joint, confident = confident_joint(chance, given)
        rows = np.arange(len(given))
        own, other = chance[rows, given], chance[rows, confident]
        suspect = np.flatnonzero((confident >= 0) & (confident != given) & (other > own))
        columns = (rows, given, confident, own, other, np.full(len(rows), label))
        found.append([column[suspect] for column in columns])
        estimated += wrong_labels(joint, given)
    joined = [np.concatenate(column) for column in zip(*found, strict=True)]
    order = np.argsort(joined[3] - joined[4], kind="stable")
    rows, given, confident, own, other, labels = (column[order] for column in joined)
    return Suspects(rows, given, confident, own, other, labels if several else None, estimated)


def confused_pairs(chances: Array, held: Array) -> tuple[list[dict[str, Any]], int, int]:
    """Return the pairs of classes that look alike, the worst first, how many were judged, and how many had few rows.

    Rows that have one class of a pair are taken for the likelier of the two. A pair looks alike where certainly more
    than 10% of its rows are mistaken (``confused``), or where Fisher's exact test does not tell the answers from chance
    (``apart`` is false). Both are corrected for the number of pairs by Bonferroni's inequality; a pair of too few rows
    for a faultless answer to be certain is not judged.

    Args:
        chances: as of :func:`confident_joint`.
        held: whether each row has each class ``[N, C]``.
    """
    from scipy.stats import beta, hypergeom

    classes = held.shape[1]
    mistaken, sizes = np.zeros((2, classes, classes), int)
    for one in range(classes):
        rows = held[:, one]
        sizes[one] = (~held[rows]).sum(axis=0)
        mistaken[one] = (~held[rows] & (chances[rows] > chances[rows, one, None])).sum(axis=0)
    first, second = np.triu_indices(classes, 1)
    own, other = sizes[first, second], sizes[second, first]
    judged = (own > 0) & (other > 0)
    first, second, own, other = (column[judged] for column in (first, second, own, other))
    error = (1 - CERTAINTY) / max(len(first), 1)
    wrong, rows = mistaken[first, second] + mistaken[second, first], own + other
    right = own - mistaken[first, second]
    p_value = hypergeom.sf(right - 1, rows, right + mistaken[second, first], own)
    enough = hypergeom.sf(own - 1, rows, own, own) <= error
    low = np.where(wrong > 0, beta.ppf(error / 2, np.maximum(wrong, 1), rows - wrong + 1), 0.0)
    high = np.where(wrong < rows, beta.ppf(1 - error / 2, wrong + 1, np.maximum(rows - wrong, 1)), 1.0)
    alike = np.flatnonzero(enough & ((low > CONFUSED) | (p_value > error)))
    pairs = [
        {
            "first": int(first[pair]),
            "second": int(second[pair]),
            "rows": int(rows[pair]),
            "confused": int(wrong[pair]),
            "low": float(low[pair]),
            "high": float(high[pair]),
            "apart": bool(p_value[pair] <= error),
        }
        for pair in alike[np.argsort(-(wrong / np.maximum(rows, 1))[alike], kind="stable")]
    ]
    return pairs, int(enough.sum()), int((~enough).sum())
