"""Spans of entities in files: words and tags from places in characters, and one sentence for each wrong span."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compress.data import Example, ExampleSource, join_sources, open_source, open_text, read_examples
from compress.data.entity_spans import tagged_text
from compress.data.formats.table import SAMPLE
from compress.errors import CompressError
from compress.tasks import find_task, of_rows

TEXT = "Ada Lovelace of caf\u00e9 \U0001f600 Paris-based New York."


def span(part: str, label: str, text: str = TEXT) -> dict[str, Any]:
    start = text.index(part)
    return {"start": start, "end": start + len(part), "label": label}


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rows_of(path: Path, **columns: Any) -> list[Example]:
    return read_examples(open_source(path, role="train", labelled=True, **columns))


SPANS = [span("New York", "LOC"), span("Ada Lovelace", "PER"), span("Paris", "LOC")]
WORDS = ["Ada", "Lovelace", "of", "caf\u00e9", "\U0001f600", "Paris", "-based", "New", "York", "."]
TAGS = ("B-PER", "I-PER", "O", "O", "O", "B-LOC", "O", "B-LOC", "I-LOC", "O")


@pytest.mark.parametrize(
    "row",
    [
        {"text": TEXT, "entities": SPANS},
        {"id": 7, "text": TEXT, "spans": SPANS},
        {"text": TEXT, "entities": [{**one, "text": TEXT[one["start"] : one["end"]]} for one in SPANS]},
        {"text": TEXT, "label": [[one["start"], one["end"], one["label"]] for one in SPANS]},  # Doccano
        {
            "text": TEXT,
            "entities": [
                {"id": 1, "start_offset": s["start"], "end_offset": s["end"], "label": s["label"]} for s in SPANS
            ],
        },
    ],
)
def test_spans_become_words_and_tags(row: dict[str, Any], tmp_path: Path) -> None:
    key = next(key for key in ("entities", "spans", "label") if key in row)
    path = write_lines(tmp_path / "a.jsonl", row, {**row, "text": "Nothing here, U.S. or not.", key: []})
    first, second = rows_of(path)
    assert first.words == tuple(WORDS) and first.tags == TAGS
    assert second.words == ("Nothing", "here", ",", "U.S.", "or", "not", ".") and set(second.tags or ()) == {"O"}
    assert str(of_rows([first, second])) == "entities"
    pool = open_source(path, role="unlabeled", labelled=False)
    assert [row.text for row in pool] == [TEXT, "Nothing here, U.S. or not."]


def test_every_character_of_a_span_is_in_its_words() -> None:
    text, tags = tagged_text("un-Parisian ", [[3, 8, "LOC"]], "row 1")
    assert text == "un- Paris ian" and tags == ("O", "B-LOC", "O")
    text, tags = tagged_text(" a  b ", [[0, 6, "X"]], "row 1")
    assert text == "a b" and tags == ("B-X", "I-X")
    text, tags = tagged_text("ab", [[0, 1, "X"], [1, 2, "X"]], "row 1")
    assert text == "a b" and tags == ("B-X", "B-X")


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([[0, 3, "PER"], [2, 5, "LOC"]], r"0 to 3 \('Ada'\) and 2 to 5 \('a L'\), which overlap"),
        ([[0, 3, "PER"], [0, 3, "LOC"]], "which overlap"),
        ([[40, 51, "LOC"]], "40 to 51, outside the text, which has 44 characters"),
        ([[-1, 3, "PER"]], "-1 to 3, outside the text"),
        ([[3, 3, "PER"]], r"3 to 3, which holds no word \(''\)"),
        ([[3, 4, "PER"]], r"3 to 4, which holds no word \(' '\)"),
        ([[5, 2, "PER"]], "5 to 2, which holds no word"),
        ([[42, 48, "LOC"]], "of a text of 44 characters, which has 48 bytes in UTF-8: count characters"),
        ([[27, 32, "LOC"]], r"27 to 32 \('s-bas'\); it cuts words, and would not if bytes were counted"),
        ([[24, 29, "LOC"]], r"24 to 29 \('aris-'\); it cuts words, and would not if UTF-16 units were counted"),
        ([{"start": 0, "end": 3, "label": "PER", "text": "Bob"}], "is 'Ada' in the text and 'Bob' in the file"),
        ([{"start": 0.0, "end": 3, "label": "PER"}], "the span 0.0 to 3: give whole numbers"),
        ([{"start": True, "end": 3, "label": "PER"}], "the span True to 3: give whole numbers"),
        ([{"start": 0, "end": 3, "label": ""}], "with the label '': name its class"),
        ([{"start": 0, "end": 3}], "with the label None: name its class"),
        ([[0, 3, "PER"], "Ada"], "has 'Ada', which is no span"),
        ([{"start": 0, "label": "PER"}], "the span 0 to None: give whole numbers"),
        (None, "has no labels in column 'entities', and others have: .* give an empty list where none applies"),
        ("", "has '', which is no list of spans"),
        ({"PER": "Ada"}, "which is no list of spans"),
    ],
)
def test_a_wrong_span_is_named_with_its_row(spans: Any, message: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": TEXT, "entities": SPANS}, {"text": TEXT, "entities": spans})
    with pytest.raises(CompressError, match=message) as raised:
        rows_of(path, label_column="entities")
    assert str(raised.value).startswith("a.jsonl, line 2 ")


def test_a_row_without_the_field_of_spans_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": TEXT, "entities": SPANS}, {"text": TEXT})
    with pytest.raises(CompressError, match="line 2 has no labels in column 'entities'"):
        rows_of(path)


@pytest.mark.parametrize("key", ["entities", "label"])
def test_spans_may_come_late(key: str, tmp_path: Path) -> None:
    empty = [{"text": f"Nothing in {number}.", key: []} for number in range(SAMPLE + 1)]
    rows = rows_of(write_lines(tmp_path / "a.jsonl", *empty, {"text": TEXT, key: SPANS}))
    assert rows[0].tags == ("O",) * 4 and rows[-1].tags == TAGS
    source = open_source(write_lines(tmp_path / "b.jsonl", *empty), role="test", labelled=True)
    tagged = {row.tags is None for row in source}
    assert tagged == {key == "label"}  # a list of no labels, which may be those of a text


def test_spans_in_characters_of_a_text_beyond_ascii_may_cut_words() -> None:
    assert tagged_text("caf\u00e9 Parisian", [[5, 10, "LOC"]], "row 1")[1] == ("O", "B-LOC", "O")
    # In bytes these would begin and end with words; the span's own text, or a script without spaces, says otherwise.
    said = {"start": 27, "end": 32, "label": "LOC", "text": "s-bas"}
    assert "B-LOC" in tagged_text(TEXT, [said], "row 1")[1]
    chinese = "\u4ed6 \u4f4f\u5728 \u5317\u4eac"
    assert "B-LOC" in tagged_text(chinese, [[3, 4, "LOC"]], "row 1")[1]


def test_cells_of_further_columns_stay_beside_words_and_spans(tmp_path: Path) -> None:
    words = {"tokens": ["Ada"], "ner_tags": ["B-PER"], "domain": "news"}
    for name, row in (("a.jsonl", words), ("b.jsonl", {"text": TEXT, "entities": SPANS, "domain": "news"})):
        path = write_lines(tmp_path / name, row)
        (found,) = open_source(path, role="test", labelled=True, values=["domain"])
        assert found.values == ("news",)


def test_slots_of_snips_are_entities_where_they_are_the_label(tmp_path: Path) -> None:
    data = {
        "data": [
            {"text": "play "},
            {"text": "The Happy Blues", "entity": "album"},
            {"text": " by "},
            {"text": "Ron", "entity": "artist"},
            {"text": "\n"},
        ]
    }
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"PlayMusic": [data], "GetWeather": [{"data": [{"text": "rain?"}]}]}))
    assert [(row.text, row.label) for row in rows_of(path)] == [
        ("play The Happy Blues by Ron", "PlayMusic"),
        ("rain?", "GetWeather"),
    ]
    first, second = rows_of(path, label_column="entities")
    assert first.tags == ("O", "B-album", "I-album", "I-album", "O", "B-artist") and second.words == ("rain", "?")


def test_a_pool_of_plain_text_and_of_words_is_read_once_each(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Mr. Fox.\n")
    words = ExampleSource([Example("Mr. Fox .")], "train")
    pool = join_sources([open_source(tmp_path / "a.txt", role="unlabeled", labelled=False), words])
    for source in (open_text(pool, read=find_task("entities").row), open_text(pool).sample(9)):
        assert source.describe() == "a.txt: plain text; train: 1 rows"
    read = open_text(pool, read=find_task("entities").row)
    assert [row.words for row in read] == [("Mr", ".", "Fox", "."), ("Mr.", "Fox", ".")]
    assert [row.text for row in open_text(pool, read=find_task("classification").row)] == ["Mr. Fox.", "Mr. Fox ."]


UNER = """# newdoc id = a
# sent_id = a-1
# text = blood type O
1\tblood\tO
2\ttype\tO
3\tO\tB-TYPE

