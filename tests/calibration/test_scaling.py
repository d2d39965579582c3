"""Temperature and vector scaling: what generated the labels is found again, and few rows do not run away."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import check_grad

from compress.calibration import calibrate
from compress.calibration.calibrate import (
    UNCHANGED,
    Scaling,
    best_calibration,
    calibrations,
    fit_temperature,
    fit_vector,
    loss_change,
)
from compress.evaluation.metrics import probabilities
from compress.tasks import Task, default

ROWS = 8000


def drawn(logits: np.ndarray, seed: int = 0) -> np.ndarray:
    """Draw gold labels ``[N]`` from the probabilities of logits ``[N, C]``."""
    rng = np.random.default_rng(seed)
    return (probabilities(logits).cumsum(axis=1) < rng.random((len(logits), 1))).sum(axis=1)


def random_logits(classes: int, rows: int = ROWS, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=2.0, size=(rows, classes))


@pytest.mark.parametrize("classes", [2, 5, 150])
@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_temperature_of_the_labels_is_found(classes: int, temperature: float) -> None:
    true = random_logits(classes)
    found = fit_temperature(true * temperature, drawn(true))
    assert found.temperature == pytest.approx(temperature, rel=0.05)


def test_temperature_has_a_closed_form_for_two_equal_rows() -> None:
    # Logits (a, 0) of which a share p is right: softmax(a / T) = p, so that T = a / ln(p / (1 - p)).
    gold = np.array([0] * 9000 + [1] * 1000)
    found = fit_temperature(np.tile([5.0, 0.0], (10_000, 1)), gold)
    assert found.temperature == pytest.approx(5 / math.log(9), rel=1e-3)


def test_few_rows_that_are_all_right_do_not_make_certainty() -> None:
    found = fit_temperature(np.tile([1.0, 0.0], (20, 1)), np.zeros(20, int))
    assert 0.1 < found.temperature < 1.0
    assert fit_temperature(np.zeros((0, 3)), np.zeros(0, int)) == UNCHANGED


def test_vector_scaling_finds_scales_and_shifts() -> None:
    scale, shift = np.array([0.5, 0.8, 1.2]), np.array([0.6, -0.4, -0.2])
    logits = random_logits(3, 60_000)
    found = fit_vector(logits, drawn(logits * scale + shift))
    assert found.scale == pytest.approx(scale, abs=0.06)
    assert found.shift is not None
    assert found.shift - found.shift.mean() == pytest.approx(shift - shift.mean(), abs=0.06)


def test_vector_scaling_descends_along_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    import scipy.optimize

    logits, seen = random_logits(4, 50), []

    class Answer:
        x = np.zeros(9)

    def spy(function, start, **options):  # type: ignore[no-untyped-def]
        seen.append(function)
        return Answer

    monkeypatch.setattr(scipy.optimize, "minimize", spy)
    fit_vector(logits, drawn(logits))
    (loss,) = seen
    point = np.random.default_rng(2).normal(scale=0.3, size=9)
    assert check_grad(lambda values: loss(values)[0], lambda values: loss(values)[1], point) < 1e-3


def test_a_row_is_judged_by_what_was_fitted_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[int] = []

    def remember(logits: np.ndarray, gold: np.ndarray, task: Task) -> Scaling:
        fitted.append(len(gold))
        return Scaling(np.array([float(len(gold))]))

    monkeypatch.setattr(calibrate, "fit_temperature", remember)
    logits, keys = random_logits(2, 30), np.array([7] * 12 + [*range(18)], np.uint64)
    _, found = calibrations(logits, np.zeros(30, int), keys, shifts=False)
    assert fitted[-1] == 30 and sorted(fitted[:-1]) == sorted(30 - n for n in np.bincount(keys.astype(int) % 10))
    # The copies of one text are judged together, by the rows that are none of them.
    ratio = found.logits[:12] / logits[:12]
    assert ratio == pytest.approx(np.full((12, 2), 30.0 - np.bincount(keys.astype(int) % 10)[7]))


@pytest.mark.parametrize(
    ("true_scale", "true_shift", "name"),
    [
        (np.ones(3), np.zeros(3), "none"),
        (np.full(3, 0.5), np.zeros(3), "temperature"),
        (np.array([0.3, 1.0, 1.0]), np.array([1.0, -1.0, 0.0]), "vector"),
    ],
)
def test_the_simplest_that_helps_is_chosen(true_scale: np.ndarray, true_shift: np.ndarray, name: str) -> None:
    logits = random_logits(3, 2000)
    gold = drawn(logits * true_scale + true_shift, seed=5)
    found = calibrations(logits, gold, np.arange(2000, dtype=np.uint64))
    chosen = best_calibration(found)
    if name == "none":  # chance may make a temperature of nearly 1 the better by a hair
        assert chosen.name != "vector" and chosen.scaling.temperature == pytest.approx(1, abs=0.05)
    else:
        assert chosen.name == name and loss_change(chosen, found[0])[2] < 0


def test_vector_scaling_needs_more_than_a_lower_mean() -> None:
    logits = random_logits(20, 60)
    gold = drawn(logits * np.linspace(0.8, 1.2, 20), seed=3)
    found = calibrations(logits, gold, np.arange(60, dtype=np.uint64))
    assert best_calibration(found).name != "vector"
    better = found[1].losses.copy()
    better[0] -= 1.0  # one row alone
    from dataclasses import replace

    lucky = replace(found[2], losses=better)
    assert lucky.losses.mean() < found[1].losses.mean()
    assert best_calibration([found[0], found[1], lucky]).name != "vector"


def test_losses_are_the_cross_entropy() -> None:
    import torch

    logits, gold = random_logits(4, 100), np.random.default_rng(0).integers(0, 4, 100)
    expected = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(gold), reduction="none")
    assert default().surprise(logits, gold) == pytest.approx(expected.numpy())


def test_extreme_logits_stay_finite() -> None:
    logits = np.array([[1e6, -1e6], [-1e6, 1e6]] * 20)
    found = calibrations(logits, np.array([0, 1] * 20), np.arange(40, dtype=np.uint64))
    assert all(np.isfinite(one.losses).all() for one in found)
