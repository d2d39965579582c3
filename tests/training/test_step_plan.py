"""How many steps a training takes, how often it is evaluated, and which phase has which steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.errors import CompressError
from compress.recipes import Choice, Phase, Training
from compress.training.phases import described, divide, length_for, step_ranges, steps_for
from compress.training.trainer import evaluations_for

KL, HIDDEN = Choice("kl"), Choice("hidden-cosine")
TRAINING = Training(batch_size=16)


@pytest.mark.parametrize(
    ("epochs", "few", "passes", "cap", "steps", "why"),
    [
        (1.0, 0, 100.0, 0, 7, "7 steps of 16 rows, 1 pass over 100 (epochs = 1)"),
        (2.5, 0, 100.0, 0, 16, "16 steps of 16 rows, 2.29 passes over 100 (epochs = 2.5)"),
        (0.01, 0, 100.0, 0, 1, "1 step of 16 rows, 0.143 passes over 100 (epochs = 0.01)"),
        (3.0, 0, 100.0, 5, 5, "5 steps of 16 rows, 0.714 passes over 100 (max_steps = 5)"),
        (1.0, 0, 100.0, 9, 7, "7 steps of 16 rows, 1 pass over 100 (epochs = 1)"),
        (2.0, 50, 100.0, 0, 50, "50 steps of 16 rows, 7.14 passes over 100 (few rows: min_steps = 50)"),
        (2.0, 50, 4.0, 0, 25, "25 steps of 16 rows, 3.57 passes over 100 (few rows: min_steps = 50, max_epochs = 4)"),
        (5.0, 50, 4.0, 0, 32, "32 steps of 16 rows, 4.57 passes over 100 (epochs = 5)"),
        (2.0, 50, 100.0, 30, 30, "30 steps of 16 rows, 4.29 passes over 100 (max_steps = 30)"),
    ],
)
def test_how_many_steps(epochs: float, few: int, passes: float, cap: int, steps: int, why: str) -> None:
    training = replace(TRAINING, epochs=epochs, min_steps=few, max_epochs=passes, max_steps=cap)
    assert steps_for(100, training) == steps
    assert described(steps, 100, training) == why


@pytest.mark.parametrize(
    ("tokens", "limit", "length"),
    [
        ([20] * 99 + [100], 512, 128),  # short rows are read as they always were
        ([20] * 100, 64, 64),  # and no more than the model reads
        ([200] * 99 + [400], 512, 224),  # one row in a hundred may be cut
        ([300] * 90 + [480] * 10, 512, 480),
        ([300] * 90 + [2000] * 10, 512, 512),
        ([2000] * 100, 8192, 512),  # four times the tokens of rows cut to 128
        ([20] * 50 + [2000] * 50, 8192, 544),
    ],
)
def test_length_by_the_rows(tokens: list[int], limit: int, length: int) -> None:
    assert length_for(tokens, limit) == length


def test_few_rows_without_a_recipe_take_as_many_steps_as_documented(train_in_few_steps: list[tuple[int, int]]) -> None:
    fine_tuning, recovery = train_in_few_steps
    assert fine_tuning == (400, 20) and recovery == (400, 0)


def test_rows_below_a_batch_are_a_step_a_pass() -> None:
    assert steps_for(3, replace(TRAINING, epochs=4.0)) == 4
    assert steps_for(3, replace(TRAINING, epochs=4.0, min_steps=500)) == 100  # max_epochs
    assert described(4, 3, replace(TRAINING, epochs=4.0)) == "4 steps of 3 rows, 4 passes over 3 (epochs = 4)"


def test_more_steps_than_can_be_counted_are_refused() -> None:
    with pytest.raises(
        CompressError, match="epochs = 1e\\+99 with 100 rows are .* steps, and at most 2,147,483,647 can"
    ):
        steps_for(100, replace(TRAINING, epochs=1e99))
    assert steps_for(100, replace(TRAINING, epochs=1e99, max_steps=7)) == 7


@pytest.mark.parametrize(
    ("steps", "rows", "evaluations"),
    [
        (1000, 500, 8),  # 24 would take a quarter of the work
        (100, 400, 3),  # exactly a quarter
        (100, 200, 6),
        (100, 10_000, 3),  # three at least
        (2, 10, 2),  # no more than steps
        (1000, 0, 8),  # nothing to evaluate: checkpoints alone
    ],
)
def test_how_often_rows_are_evaluated(steps: int, rows: int, evaluations: int) -> None:
    assert evaluations_for(steps, TRAINING, rows) == evaluations


def test_few_evaluations_stay_few() -> None:
    assert evaluations_for(100, replace(TRAINING, evaluations=1), 10_000) == 1


def test_a_share_of_a_training_has_its_share_of_all_bounds() -> None:
    training = replace(TRAINING, epochs=3.0, min_steps=90, min_steps_per_class=6, max_epochs=30.0, max_steps=900)
    part = training.part(1 / 3)
    assert (part.epochs, part.min_steps, part.max_epochs, part.max_steps) == (1.0, 30, 10.0, 300)
    assert part.for_classes(15) == part.for_classes(2) == replace(part, min_steps_per_class=0)
    assert part.for_classes(40).min_steps == 80
    assert replace(training, max_steps=0).part(0.5).max_steps == 0  # no bound stays none


@given(st.integers(1, 5000), st.lists(st.floats(0.01, 10), min_size=1, max_size=8))
def test_steps_are_divided_in_proportion(steps: int, shares: list[float]) -> None:
    parts_of = divide(steps, shares)
    assert min(parts_of) >= 1 and sum(parts_of) >= steps
    if steps >= 100 * len(shares) * max(shares) / min(shares):
        assert sum(parts_of) == steps
        assert all(abs(n - steps * share / sum(shares)) <= 1 for n, share in zip(parts_of, shares, strict=True))


def test_a_phase_by_layer_is_a_step_range_per_layer() -> None:
    phases = (Phase((HIDDEN,), name="inside", by_layer="progressive", share=3.0), Phase((KL,)))
    planned = step_ranges(phases, 3, 40)
    assert [(s.name, s.steps, s.trained_layers, s.frozen_layers) for s in planned] == [
        ("phase-1-inside-layer-1", 10, (1,), 0),
        ("phase-1-inside-layer-2", 10, (2,), 1),
        ("phase-1-inside-layer-3", 10, (3,), 2),
        ("phase-2", 10, None, 0),
    ]
    stacked = step_ranges((Phase((HIDDEN,), by_layer="stacked"),), 2, 4)
    assert [(s.trained_layers, s.frozen_layers) for s in stacked] == [((1,), 0), ((1, 2), 0)]
    with pytest.raises(CompressError, match="no layers"):
        step_ranges(phases, 0, 40)
