"""The quality fields of a result line, each against a value worked out by hand, and the calibration interval."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score

from compress.benchmarking.result_fields import keep_predictions, quality_fields
from compress.benchmarking.results.schema import FIELDS, Measurement
from compress.errors import CompressError
from compress.evaluation.metrics import ACCURACY, calibration_error, calibration_interval, mcnemar_p, paired_difference
from compress.tasks import find_task, metrics_by_name
from tests.support.results import line

LABELS = ("negative", "positive")


def logits_of(probability: list[float]) -> np.ndarray:
    """Return the log-probabilities ``[N, 2]`` of models that give class 1 these probabilities."""
    second = np.array(probability)
    return np.log(np.stack([1 - second, second], axis=1))


def fields(
    logits: dict[str, np.ndarray | None],
    gold: list[Any] | np.ndarray,
    metric: str = "accuracy",
    labels: tuple[str, ...] = LABELS,
) -> dict[str, dict[str, Any]]:
    chosen = metrics_by_name()[metric]
    task = find_task("classification" if chosen.of_classes else "regression")
    return quality_fields(logits, np.asarray(gold), baseline="teacher", metric=chosen, task=task, labels=labels)


GOLD = [1, 1, 1, 0, 0, 0, 1, 0]
TEACHER = logits_of([0.9, 0.8, 0.7, 0.2, 0.1, 0.6, 0.4, 0.3])  # wrong on rows 5 and 6
MODEL = logits_of([0.8, 0.3, 0.1, 0.1, 0.7, 0.4, 0.4, 0.2])  # wrong on rows 1, 2, 4 and 6


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return fields({"teacher": TEACHER, "model": MODEL, "reference-model": None}, GOLD)


def test_every_field_of_the_schema_is_there_and_of_its_type(found: dict[str, dict[str, Any]]) -> None:
    names = {field.name for field in FIELDS.values() if field.group == "Quality"} - {
        "predictions",
        "gold",
        "slices",
        "metric_queries",
        "batch_dependent_share",
    }
    for one in found.values():
        assert set(one) == names
        Measurement.read(line("model", **one).to_json())
        json.dumps(one, allow_nan=False)


def test_the_metric_and_its_difference(found: dict[str, dict[str, Any]]) -> None:
    model, teacher = found["model"], found["teacher"]
    assert (teacher["metric"], model["metric"], model["metric_rows"]) == (0.75, 0.5, 8)
    assert model["metric_kept_percent"] == pytest.approx(100 * 0.5 / 0.75)
    assert model["difference_points"] == -25.0
    assert model["difference_low"] < -25.0 < model["difference_high"]
    assert model["mcnemar_p"] == mcnemar_p(1, 3) == pytest.approx(2 * (1 + 4) / 2**4)
    assert model["agreement"] == 0.5  # all but rows 1, 2, 4 and 5


def test_the_teacher_differs_from_itself_by_nothing(found: dict[str, dict[str, Any]]) -> None:
    teacher = found["teacher"]
    assert (teacher["difference_points"], teacher["difference_low"], teacher["difference_high"]) == (0.0, 0.0, 0.0)
    assert teacher["mcnemar_p"] is None and teacher["agreement"] == 1.0 and teacher["metric_kept_percent"] == 100.0
    assert teacher["flips_lost"] == teacher["flips_won"] == [] and teacher["flips_lost_rows"] == 0
    assert [one["difference_points"] for one in teacher["classes"]] == [0.0, 0.0]
    assert [(one["low"], one["high"]) for one in teacher["classes"]] == [(0.0, 0.0), (0.0, 0.0)]


def test_a_reference_model_has_no_quality(found: dict[str, dict[str, Any]]) -> None:
    reference_model = found["reference-model"]
    assert (
        reference_model["metric_rows"] == 0
        and reference_model["classes"] == reference_model["flips_lost"] == reference_model["flips_won"] == []
    )
    counted = {"metric_rows", "classes", "flips_lost", "flips_won"}
    assert {value for name, value in reference_model.items() if name not in counted} == {None}


def test_flips_are_listed_worst_first(found: dict[str, dict[str, Any]]) -> None:
    model = found["model"]
    assert model["flips_lost"] == [
        {"row": 2, "gold": 1, "predicted": 0, "change": -60.0},
        {"row": 4, "gold": 0, "predicted": 1, "change": -60.0},
        {"row": 1, "gold": 1, "predicted": 0, "change": -50.0},
    ]
    assert model["flips_won"] == [{"row": 5, "gold": 0, "predicted": 0, "change": 20.0}]
    assert (model["flips_lost_rows"], model["flips_won_rows"]) == (3, 1)


def test_a_hundred_flips_are_kept_and_all_are_counted() -> None:
    teacher, model = logits_of([0.9] * 150), logits_of([0.1 + 0.001 * row for row in range(150)])
    found = fields({"teacher": teacher, "model": model}, [1] * 150)["model"]
    assert found["flips_lost_rows"] == 150
    assert [flip["row"] for flip in found["flips_lost"]] == list(range(100))


def test_recall_is_compared_class_by_class(found: dict[str, dict[str, Any]]) -> None:
    negative, positive = found["model"]["classes"]
    assert (negative["label"], negative["rows"], negative["recall"], negative["teacher_recall"]) == (
        "negative",
        4,
        0.75,
        0.75,
    )
    assert (positive["recall"], positive["teacher_recall"], positive["difference_points"]) == (0.25, 0.75, -50.0)
    chances = np.exp(MODEL[:, 1])
    expected_precision = average_precision_score(GOLD, chances), average_precision_score(1 - np.array(GOLD), -chances)
    found_precision = positive["average_precision"], negative["average_precision"]
    assert found_precision == pytest.approx(expected_precision)
    assert positive["average_precision_low"] < found_precision[0] < positive["average_precision_high"]
    held = np.array(GOLD) == 1
    expected = paired_difference(
        MODEL.argmax(1)[held], TEACHER.argmax(1)[held], np.ones(4, int), metric=ACCURACY, classes=2
    )
    assert (positive["low"], positive["high"]) == (expected.low, expected.high)
    wilson = binomtest(1, 4).proportion_ci(method="wilson")
    assert (positive["recall_low"], positive["recall_high"]) == pytest.approx((wilson.low, wilson.high))


def test_a_metric_of_probabilities_is_compared_and_keeps_classes() -> None:
    metric, task = metrics_by_name()["average-precision"], find_task("classification")
    given: dict[str, Any] = {"baseline": "teacher", "metric": metric, "task": task, "labels": LABELS}
    found = quality_fields({"teacher": TEACHER, "model": MODEL}, np.array(GOLD), **given)["model"]
    reached, before = (average_precision_score(GOLD, one[:, 1]) for one in (MODEL, TEACHER))
    assert (found["metric"], found["difference_points"]) == pytest.approx((reached, 100 * (reached - before)))
    assert found["difference_low"] < found["difference_points"] < found["difference_high"]
    assert found["mcnemar_p"] is None and found["classes"][1]["recall"] == 0.25
    Measurement.read(line("model", **found).to_json())


def test_classes_with_one_row_or_none_have_nulls() -> None:
    generator = np.random.default_rng(0)
    labels = tuple(f"class {index}" for index in range(150))
    logits = {"teacher": generator.normal(size=(9, 150)), "model": generator.normal(size=(9, 150))}
    classes = fields(logits, [0] * 8 + [1], labels=labels)["model"]["classes"]
    assert len(classes) == 150
    assert classes[0]["rows"] == 8 and classes[0]["low"] is not None
    one, none = classes[1], classes[2]
    assert "average_precision" not in one  # of many classes
    assert one["rows"] == 1 and one["recall"] in {0.0, 1.0} and one["low"] is one["high"] is None
    assert none == {
        "label": "class 2",
        "rows": 0,
        "recall": None,
        "recall_low": None,
        "recall_high": None,
        "teacher_recall": None,
        "difference_points": None,
        "low": None,
        "high": None,
        "lost": 0,
        "won": 0,
    }


def test_a_regression_flips_where_its_error_grows() -> None:
    gold = [0.0, 1.0, 2.0, 3.0, 4.0]
    teacher = np.array([[0.0], [1.5], [2.0], [3.5], [4.0]])
    model = np.array([[0.25], [1.0], [4.0], [2.5], [4.00001]])
    found = fields({"teacher": teacher, "model": model}, gold, "pearson", ("score",))["model"]
    assert found["flips_lost"] == [
        {"row": 2, "gold": 2.0, "predicted": 4.0, "change": -2.0},
        {"row": 0, "gold": 0.0, "predicted": 0.25, "change": -0.25},
    ]
    assert found["flips_won"] == [{"row": 1, "gold": 1.0, "predicted": 1.0, "change": 0.5}]
    assert found["calibration_error"] is found["calibration_error_low"] is found["mcnemar_p"] is None
    assert found["classes"] == [] and Measurement.read(line("model", **found).to_json())
    assert found["agreement"] == pytest.approx(np.corrcoef(teacher[:, 0], model[:, 0])[0, 1])


def test_predictions_are_kept_on_the_line_that_a_table_shows() -> None:
    settings: list[dict[str, Any]] = [
        {"batch_size": 8},
        {"threads": 2},
        {"padding": "max_length"},
        {"length": 16},
        {},
    ]
    lines = [line("teacher", kind="teacher", **setting) for setting in settings]
    found = keep_predictions(lines, {"teacher in torch": np.array([0, 1])}, np.array([1, 1]))
    assert [one.predictions for one in found] == [[], [], [], [], [0, 1]]
    assert found[-1].gold == [1, 1] and found[:-1] == lines[:-1]


def test_a_share_of_nothing_is_null() -> None:
    wrong = logits_of([0.1, 0.1, 0.1])
    assert fields({"teacher": wrong, "model": logits_of([0.9] * 3)}, [1, 1, 1])["model"]["metric_kept_percent"] is None


def test_certain_answers_are_fine_and_broken_ones_are_named() -> None:
    with np.errstate(divide="ignore"):
        certain = logits_of([1.0, 0.0, 1.0])  # log-probabilities of minus infinity
    found = fields({"teacher": certain}, [1, 0, 0])["teacher"]
    assert found["calibration_error"] == pytest.approx(1 / 3)
    broken = certain.copy()
    broken[1] = np.nan
    with pytest.raises(CompressError, match="model answers row 2 and 0 others"):
        fields({"teacher": certain, "model": broken}, [1, 0, 0])
    with pytest.raises(ValueError, match="teacher has logits of shape"):
        fields({"teacher": None}, [1, 0])
    with pytest.raises(ValueError, match=r"shape \(3, 2\), not \(4, 2\)"):
        fields({"teacher": certain}, [1, 0, 0, 1])


def test_calibration_error_by_hand() -> None:
    # Two bins of two rows: means 0.65 and 0.9 against 0.5 and 0.5 right.
    confidence, correct = np.array([0.9, 0.6, 0.9, 0.7]), np.array([1, 0, 0, 1])
    assert calibration_error(confidence, correct, bins=2) == pytest.approx((0.15 + 0.4) / 2)
    # One bin: 0.775 against 0.5. Four bins: the mean of the single distances, ties taken together.
    assert calibration_error(confidence, correct, bins=1) == pytest.approx(0.275)
    assert calibration_error(confidence, correct, bins=4) == pytest.approx((0.6 + 0.3 + 2 * 0.4) / 4)


def test_a_row_on_a_border_counts_in_both_bins() -> None:
    # Three rows in two bins: the middle one is half in each. Gaps 0.6, -0.3, 0.9 in rising order of confidence.
    confidence, correct = np.array([0.6, 0.7, 0.9]), np.array([0, 1, 0])
    assert calibration_error(confidence, correct, bins=2) == pytest.approx((abs(0.6 - 0.15) + abs(0.9 - 0.15)) / 3)


def test_the_order_of_rows_does_not_matter_to_calibration() -> None:
    generator = np.random.default_rng(3)
    confidence, correct = np.round(generator.uniform(0.5, 1, 200), 1), generator.random(200) < 0.7
    shuffled = generator.permutation(200)
    assert calibration_error(confidence, correct) == pytest.approx(
        calibration_error(confidence[shuffled], correct[shuffled])
    )


def world(rows: int, sharpness: float, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the confidence and correctness of a model whose logits are ``sharpness`` times what they should be."""
    logit = np.abs(generator.normal(0, 3, rows))
    return 1 / (1 + np.exp(-sharpness * logit)), generator.random(rows) < 1 / (1 + np.exp(-logit))


