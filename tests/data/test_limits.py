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
from compress.data.formats import parquet, table
from compress.errors import CompressError
from compress.files import TEXT_LIMIT

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


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_marks_and_ends_of_lines_are_dropped(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\ntwo \xc3\xa9\nthree" + end.encode())
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
    refused(tmp_path / "a.parquet", "a.parquet, row 2 is longer than 1 MB")


@pytest.mark.parametrize("content", [b"a" * 2**19, b"a b\n" * 2**17], ids=["one line", "many lines"])
def test_a_bomb_of_gzip_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(content, mtime=0))
    refused(path, "a.txt.gz holds more than 100 times its own size")


def test_a_bomb_of_parquet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ALWAYS_BYTES", 2**16)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a b" * 300_000, "b"]}), path, compression="zstd")
    refused(path, "a.parquet holds more than 100 times its own size")
    state_small_sizes(path)
    assert pq.ParquetFile(path).metadata.row_group(0).total_byte_size == 1
    assert len(pq.read_table(path)["text"][0].as_py()) == 900_000  # which pyarrow does not mind
    refused(path, "a.parquet holds more than 100 times its own size")
    pq.write_table(pa.table({"text": pa.array(["a b"] * 1_000_000).dictionary_encode()}), path)
    refused(path, "a.parquet holds more than 100 times its own size")


def state_small_sizes(path: Path) -> None:
    """Rewrite the unpacked sizes in the metadata of a Parquet file, numbers of as many bytes."""
    metadata, content = pq.ParquetFile(path).metadata, path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[start:]
    group = metadata.row_group(0)
    for size in {group.total_byte_size, group.column(0).total_uncompressed_size}:
        number = varint(2 * size)
        assert number in footer
        footer = footer.replace(number, bytes([0x82, *[0x80] * (len(number) - 2), 0]))
    path.write_bytes(content[:start] + footer)


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def test_a_long_text_that_a_dictionary_repeats_is_not_held_many_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    batches = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile,
        "iter_batches",
        lambda file, **given: asked.append(given["batch_size"]) or batches(file, **given),
    )
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 3 * MB)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a b" * (MB // 4)] * 200}), path, compression="none")
    assert len(texts(path)) == 200 and {*asked} == {3}
    pq.write_table(pa.table({"text": ["a", "b"] * 100}), path)
    assert len(texts(path)) == 200 and {*asked} == {3, parquet._BATCH_ROWS}


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
def test_the_headers_of_pages_are_read_as_pyarrow_reads_them(tmp_path: Path, version: str, compression: str) -> None:
    rows = [f"text {number} {'x' * (number % 300)}." for number in range(5000)]
    columns = {"text": rows, "label": [str(number % 7) for number in range(5000)], "words": [["a", "b"], []] * 2500}
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table(columns),
        path,
        compression=compression,
        data_page_version=version,
        data_page_size=4096,
        row_group_size=2000,
        write_page_checksum=version == "2.0",
    )
    file = pq.ParquetFile(path)
    with path.open("rb") as stream:
        for column in (file.metadata.row_group(g).column(c) for g in range(3) for c in range(3)):
            pages = [*parquet._pages("a", stream, column)]
            assert 0.9 * column.total_uncompressed_size - 60 * len(pages) < sum(pages) < column.total_uncompressed_size
    assert texts(path) == rows


def test_pages_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a b"] * 10}), path)
    for rubbish in (b"\xff" * 12, b"\x00" * 12, b"\x15\x00\x15\x01\x15\x01\x00" * 2):
        path.write_bytes(b"PAR1" + rubbish + path.read_bytes()[4 + len(rubbish) :])
        refused(path, "a.parquet has pages that are not Parquet's")


def test_columns_without_text_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": [b"\xff"], "text": ["a b"], "time": pa.array([1], pa.timestamp("ns"))}), path)
    assert texts(path) == ["a b"]
    with pytest.raises(CompressError, match="no column 'image'; it has text"):
        open_source(path, role="unlabeled", labelled=False, text_column="image")
    images = [pa.array([b"\xff"]), pa.array([b"\xfe"]), pa.array(["a b"])]
    pq.write_table(pa.Table.from_arrays(images, names=["image", "image", "text"]), path)
    assert texts(path) == ["a b"]


def test_text_in_bytes_is_text(tmp_path: Path) -> None:
    """Some writers, such as Hive, store strings as bytes; what is UTF-8 at first and not later is told."""
    path = tmp_path / "a.parquet"
    written = ["caf\u00e9", "a b"]
    for kind in (pa.binary(), pa.large_binary()):
        pq.write_table(
            pa.table({"image": [b"\xff", b"\xfe"], "text": pa.array([x.encode() for x in written], kind)}), path
        )
        assert texts(path) == written
    pq.write_table(pa.table({"text": [b"a b"] * 70_000 + [b"\xff"]}), path)
    refused(path, "a.parquet has bytes in its column 'text' that are not UTF-8")


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
    path.write_text("text,text\na b,x\nc d,y\n")
    with pytest.raises(CompressError, match="a.csv has two columns 'text'"):
        open_source(path, role="train", labelled=True)
    (tmp_path / "a.json").write_text('{"text": ["a", "b"], "label": ["x"]}')
    refused(tmp_path / "a.json", "a.json has columns of different lengths")
