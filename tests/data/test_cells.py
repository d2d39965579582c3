"""Structure is no text, names of a schema are labels, words have tags, and every row knows its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compress.data import Example, infer_labels, open_rows, open_source, read_examples
from compress.errors import CompressError
from compress.tasks import find_task

TEXTS, NAMES = ("a fine film", "so dull"), ("good", "bad")


def write_lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def write_parquet(path: Path, table: dict[str, Any], **features: Any) -> Path:
    """Write what the library datasets writes: the features of columns in the schema's metadata."""
    info = json.dumps({"info": {"features": features}})
    pq.write_table(pa.table(table).replace_schema_metadata({"huggingface": info}), path)
    return path


def labelled(path: Path, label_map: Any = None, **options: Any) -> list[Example]:
    return read_examples(open_rows(path, role="train", label_map=label_map, **options))


def pairs(rows: list[Example]) -> list[tuple[str, str | None]]:
    return [(row.text, row.label) for row in rows]


CLASSES = {"names": list(NAMES), "_type": "ClassLabel"}
EXPECTED = list(zip(TEXTS, NAMES, strict=True))


def test_names_of_a_schema_are_the_labels(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"text": TEXTS, "label": [0, 1]}, label=CLASSES)
    rows = labelled(path)
    assert pairs(rows) == EXPECTED
    assert find_task("classification").gold(rows, ("bad", "good"), "test") == [1, 0], "by name, not by place"
    assert find_task("classification").gold(rows, ("Bad", "GOOD "), "test") == [1, 0]
    assert infer_labels(rows) == ("good", "bad"), "new classes keep the order of the schema"


def test_names_of_a_schema_are_the_order_where_a_model_has_no_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "compress")
    path = write_parquet(tmp_path / "a.parquet", {"text": TEXTS, "label": [0, 1]}, label=CLASSES)
    assert find_task("classification").gold(labelled(path), ("LABEL_0", "LABEL_1"), "set one") == [0, 1]
    assert caplog.messages == [
        "the model's classes have no names, and are read as good, bad; say otherwise with --label-map FILE"
    ]


def test_numbers_without_names_keep_the_order_of_the_model_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "compress")
    rows = [Example("a", None, "1"), Example("b", None, "0")]
    for _ in range(2):
        assert find_task("classification").gold(rows, ("dire", "fine"), "test") == [1, 0]
    assert caplog.messages == [
        "labels that are numbers are read in the order of the model: 0 = dire, 1 = fine; say otherwise with "
        "--label-map FILE"
    ]


def test_a_withheld_class_is_no_label(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"text": TEXTS, "label": [0, -1]}, label=CLASSES)
    with pytest.raises(CompressError, match=r"a.parquet, row 2 has no label in column 'label'"):
        labelled(path)


@pytest.mark.parametrize("name", ["map.json", "map.toml"])
def test_a_label_map_says_what_labels_mean(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"1": "good", "0.0": "bad"}' if name.endswith("json") else '1 = "good"\n0 = "bad"\n')
    path = write_lines(tmp_path / "a.jsonl", {"text": "a b", "label": 0}, {"text": "c d", "label": 1})
    assert pairs(labelled(path, label_map=tmp_path / name)) == [("a b", "bad"), ("c d", "good")]
    schema = write_parquet(tmp_path / "a.parquet", {"text": TEXTS, "label": [0, 1]}, label=CLASSES)
    assert pairs(labelled(schema, label_map=tmp_path / name)) == [(TEXTS[0], "bad"), (TEXTS[1], "good")], "by place too"
    assert pairs(labelled(schema, label_map={"Good": "up", "bad": "down"})) == [(TEXTS[0], "up"), (TEXTS[1], "down")]


def test_a_label_map_without_a_label_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "a b", "label": "x"}, {"text": "c d", "label": "y"})
    (tmp_path / "map.json").write_text('{"x": "good"}')
    with pytest.raises(CompressError, match=r"a.jsonl, line 2 has the label 'y', which .*map.json does not have: add"):
        labelled(path, label_map=tmp_path / "map.json")
    for content in ("{}", '{"x": 1}', '{"x": ""}'):
        (tmp_path / "map.json").write_text(content)
        with pytest.raises(CompressError, match="needs the name of a class for each label"):
            labelled(path, label_map=tmp_path / "map.json")