@pytest.mark.slow
@pytest.mark.parametrize("sharpness", [1.0, 1.7, 0.6])
def test_the_calibration_interval_covers_the_truth(sharpness: float) -> None:
    """Of a perfectly calibrated model, an overconfident one and a timid one; plain percentiles fail for the first."""
    generator = np.random.default_rng(7)
    truth = 0.0 if sharpness == 1.0 else calibration_error(*world(1_000_000, sharpness, generator))
    held = 0
    for seed in range(60):
        confidence, correct = world(400, sharpness, generator)
        low, high = calibration_interval(confidence, correct, seed=seed, resamples=300)
        assert low <= calibration_error(confidence, correct) <= high
        held += low <= truth <= high
    assert held >= 51  # 95% of 60 is 57; fewer than 51 has a chance of 1%


def test_the_calibration_interval_repeats() -> None:
    confidence, correct = world(300, 1.7, np.random.default_rng(1))
    first = calibration_interval(confidence, correct, seed=4, resamples=200)
    assert first == calibration_interval(confidence, correct, seed=4, resamples=200)
    assert first != calibration_interval(confidence, correct, seed=5, resamples=200)


def test_a_class_of_entities_never_found_has_an_interval() -> None:
    """No resampling of sentences finds one, so each of the ten counts once, by Wilson's interval."""
    labels, gold = ("O", "B-person", "B-place"), np.tile([1, 1, 0, 2], 10)
    task = find_task("entities")
    found = quality_fields(
        {"teacher": 9 * np.eye(3)[gold], "model": 9 * np.eye(3)[np.where(gold == 1, 0, gold)]},
        gold,
        baseline="teacher",
        metric=task.metric(None, labels),
        task=task.of_model(task.head_settings(labels)),
        labels=labels,
        sentences=np.repeat(np.arange(10), 4),
    )
    (person, place), (before, _) = found["model"]["classes"], found["teacher"]["classes"]
    none, every = (binomtest(right, 10).proportion_ci(method="wilson") for right in (0, 10))
    assert (person["rows"], person["recall"], place["recall"]) == (20, 0.0, 1.0)
    assert (person["recall_low"], person["recall_high"]) == pytest.approx((0, none.high))
    assert (place["recall_low"], before["recall_low"]) == pytest.approx((every.low, every.low))
    assert person["high"] < 0