# text = 5 of 6
1-2\tdu\tO
1\t5\tO
2\tle\tO
"""


@pytest.mark.parametrize("name", ["a.iob2", "a.conll", "a.txt"])
def test_numbered_words_and_comments(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(UNER, encoding="utf-8")
    assert rows_of(tmp_path / name) == [
        Example("blood type O", tags=("O", "O", "B-TYPE")),
        Example("5 le", tags=("O", "O")),
    ]


def test_words_of_conll_are_what_stands_before_the_tab(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("#\tO\n#tag\tO\n1\tB-X\nNew York\tI-X\n\n\n2 O\n", encoding="utf-8")
    assert rows_of(path) == [
        Example("# #tag 1 New\u00a0York", tags=("O", "O", "B-X", "I-X")),
        Example("2", tags=("O",)),
    ]
    path.write_text("a\tO\n\tO\n", encoding="utf-8")
    with pytest.raises(CompressError, match="line 2 is not a word with its tag"):
        rows_of(path)
    path.write_text("Ada\nlives\n", encoding="utf-8")
    with pytest.raises(
        CompressError, match="line 1 is .* it has 1 columns, 'Ada', and a word and, .* its tag are needed"
    ):
        rows_of(path)
    path.write_text("Ada NNP B-PER\nlives O\n", encoding="utf-8")
    with pytest.raises(CompressError, match="line 2 is .* it has 2 columns, 'lives O', and line 1 has 3: correct it"):
        rows_of(path)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "rows", "words", "entities"),
    [
        ("wnut17/train.conll", 3394, 62730, 1975),
        ("wnut17/dev.conll", 1009, 15733, 836),
        ("uner_ewt/dev.iob2", 2001, 25149, 966),
        ("uner_ewt/test.iob2", 2077, 25097, 1088),
    ],
)
def test_published_sets(name: str, rows: int, words: int, entities: int, shared_data: Path) -> None:
    found = rows_of(shared_data / name)
    tags = [tag for row in found for tag in row.tags or ()]
    assert (len(found), len(tags), sum(tag.startswith("B-") for tag in tags)) == (rows, words, entities)
