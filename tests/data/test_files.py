"""Files of others: regular, bounded, valid; and the exceptions of libraries as faults of a file."""

import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from compress.errors import CompressError
from compress.files import (
    TEXT_LIMIT,
    faults_of,
    parse_json,
    read_json_table,
    read_text,
    read_toml,
    regular_file,
    text_limit_bytes,
)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: None, "no file"),
        (lambda path: path.mkdir(), "is a directory"),
        (os.mkfifo, "a pipe, a socket or a device"),
        (make_socket, "a pipe, a socket or a device"),
        (lambda path: path.symlink_to("/dev/zero"), "a pipe, a socket or a device"),
        (lambda path: path.symlink_to(path), "cannot be read"),
    ],
    ids=["absent", "directory", "fifo", "socket", "device", "loop"],
)
def test_only_regular_files_are_read(tmp_path: Path, make: Callable[[Path], None], expected: str) -> None:
    path = tmp_path / "f"
    make(path)
    with pytest.raises(CompressError, match=expected):
        regular_file(path)


def test_a_file_above_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text('{"a": 12}')
    assert read_json_table(path, limit_bytes=9) == {"a": 12}
    with pytest.raises(CompressError, match="9 bytes; at most 8"):
        read_json_table(path, limit_bytes=8)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, "1" * 5000, '{"a": NaN}', "[-Infinity]", "1e", '"\n"', "1e999", '"\\ud800"']
)
def test_broken_json_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(CompressError, match="f.json is not valid JSON"):
        read_json_table(path)


def test_json_of_another_form_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text("[1]")
    with pytest.raises(CompressError, match="holds no table"):
        read_json_table(path)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(CompressError, match="not UTF-8 text .byte 3"):
        read_text(path)


class PanicException(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize("error", [KeyError("a"), RecursionError(), PanicException("index\nout of bounds"), OSError()])
def test_what_a_library_raises_is_a_fault_of_the_file(error: BaseException) -> None:
    with pytest.raises(CompressError, match="^m cannot be read as a model ") as caught, faults_of("m", "a model"):
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [CompressError("as it is"), KeyboardInterrupt(), MemoryError(), OSError(errno.ENOSPC, "full")]
)
def test_what_is_no_fault_of_the_file_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, faults_of("m", "a model"):
        raise error
    assert caught.value is error


def test_fault_of_own_code_stays_one_where_it_works_on_a_file() -> None:
    """As in running a network: a table of ours lacks a name. What a library raises there is the file's fault."""

    code = compile("{}['x']", "ours.py", "eval")
    with pytest.raises(KeyError), faults_of("m", "a model", verb="run as", own=False):
        eval(code, {"__name__": "compress.models.example"})
    with (
        pytest.raises(CompressError, match="^m cannot be run as a model "),
        faults_of("m", "a model", verb="run as", own=False),
    ):
        json.loads("{")


def test_half_a_character_is_read_where_it_is_replaced_later() -> None:
    assert parse_json('"\\ud83d\\ude00"', "x") == "\U0001f600"
    assert parse_json('"\\ud83d"', "x", halves=True) == "\ud83d"


@pytest.mark.parametrize("text", ["a = ", "a = " + "[" * 100_000, "a = " + "1" * 5000])
def test_broken_toml_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.toml"
    path.write_text(text)
    with pytest.raises(CompressError, match="f.toml is not valid TOML"):
        read_toml(path)


def test_the_limit_of_a_file_is_raised_with_that_of_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.json"
    path.write_text("[1, 2, 3]")
    with pytest.raises(CompressError, match="9 bytes; at most 8 are read.*COMPRESS_MAX_TEXT_MB above 16"):
        regular_file(path, limit_bytes=8)
    monkeypatch.setenv(TEXT_LIMIT, "32")
    assert regular_file(path, limit_bytes=8) == path
    monkeypatch.setenv(TEXT_LIMIT, "1")
    assert regular_file(path, limit_bytes=9) == path


def test_the_limit_of_a_text_can_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    assert text_limit_bytes() == 16_000_000
    monkeypatch.setenv(TEXT_LIMIT, "64")
    assert text_limit_bytes() == 64_000_000
    monkeypatch.setenv(TEXT_LIMIT, "0")
    with pytest.raises(CompressError, match="COMPRESS_MAX_TEXT_MB is '0': give a whole number"):
        text_limit_bytes()


def test_a_long_message_shows_its_start_and_its_end() -> None:
    assert str(CompressError("a" * 9000 + "type this")).endswith("type this")
    assert len(str(CompressError("a" * 9000))) < 5000
