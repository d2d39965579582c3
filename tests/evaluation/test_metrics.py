"""Metrics, intervals and paired differences against closed forms, scikit-learn and SciPy."""

from __future__ import annotations

import numpy as np
import pytest

from compress.errors import CompressError
from compress.evaluation import metrics
from compress.evaluation.metrics import ACCURACY
from compress.tasks import find_task, metrics_by_name

METRICS = metrics_by_name()


def columns(rows: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    gold = generator.integers(0, classes, rows)
    predicted = np.where(generator.random(rows) < 0.7, gold, generator.integers(0, classes, rows))
    return predicted, gold


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("name", ["accuracy", "macro-f1", "balanced-accuracy", "matthews"])
def test_classification_metrics_equal_scikit_learn(name: str, classes: int) -> None:
    from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, matthews_corrcoef

    reference = {
        "accuracy": accuracy_score,
        "macro-f1": lambda g, p: f1_score(g, p, average="macro"),
        "balanced-accuracy": balanced_accuracy_score,
        "matthews": matthews_corrcoef,
    }[name]
    predicted, gold = columns(200, classes)
    found = metrics.score(predicted, gold, metric=METRICS[name], classes=classes)
    assert found == pytest.approx(reference(gold, predicted), abs=1e-12)


def test_the_matthews_correlation_of_many_rows() -> None:
    from sklearn.metrics import matthews_corrcoef

    predicted, gold = columns(100_000, 2)
    found = metrics.score(predicted, gold, metric=METRICS["matthews"], classes=2)
    assert found == pytest.approx(matthews_corrcoef(gold, predicted), abs=1e-12)


def test_f1_is_of_the_last_label() -> None:
    from sklearn.metrics import f1_score

    predicted, gold = columns(200, 2)
    assert metrics.score(predicted, gold, metric=METRICS["f1"], classes=2) == pytest.approx(f1_score(gold, predicted))
    # 2 hits, 1 false alarm, 1 miss: 2*2 / (2*2 + 1 + 1)
    assert metrics.score([1, 1, 1, 0], [1, 1, 0, 1], metric=METRICS["f1"], classes=2) == pytest.approx(2 / 3)


def test_average_precision_of_the_example_of_scikit_learn() -> None:
    """Its page has 0.83 for these four rows: the hits are first and third, (1 + 2 / 3) / 2."""
    of_last = np.array([0.1, 0.4, 0.35, 0.8])
    chances, gold = np.stack([1 - of_last, of_last], axis=1), [0, 0, 1, 1]
    assert metrics.score(chances, gold, metric=METRICS["average-precision"], classes=2) == pytest.approx(5 / 6)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_average_precision_equals_scikit_learn(classes: int) -> None:
    from sklearn.metrics import average_precision_score

    _, gold = columns(300, classes)
    drawn = np.random.default_rng(4).dirichlet(np.ones(classes), len(gold)) + 0.3 * np.eye(classes)[gold]
    chances = np.round(drawn / drawn.sum(axis=1, keepdims=True), 1)  # with ties
    by_class = [average_precision_score(gold == index, chances[:, index]) for index in range(classes)]
    mean, last = (METRICS[name] for name in ("mean-average-precision", "average-precision"))
    assert metrics.score(chances, gold, metric=mean, classes=classes) == pytest.approx(np.mean(by_class), abs=1e-12)
    assert metrics.score(chances, gold, metric=last, classes=classes) == pytest.approx(by_class[-1], abs=1e-12)
    one = np.zeros_like(gold)  # a class without a row has none
    assert metrics.score(chances, one, metric=mean, classes=classes) == pytest.approx(1.0)
    low, high = metrics.interval(chances, gold, metric=last, classes=classes)
    assert low < by_class[-1] < high
    same = metrics.paired_difference(chances, chances, gold, metric=last, classes=classes)
    assert (same.points, same.low, same.high, same.mcnemar_p) == (0.0, 0.0, 0.0, None)
    worse = metrics.paired_difference(chances[::-1], chances, gold, metric=mean, classes=classes)
    assert worse.low < worse.points < worse.high < 0


def test_average_precision_of_rows_that_count_several_times_equals_scikit_learn() -> None:
    from sklearn.metrics import average_precision_score

    generator = np.random.default_rng(5)
    chances, gold = np.round(generator.random((40, 3)), 1), generator.random((40, 3)) < 0.3
    times = generator.integers(0, 3, (6, 40))
    expected = [
        np.mean([average_precision_score(gold[:, c], chances[:, c], sample_weight=one) for c in range(3)])
        for one in times
    ]
    found = metrics.MEAN_AVERAGE_PRECISION.statistic(chances, gold, 3)(times)
    assert found == pytest.approx(np.array(expected), abs=1e-12)


@pytest.mark.parametrize("name", ["f1", "macro-f1", "balanced-accuracy", "matthews"])
def test_resamples_are_scored_each_for_itself(name: str) -> None:
    """Words without an answer are predicted to be -1, which is no class."""
    predicted, gold = (np.stack(many) for many in zip(*(columns(50, 3, seed) for seed in range(4)), strict=True))
    predicted[:, :5] = -1
    statistic = METRICS[name].statistic
    alone = [float(statistic(p, g, 3)) for p, g in zip(predicted, gold, strict=True)]
    assert statistic(predicted, gold, 3).tolist() == pytest.approx(alone)
    assert len({*alone}) == 4


def test_unanswered_rows_count_as_misses() -> None:
    from sklearn.metrics import f1_score

    predicted, gold = columns(200, 3)
    predicted[::7] = -1
    found = metrics.score(predicted, gold, metric=METRICS["macro-f1"], classes=3)
    assert found == pytest.approx(f1_score(gold, predicted, labels=[0, 1, 2], average="macro"))


def test_a_class_that_never_occurs_is_left_out_of_macro_f1() -> None:
    assert metrics.score([0, 1, 0], [0, 1, 0], metric=METRICS["macro-f1"], classes=5) == 1.0


@pytest.mark.parametrize("name", ["pearson", "spearman", "pearson-spearman"])
def test_correlations_equal_scipy(name: str) -> None:
    from scipy.stats import pearsonr, spearmanr

    generator = np.random.default_rng(1)
    gold = generator.integers(0, 6, 100).astype(float)  # with ties
    predicted = gold + generator.normal(size=100)
    pearson, spearman = pearsonr(predicted, gold)[0], spearmanr(predicted, gold)[0]
    expected = {"pearson": pearson, "spearman": spearman, "pearson-spearman": (pearson + spearman) / 2}[name]
    assert metrics.score(predicted, gold, metric=METRICS[name], classes=1) == pytest.approx(expected)


def test_constant_predictions_have_no_correlation() -> None:
    assert metrics.score(np.ones(9), np.arange(9.0), metric=METRICS["pearson"], classes=1) == 0.0
    assert metrics.score(np.ones(9, int), np.arange(9) % 2, metric=METRICS["matthews"], classes=2) == 0.0


def test_evaluate_takes_logits() -> None:
    logits = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0], [0.0, 1.0]])
    assert find_task("classification").evaluate(logits, [0, 1, 1, 1], ("a", "b")) == 0.75
    assert find_task("regression").evaluate(
        np.array([[1.0], [2.0], [3.0]]), [2.0, 4.0, 6.0], ("score",)
    ) == pytest.approx(1.0)


