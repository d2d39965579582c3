"""Texts of several labels: how they are read, metrics against scikit-learn, losses, predictions, wrong inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compress.data import Example, content_sha256, open_rows, read_examples
from compress.errors import CompressError
from compress.evaluation.metrics import (
    SeedSample,
    answer_name,
    as_sets,
    difference_interval,
    interval,
    paired_difference,
    score,
    set_members,
)
from compress.tasks import find_task, metrics_by_name, of_rows

TASK = find_task("multi-label")
NAMES = tuple("abcdef")
EXPECTED = [("joy", "love"), (), ("anger",)]


def read(path: Path, **columns: Any) -> list[Example]:
    return read_examples(open_rows(path, role="train", **columns))


def lines(path: Path, labels: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps({"text": f"text {n}", "labels": one}) + "\n" for n, one in enumerate(labels)))
    return path


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.csv", "text,labels\na b,joy|love\nc d,\ne f,anger\n", {"label_separator": "|"}),
        (
            "b.csv",
            "text,joy,love,anger\na b,1,1,0\nc d,0,0,0\ne f,0.0,0,true\n",
            {"label_column": "joy, love, anger"},
        ),
        ("c.tsv", "a b\t0,1\tx\nc d\t\ty\ne f\t2\tz\n", {"text_column": "0", "label_column": "1", "map": ".txt"}),
    ],
)
def test_labels_in_columns(tmp_path: Path, name: str, content: str, columns: dict[str, str]) -> None:
    (tmp_path / name).write_text(content)
    if columns.pop("map", ""):
        (tmp_path / "names.txt").write_text("joy\nlove\nanger\n")
        columns |= {"label_map": tmp_path / "names.txt", "label_separator": ","}  # type: ignore[dict-item]
    rows = read(tmp_path / name, **columns)
    assert [row.labels for row in rows] == EXPECTED and of_rows(rows) is TASK


def test_without_a_separator_nothing_is_cut(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na b,joy|love\nc d,joy\n")
    assert [row.label for row in read(tmp_path / "a.csv")] == ["joy|love", "joy"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([["joy", "love"], [], ["anger"]], EXPECTED),
        ([[3, 14], [], [3, 3]], [("3", "14"), (), ("3",)]),
        ([[1, 0, 1], [0, 0, 0], [0, 1, 0.0]], [("0", "2"), (), ("1",)]),
        ([[1, 0], [0, 1], [True, False]], [("0",), ("1",), ("0",)]),
        ([["joy"]] * 1200 + [["joy", "love"]], [("joy",)] * 1200 + [("joy", "love")]),
        ([{"joy": 1, "love": 1}, {"joy": 0, "love": 0}, {"joy": 0, "love": 1}], [("joy", "love"), (), ("love",)]),
    ],
)
def test_labels_in_lists(tmp_path: Path, labels: Sequence[Any], expected: Sequence[Any]) -> None:
    path = lines(tmp_path / "a.jsonl", labels)
    assert [row.labels for row in read(path)] == expected
    given = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row.labels for row in open_rows(given, role="train")] == expected


def test_the_model_says_what_a_list_of_one_label_is(tmp_path: Path) -> None:
    one = read(lines(tmp_path / "one.jsonl", [["joy"], ["love"], ["joy"]]))
    assert [row.label for row in one] == ["joy", "love", "joy"] and str(of_rows(one)) == "classification"
    assert TASK.gold(one, ("joy", "love"), "test") == [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0)]
    assert find_task("classification").gold(one, ("joy", "love"), "test") == [0, 1, 0]
    some = read(lines(tmp_path / "some.jsonl", [["joy"], [], ["joy"]]))
    assert TASK.gold(some, ("joy", "love"), "test") == [(1.0, 0.0), (0.0, 0.0), (1.0, 0.0)]
    assert of_rows([*one, *some]) is TASK and TASK.new_labels([*one, *some], []) == ("joy", "love")
    with pytest.raises(CompressError, match="has 0 labels, and the model gives each text one of joy, love"):
        find_task("classification").gold(some, ("joy", "love"), "test")
    assert content_sha256(one) == content_sha256([Example(row.text, label=row.label) for row in one])
    scores = read(lines(tmp_path / "scores.jsonl", [[0.5], [1.5], [2]]))
    assert str(of_rows(scores)) == "regression"


def test_a_separator_cuts_text_and_no_list(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [["very happy", "sad"], ["sad"], "very happy|sad", []])
    expected = [("very happy", "sad"), ("sad",), ("very happy", "sad"), ()]
    assert [row.labels for row in read(path, label_separator="|")] == expected
    (tmp_path / "a.csv").write_text("text,joy,love\na b,1,0\nc d,0,1\n")
    with pytest.raises(CompressError, match="2 columns of 0 and 1, which no --label-separator cuts: leave it out"):
        read(tmp_path / "a.csv", label_column="joy,love", label_separator="|")
    with pytest.raises(CompressError, match="names the column 'joy' twice"):
        read(tmp_path / "a.csv", label_column="joy,joy")


def test_columns_that_are_named_are_labels_even_if_no_row_has_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.csv").write_text("text,love,joy,fear\na b,1,0,0\nc d,0,1,0\ne f,1,1,0\n")
    rows = read(tmp_path / "a.csv", label_column="love,joy,fear")
    assert TASK.new_labels(rows, []) == ("love", "joy", "fear")
    assert "train has no row to learn these labels from: fear" in caplog.text


def test_numbers_are_no_order_of_named_labels() -> None:
    with pytest.raises(CompressError, match=r"the label '1', which .* does not know: allowed are a, b; .*--label-map"):
        TASK.gold([Example("x", labels=("1",))], ("a", "b"), "test")
    assert TASK.gold([Example("x", labels=("1",))], ("LABEL_0", "LABEL_1"), "test") == [(0.0, 1.0)]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            [["joy", "love"], None],
            "line 2 has no labels in column 'labels', and others have: remove",
        ),
        ([["joy", "love"]] * 1001 + [{"joy": 1}, "joy"], "line 1003 has joy, and other rows have a list of labels"),
        ([["joy", "love"], "joy", ["joy", "fear"]], "line 2 has joy, and other rows have a list of .*: correct it"),
        ([["joy", "love"], [3, 7]], r"line 2 has a list of 2 \(\[3, 7\]\), and other rows have names of labels"),
        ([["joy", "love"], [1, 0]], "line 2 has a list of 2 .*, and other rows have names of labels"),
        (
            [{"joy": 1, "love": 0}, {"joy": 0, "love": 2}, {"joy": 1, "love": 1}],
            "line 2 has an object .*, and other rows have 0 or 1 for each label, in column 'labels': correct it",
        ),
        ([["joy"], ["joy"]], "has only one class, 'joy'"),
        ([["joy", "love"], ["love", "joy"]], "has only one set of labels, 'joy love'"),
        ([[], []], "has only one set of labels, 'none'"),
        ([[0.2, 0.8], [0.5, 0.5]], "labels in a list are texts or whole numbers"),
        ([["joy", "love"], ["love", None]], r"line 2 has a list of 2 .*, and labels in a list are texts or whole"),
        ([["joy", "love"], ["love", ["joy"]]], "line 2 has a list of 2 .*, and labels in a list are texts"),
        ([[1, 0], [0, 1, 1], [1, 1]], "line 2 has a list of 3 .*, and other rows have a vector of 2 zeros and ones"),
    ],
)
def test_rows_that_do_not_fit(tmp_path: Path, labels: Sequence[Any], message: str) -> None:
    with pytest.raises(CompressError, match=message):
        of_rows(read(lines(tmp_path / "a.jsonl", labels)))


def test_a_column_of_one_label_holds_zeros_and_ones(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,joy,love\na b,1,0\nc d,0,2\n")
    with pytest.raises(CompressError, match=r"line 3 has '2', and the column of one .* holds 0 or 1, in column 'love'"):
        read(tmp_path / "a.csv", label_column="joy,love")
    with pytest.raises(CompressError, match=r"has no column 'hate'.*--label-column"):
        read(tmp_path / "a.csv", label_column="joy,hate")


def test_rows_of_two_kinds_and_labels_that_no_model_can_learn(caplog: pytest.LogCaptureFixture) -> None:
    several = [Example("a", labels=("x", "y")), Example("b", labels=("y",)), Example("c", labels=())]
    with pytest.raises(CompressError, match="3 of 4 rows have a list of labels and the others do not"):
        of_rows([*several, Example("d", "x")])
    many = [Example("a", labels=tuple(map(str, range(10_000))))]
    with pytest.raises(CompressError, match=r"10,000 different labels in .* at most 1,000 are learned"):
        TASK.new_labels(many, [])
    with pytest.raises(CompressError, match="train has no label in any row"):
        TASK.new_labels([Example("a", labels=())], [])
    with caplog.at_level("INFO", "compress"):
        assert TASK.new_labels(several, [Example("d", labels=("z",))]) == ("x", "y", "z")
    assert "of none: 1" in caplog.text and "a single row to learn these labels from: x" in caplog.text
    with pytest.raises(CompressError, match=r"Row 1 of test \('a'\) has the label 'x', which the model does not know"):
        TASK.gold(several, ("y", "z"), "test")
    with pytest.raises(CompressError, match=r"has no list of labels, which the model gives; .*--label-separator"):
        TASK.gold([Example("a", None, "y")], ("y", "z"), "test")


def test_labels_count_in_the_fingerprint_and_their_order_does_not() -> None:
    one, other = Example("a", labels=("x", "y")), Example("a", labels=("y", "x"))
    assert content_sha256([one]) == content_sha256([other]) != content_sha256([Example("a", labels=())])
    assert content_sha256([Example("a", labels=())]) != content_sha256([Example("a")])


def draw(rows: int = 200, labels: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    gold = generator.random((rows, labels)) < np.linspace(0.02, 0.5, labels)
    logits = np.round(np.where(gold, 1.0, -1.0) + generator.normal(size=gold.shape) * 1.5, 1)  # with ties
    return logits, gold


def test_metrics_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    logits, gold = draw()
    predicted, sets = logits > 0, as_sets(gold)
    f1 = {kind: metrics.f1_score(gold, predicted, average=kind, zero_division=1.0) for kind in ("micro", "samples")}
    expected = {
        "micro-f1": f1["micro"],
        "macro-f1": metrics.f1_score(gold, predicted, average="macro"),
        "sample-f1": f1["samples"],
        "mean-average-precision": metrics.average_precision_score(gold, TASK.probabilities(logits)),
        "subset-accuracy": metrics.accuracy_score(gold, predicted),
        "hamming": 1 - metrics.hamming_loss(gold, predicted),
    }
    assert [metric.name for metric in TASK.metrics] == [*expected]
    for name, value in expected.items():
        assert TASK.evaluate(logits, gold, NAMES, name) == pytest.approx(value), name
        assert TASK.evaluate(logits, sets, NAMES, name) == pytest.approx(value), name


def test_metrics_by_hand() -> None:
    gold, predicted = as_sets(np.array([[1, 0], [1, 1], [0, 0]]) > 0), as_sets(np.array([[1, 1], [1, 0], [0, 0]]) > 0)
    expected = {"micro-f1": 4 / 6, "macro-f1": 0.5, "sample-f1": (2 / 3 + 2 / 3 + 1) / 3}
    expected |= {"subset-accuracy": 1 / 3, "hamming": 4 / 6}
    for name, value in expected.items():
        assert score(predicted, gold, metric=TASK.metric(name), classes=2) == pytest.approx(value)
    # Label 0: of the rows 0.9 (yes), 0.8 (no), 0.3 (yes); label 1 has no row.
    chances = np.array([[0.9, 0.5], [0.8, 0.5], [0.3, 0.5]])
    held = as_sets(np.array([[1, 0], [0, 0], [1, 0]]) > 0)
    found = score(chances, held, metric=TASK.metric("mean-average-precision"), classes=2)
    assert found == pytest.approx((1 + 2 / 3) / 2)


def test_sets_are_one_value_a_row() -> None:
    held = draw()[1]
    assert np.array_equal(set_members(as_sets(held)), held)
    assert np.array_equal(set_members(np.array(json.loads(json.dumps(as_sets(held).tolist())))), held)
    assert np.array_equal(set_members(np.stack([as_sets(held)] * 2)), np.stack([held] * 2))
    assert answer_name("101", ("a", "b", "c")) == "a, c" and answer_name("000", ("a", "b", "c")) == "no label"


@pytest.mark.parametrize("name", [metric.name for metric in TASK.metrics])
def test_intervals_draw_whole_rows(name: str) -> None:
    logits, gold = draw(60)
    other, metric = logits + np.random.default_rng(1).normal(size=logits.shape), TASK.metric(name)
    mine, reference, sets = TASK.judged(logits, metric), TASK.judged(other, metric), as_sets(gold)
    low, high = interval(mine, sets, metric=metric, classes=6)
    assert low < score(mine, sets, metric=metric, classes=6) < high
    difference = paired_difference(mine, reference, sets, metric=metric, classes=6)
    assert difference.low < difference.points < difference.high
    assert (difference.mcnemar_p is None) == metric.of_probabilities
    assert paired_difference(mine, mine, sets, metric=metric, classes=6).points == 0
    assert metrics_by_name()[name] is metric
    if not metric.of_probabilities:
        seeds = SeedSample(np.stack([mine, reference]), np.stack([reference, reference]), sets, metric, 6)
        assert difference_interval([seeds])[0] <= difference.points / 2 <= difference_interval([seeds])[1]


def test_losses_are_binary_cross_entropies() -> None:
    torch = pytest.importorskip("torch")
    nan = float("nan")
    logits, labels = torch.tensor([[2.0, -1.0], [5.0, 5.0]]), torch.tensor([[1.0, 0.0], [nan, nan]])
    total, known = TASK.hard_loss(logits, labels)
    expected = (np.log1p(np.exp(-2.0)) + np.log1p(np.exp(-1.0))) / 2
    assert known.tolist() == [True, False] and float(total) == pytest.approx(expected)
    assert float(TASK.hard_loss(logits, torch.tensor([[nan], [nan]]))[0]) == 0.0
    assert float(TASK.divergence(logits, logits, 2.0)) == pytest.approx(0.0, abs=1e-6)
    p, q = 1 / (1 + np.exp(-np.array([1.0, 0.5]))), np.array([0.5, 0.5])
    by_hand = 4 * (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean()
    found = TASK.divergence(torch.zeros(1, 2), torch.tensor([[2.0, 1.0]]), 2.0)
    assert float(found) == pytest.approx(by_hand, rel=1e-5)


def test_a_mean_is_of_probabilities_and_a_prior_of_shares() -> None:
    logits = np.array([[[0.0, 3.0]], [[2.0, 3.0]]])
    mean = TASK.probabilities(TASK.mean_logits(logits, np.array([0.25, 0.75])))
    assert mean == pytest.approx(np.tensordot([0.25, 0.75], TASK.probabilities(logits), 1))
    held = as_sets(np.array([[1, 0], [1, 0], [0, 0]]) > 0)
    assert TASK.probabilities(TASK.prior(held, 2)) == pytest.approx([3 / 5, 1 / 5])
    assert TASK.constant_score(held, NAMES[:2], "micro-f1") == pytest.approx(2 * 2 / (3 + 2))
    assert TASK.constant_score(held, NAMES[:2], "hamming") == pytest.approx(5 / 6)


def test_a_prediction_lists_labels_likeliest_first() -> None:
    logits = np.array([[1.0, 2.0, -3.0], [-1.0, -2.0, -3.0]])
    rows = [Example("a"), Example("b")]
    assert [*TASK.described(rows, logits, ("x", "y", "z"))] == [
        {"labels": ["y", "x"], "probabilities": {"y": 0.8808, "x": 0.7311}},
        {"labels": [], "probabilities": {}},
    ]
    first = next(TASK.described(rows, logits, ("x", "y", "z"), np.array([0.7, 0.9, 0.5]), all_labels=True))
    assert first["accepted"] == ["x"] and [*first["probabilities"]] == ["x", "y", "z"]


def test_the_change_of_a_row_is_the_sum_over_labels() -> None:
    gold = as_sets(np.array([[1, 0]]) > 0)
    chances, before = np.array([[0.4, 0.1]]), np.array([[0.9, 0.2]])
    change, lost, won = TASK.flips(as_sets(chances > 0.5), as_sets(before > 0.5), gold, chances, before)
    assert change.tolist() == [-40.0] and lost.all() and not won.any()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["joy|love", "joy", "love"], "1 of 3 classes are made of others, such as 'joy|love'"),
        (["3,14", "14,20", "20", "3"], "2 of 4 classes are made of others, such as '14,20'"),
        (["['joy', 'love']", "['joy']"], "2 of 2 classes are lists in text, such as"),
        (["Albany, NY", "Rome, NY"], ""),
        (["yes", "no"], ""),
    ],
)
def test_classes_that_are_several_labels_are_named(
    labels: list[str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [Example("a", label=label) for label in labels] * 2
    assert set(find_task("classification").new_labels(rows, [])) == set(labels)
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert all(message in one for one in warned) and len(warned) == bool(message)
    caplog.clear()
    TASK.new_labels([Example("a", labels=(label,)) for label in labels] * 2, [])
    assert message in caplog.text and bool(message) == ("classes are" in caplog.text)