STUDIO = [
    {"id": 7, "data": {"text": text}, "annotations": [{"result": [{"value": {"choices": [name]}}]}]}
    for text, name in EXPECTED
]
ARGILLA = [{"fields": {"text": text}, "responses": {"label": [{"value": name}]}} for text, name in EXPECTED]
SPACY = [{"text": text, "cats": {one: float(one == name) for one in NAMES}} for text, name in EXPECTED]
DOCCANO = [{"id": 1, "text": text, "label": [name]} for text, name in EXPECTED]
NESTED = [{"id": 1, "data": {"text": text, "more": None}, "label": name} for text, name in EXPECTED]


@pytest.mark.parametrize("records", [STUDIO, ARGILLA, SPACY, DOCCANO, NESTED])
def test_exports_of_annotation_tools(tmp_path: Path, records: list[Any]) -> None:
    assert pairs(labelled(write_lines(tmp_path / "a.jsonl", *records))) == EXPECTED
    (tmp_path / "a.json").write_text(json.dumps(records))
    assert pairs(labelled(tmp_path / "a.json")) == EXPECTED
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    assert pairs(labelled(tmp_path / "a.parquet")) == EXPECTED


CHAT = [{"messages": [{"role": "user", "content": text}, {"role": "it", "content": name}]} for text, name in EXPECTED]


