"""Labels from a table: softmax gives back what the columns say, and what says nothing is refused by its row."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compress.cli import execute
from compress.data import ContentFingerprint, Example
from compress.errors import CompressError
from compress.labelling.label_dir import LabelDir
from compress.requests.labelling import import_labels

VOTES = [["a fine film", 0, 1, 3], ["dull", 3, 1, 0], ["so so", 1, 2, 1]]
CLASSES = ("bad", "mixed", "good")


def table(path: Path, rows: Sequence[Sequence[Any]] = VOTES, header: Sequence[str] = ("text", *CLASSES)) -> Path:
    with path.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([header, *rows])
    return path


PROBABILITIES: dict[str, Any] = {"probabilities": CLASSES}


def imported(path: Path, **options: Any) -> LabelDir:
    made: LabelDir = import_labels(path, path.parent / "labels", **(options or PROBABILITIES))
    return made


def logits_of(labels: LabelDir) -> np.ndarray:
    return np.stack([logits for _, logits in labels])


def softmax(logits: np.ndarray) -> np.ndarray:
    powers: np.ndarray = np.exp(logits.astype(np.float64))
    return powers / powers.sum(axis=1, keepdims=True)


# What it makes of columns


def test_softmax_gives_the_probabilities_back_and_every_row_has_mean_0(tmp_path: Path) -> None:
    rows = [["one", 0.7, 0.2, 0.1], ["two", 1e-9, 0.5, 0.499999999], ["three", 0.334, 0.333, 0.334]]
    made = imported(table(tmp_path / "p.csv", rows))
    expected = np.array([row[1:] for row in rows], dtype=np.float64)
    expected /= expected.sum(axis=1, keepdims=True)  # the last row sums to 1.001, as rounded ones do
    np.testing.assert_allclose(softmax(logits_of(made)), expected, rtol=1e-5)
    np.testing.assert_allclose(logits_of(made).mean(axis=1), 0, atol=1e-6)
    assert not made.has_zeros


def test_votes_are_shares_and_a_class_without_any_is_clipped(tmp_path: Path) -> None:
    made = imported(table(tmp_path / "votes.csv"))
    assert made.has_zeros and made.manifest.notes["rows_with_zeros"] == 2
    expected = [[1e-12, 0.25, 0.75], [0.75, 0.25, 1e-12], [0.25, 0.5, 0.25]]
    np.testing.assert_allclose(softmax(logits_of(made)), expected, rtol=1e-5)


def test_smoothing_gives_every_class_a_share(tmp_path: Path) -> None:
    made = imported(table(tmp_path / "votes.csv"), probabilities=CLASSES, smoothing=0.3)
    np.testing.assert_allclose(softmax(logits_of(made))[0], [0.1, 0.7 / 4 + 0.1, 0.7 * 3 / 4 + 0.1], rtol=1e-6)
    assert not made.has_zeros


def test_logits_stay_as_they_are(tmp_path: Path) -> None:
    rows = [["one", 3.5, -1.25, 0], ["two", 1e3, 2, 1]]
    made = imported(table(tmp_path / "l.csv", rows), logits=CLASSES)
    np.testing.assert_array_equal(logits_of(made), np.array([row[1:] for row in rows], np.float32))


def test_labels_are_smoothed_and_their_names_sorted(tmp_path: Path) -> None:
    path = table(tmp_path / "l.csv", [["one", "yes"], ["two", "no"], ["three", "perhaps"]], ("text", "answer"))
    made = imported(path, label_column="answer")
    assert made.manifest.labels == ("no", "perhaps", "yes")
    right, wrong = 0.9 + 0.1 / 3, 0.1 / 3
    np.testing.assert_allclose(
        softmax(logits_of(made)), [[wrong, wrong, right], [right, wrong, wrong], [wrong, right, wrong]], rtol=1e-6
    )


def test_a_confidence_leaves_the_rest_to_the_other_classes(tmp_path: Path) -> None:
    path = table(tmp_path / "l.csv", [["one", "2", 0.8], ["two", "10", 0.5]], ("text", "rating", "sure"))
    values: dict[str, Any] = dict(label_column="rating", classes=("10", "9", "2"), confidence="sure")
    np.testing.assert_allclose(
        softmax(logits_of(imported(path, **values))), [[0.1, 0.1, 0.8], [0.5, 0.25, 0.25]], rtol=1e-6
    )


def test_numbers_as_labels_are_sorted_as_numbers_or_name_a_class_by_its_place(tmp_path: Path) -> None:
    path = table(tmp_path / "l.csv", [["one", "10"], ["two", "2"]], ("text", "rating"))
    assert imported(path, label_column="rating").manifest.labels == ("2", "10")
    table(path, [["one", "1"], ["two", "0"]], ("text", "rating"))
    made = imported(path, label_column="rating", classes=("negative", "positive"), force=True)
    assert logits_of(made).argmax(axis=1).tolist() == [1, 0]


SEVERAL = ("joy", "love", "rage")


def sigmoid(logits: np.ndarray) -> np.ndarray:
    chances: np.ndarray = 1 / (1 + np.exp(-logits.astype(np.float64)))
    return chances


def test_columns_of_several_labels_are_probabilities_of_each_by_itself(tmp_path: Path) -> None:
    rows = [["one", 0.7, 0.9, 0.1], ["two", 0, 1, 0.5]]
    path = table(tmp_path / "p.csv", rows, ("text", *SEVERAL))
    made = imported(path, probabilities=SEVERAL, several_labels=True)
    assert made.manifest.task == "multi-label" and made.manifest.notes["rows_with_zeros"] == 1
    np.testing.assert_allclose(sigmoid(logits_of(made)), [row[1:] for row in rows], rtol=1e-5, atol=1e-11)
    made = imported(path, probabilities=SEVERAL, several_labels=True, smoothing=0.2, force=True)
    np.testing.assert_allclose(sigmoid(logits_of(made))[1], [0.1, 0.9, 0.5], rtol=1e-5)
    made = imported(path, logits=SEVERAL, several_labels=True, force=True)
    assert made.manifest.task == "multi-label" and logits_of(made)[0].tolist() == pytest.approx([0.7, 0.9, 0.1])


def test_lists_of_labels_are_several_labels(tmp_path: Path) -> None:
    """Written in the ways that training data have them; a row may have none."""
    lines = [
        {"text": "one", "labels": ["love", "joy"]},
        {"text": "two", "labels": []},
        {"text": "3", "labels": ["rage"]},
    ]
    (tmp_path / "l.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = imported(tmp_path / "l.jsonl", label_column="labels")
    assert made.manifest.task == "multi-label" and made.manifest.labels == SEVERAL
    expected = np.where(np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1]]) == 1, 0.95, 0.05)
    np.testing.assert_allclose(sigmoid(logits_of(made)), expected, rtol=1e-5)
    marked = table(tmp_path / "l.csv", [["one", "love|joy"], ["two", ""], ["3", "rage"]], ("text", "labels"))
    made = imported(marked, label_column="labels", label_separator="|", force=True)
    np.testing.assert_allclose(sigmoid(logits_of(made)), expected, rtol=1e-5)
    columns = table(tmp_path / "c.csv", [["one", 1, 1, 0], ["two", 0, 0, 0], ["3", 0, 0, 1]], ("text", *SEVERAL))
    made = imported(columns, label_column="joy,love,rage", force=True)
    np.testing.assert_allclose(sigmoid(logits_of(made)), expected, rtol=1e-5)


def test_more_labels_of_a_text_than_are_learned_are_refused(tmp_path: Path) -> None:
    line = {"text": "one", "labels": [f"label {number}" for number in range(1001)]}
    (tmp_path / "l.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(CompressError, match=r"1,001 different labels in l.jsonl, and at most 1,000 are learned"):
        imported(tmp_path / "l.jsonl", label_column="labels")


def test_a_label_map_says_what_labels_mean(tmp_path: Path) -> None:
    path = table(tmp_path / "l.csv", [["one", "1"], ["two", "0"]], ("text", "rating"))
    made = imported(path, label_column="rating", label_map={"0": "bad", "1": "good"})
    assert made.manifest.labels == ("bad", "good") and logits_of(made).argmax(axis=1).tolist() == [1, 0]


def test_every_format_gives_the_same_labels(tmp_path: Path) -> None:
    records = [dict(zip(("text", *CLASSES), row, strict=True)) for row in VOTES]
    (tmp_path / "v.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "v.parquet")
    expected = imported(table(tmp_path / "v.csv"))
    for name in ("v.jsonl", "v.parquet"):
        made = imported(tmp_path / name, **PROBABILITIES, force=True)
        np.testing.assert_array_equal(logits_of(made), logits_of(expected))
        assert made.manifest.notes["values_sha256"] == expected.manifest.notes["values_sha256"]


def test_pairs_and_columns_by_number(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_text("".join(f"the first text {n}\tits second one {n}\t{n % 2}\t{1 - n % 2}\n" for n in range(9)))
    made = imported(path, probabilities=("2", "3"), classes=("no", "yes"))
    assert made.manifest.labels == ("no", "yes")
    assert next(iter(made))[0] == Example("the first text 0", "its second one 0")


def test_rows_without_text_are_skipped_and_the_same_text_stays_several_rows(tmp_path: Path) -> None:
    rows = [["same", 1, 0, 1], ["same", 0, 1, 1], ["", 5, 5, 5]]
    made = imported(table(tmp_path / "v.csv", rows))
    assert [example.text for example, _ in made] == ["same", "same"] and made.rows == 2


def test_the_manifest_says_what_from_where_and_names_no_path(tmp_path: Path) -> None:
    made = imported(table(tmp_path / "votes.csv"), probabilities=CLASSES, smoothing=0.1)
    texts = ContentFingerprint(Example(row[0]) for row in VOTES)
    whole = ContentFingerprint(Example(row[0], tags=tuple(map(str, row[1:]))) for row in VOTES)
    (data,) = made.manifest.data
    assert data == {"role": "unlabeled", "name": "votes.csv", "rows": 3, "sha256": texts.sha256()}
    assert made.manifest.notes == {
        "values": "probabilities",
        "columns": list(CLASSES),
        "confidence": None,
        "smoothing": 0.1,
        "values_sha256": whole.sha256(),
        "rows_with_zeros": 0,
    }
    assert made.manifest.parents == () and made.teacher_sha256 == ""
    assert made.teacher_name == "probabilities of votes.csv"
    assert str(tmp_path) not in (made.path / "compress.json").read_text()


def test_shards_are_of_2048_rows_at_most(tmp_path: Path) -> None:
    rows = [[f"text {n}", n % 3 == 0, n % 3 == 1, n % 3 == 2] for n in range(2050)]
    made = imported(
        table(tmp_path / "v.csv", [[r[0], *map(int, r[1:])] for r in rows]), probabilities=CLASSES, smoothing=0.1
    )
    assert [pq.read_metadata(path).num_rows for path in sorted(made.path.glob("*.parquet"))] == [2048, 2]
    assert logits_of(made).argmax(axis=1).tolist() == [n % 3 for n in range(2050)]


@pytest.mark.slow
def test_labels_of_many_classes_are_read_again(tmp_path: Path) -> None:
    """Hard labels are packed to less than a hundredth of their size."""
    classes = [f"c{n}" for n in range(9000)]
    rows = [["a fine film", name] for name in classes[:2048]]
    values = dict(label_column="label", classes=tuple(classes))
    made = imported(table(tmp_path / "v.csv", rows, ("text", "label")), **values)
    assert logits_of(made).argmax(axis=1).tolist() == [*range(2048)]


# What it refuses

LABELS = {"header": ("text", "answer", "sure"), "values": dict(label_column="answer")}
SURE = {**LABELS, "values": dict(label_column="answer", confidence="sure")}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"header": ("text", "bad", "mixed", "god")}, r"no column 'good'; it has .*Did you mean 'god'\?"),
    (
        {"header": ("text", "bad", "good", "good"), "values": dict(logits=("bad", "good"))},
        "has two columns 'good'",
    ),
    (
        {"header": ("review", "text", "mixed", "good"), "values": dict(probabilities=("text", "good"))},
        "--text",
    ),
    ({"rows": [["a", 0.5, "x", 0.5]]}, "v.csv, line 2 has 'x' in column 'mixed', and a number of 0 or more is needed"),
    ({"rows": [["a", 0.5, "", 0.5]]}, "line 2 has '' in column 'mixed'"),
    ({"rows": [VOTES[0], ["a", 0.5, "nan", 0.5]]}, "line 3 has 'nan' in column 'mixed'"),
    ({"rows": [["a", 0.5, "inf", 0.5]]}, "line 2 has 'inf' in column 'mixed'"),
    ({"rows": [["a", 0.5, "1_0", 0.5]]}, "line 2 has '1_0' in column 'mixed'"),
    ({"rows": [["a", 0.5, -0.1, 0.6]]}, "line 2 has '-0.1' in column 'mixed'"),
    ({"rows": [["a", 0, 0, 0]]}, "line 2 has values that sum to 0; probabilities sum to 1, and counts are whole"),
    ({"rows": [["a", 0.2, 0.2, 0.2]]}, "sum to 0.6; .* name a column for every class, or divide each row by its sum"),
    ({"rows": [["a", "1e999", 0, 0]]}, "line 2 has '1e999'"),
    (
        {"rows": [["a", "1e200", 0, 0]], "values": dict(logits=CLASSES)},
        "'1e200' .* a finite number is needed",
    ),
    ({"rows": [["", 1, 0, 0]]}, "v.csv holds no text"),
    ({**LABELS, "rows": [["a", "yes", 1], ["b", "", 1]]}, "line 3 has no label in column 'answer'"),
    ({**LABELS, "rows": [["a", "yes", 1], ["b", "yes", 1]]}, "all labels are 'yes'; name all classes with --classes"),
    ({**LABELS, "rows": [["a", "1", 1], ["b", "1.0", 1]]}, "are one class written in two ways"),
    (
        {**SURE, "rows": [["a", "yes", 1], ["b", "no", 95]]},
        "line 3 has '95' in column 'sure', and a number from 0 to 1",
    ),
    (
        {"rows": [["a", 0.5, 1.5, 0.5]], "values": dict(probabilities=CLASSES, several_labels=True)},
        "line 2 has '1.5' in column 'mixed', and a number from 0 to 1 is needed",
    ),
    (
        {**LABELS, "rows": [["a", "", 1]], "values": dict(label_column="answer", label_separator="|")},
        "no row has a label; name all classes",
    ),
    (
        {**SURE, "rows": [["a", "no|yes", 1]], "values": dict(**SURE["values"], label_separator="|")},
        "--confidence is of one label, and these texts have several",
    ),
    (
        {**LABELS, "rows": [["a", "ye", 1]], "values": dict(label_column="answer", classes=("no", "yes"))},
        r"line 2 .* has the label 'ye', which the model does not know: allowed are no, yes .* Did you mean 'yes'\?",
    ),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_is_no_label_is_refused_and_leaves_nothing(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = table(tmp_path / "v.csv", given.get("rows", VOTES), given.get("header", ("text", *CLASSES)))
    with pytest.raises(CompressError, match=message):
        imported(path, **given.get("values", PROBABILITIES))
    assert [entry.name for entry in tmp_path.iterdir()] == ["v.csv"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(logits=("a", "b", "a")), "'a' is named twice"),
        (dict(logits=("a",)), "two classes or more"),
        (dict(logits=("a", "")), "each with a name"),
        (dict(logits=("a", "b"), classes=("x",)), "--classes names 1 classes, and there are 2 columns"),
        (dict(logits=("a", "b"), confidence="c"), "--confidence changes nothing without --label-column NAME"),
        (dict(logits=("a", "b"), smoothing=0.1), "--smoothing changes nothing without --probabilities"),
        (dict(logits=("a", "b"), label_map={"a": "x"}), "--label-map changes nothing without --label-column"),
        (dict(label_column="a", several_labels=True), "--several-labels changes nothing without --probabilities"),
        (dict(label_column="a", smoothing=1.0), "smoothing = 1.0 must be below 1"),
    ],
)
def test_settings_that_do_not_fit_together(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CompressError, match=message):
        import_labels("v.csv", "labels", **values)


def test_words_with_tags_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"words": ["a"], "tags": ["X"]}\n{"words": ["b"], "tags": ["Y"]}\n')
    with pytest.raises(CompressError, match="holds words with tags, and imported labels are of whole texts"):
        imported(path, label_column="tags")


# On the command line


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(table(tmp_path / name)) for name in ("one.csv", "two.csv")]
    output = str(tmp_path / "labels")
    assert execute(["labels", "import", *files, "--probabilities", "bad, mixed,good", "-o", output]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{output}: 6 rows of 3 classes (bad, mixed, good)\n"
    assert "4 of 6 rows give a class a probability below 1e-12" in captured.err
    assert "labels: two.csv: CSV, text = text" in captured.err
    assert LabelDir.open(output).manifest.data[0]["name"] == "one.csv + two.csv"


@pytest.mark.parametrize("given", [[], ["--label-column", "a", "--logits", "a,b"]])
def test_one_kind_of_columns_is_given(given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["labels", "import", str(table(tmp_path / "v.csv")), *given, "-o", str(tmp_path / "o")]) == 2
    assert "Give one of --probabilities A,B,... --logits A,B,... --label-column NAME" in capsys.readouterr().err


def test_the_output_is_not_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(table(tmp_path / "v.csv"))
    assert execute(["labels", "import", path, "--probabilities", "bad,good,mixed", "-o", path, "--force"]) == 2
    assert table(tmp_path / "w.csv").read_text() == Path(path).read_text()
