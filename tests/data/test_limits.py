"""What a file may cost is bounded before it is spent; what is long and legal is read."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compress.data import Example, grouped_split, open_source, row_key
from compress.data.formats import table
from compress.errors import CompressError
from compress.files import TEXT_LIMIT

pytestmark = pytest.mark.fast
MB = 10**6


@pytest.fixture(autouse=True)
def one_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEXT_LIMIT, "1")
    monkeypatch.setattr(table, "ALWAYS_BYTES", 2**16)


def texts(path: Path) -> list[str]:
    return [row.text for row in open_source(path, role="unlabeled", labelled=False)]


def refused(path: Path, message: str) -> None:
    with pytest.raises(CompressError, match=message):
        texts(path)


@pytest.mark.parametrize("end", ["", "\n", "\nb\n"])
def test_a_line_up_to_the_limit_is_read_and_no_longer_one(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x\n" + "a" * MB + end)
    assert [len(text) for text in texts(path)][:2] == [1, MB]
    path.write_text("x\n" + "a" * (MB + 1) + end)
    refused(path, "a.txt, line 2 is longer than 1 MB: cut the text, or set COMPRESS_MAX_TEXT_MB")


def test_lines_are_those_of_the_file_whatever_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\ntwo \xc3\xa9\nthree")
    for size in range(1, 30):
        monkeypatch.setattr(table, "_BLOCK_BYTES", size)
        assert texts(path) == ["one", "two \u00e9", "three"]


def test_a_row_of_many_lines_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"' + "a b\n" * (MB // 4 + 10))
    refused(path, "a.csv, the row with line .* is longer than 1 MB")


def test_texts_of_json_and_parquet_are_bounded(tmp_path: Path) -> None:
    rows = [{"text": "a b"}, {"text": "a" * (MB + 1)}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    refused(tmp_path / "a.json", "a.json, row 2 is longer than 1 MB")
    pq.write_table(pa.table({"text": [row["text"] for row in rows]}), tmp_path / "a.parquet", compression="none")
    refused(tmp_path / "a.parquet", "a text of a.parquet is longer than 1 MB")


@pytest.mark.parametrize("content", [b"a" * 2**19, b"a b\n" * 2**17], ids=["one line", "many lines"])
def test_a_bomb_of_gzip_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(content, mtime=0))
    refused(path, "a.txt.gz holds more than 100 times its own size")


def test_a_bomb_of_parquet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.data.formats.json_parquet.ALWAYS_BYTES", 2**16)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a b" * 300_000, "b"]}), path, compression="zstd")
    refused(path, "a.parquet holds more than 100 times its own size")
    pq.write_table(pa.table({"text": pa.array(["a b"] * 1_000_000).dictionary_encode()}), path)
    refused(path, "a.parquet holds more than 100 times its own size")


def test_columns_without_text_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": [b"\xff"], "text": ["a b"], "time": pa.array([1], pa.timestamp("ns"))}), path)
    assert texts(path) == ["a b"]
    with pytest.raises(CompressError, match="no column 'image'; it has text"):
        open_source(path, role="unlabeled", labelled=False, text_column="image")


@pytest.mark.parametrize("name", ["p", "gone", "x" * 300, "\udcff.txt", "x" * 300 + "*", "a\0"])
def test_what_is_no_file_is_one_sentence(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "p")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    refused(tmp_path / name, "a pipe|no file|No file|cannot be read|is no path")


def test_a_name_that_is_not_utf8_can_be_printed(tmp_path: Path) -> None:
    path = tmp_path / "\udcff.txt"
    path.write_text("a b\n")
    source = open_source(path, role="unlabeled", labelled=False)
    assert [row.text for row in source] == ["a b"]
    source.describe().encode()
    "".join(source.identity).encode()


def test_what_would_take_squared_time_does_not() -> None:
    marks = Example("a" + "\u0301\u0327" * 200_000)
    assert row_key(marks) == row_key(marks)
    rows = [Example("a " * size) for size in (200_000, 150_000, 100_000)] + [Example("b c")]
    assert len(grouped_split(rows, 0.4, seed=0)[1]) == 1


def test_trees_of_brackets_take_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("(3 " + "(" * 400_000 + "2 a" + ")" * 400_000 + ")\n")
    assert texts(path) == ["a"]


def test_columns_that_stand_twice_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label,label\na b,x,y\nc d,y,x\n")
    with pytest.raises(CompressError, match="a.csv has two columns 'label'"):
        open_source(path, role="train", labelled=True)
    (tmp_path / "a.json").write_text('{"text": ["a", "b"], "label": ["x"]}')
    refused(tmp_path / "a.json", "a.json has columns of different lengths")
