"""Fit a scale and a shift of logits by which probabilities are calibrated, and judge it on rows it did not see.

Shapes: N rows, C classes.

* *Temperature scaling* (Guo et al. 2017, arXiv:1706.04599, section 4.2) divides all logits by one number T.
* *Vector scaling* (section 4.2) has a scale and a shift of its own for every class.

Both maximise the likelihood of the gold labels times a prior. ln T is normal around 0 with standard deviation 1, and in
vector scaling the logarithms of the scales around -ln T, and the shifts around 0, with 0.5. From 500 rows on the prior
of T moves it by less than 1%. Without it, few rows that are all predicted right would have T = 0, and every class with
a handful of rows scales of its own, which is why Guo et al. found vector scaling to overfit with many classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compress.evaluation.cluster_bootstrap import Array
from compress.evaluation.metrics import bootstrap
from compress.evaluation.softmax import log_probabilities

FOLDS = 10
TEMPERATURE_DEVIATION = 1.0
CLASS_DEVIATION = 0.5
LARGEST_LOG_TEMPERATURE = 5.0  # where a probability of 99.9% becomes one of 51%


@dataclass(frozen=True)
class Scaling:
    """``scale * logits + shift``: the scale of all classes ``[1]``, or of each ``[C]``; a shift of each, or none."""

    scale: Array
    shift: Array | None = None

    def apply(self, logits: Array) -> Array:
        """Return calibrated logits ``[N, C]``."""
        return logits * self.scale + (0.0 if self.shift is None else self.shift)

    @property
    def temperature(self) -> float:
        """What logits are divided by: T, or in vector scaling the geometric mean over classes."""
        return float(np.exp(-np.log(self.scale).mean()))

    @property
    def is_identity(self) -> bool:
        return self.shift is None and bool((self.scale == 1.0).all())


UNCHANGED = Scaling(np.ones(1))


@dataclass(frozen=True)
class Calibrated:
    """A way to calibrate, and what it does to rows that it was not fitted on.

    Args:
        name: ``none``, ``temperature`` or ``vector``.
        scaling: fitted on all rows.
        logits: out-of-fold logits ``[N, C]``: each row's are scaled by what was fitted on the other folds.
        losses: negative log-likelihood of each row's gold label by them, in nats, ``[N]``.
    """

    name: str
    scaling: Scaling
    logits: Array
    losses: Array


def calibrations(logits: Array, gold: Array, keys: Array, *, shifts: bool = True) -> list[Calibrated]:
    """Return no calibration, temperature scaling and vector scaling, each judged by ten-fold cross-validation.

    Args:
        logits: ``[N, C]``.
        gold: class indices ``[N]``.
        keys: a number of each row ``[N]``; rows of the same key are in the same fold, so that no text is judged by what
            was fitted on its copy.
        shifts: whether the model can have a shift; without, there is no vector scaling.
    """
    folds = keys % FOLDS
    found = [Calibrated("none", UNCHANGED, logits, row_losses(logits, gold))]
    for name, fit in (("temperature", fit_temperature), *((("vector", fit_vector),) if shifts else ())):
        scaled = np.empty_like(logits)
        for fold in np.unique(folds):
            held_out = folds == fold
            scaled[held_out] = fit(logits[~held_out], gold[~held_out]).apply(logits[held_out])
        found.append(Calibrated(name, fit(logits, gold), scaled, row_losses(scaled, gold)))
    return found


def best_calibration(candidates: Sequence[Calibrated]) -> Calibrated:
    """Return what is used: temperature scaling where it lowers the out-of-fold loss, vector scaling where certainly.

    One number is hardly ever worse than none. Vector scaling has 2C and may change predictions, so that the whole 95%
    interval of the paired difference has to be below 0.
    """
    best, *others = candidates
    for one in others:
        if one.losses.mean() < best.losses.mean() and (one.scaling.shift is None or loss_change(one, best)[2] < 0):
            best = one
    return best


def loss_change(one: Calibrated, other: Calibrated) -> tuple[float, float, float]:
    """Return by how much the mean loss of one is above the other's, in nats, with its paired 95% interval."""
    difference = one.losses - other.losses
    low, high = bootstrap((difference,), lambda drawn: np.asarray(drawn.mean(axis=-1)))
    return float(difference.mean()), low, high


def row_losses(logits: Array, gold: Array) -> Array:
    """Return the negative log-likelihood of each gold label, in nats, ``[N]``."""
    return np.asarray(-log_probabilities(logits)[np.arange(len(gold)), gold])


def fit_temperature(logits: Array, gold: Array) -> Scaling:
    """Return the most likely temperature for logits ``[N, C]`` and gold class indices ``[N]``; 1 without any row."""
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        scaled = logits * np.exp(-log_temperature)
        return float(row_losses(scaled, gold).sum() + (log_temperature / TEMPERATURE_DEVIATION) ** 2 / 2)

    if not len(gold):
        return UNCHANGED
    bounds = (-LARGEST_LOG_TEMPERATURE, LARGEST_LOG_TEMPERATURE)
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return Scaling(np.exp([-found.x]))


def fit_vector(logits: Array, gold: Array) -> Scaling:
    """Return the most likely scale and shift of every class for logits ``[N, C]`` and gold class indices ``[N]``."""
    from scipy.optimize import minimize

    rows, classes = logits.shape
    is_gold = np.zeros((rows, classes))
    is_gold[np.arange(rows), gold] = 1
    start = np.zeros(1 + 2 * classes)
    start[0] = np.log(fit_temperature(logits, gold).scale[0])

    def loss(values: Array) -> tuple[float, Array]:
        common, own, shift = values[0], values[1 : 1 + classes], values[1 + classes :]
        stretched = logits * np.exp(common + own)
        logs = log_probabilities(stretched + shift)
        error = np.exp(logs) - is_gold
        by_scale = (error * stretched).sum(axis=0)
        total = (
            -(logs * is_gold).sum()
            + (common / TEMPERATURE_DEVIATION) ** 2 / 2
            + ((own**2).sum() + (shift**2).sum()) / (2 * CLASS_DEVIATION**2)
        )
        gradient = [
            by_scale.sum() + common / TEMPERATURE_DEVIATION**2,
            *(by_scale + own / CLASS_DEVIATION**2),
            *(error.sum(axis=0) + shift / CLASS_DEVIATION**2),
        ]
        return float(total), np.array(gradient)

    values = minimize(loss, start, jac=True, method="L-BFGS-B").x
    return Scaling(np.exp(values[0] + values[1 : 1 + classes]), values[1 + classes :])
