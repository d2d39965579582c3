"""Every format is found out by content, its columns guessed, and each mistake answered with one sentence."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compress.data import Example, open_source, open_text, read_examples
from compress.data.examples import Columns
from compress.data.formats.objects import is_hub_name
from compress.errors import CompressError

ROWS = [("a fine, quiet film", "good"), ('they call it "art"', "bad"), ("dull", "bad"), ("a joy", "good")]


def as_csv(rows: list[tuple[str, str]]) -> str:
    return "text,label\r\n" + "".join('"{}",{}\r\n'.format(t.replace('"', '""'), x) for t, x in rows)


def as_tsv(rows: list[tuple[str, str]]) -> str:
    return "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)


def as_quoted_tsv(rows: list[tuple[str, str]]) -> str:
    return "sentence\tlabel\n" + "".join('"{}"\t{}\n'.format(t.replace('"', '""'), x) for t, x in rows)


def as_jsonl(rows: list[tuple[str, str]]) -> str:
    return "".join(json.dumps({"id": n, "text": t, "label": x}) + "\n" for n, (t, x) in enumerate(rows))


def as_json(rows: list[tuple[str, str]]) -> str:
    return json.dumps([{"text": text, "label": label} for text, label in rows], indent=1)


def as_json_ids(rows: list[tuple[str, str]]) -> str:
    return json.dumps({str(n): {"text": text, "label": label} for n, (text, label) in enumerate(rows)})


def as_json_columns(rows: list[tuple[str, str]]) -> str:
    texts, labels = ({str(n): row[place] for n, row in enumerate(rows)} for place in (0, 1))
    labels = dict(reversed(labels.items()))  # cells belong together by their row's name
    return json.dumps({"text": texts, "label": labels})  # what DataFrame.to_json writes


def as_json_splits(rows: list[tuple[str, str]]) -> str:
    return json.dumps({"train": rows[:3], "oos_train": rows[3:], "val": [["not this one", "good"]]})


def as_json_labels(rows: list[tuple[str, str]]) -> str:
    segments = [{"data": [{"text": rows[0][0][:4]}, {"text": rows[0][0][4:]}]}, rows[3][0]]
    return json.dumps({"good": segments, "bad": [rows[1][0], rows[2][0]]})


FORMATS: list[tuple[str, str, Callable[[list[tuple[str, str]]], str]]] = [
    ("a.csv", "csv", as_csv),
    ("a.csv", "tsv-unquoted", as_tsv),
    ("a.tsv", "tsv-unquoted", as_tsv),
    ("a.txt", "tsv-unquoted", as_tsv),
    ("a.tsv", "tsv", as_quoted_tsv),
    ("a.jsonl", "jsonl", as_jsonl),
    ("a.json", "jsonl", as_jsonl),
    ("a.json", "json", as_json),
    ("a.json", "json", as_json_ids),
    ("a.json", "json", as_json_columns),
    ("a.json", "json, split train + oos_train", as_json_splits),
    ("a.json", "json", as_json_labels),
]


def labelled(path: Path, **options: Any) -> list[Example]:
    return read_examples(open_source(path, role="train", labelled=True, **options))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(("name", "form", "write"), FORMATS)
def test_formats_hold_the_same_rows(
    tmp_path: Path, name: str, form: str, write: Callable[[list[tuple[str, str]]], str], zipped: bool
) -> None:
    content = b"\xef\xbb\xbf" + write(ROWS).encode()
    path = tmp_path / (name + ".gz" if zipped else name)
    path.write_bytes(gzip.compress(content, mtime=0) if zipped else content)
    source = open_source(path, role="train", labelled=True)
    assert source.format == form
    assert sorted((row.text, row.label) for row in source) == sorted(ROWS)
    assert list(source) == list(source), "a source can be read again"
    assert str(tmp_path) not in source.describe()


@pytest.mark.parametrize("zipped", [False, True])
def test_parquet(tmp_path: Path, zipped: bool) -> None:
    import pandas  # type: ignore[import-untyped]

    path = tmp_path / "a.parquet"
    pandas.DataFrame({"idx": range(4), "text": [t for t, _ in ROWS], "label": [0, 1, 1, 0]}).to_parquet(path)
    if zipped:
        path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    assert labelled(path)[1] == Example(ROWS[1][0], None, "1")


def test_plain_text_streams_and_stops_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "pool.txt"
    path.write_text("one\n\n two \nthree\n")
    source = open_source(path, role="unlabeled", labelled=False)
    assert [row.text for row in source] == ["one", "two", "three"]
    assert "rows without text, skipped: 1" in source.describe()
    assert [row.text for row in itertools.islice(source, 2)] == ["one", "two"]


def test_rows_under_their_label_may_repeat_it(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"pos": [{"text": "a b", "label": "pos"}], "neg": ["c d"]}')
    assert labelled(tmp_path / "a.json") == [Example("a b", None, "pos"), Example("c d", None, "neg")]


def test_windows_1252_is_read_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes("h\xe9ros \u2013 vus\n".encode("cp1252") + "h\xe9ros\n".encode())
    source = open_source(path, role="unlabeled", labelled=False)
    assert [row.text for row in source] == ["h\xe9ros \u2013 vus", "h\xe9ros"]
    assert "lines read as Windows-1252: 1" in source.describe()


def test_line_separators_inside_a_text_do_not_end_it(tmp_path: Path) -> None:
    path = tmp_path / "pool.txt"
    path.write_text("one\u2028still one\x85here\ntwo\n", encoding="utf-8")
    assert len(list(open_source(path, role="unlabeled", labelled=False))) == 2


def test_cells_of_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"two\nlines",x\nplain,y\n')
    assert labelled(path)[0].text == "two\nlines"


@pytest.mark.parametrize(
    ("content", "columns", "row"),
    [
        (
            "gj04\t1\t\tThe sailors rode the breeze.\ncj99\t0\t*\tIf you had eaten more want.\n",
            Columns("3", None, "1"),
            Example("The sailors rode the breeze.", None, "1"),
        ),
        (
            '1\t70\t71\tHe said the pie is good .\t" The pie is good .\n'
            "0\t72\t73\tShe left the town .\tShe stayed there .\n",
            Columns("3", "4", "0"),
            Example("He said the pie is good .", '" The pie is good .', "1"),
        ),
        (
            "news\t2012\t0001\t5.000\tA plane is taking off.\tAn air plane takes off.\n"
            "news\t2012\t0004\t3.800\tA man plays a flute.\tA man is playing a flute.\thttp://x\thttp://y\n",
            Columns("4", "5", "3"),
            Example("A plane is taking off.", "An air plane takes off.", "5.000"),
        ),
        (
            "ham\tOk lar... Joking wif u oni...\nspam\tFree entry in 2 a wkly comp\n",
            Columns("1", None, "0"),
            Example("Ok lar... Joking wif u oni...", None, "ham"),
        ),
    ],
    ids=["cola", "mrpc", "sts-b", "sms"],
)
def test_headerless_columns_are_guessed_by_content(
    tmp_path: Path, content: str, columns: Columns, row: Example
) -> None:
    path = tmp_path / "train.tsv"
    path.write_text(content)
    source = open_source(path, role="train", labelled=True)
    assert source.columns == columns
    assert next(iter(source)) == row
    assert "no header" in source.describe() and f"text = column {columns.text}" in source.describe()


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", Columns("#1 String", "#2 String", "Quality")),
        ("index\tquestion\tsentence\tlabel", Columns("question", "sentence", "label")),
        ("id\trating\tlabel\ttext", Columns("text", None, "label")),
        ("premise\thypothesis\tgold_label", Columns("premise", "hypothesis", "gold_label")),
        ("Tweet\tSentiment", Columns("Tweet", None, "Sentiment")),
    ],
)
def test_usual_names(tmp_path: Path, header: str, columns: Columns) -> None:
    path = tmp_path / "train.tsv"
    cells = header.split("\t")
    path.write_text(header + "\n" + "\t".join(f"a b c {n}" for n in range(len(cells))) + "\n")
    assert open_source(path, role="train", labelled=True).columns == columns


@pytest.mark.parametrize("header", [",text,label", "n,text,", "id, text, label ", "ID,Text ,Label", "n,文本,标签"])
def test_a_header_may_have_spaces_empty_names_and_other_scripts(tmp_path: Path, header: str) -> None:
    path = tmp_path / "train.csv"
    path.write_text(header + "\n" + "".join(f"{n},a film of {n},{'ny'[n % 2]}\n" for n in range(20)))
    source = open_source(path, role="train", labelled=True)
    assert {row.label for row in source} == {"n", "y"} and source.columns.text == header.split(",")[1].strip()


@pytest.mark.parametrize("name", ["label:confidence (%)", "a name that has more than forty characters in all"])
def test_usual_names_make_a_header_beside_unusual_ones(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text(f"id,text,label,{name}\n1,good film,a,0.9\n2,bad film,b,0.8\n")
    source = open_source(path, role="train", labelled=True)
    assert [(row.text, row.label) for row in source] == [("good film", "a"), ("bad film", "b")]


def test_a_class_with_a_usual_name_makes_no_header(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("what time is it,question\nthat is nice,comment\nwho is there,question\n")
    rows = list(open_source(path, role="train", labelled=True, text_column="0", label_column="1"))
    assert [row.label for row in rows] == ["question", "comment", "question"]


def test_a_text_that_ends_like_no_name_makes_no_header(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("Who is he?,question\nI am fine.,statement\nGo away!,command\nI was there.,statement\n")
    source = open_source(path, role="train", labelled=True)
    assert [row.label for row in source] == ["question", "statement", "command", "statement"]


def test_a_header_stays_one_where_a_row_below_repeats_it(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("tweet,emotion\n" + "".join(f"text {n},joy\n" for n in range(20)) + "tweet,anger\n")
    assert {row.label for row in open_source(path, role="train", labelled=True)} == {"joy", "anger"}


def test_ids_with_usual_names_are_no_columns(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    rows = {"title": {"text": "a good film", "label": "x"}, "body": {"text": "a bad film", "label": "y"}}
    path.write_text(json.dumps(rows))
    found = list(open_source(path, role="train", labelled=True))
    assert [(row.text, row.label) for row in found] == [("a good film", "x"), ("a bad film", "y")]


def test_a_table_called_txt_has_the_columns_that_are_named(tmp_path: Path) -> None:
    path = tmp_path / "pool.txt"
    path.write_text("title\tbody\tlabel\n" + "".join(f"title {n}\tbody of {n}\t{n % 2}\n" for n in range(20)))
    names = {"text_column": "title", "text_pair_column": None, "label_column": "label", "format": "csv"}
    assert next(iter(open_text(str(path), beside="train.csv", **names))).text == "title 0"
    (tmp_path / "lines.txt").write_text("one text\nanother text\n")
    assert next(iter(open_text(str(tmp_path / "lines.txt"), beside="train.csv", **names))).text == "one text"


@pytest.mark.parametrize(("name", "advised"), [("a.csv", False), ("a.tsv", True)])
def test_the_advice_for_quotation_marks_fits_the_file(name: str, advised: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    cells = ['"He said \\"hi\\" to me"', "1"]
    path.write_text("\n".join("\t".join(cells) if advised else ",".join(cells) for _ in range(3)) + "\n")
    with pytest.raises(CompressError, match="correct the quotation marks") as found:
        list(open_source(path, role="unlabeled", labelled=False, format=name[2:]))
    assert ("tsv-unquoted" in str(found.value)) == advised


def test_a_column_of_labels_alone_is_not_taken_for_the_text(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text('{"label": "good"}\n{"label": "bad"}\n')
    with pytest.raises(CompressError, match="none of which is clearly the text"):
        open_source(path, role="unlabeled", labelled=False)


def test_texts_in_columns_of_two_names_are_refused(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.jsonl", [{"text": "a film"}, {"sentence": "dull"}, {"text": ""}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    with pytest.raises(CompressError, match="has its texts in the columns text and sentence: write all in one of them"):
        open_source(path, role="unlabeled", labelled=False)
    assert len(list(open_source(path, role="unlabeled", labelled=False, text_column="text"))) == 1
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(list(open_source(path, role="unlabeled", labelled=False))) == 1


@pytest.mark.parametrize("role", ["train", "unlabeled"])
@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.csv", "text,label\ra film,good\rdull,bad\r", "x.csv ends its lines with CR alone"),
        ("x.txt", "a film\rdull", "x.txt ends its lines with CR alone"),
        ("x.csv", "\ufeffsep=;\r\ntext;label\r\na film;good\r\ndull;bad\r\n", "begins with a line for Excel, 'sep=;'"),
    ],
)
def test_lines_of_old_macs_and_of_excel_are_refused(
    tmp_path: Path, role: str, name: str, content: str, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content.encode())
    with pytest.raises(CompressError, match=sentence):
        open_source(tmp_path / name, role=role, labelled=role == "train")


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("a\tb\tc\none two\tthree four\tx\nfive six\tseven eight\ty\n")
    with pytest.raises(CompressError, match="none of which is clearly the text"):
        open_source(path, role="train", labelled=True)
    source = open_source(path, role="train", labelled=True, text_column="b", label_column="c")
    assert next(iter(source)) == Example("three four", None, "x")


def test_label_first_trees_and_files_beside(tmp_path: Path) -> None:
    (tmp_path / "x.all").write_text("1 a fine film\n0 dull\n1 a joy to see\n")
    assert labelled(tmp_path / "x.all")[0] == Example("a fine film", None, "1")
    (tmp_path / "t.txt").write_text("(3 (2 a) (4 (3 fine) (2 film)))\n(1 (2 so) (0 dull))\n")
    assert labelled(tmp_path / "t.txt") == [Example("a fine film", None, "3"), Example("so dull", None, "1")]
    (tmp_path / "val_text.txt").write_text("a fine film\ndull\n")
    (tmp_path / "val_labels.txt").write_text("1\n0\n")
    assert labelled(tmp_path / "val_text.txt")[1] == Example("dull", None, "0")


def test_a_pattern_reads_files_in_turn(tmp_path: Path) -> None:
    (tmp_path / "dev.0").write_text("bad\nworse\nworst\n")
    (tmp_path / "dev.1").write_text("good\n")
    rows = [(row.text, row.label) for row in labelled(tmp_path / "dev.*")]
    assert rows == [("bad", "0"), ("good", "1"), ("worse", "0"), ("worst", "0")]
    with pytest.raises(CompressError, match="only one class, '0'"):
        labelled(tmp_path / "dev.0")


def test_treebanks_are_read_as_their_words(tmp_path: Path) -> None:
    path = tmp_path / "dev.conllu"
    path.write_text("# text = We can't.\n1\tWe\t_\n2-3\tcan't\t_\n2\tca\t_\n\n1\tYes\t_\n2\t.\t_\n")
    source = open_source(path, role="unlabeled", labelled=False)
    assert [row.text for row in source] == ["We ca", "Yes ."]
    with pytest.raises(CompressError, match="line 2 has no tag in its fourth cell"):
        labelled(path)


GOOD = as_tsv(ROWS).encode()
MISTAKES: list[tuple[str, bytes | None, dict[str, Any], str]] = [
    ("absent.tsv", None, {}, "There is no file"),
    ("empty.tsv", b"", {}, "empty.tsv is empty"),
    ("blank.tsv", b"\n \n", {}, "blank.tsv is empty"),
    ("header.tsv", b"text\tlabel\n", {}, "a header but no rows"),
    ("zero.tsv", b"text\tlabel\nab\x00\tc\n", {}, "is not text .a zero byte in line 2"),
    ("wide.csv", "text,label\na,b\n".encode("utf-16"), {}, "is UTF-16 text"),
    ("model.csv", bytes(range(1, 200)) * 40, {}, "is not text: line 2 has the byte 0x8"),
    ("cut.tsv.gz", gzip.compress(GOOD * 5000, mtime=0)[:-12], {}, "is a truncated gzip file"),
    ("bad.tsv.gz", gzip.compress(GOOD, mtime=0)[:12] + b"\xff" * 60, {}, "is a damaged gzip file"),
    ("a.tsv", GOOD, {"text_column": "sentense"}, "no column 'sentense'; it has sentence, label.*mean 'sent"),
    ("a.tsv", GOOD, {"label_column": "3"}, "no column '3'"),
    ("a.tsv", GOOD, {"text_column": "label", "label_column": "label"}, "same column cannot be"),
    ("a.tsv", GOOD, {"format": "xml"}, "no format 'xml'"),
    ("ragged.tsv", GOOD + b"one cell\n", {}, "line 6 has 1 cells, but the header has 2"),
    ("ragged.csv", b"text,label\na b,c\nd,e,f\n", {}, "line 3 has 3 cells"),
    ("open.csv", b'text,label\n"a b,c\nd,e\n', {}, "open.csv, line 3: unexpected end of data"),
    ("nolabel.tsv", b"index\tsentence\n0\tuneasy styles\n1\tfine film\n", {}, "clearly the label"),
    ("missing.tsv", GOOD + b"no label here\t\n", {}, "missing.tsv, line 6 has no label"),
    ("huge.tsv", b"text\tlabel\na b\t1e99999999999999999999\nc d\t1e99999999999999999999\n", {}, "only one class"),
    ("one.tsv", b"text\tlabel\na b\tx\nc d\tx\n", {}, "only one class, 'x'"),
    ("notext.tsv", b"text\tlabel\n\tx\n\ty\n", {}, "no row with text"),
    ("a.jsonl", b'{"text": "a", "label": "x"}\n{"text": "b" "label"}\n', {}, "line 2 is not valid JSON"),
    ("a.json", b'{"text": ["a"', {}, "a.json is not valid JSON"),
    ("a.json", b'{"text": "a"}', {}, "holds no rows"),
    (
        "a.json",
        b'{"columns": ["text", "label"], "index": [0], "data": [["a", "x"]]}',
        {},
        "holds the lists columns, index, data, which are no splits",
    ),
    (
        "a.json",
        b'{"data": [{"text": "a b", "label": "x"}], "classes": ["x", "y"]}',
        {},
        "holds the lists data, classes",
    ),
    (
        "a.json",
        b'{"good": [{"data": null, "sentence": "tt a"}, {"text": "good one here"}], "bad": [{"text": "b c"}]}',
        {},
        "row 1 has an object .*, in column 'text': name a part of it with --text-column: text.data, text.sentence",
    ),
    ("f.txt", b"__label__a one\n__label__a __label__b two\n", {}, "f.txt, line 2 has several labels"),
    ("a.json", b'{"val": [["a b c", "x"]]}', {}, "has the splits val, but none for the role train"),
    ("a.parquet", b"PAR1 but no more", {}, "a.parquet cannot be read as examples"),
    ("plain.txt", b"only text\nis here\n", {}, "is plain text, one text a line, but labels are needed"),
    ("t.txt", b"(3 (2 a) (4 b))\n" * 1000 + b"(3 (2 a)\n", {}, "line 1001 is not a tree"),
    ("x.all", b"0 one\n1 two\n" * 500 + b"three\n", {}, "line 1001 does not start with a label"),
]


@pytest.mark.parametrize(("name", "content", "options", "message"), MISTAKES, ids=lambda value: None)
def test_mistakes(tmp_path: Path, name: str, content: bytes | None, options: dict[str, Any], message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CompressError, match=message) as caught:
        labelled(tmp_path / name, **options)
    assert "\n" not in str(caught.value)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="is a directory"):
        labelled(tmp_path)


def test_a_data_set_saved_to_disk_is_refused_by_name(tmp_path: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"text": ["a", "b"]}).save_to_disk(tmp_path / "saved")
    with pytest.raises(CompressError, match=r"saved was written by save_to_disk.*load_from_disk.*to_parquet"):
        labelled(tmp_path / "saved")


def test_files_beside_must_have_the_same_length(tmp_path: Path) -> None:
    (tmp_path / "val_text.txt").write_text("a fine film\ndull\n")
    (tmp_path / "val_labels.txt").write_text("1\n")
    with pytest.raises(CompressError, match="val_labels.txt ends after 1 lines"):
        labelled(tmp_path / "val_text.txt")


def test_a_version_is_no_suffix_of_a_file() -> None:
    assert is_hub_name("owner/mood_v1.1") and not is_hub_name("owner/mood.csv") and not is_hub_name("owner/mood.7z")


def test_hub_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    kinds = {
        "sentence": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["poor", "great"]),
        "tone": datasets.Value("int64"),
    }
    files = {split: str(tmp_path / f"{split}.parquet") for split in ("train", "validation", "hidden")}
    for split, path in files.items():
        rows = {
            "sentence": ["fine", "dull"],
            "label": [1, -1 if split == "hidden" else 0],
            "tone": [-1 if split == "hidden" else 1, -1],
        }
        datasets.Dataset.from_dict(rows, features=datasets.Features(kinds)).to_parquet(path)
    read = partial(datasets.load_dataset, "parquet", data_files=files, cache_dir=str(tmp_path))

    def load(name: str, config: str | None, streaming: bool) -> Any:
        if (name, config) != ("glue", "sst2"):
            raise datasets.exceptions.DatasetNotFoundError(name)
        return read(streaming=streaming)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr("compress.data.formats.objects.hub_is_reachable", lambda: True)
    source = open_source("glue/sst2", role="validation", labelled=True)
    assert list(source) == [Example("fine", None, "great"), Example("dull", None, "poor")]
    assert source.describe() == "glue/sst2: hub, split validation, text = sentence, label = label"
    scores = open_source("glue/sst2", role="validation", labelled=True, label_column="tone")
    assert [example.label for example in scores] == ["1", "-1"]
    for column, row in (("label", 2), ("tone", 1)):
        with pytest.raises(CompressError, match=f"row {row} has no label in column '{column}'"):
            list(open_source("glue/sst2:hidden", role="test", labelled=True, label_column=column))
    with pytest.raises(CompressError, match="has the splits train, validation, hidden, none of them for the role"):
        open_source("glue/sst2", role="test", labelled=True)
    with pytest.raises(CompressError, match="no file 'glue/sst3', and it could not be loaded"):
        open_source("glue/sst3", role="test", labelled=True)


def test_offline_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    def load(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach the hub\nand a long story")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr("compress.data.formats.objects.hub_is_reachable", lambda: True)
    with pytest.raises(CompressError, match="Couldn't reach the hub.: check the name, go online") as caught:
        open_source("glue/sst2", role="train", labelled=True)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr("compress.data.formats.objects.hub_is_reachable", lambda: False)
    with pytest.raises(CompressError, match="the Hugging Face hub cannot be reached"):
        open_source("glue/sst2", role="train", labelled=True)


SHARED: list[tuple[str, int, int | None, Columns]] = [
    # file, labelled rows, classes (None for regression), columns
    ("ag_news_10k/official_test.csv", 7600, 4, Columns("2", None, "0")),
    ("ag_news_10k/test.tsv", 7600, 4, Columns("0", None, "1")),
    ("ag_news_10k/train_10k.tsv", 10001, 4, Columns("0", None, "1")),
    ("banking77/test.csv", 3080, 77, Columns("text", None, "category")),
    ("banking77/train.csv", 10003, 77, Columns("text", None, "category")),
    ("clinc150/data_full.json", 15100, 151, Columns("0", None, "1")),
    ("clinc150/data_small.json", 7600, 151, Columns("0", None, "1")),
    ("cr/custrev.all", 3771, 2, Columns("text", None, "label")),
    ("glue/CoLA/in_domain_dev.tsv", 527, 2, Columns("3", None, "1")),
    ("glue/CoLA/in_domain_train.tsv", 8551, 2, Columns("3", None, "1")),
    ("glue/CoLA/out_of_domain_dev.tsv", 516, 2, Columns("3", None, "1")),
    ("glue/MRPC/dev.tsv", 408, 2, Columns("#1 String", "#2 String", "Quality")),
    ("glue/MRPC/msr_paraphrase_train.txt", 4076, 2, Columns("3", "4", "0")),
    ("glue/RTE/dev.tsv", 277, 2, Columns("sentence1", "sentence2", "label")),
    ("glue/RTE/train.tsv", 2490, 2, Columns("sentence1", "sentence2", "label")),
    ("glue/SST-2/dev.tsv", 872, 2, Columns("sentence", None, "label")),
    ("glue/SST-2/train.tsv", 67349, 2, Columns("sentence", None, "label")),
    ("glue/STS-B/sts-dev.csv", 1500, None, Columns("5", "6", "4")),
    ("glue/STS-B/sts-train.csv", 5749, None, Columns("5", "6", "4")),
    ("glue_subsets/MNLI/dev.json", 1000, 3, Columns("text_a", "text_b", "label")),
    ("glue_subsets/QNLI/glue_dev_full.tsv", 5463, 2, Columns("question", "sentence", "label")),
    ("glue_subsets/QQP/train.json", 8999, 2, Columns("text_a", "text_b", "label")),
    ("glue_subsets/SNLI/dev.json", 1000, 3, Columns("text_a", "text_b", "label")),
    ("imdb/train.tsv.gz", 25000, 2, Columns("text", None, "label")),
    ("sms_spam/SMSSpamCollection", 5574, 2, Columns("1", None, "0")),
    ("snips/train_*_full.json", 13784, 7, Columns("text", None, "label")),
    ("snips/validate_*.json", 700, 7, Columns("text", None, "label")),
    ("sst_sentence_level/stsa.binary.dev", 872, 2, Columns("text", None, "label")),
    ("sst_sentence_level/stsa.fine.train", 8544, 5, Columns("text", None, "label")),
    ("sst_trees/train.txt", 8543, 5, Columns("text", None, "label")),
    ("subj/subj.all", 10000, 2, Columns("text", None, "label")),
    ("trec/TREC.test.all", 500, 6, Columns("text", None, "label")),
    ("trec/TREC.train.all", 5452, 6, Columns("text", None, "label")),
    ("tweeteval/emoji/test_text.txt", 50000, 20, Columns("text", None, "label")),
    ("tweeteval/emotion/train_text.txt", 3257, 4, Columns("text", None, "label")),
    ("tweeteval/hate/train_text.txt", 8993, 2, Columns("text", None, "label")),
    ("tweeteval/irony/val_text.txt", 955, 2, Columns("text", None, "label")),
    ("tweeteval/offensive/test_text.txt", 860, 2, Columns("text", None, "label")),
    ("yelp_sentences/sentiment.dev.*", 63483, 2, Columns("text", None, "label")),
]


@pytest.mark.shared
@pytest.mark.parametrize(("name", "rows", "classes", "columns"), SHARED, ids=[row[0] for row in SHARED])
def test_labelled_sets_as_they_lie(
    shared_data: Path, name: str, rows: int, classes: int | None, columns: Columns
) -> None:
    source = open_source(shared_data / name, role="train", labelled=True)
    examples = read_examples(source)
    assert (len(examples), source.columns) == (rows, columns)
    labels = Counter(example.label for example in examples)
    assert all((example.text_pair is None) == (columns.text_pair is None) for example in examples)
    if classes is None:
        assert all(0 <= float(label or "nan") <= 5 for label in labels)
    else:
        assert len(labels) == classes


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("glue/SST-2/test.tsv", 1821),
        ("glue/RTE/test.tsv", 3000),
        ("ud/en_lines-dev.conllu", 1118),
        ("imdb-sentences/unlabeled.txt.gz", 860_790),
        ("ud/en_lines-train.conllu", None),
        ("ud/en_partut-train.conllu", None),
        ("ud/fr_partut-train.conllu", 803),
        ("ud/it_partut-dev.conllu", 156),
    ],
)
def test_unlabelled_sets_as_they_lie(shared_data: Path, name: str, rows: int | None) -> None:
    source = open_source(shared_data / name, role="unlabeled", labelled=False)
    count = sum(1 for _ in source)
    assert count == rows if rows is not None else count > 1500


@pytest.mark.shared
def test_quoted_commas_and_quotation_marks_survive(shared_data: Path) -> None:
    banking = labelled(shared_data / "banking77/test.csv")
    assert banking[1].text == "I still have not received my new card, I ordered over a week ago."
    paraphrases = labelled(shared_data / "glue/MRPC/dev.tsv")
    assert paraphrases[0].text_pair is not None and paraphrases[0].text_pair.startswith('" The foodservice')
    assert labelled(shared_data / "clinc150/data_full.json")[-1].label == "oos"
    test_split = open_source(shared_data / "clinc150/data_full.json", role="test", labelled=True)
    assert len(list(test_split)) == 5500
