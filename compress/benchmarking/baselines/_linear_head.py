"""A linear classifier or regressor over features of any kind, for baselines and static models.

scikit-learn fits it; it is kept as safetensors and runs in NumPy, so that nothing pickled is read back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.numpy import load_file, save_file

from compress.data.examples import Example
from compress.evaluation.metrics import set_members
from compress.tasks import Task

STRENGTHS = (1.0, 10.0, 100.0)  # C of logistic regression: the larger, the weaker its regularisation
SEARCH_ROWS = 20_000
FOLDS = 3
# Logit of a class that has no training row: it is never chosen, and its probability stays above zero.
UNSEEN = -50.0
HEAD_NAME = "head.safetensors"


@dataclass(frozen=True)
class Head:
    """``weights`` ``[D, C]`` and ``bias`` ``[C]``, float32; regression has one column."""

    weights: np.ndarray
    bias: np.ndarray

    @property
    def parameters(self) -> int:
        return self.weights.size + self.bias.size

    def __call__(self, features: Any) -> np.ndarray:
        """Return logits ``[B, C]``, or scores ``[B, 1]``, of dense or sparse features ``[B, D]``."""
        return np.asarray(features @ self.weights + self.bias)

    def save(self, directory: Path) -> None:
        # safetensors writes the memory of an array as it lies, whatever its order.
        save_file({"weights": np.ascontiguousarray(self.weights), "bias": self.bias}, directory / HEAD_NAME)

    @classmethod
    def load(cls, directory: Path) -> Self:
        return cls(**load_file(directory / HEAD_NAME))


def sides(examples: Sequence[Example]) -> list[list[str]]:
    """Return the texts, and the second texts if there are any."""
    pairs = [
        (example.text,) if examples[0].text_pair is None else (example.text, example.text_pair or "")
        for example in examples
    ]
    return [list(side) for side in zip(*pairs, strict=True)]


def pair_features(pooled: Sequence[np.ndarray]) -> np.ndarray:
    """Return the vectors of texts ``[B, D]``, or of pairs u, v ``[u, v, |u - v|, u * v]`` ``[B, 4 D]``."""
    if len(pooled) == 1:
        return pooled[0]
    one, other = pooled
    return np.concatenate((one, other, np.abs(one - other), one * other), axis=1)


def fit_linear_head(
    features: Any, gold: np.ndarray, task: Task, classes: int, strengths: Sequence[float] = STRENGTHS
) -> Head:
    """Fit logistic regression, or ridge regression, whose strength is chosen by cross-validation.

    Of several labels each has a logistic regression of its own, all of one strength. The search uses three folds over
    the strengths, on at most 20,000 rows drawn with a fixed seed; the result is fitted on all rows.

    Args:
        features: dense or sparse, ``[N, D]``.
        gold: class indices ``[N]``, sets of labels, or scores for regression.
        classes: number of classes, those without a training row included.
        strengths: what is chosen from.
    """
    if not task.has_classes:
        model = _search(features, gold, strengths)
        return Head(_column(model.coef_), np.atleast_1d(np.float32(model.intercept_)))
    weights = np.zeros((features.shape[1], classes), dtype=np.float32)
    bias = np.full(classes, UNSEEN, dtype=np.float32)
    held = set_members(gold)
    if held.ndim == 2:
        varied = np.flatnonzero(held.any(axis=0) & ~held.all(axis=0))
        bias[held.all(axis=0)] = -UNSEEN
        if len(varied):
            model = _search(features, held[:, varied].astype(int), strengths, classify=True)
            weights[:, varied] = np.hstack([_column(one.coef_) for one in model.estimators_])
            bias[varied] = np.hstack([np.float32(one.intercept_) for one in model.estimators_])
        return Head(weights, bias)
    seen = np.unique(gold).astype(int)
    if len(seen) == 1:
        bias[seen] = 0.0
        return Head(weights, bias)
    model = _search(features, gold.astype(int), strengths, classify=True)
    if len(seen) == 2:  # one column for both: half of it up, half of it down gives the same probabilities
        weights[:, seen] = _column(model.coef_) * np.array([-0.5, 0.5], dtype=np.float32)
        bias[seen] = np.float32(model.intercept_[0]) * np.array([-0.5, 0.5], dtype=np.float32)
    else:
        weights[:, seen] = model.coef_.T
        bias[seen] = model.intercept_
    return Head(weights, bias)


def _column(coefficients: np.ndarray) -> np.ndarray:
    return np.asarray(coefficients, dtype=np.float32).reshape(-1, 1)


def _search(features: Any, gold: np.ndarray, strengths: Sequence[float], *, classify: bool = False) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import KFold, cross_val_score
    from sklearn.multiclass import OneVsRestClassifier

    several = gold.ndim == 2

    def make(strength: float) -> Any:
        if several:
            return OneVsRestClassifier(LogisticRegression(C=strength, solver="liblinear", max_iter=1000))
        return LogisticRegression(C=strength, max_iter=1000) if classify else Ridge(alpha=1 / strength)

    rows = np.arange(len(gold))
    if len(rows) > SEARCH_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, SEARCH_ROWS, replace=False))
    some, answers = features[rows], gold[rows]
    folds = list(KFold(FOLDS, shuffle=True, random_state=0).split(rows)) if len(rows) >= FOLDS else []
    fewest = min((np.ptp(answers[train], axis=0).min() for train, _ in folds), default=0)
    if len(strengths) == 1 or not folds or (classify and not fewest):
        # Nothing to choose from, too few rows, or a fold without a second class, which cannot be fitted.
        return make(strengths[0]).fit(features, gold)
    judge = "f1_micro" if several else None
    scores = [cross_val_score(make(one), some, answers, cv=folds, scoring=judge).mean() for one in strengths]
    return make(strengths[int(np.argmax(scores))]).fit(features, gold)