def test_unknown_and_unfit_metrics_are_the_users_mistake() -> None:
    with pytest.raises(CompressError, match="Did you mean 'accuracy'"):
        find_task("classification").metric("acuracy")
    with pytest.raises(CompressError, match="does not fit regression"):
        find_task("regression").metric("accuracy")
    with pytest.raises(CompressError, match="macro-f1"):
        find_task("classification").metric("f1", ("a", "b", "c"))
    with pytest.raises(CompressError, match="needs two labels, not 3; use --metric mean-average-precision"):
        find_task("classification").metric("average_precision", ("a", "b", "c"))


def test_wilson_interval_closed_form() -> None:
    gold = np.zeros(100, int)
    predicted = np.r_[np.zeros(90, int), np.ones(10, int)]
    low, high = metrics.interval(predicted, gold, metric=ACCURACY, classes=2)
    z, n, p = 1.959963984540054, 100, 0.9
    middle, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert low == pytest.approx((middle - half) / (1 + z * z / n))
    assert high == pytest.approx((middle + half) / (1 + z * z / n))


@pytest.mark.parametrize("name", ["f1", "macro-f1", "matthews", "pearson", "pearson-spearman"])
def test_bootstrap_interval_holds_the_metric_and_repeats(name: str) -> None:
    predicted, gold = columns(300, 2, seed=3)
    metric = METRICS[name]
    if not metric.of_classes:
        predicted, gold = predicted + np.linspace(0, 1, 300), gold.astype(float)
    value = metrics.score(predicted, gold, metric=metric, classes=2)
    low, high = metrics.interval(predicted, gold, metric=metric, classes=2, seed=5)
    assert low < value < high
    assert (low, high) == metrics.interval(predicted, gold, metric=metric, classes=2, seed=5)


def test_bootstrap_of_a_mean_agrees_with_the_normal_interval() -> None:
    values = np.random.default_rng(2).normal(size=2000)
    low, high = metrics.bootstrap((values,), lambda v: v.mean(axis=-1))
    half = 1.96 * values.std() / np.sqrt(2000)
    assert low == pytest.approx(values.mean() - half, abs=0.006)
    assert high == pytest.approx(values.mean() + half, abs=0.006)