def test_parts_of_lists_are_named_by_their_place(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", *CHAT)
    with pytest.raises(CompressError, match=r"name one with --text-column, also a part of one: .*messages\.0\.content"):
        labelled(path)
    options = {"text_column": "messages.0.content", "label_column": "messages.1.content"}
    assert pairs(labelled(path, **options)) == EXPECTED
    pq.write_table(pa.Table.from_pylist(CHAT), tmp_path / "a.parquet")
    assert pairs(labelled(tmp_path / "a.parquet", **options)) == EXPECTED
    with pytest.raises(CompressError, match=r"no column 'messages\.0\.contents'; it has messages"):
        labelled(path, text_column="messages.0.contents", label_column="messages.1.content")


@pytest.mark.parametrize(
    ("record", "options", "message"),
    [
        (
            {"text": [1, 2], "label": "x"},
            {},
            r"line 2 has a list of 2 .\[1, 2\].*, which is no text, in column",
        ),
        ({"text": {"en": "a", "it": "b"}, "label": "x"}, {"text_column": "text"}, r"--text-column: text\.en, text\.it"),
        ({"text": "a b", "label": [0, 1]}, {}, r"line 2 has a list of 2 \(\[0, 1\]\), and a text has one label here"),
        ({"text": "a b", "label": [1.0, 0.0]}, {}, "a text has one label here"),
        ({"text": "a b", "label": ["joy", "anger"]}, {}, "a text has one label here, in column 'label'"),
        ({"text": "a b", "label": {"joy": 0.5, "anger": 0.5}}, {"label_column": "label"}, "a text has one label here"),
        ({"text": "a b", "label": []}, {}, "line 2 has no label in column 'label'"),
        ({**STUDIO[0], "annotations": STUDIO[0]["annotations"] * 2}, {}, r"a list of 2 .*annotations\.0\.result\.0"),
    ],
)
def test_structure_is_neither_text_nor_label(
    tmp_path: Path, record: dict[str, Any], options: dict[str, str], message: str
) -> None:
    first = STUDIO[0] if "data" in record else {"text": "first row", "label": "x"}
    if options.get("text_column") or options.get("label_column"):
        first = record
    with pytest.raises(CompressError, match=message):
        labelled(write_lines(tmp_path / "a.jsonl", first, record), **options)


TAGS = ["O", "B-PER", "I-PER"]
SENTENCES: dict[str, Any] = {
    "id": ["0", "1"],
    "tokens": [["New York", "sleeps"], ["Ada"]],
    "ner_tags": [[1, 0], [2]],
}
TAGGED = [Example("New\u00a0York sleeps", tags=("B-PER", "O")), Example("Ada", tags=("I-PER",))]


@pytest.mark.parametrize("options", [{}, {"text_column": "tokens", "label_column": "ner_tags"}])
@pytest.mark.parametrize("kind", ["Sequence", "List"])
def test_tokens_and_tags_are_sentences_to_tag(tmp_path: Path, kind: str, options: dict[str, str]) -> None:
    features = {"ner_tags": {"feature": {"names": TAGS, "_type": "ClassLabel"}, "_type": kind}}
    rows = labelled(write_parquet(tmp_path / "a.parquet", SENTENCES, **features), **options)
    assert rows == TAGGED and infer_labels(rows) == ("O", "B-PER", "I-PER")
    assert find_task("tagging").gold(rows, sorted(TAGS), "test") == [[0, 2], [1]]


def test_tags_that_are_numbers_are_the_order_of_the_model(tmp_path: Path) -> None:
    records = [dict(zip(SENTENCES, row, strict=True)) for row in zip(*SENTENCES.values(), strict=True)]
    path = write_lines(tmp_path / "a.jsonl", *records)
    assert find_task("tagging").gold(labelled(path), TAGS, "numbers") == [[1, 0], [2]]
    assert list(open_source(path, role="unlabeled", labelled=False)) == [Example(row.text) for row in TAGGED]


def test_several_kinds_of_tags_are_told_apart(tmp_path: Path) -> None:
    kinds = {"pos_tags": [["N", "V"], ["N"]], "chunk_tags": [["NP", "VP"], ["NP"]]}
    path = write_parquet(tmp_path / "a.parquet", {**SENTENCES, **kinds})
    assert [row.tags for row in labelled(path)] == [("1", "0"), ("2",)], "ner_tags is a usual name"
    assert [row.tags for row in labelled(path, label_column="pos_tags")] == [("N", "V"), ("N",)]
    path = write_parquet(tmp_path / "a.parquet", {"tokens": SENTENCES["tokens"], **kinds})
    with pytest.raises(CompressError, match="none of which is clearly the label"):
        labelled(path)


CONLL = "-DOCSTART- -X- -X- O\n\nNew NNP B-NP B-LOC\nYork NNP I-NP I-LOC\nsleeps VBZ B-VP O\n\nAda NNP B-NP B-PER\n"


@pytest.mark.parametrize("name", ["eng.testa", "a.txt", "a.conll"])
def test_conll_2003(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(CONLL)
    rows = labelled(path)
    assert rows == [Example("New York sleeps", tags=("B-LOC", "I-LOC", "O")), Example("Ada", tags=("B-PER",))]
    assert [row.where for row in rows] == [f"{name}, line 3", f"{name}, line 7"]
    assert [row.tags for row in open_source(path, role="unlabeled", labelled=False)] == [None, None]
    path.write_text(CONLL.replace(" ", "\t"))
    assert labelled(path) == rows


def test_places_are_lines_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\n\n"two\nlines",x\n,y\nlast one,y\n')
    rows = labelled(tmp_path / "a.csv")
    assert [row.where for row in rows] == ["a.csv, line 3", "a.csv, line 6"]
    with pytest.raises(CompressError, match=r"^a.csv, line 6 \('last one'\) has the label 'y', which the model"):
        find_task("classification").gold(rows, ("x", "z"), "test")
    (tmp_path / "a.json").write_text('[\n{"text": "", "label": "x"},\n{"text": "a b", "label": "x"}]')
    assert [row.where for row in open_source(tmp_path / "a.json", role="train", labelled=True)] == ["a.json, row 2"]


def test_a_place_changes_neither_equality_nor_fingerprint(tmp_path: Path) -> None:
    (row,) = open_source(write_lines(tmp_path / "a.jsonl", {"text": "a", "label": "x"}), role="train", labelled=True)
    assert row.where and row == Example("a", None, "x") and hash(row) == hash(Example("a", None, "x"))
