"""Whatever a user has, files or Python objects, gives the same rows."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow
import pytest

from compress.data import Example, load_rows, open_rows, open_text
from compress.errors import CompressError

ROWS = [("a fine, quiet film", "good"), ("dull and long", "bad"), ("a joy", "good")]
RECORDS = [{"id": number, "review": text, "verdict": label} for number, (text, label) in enumerate(ROWS)]
COLUMNS = {"review": [text for text, _ in ROWS], "verdict": [label for _, label in ROWS]}


def polars_frame(records: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(records)


def json_lines(records: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


KINDS: dict[str, Callable[[list[dict[str, Any]], Path], Any]] = {
    "path": json_lines,
    "text of a path": lambda records, folder: str(json_lines(records, folder)),
    "pattern": lambda records, folder: str(json_lines(records, folder).with_name("*.jsonl")),
    "list of paths": lambda records, folder: [json_lines(records, folder)],
    "URI": lambda records, folder: json_lines(records, folder).as_uri(),
    "dicts": lambda records, folder: records,
    "dict of columns": lambda records, folder: {key: [record[key] for record in records] for key in records[0]},
    "Dataset": lambda records, folder: datasets.Dataset.from_list(records),
    "IterableDataset": lambda records, folder: datasets.Dataset.from_list(records).to_iterable_dataset(),
    "pandas": lambda records, folder: pandas.DataFrame(records, index=range(7, 7 + len(records))),
    "polars": lambda records, folder: polars_frame(records),
    "Arrow": lambda records, folder: pyarrow.Table.from_pylist(records),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Callable[[list[dict[str, Any]], Path], Any]:
    return KINDS[request.param]


def test_every_kind_gives_the_same_rows(kind: Any, tmp_path: Path) -> None:
    data = kind(RECORDS, tmp_path)
    source = open_rows(data, role="train")
    assert [(row.text, row.label) for row in source] == [(row.text, row.label) for row in source] == ROWS
    assert open_rows(source, role="train") is source
    assert [row.label for row in open_rows(data, role="train", label_map={"good": "1", "bad": "0"})] == ["1", "0", "1"]
    swapped = open_rows(data, role="train", text_column="verdict", label_column="review")
    assert [(row.label, row.text) for row in swapped] == ROWS
    assert [*open_text(data)] == [Example(text) for text, _ in ROWS]
    pairs = open_text(data, text_column="review", text_pair_column="verdict", label_column="id")
    assert [*pairs] == [Example(*row) for row in ROWS]
    with pytest.raises(CompressError, match="no column 'text'; it has"):
        open_text(data, text_column="text")


def test_missing_cells_are_the_same_in_every_kind(kind: Any, tmp_path: Path) -> None:
    nothing = kind([*RECORDS, {"id": 3, "review": None, "verdict": "good"}], tmp_path)
    assert load_rows(nothing, role="train") == [Example(text, None, label) for text, label in ROWS]
    assert len([*open_text(nothing)]) == 3 and len([*open_text(nothing, keep_empty=True)]) == 4
    with pytest.raises(CompressError, match=r" [34] has no label in column 'verdict'"):
        load_rows(
            kind([*RECORDS, {"id": 3, "review": "c d", "verdict": None}], tmp_path),
            role="train",
            label_column="verdict",
        )


def test_words_with_tags_are_the_same_in_every_kind(kind: Any, tmp_path: Path) -> None:
    records = [{"tokens": ["I", "see"], "tags": ["PRON", "VERB"]}, {"tokens": ["It"], "tags": ["PRON"]}]
    expected = [Example("I see", tags=("PRON", "VERB")), Example("It", tags=("PRON",))]
    data = kind(records, tmp_path)
    assert [*open_rows(data, role="train")] == expected
    assert [row.text for row in open_text(data)] == ["I see", "It"]


def test_lists_of_texts_pairs_and_examples() -> None:
    assert [*open_text(["one ", "two", ""])] == [Example("one"), Example("two")]
    assert [*open_text(["one"], ["two", "three"])] == [Example("one"), Example("two"), Example("three")]
    assert [*open_text([("one", "two")])] == [*open_text([("one", "two", 1)])] == [Example("one", "two")]
    assert [*open_text([("one", 1)])] == [*open_text([["one", 1]])] == [Example("one")]
    assert [*open_text(pandas.Series(["one"]))] == [*open_text(np.array(["one"]))] == [Example("one")]
    examples = [Example(text, None, label) for text, label in ROWS]
    assert [*open_rows(ROWS, role="train")] == [*open_rows(examples, role="train")] == examples
    assert [*open_rows([("one", "two", 1)], role="train")] == [Example("one", "two", "1")]
    assert [*open_rows([(["a", "b"], ["X", "Y"])], role="train")] == [Example("a b", tags=("X", "Y"))]
    assert [row.label for row in open_rows(examples, role="train", label_map={"good": "1", "bad": "0"})] == list("101")
    assert [*open_text(examples)] == [Example(text) for text, _ in ROWS]
    assert open_rows(ROWS, role="train").identity == open_rows([*ROWS], role="test").identity
    assert open_rows(ROWS, role="train").identity != open_rows(ROWS[1:], role="test").identity


def test_names_of_classes_are_read_and_minus_one_is_none() -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    data = datasets.Dataset.from_dict({"text": ["a b", "c d"], "label": [1, 0]}, features=features)
    for one in (data, data.to_iterable_dataset()):
        rows = load_rows(one, role="train")
        assert [row.label for row in rows] == ["yes", "no"] and rows[0].origin is not None
        assert rows[0].origin.classes == ("no", "yes")
        assert [row.label for row in open_rows(one, role="train", label_map={0: "bad", 1: "good"})] == ["good", "bad"]
    withheld = datasets.Dataset.from_dict({"text": ["a b"], "label": [-1]}, features=features)
    with pytest.raises(CompressError, match=r"train \(Dataset\), row 1 has no label in column 'label'"):
        load_rows(withheld, role="train")
    assert data.select([1]).shuffle(seed=0)["text"] == [row.text for row in open_text(data.select([1]).shuffle(seed=0))]


def test_integers_and_missing_values_of_frames() -> None:
    frame = pandas.DataFrame({"text": ["a b", "c d"], "label": pandas.array([1, None], dtype="Int64")})
    assert [row.label for row in open_rows(frame[:1], role="train")] == ["1"]
    with pytest.raises(CompressError, match=r"train \(DataFrame\), row 2 has no label"):
        load_rows(frame, role="train")
    category = frame.assign(label=pandas.Categorical(["x", "y"]), when=pandas.Timestamp(0))
    assert [row.label for row in open_rows(category, role="train")] == ["x", "y"]


def test_the_labelled_rows_of_a_stage(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        train = load_rows(RECORDS, role="train", label_column="verdict")
        validation = load_rows(pandas.DataFrame(RECORDS), role="validation", label_column="verdict")
    assert train == validation == [Example(text, None, label) for text, label in ROWS]
    assert load_rows(None, role="train") == []
    assert caplog.messages == [
        "train: train (list): list, text = review, label = verdict",
        "validation: validation (DataFrame): table, text = review, label = verdict",
    ]


@pytest.mark.slow
def test_a_large_data_set_is_read_in_parts() -> None:
    data = datasets.Dataset.from_dict({"text": [f"text {number}" for number in range(100_000)]})
    tracemalloc.start()
    assert open_text(data).count() == 100_000
    assert tracemalloc.get_traced_memory()[1] < 4e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "^train is of type int, which holds no rows here: give a path, .* DataFrame, or a list of pathlib.Path"),
        ((row for row in ROWS), "is of type generator"),
        (b"a b", "is of type bytes"),
        ([], r"^train \(list\) is empty: give at least one row"),
        (pandas.DataFrame({"text": []}), r"^train \(DataFrame\) is empty"),
        (datasets.Dataset.from_dict({"text": []}), r"^train \(Dataset\) is empty"),
        ([1, 2], "holds objects of type int: give a path"),
        (["one", "two"], "holds texts without labels: give pairs of a text and its label, or a table"),
        ([("one",)], r"holds \('one',\), which is no pair: give \(text, label\) or \(text, text, label\)"),
        ([{"text": "a", "label": "x"}, "b"], "mixes kinds of rows"),
        ([Example("a", None, "x"), Example("b")], "^Row 2 of train has no label"),
        (
            datasets.DatasetDict(train=datasets.Dataset.from_list(RECORDS)),
            r"has the splits train: give one of them, such as data\['train'\]",
        ),
        (pandas.DataFrame({"text": ["a", 1], "label": ["x", "y"]}), r"^train \(DataFrame\) cannot be read as a table"),
    ],
)
def test_what_holds_no_rows_is_one_sentence(data: Any, message: str) -> None:
    with pytest.raises(CompressError, match=message):
        open_rows(data, role="train")


def test_names_of_files_are_not_taken_for_texts(tmp_path: Path) -> None:
    path = json_lines(RECORDS, tmp_path)
    with pytest.raises(CompressError, match="holds names of files, .*: give them as pathlib.Path objects"):
        open_text([str(path)])
    assert len([*open_text([path])]) == len([*open_text(str(path))]) == 3
