"""Several seeds and data sets in one: means and spreads in closed form, intervals by simulation, what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from compress.benchmarking.results.aggregate import Aggregate, aggregate
from compress.benchmarking.results.schema import Measurement
from compress.evaluation.metrics import ACCURACY, SeedSample, difference_interval, paired_difference, score
from compress.tasks import metrics_by_name
from tests.support.results import line

ROWS = 200
DATA = {"a": "2026-01-01T00:00:00+00:00", "b": "2026-01-02T00:00:00+00:00"}


def predicted(right: int, *, first: int = 0) -> list[int]:
    """Return predictions of which ``right`` rows, from ``first`` on, are right: the gold is 1 everywhere."""
    values = np.zeros(ROWS, int)
    values[first : first + right] = 1
    return values.tolist()


def answer(model: str, values: Sequence[int], data: str, reference: int = 180, **fields: Any) -> Measurement:
    points = 100 * (sum(values) - reference) / ROWS
    return line(
        model,
        data=data,
        data_sha256=data,
        created=fields.pop("created", DATA[data]),
        metric=sum(values) / ROWS,
        metric_rows=ROWS,
        difference_points=points,
        difference_low=points - 3,
        difference_high=points + 3,
        predictions=list(values),
        **fields,
    )


def teacher(data: str, **fields: Any) -> Measurement:
    return answer("teacher-" + data, predicted(180), data, kind="teacher", gold=[1] * ROWS, **fields)


def student(data: str, seed: int | None, right: int, **fields: Any) -> Measurement:
    settings = {"recipe": "small", "stage": "distill", "training_seed": seed, **fields}
    return answer(settings.pop("model", f"small-{seed}"), predicted(right), data, **settings)


def only(found: list[Aggregate], kind: str = "model") -> Aggregate:
    (one,) = [one for one in found if one.kind == kind]
    return one


def test_seeds_of_one_set_have_a_mean_and_a_spread() -> None:
    found = only(aggregate([teacher("a"), *(student("a", seed, right) for seed, right in enumerate((170, 172, 177)))]))
    assert (found.name, found.models, found.seeds, found.data_sets, found.rows) == (
        "small",
        ("small-0", "small-1", "small-2"),
        3,
        1,
        200,
    )
    assert found.metric == pytest.approx(173 / 200)
    assert found.metric_spread == pytest.approx(np.std([0.85, 0.86, 0.885], ddof=1))
    assert found.difference_points == pytest.approx(-3.5)
    assert found.low is not None and found.high is not None
    assert found.low < -3.5 < found.high and found.notes == ()


def test_one_seed_has_no_spread_and_its_own_interval() -> None:
    found = only(aggregate([teacher("a"), student("a", 1, 170)]))
    assert found.seeds == 1 and found.metric_spread is None
    assert (found.low, found.high) == (-8.0, -2.0)  # those of the line


def test_sets_weigh_alike_and_their_variances_add_up() -> None:
    lines = [
        teacher("a"),
        teacher("b"),
        student("a", 0, 170),
        student("a", 1, 174),
        student("b", 0, 160),
        student("b", 1, 162),
        student("b", 2, 164),
    ]
    found = only(aggregate(lines))
    assert (found.seeds, found.data_sets, found.rows) == (2, 2, 400)
    assert found.metric == pytest.approx((172 / 200 + 162 / 200) / 2)
    variances = np.var([0.85, 0.87], ddof=1), np.var([0.80, 0.81, 0.82], ddof=1)
    assert found.metric_spread == pytest.approx(np.sqrt(sum(variances)) / 2)
    assert found.difference_points == pytest.approx((-4 - 9) / 2)
    assert found.notes == ("2 of 3 seeds on a",)
    both = only(aggregate(lines), "teacher")
    assert (both.name, both.data_sets, both.difference_points, both.low, both.high) == ("teacher", 2, 0.0, 0.0, 0.0)


def test_a_set_that_was_left_out_is_named() -> None:
    found = only(aggregate([teacher("a"), teacher("b"), student("a", 0, 170)]))
    assert found.data_sets == 1 and found.notes == ("not measured on b",)


def test_two_models_of_one_seed_are_not_repetitions() -> None:
    lines = [
        teacher("a"),
        student("a", 0, 170, model="pruned-60"),
        student("a", 0, 150, model="pruned-80"),
        student("a", 0, 169, model="int8", stage="quantize"),
        student("a", 0, 171, runtime="onnxruntime"),
    ]
    found = [one for one in aggregate(lines) if one.kind == "model"]
    assert [(one.name, one.models, one.seeds) for one in found] == [
        ("pruned-60", ("pruned-60",), 1),
        ("pruned-80", ("pruned-80",), 1),
        ("small", ("int8",), 1),
        ("small", ("small-0",), 1),
    ]


def test_of_a_model_measured_twice_the_newest_run_counts() -> None:
    later = {"created": "2026-03-01T00:00:00+00:00"}
    lines = [teacher("a"), student("a", 0, 150), student("a", 0, 150, batch_size=32), teacher("a", **later)]
    found = only(aggregate([*lines, student("a", 0, 170, **later), student("a", 0, 170, batch_size=32, **later)]))
    assert (found.seeds, found.metric) == (1, 0.85)


def test_what_is_missing_is_named_and_has_no_interval() -> None:
    silent = replace(student("a", 1, 172), predictions=[])
    found = only(aggregate([teacher("a"), student("a", 0, 170), silent]))
    assert found.low is found.high is None and found.difference_points == pytest.approx(-4.5)
    assert found.notes == ("no predictions of small-1 on a, seed 1",)
    found = only(aggregate([student("a", 0, 170), student("a", 1, 172)]))
    assert set(found.notes) == {
        "no predictions of the teacher on a, seed 0",
        "no predictions of the teacher on a, seed 1",
        "no gold labels of a",
    }


def test_labels_in_another_order_are_not_paired() -> None:
    other = replace(student("a", 1, 172), labels=[*reversed(student("a", 1, 172).labels)])
    found = only(aggregate([teacher("a"), student("a", 0, 170), other]))
    assert found.low is None and found.notes == ("labels of a in another order",)


def test_gain_from_distillation_uses_the_control_of_its_seed() -> None:
    def control(seed: int, right: int, **fields: Any) -> dict[str, Any]:
        return student("a", seed, right, model=f"control-{seed}", kind="control", **fields)

    lines = [teacher("a"), *(student("a", seed, right) for seed, right in enumerate((170, 172, 177)))]
    found = only(aggregate([*lines, control(0, 160), control(1, 168), control(2, 167)]))
    assert found.gain_points == pytest.approx(100 * (10 + 4 + 10) / 3 / ROWS)
    assert found.gain_low is not None and found.gain_high is not None
    assert found.gain_low < found.gain_points < found.gain_high
    short = only(aggregate([*lines, control(0, 160), control(2, 167)]))
    assert short.gain_points == pytest.approx(100 * (10 + 10) / 2 / ROWS)
    assert short.notes == ("no control on a, seed 1",)
    elsewhere = only(aggregate([*lines, control(0, 160, runtime="openvino")]))
    assert elsewhere.gain_points is None and elsewhere.notes == ()
    assert only(aggregate([*lines, control(0, 160)]), "control").gain_points is None


def test_a_model_names_the_control_that_it_shares() -> None:
    mine = {"recipe": "two", "model": "two-0", "control": "one-control"}
    shared = student("a", 0, 160, model="one-control", kind="control", recipe="one", control_of="one")
    found = aggregate([teacher("a"), student("a", 0, 170, **mine), shared])
    (two,) = (one for one in found if one.recipe == "two")
    assert two.gain_points == pytest.approx(5.0) and two.gain_low is not None
    # Of the controls of one recipe only the one that is named counts.
    other = student("a", 0, 150, model="other", kind="control", recipe="two", control_of="two-0")
    found = aggregate([teacher("a"), student("a", 0, 170, **mine), other, shared])
    (two,) = (one for one in found if one.recipe == "two" and one.kind == "model")
    assert two.gain_points == pytest.approx(5.0)


def test_a_control_without_recipe_is_found_by_its_name() -> None:
    named = student("a", 0, 165, model="plain", kind="control", recipe="", control_of="small-0")
    found = only(aggregate([teacher("a"), student("a", 0, 170), named]))
    assert found.gain_points == pytest.approx(2.5)


def test_bodies_have_no_quality_to_aggregate() -> None:
    assert (
        aggregate([line("bert", kind="reference-model", metric=None, metric_name=None, difference_points=None)]) == []
    )


def test_other_metrics_aggregate_too() -> None:
    generator = np.random.default_rng(5)
    gold = generator.normal(size=ROWS)
    said = {name: gold + generator.normal(0, 0.5, ROWS) for name in ("teacher", "one", "two")}
    metric = metrics_by_name()["pearson"]

    def regression(name: str, seed: int | None, **fields: Any) -> dict[str, Any]:
        value, other = (score(said[key], gold, metric=metric, classes=1) for key in (name, "teacher"))
        return line(
            name,
            metric_name="pearson",
            metric=value,
            difference_points=100 * (value - other),
            labels=["score"],
            training_seed=seed,
            predictions=said[name].tolist(),
            **fields,
        )

    lines = [regression("teacher", None, kind="teacher", gold=gold.tolist())]
    found = only(aggregate([*lines, *(regression(name, i, recipe="r") for i, name in enumerate(("one", "two")))]))
    assert found.metric_name == "pearson" and found.low is not None and found.high is not None
    assert found.low < found.difference_points < found.high


def columns(model: np.ndarray, reference: np.ndarray, gold: np.ndarray) -> SeedSample:
    return SeedSample(model, np.broadcast_to(reference, model.shape), gold, ACCURACY, 2)


def test_one_seed_on_one_set_has_nearly_the_paired_interval() -> None:
    generator = np.random.default_rng(2)
    gold = np.ones(1000, int)
    reference, model = (generator.random((2, 1000)) < 0.9).astype(int)
    found = difference_interval([columns(model[None], reference, gold)])
    paired = paired_difference(model, reference, gold, metric=ACCURACY, classes=2)
    assert found == pytest.approx((paired.low, paired.high), abs=0.35)


def test_equal_models_are_not_certainly_equal() -> None:
    gold = np.ones(1000, int)
    low, high = difference_interval([columns(np.ones((3, 1000), int), gold, gold)])
    assert -0.4 < low <= -0.2 and 0.2 <= high < 0.4  # about three in a thousand, as the rule of three has it


def test_two_sets_narrow_the_interval_by_the_root_of_two() -> None:
    generator = np.random.default_rng(3)
    gold = np.ones(500, int)

    def one_set() -> SeedSample:
        reference, model = (generator.random((2, 500)) < 0.85).astype(int)
        return columns(model[None], reference, gold)

    first, second = one_set(), one_set()
    widths = [high - low for low, high in map(difference_interval, ([first], [second], [first, second]))]
    assert widths[2] == pytest.approx(np.hypot(widths[0], widths[1]) / 2, rel=0.08)


def test_seeds_that_differ_widen_the_interval() -> None:
    """With so many rows, the interval is that of a mean of four seeds: 1.96 * s / sqrt(4) to either side."""
    gold = np.ones(5000, int)
    wrong = np.array([500, 600, 700, 800])
    model = (np.arange(5000) >= wrong[:, None]).astype(int)
    low, high = difference_interval([columns(model, gold, gold)])
    spread = 100 * np.std(wrong / 5000, ddof=1)
    assert high - low == pytest.approx(2 * 1.96 * np.hypot(spread / 2, 100 * np.sqrt(0.13 * 0.87 / 5000)), rel=0.1)
    alike, _ = np.broadcast_arrays(model[1:2], model)
    narrow = difference_interval([columns(alike, gold, gold)])
    assert narrow[1] - narrow[0] < (high - low) / 2


@pytest.mark.parametrize("seed_spread", [0.0, 0.05])
def test_the_interval_over_seeds_covers_the_truth(seed_spread: float) -> None:
    """A row has a difficulty that teacher and students share; a seed is better or worse, and errs in its own way."""
    truth = 100 * (norm.cdf(1.2 / np.sqrt(1 + 0.5**2 + seed_spread**2)) - norm.cdf(1.3 / np.sqrt(1 + 0.5**2)))
    generator = np.random.default_rng(8)
    gold, held = np.ones(300, int), 0
    for world in range(60):
        difficulty = generator.normal(0, 1, 300)
        reference = (difficulty + generator.normal(0, 0.5, 300) + 1.3 > 0).astype(int)
        luck = generator.normal(0, seed_spread, (4, 1))
        model = (difficulty + generator.normal(0, 0.5, (4, 300)) + luck + 1.2 > 0).astype(int)
        low, high = difference_interval([columns(model, reference, gold)], seed=world)
        held += low <= truth <= high
    assert held >= 53  # 95% of 60 is 57; fewer than 53 has a chance of 3%