def test_mcnemar_closed_form() -> None:
    # 1 win, 9 losses: 2 * (1 + 10) / 2**10
    assert metrics.mcnemar_p(1, 9) == pytest.approx(2 * 11 / 1024)
    assert metrics.mcnemar_p(0, 0) == 1.0
    assert metrics.mcnemar_p(5, 5) == 1.0


def test_discordant_rows() -> None:
    gold = np.array([0, 0, 0, 1, 1, 1])
    assert metrics.discordant(np.array([0, 1, 1, 1, 0, 0]), np.array([0, 0, 0, 0, 1, 0]), gold) == (1, 3)


def test_drawing_counts_is_drawing_rows() -> None:
    """Accuracy's interval comes from multinomial counts; resampling the rows themselves gives the same one."""
    generator = np.random.default_rng(9)
    gold = np.zeros(2000, int)
    reference, predicted = (generator.random((2, 2000)) > 0.9).astype(int)
    found = metrics.paired_difference(predicted, reference, gold, metric=ACCURACY, classes=2)
    low, high = metrics.bootstrap((predicted, reference), lambda p, r: (p == 0).mean(axis=-1) - (r == 0).mean(axis=-1))
    assert (found.low, found.high) == pytest.approx((100 * low, 100 * high), abs=0.12)


def test_bonett_price_closed_form() -> None:
    # 2 won and 8 lost of 98: shares (2 + 1) / 100 and (8 + 1) / 100; the bootstrap is narrower here.
    gold = np.zeros(98, int)
    predicted, reference = gold.copy(), gold.copy()
    reference[:2], predicted[2:10] = 1, 1
    found = metrics.paired_difference(predicted, reference, gold, metric=ACCURACY, classes=2)
    half = 1.959963984540054 * np.sqrt((0.12 - 0.06**2) / 100)
    assert found.points == pytest.approx(100 * -6 / 98)
    assert found.high == pytest.approx(100 * (-0.06 + half))
    assert found.low == pytest.approx(100 * (-0.06 - half), abs=0.7)


def test_a_difference_of_few_rows_stays_within_all_of_them() -> None:
    gold = np.zeros(3, int)
    for won in (0, 3):
        predicted = np.array([0] * won + [1] * (3 - won))
        found = metrics.paired_difference(predicted, 1 - predicted, gold, metric=ACCURACY, classes=2)
        assert -100 <= found.low <= found.points <= found.high <= 100 and abs(found.points) == 100


def test_a_paired_difference_is_tighter_than_two_intervals() -> None:
    reference, gold = columns(1000, 2, seed=4)
    predicted = reference.copy()
    predicted[:30] = 1 - predicted[:30]
    difference = metrics.paired_difference(predicted, reference, gold, metric=ACCURACY, classes=2)
    own = metrics.interval(reference, gold, metric=ACCURACY, classes=2)
    assert difference.low < difference.points < difference.high
    assert difference.high - difference.low < 100 * (own[1] - own[0])
    right = (predicted == gold).mean() - (reference == gold).mean()
    assert difference.points == pytest.approx(100 * right)


def test_two_equal_models_are_not_certainly_equal() -> None:
    predicted, gold = columns(872, 2)
    difference = metrics.paired_difference(predicted, predicted, gold, metric=ACCURACY, classes=2)
    assert difference.points == 0 and difference.mcnemar_p == 1.0
    # About three in n, as the rule of three has it.
    assert 100 * 2 / 872 < difference.high < 100 * 4 / 872
    assert difference.low == pytest.approx(-difference.high)


def test_paired_interval_covers_the_truth() -> None:
    """In 95% of worlds, the interval holds the true difference of models right 90% and 88% of the time."""
    generator = np.random.default_rng(6)
    held = 0
    for world in range(100):
        gold = np.zeros(500, int)
        draw = generator.random(500)
        reference, predicted = (draw > 0.90).astype(int), (draw > 0.88).astype(int)
        found = metrics.paired_difference(predicted, reference, gold, metric=ACCURACY, classes=2, seed=world)
        held += found.low <= -2.0 <= found.high
    assert held >= 89


def test_agreement() -> None:
    assert metrics.agreement([0, 1, 1, 0], [0, 1, 0, 0]) == 0.75
    assert metrics.agreement([0.0, 1.0, 2.0], [1.0, 3.0, 5.0]) == pytest.approx(1.0)


def test_regression_has_no_mcnemar() -> None:
    gold = np.linspace(0, 5, 50)
    found = metrics.paired_difference(gold + 0.1, gold[::-1] + 0.0, gold, metric=METRICS["pearson"], classes=1)
    assert found.mcnemar_p is None and found.points == pytest.approx(200.0)
