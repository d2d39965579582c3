"""Open files that somebody else may have made: regular files, of bounded size, with the content that they should have.

Everything that reads a file of a user goes through these functions, so that a broken file, a hostile one, a pipe or a
device costs one sentence.
"""

import errno
import json
import math
import os
import re
import stat
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compress.errors import USED_UP, CompressError, refuse, system_fault

# Limits of size; COMPRESS_MAX_TEXT_MB raises the first four, of files that are read whole, as it raises that of text.
JSON_LIMIT_BYTES = 2**26
TOML_LIMIT_BYTES = 2**20
CONFIG_LIMIT_BYTES = 2**24  # of a model
RESULTS_LIMIT_BYTES = 2**28
TEXT_LIMIT = "COMPRESS_MAX_TEXT_MB"  # the environment variable that raises the limits of texts and files
_TEXT_LIMIT_MB = 16
JSON_DATA_BYTES = 2**27  # of data that are not read line by line; in memory they are up to 25 times as large
# What a gzip or Parquet file may hold: a hundred times its own size, or this if that is more. Text has a tenth.
LARGEST_RATIO = 100
ALWAYS_BYTES = 2**26
UNANNOUNCED_BYTES = 2 * 10**9  # of a remote file whose size is not known before
KEPT_FREE_BYTES = 2**28  # of the disk, when files are copied
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
# What a disk or its rights say is no fault of the file that is read; the command line has sentences for these.
_OF_THE_SYSTEM = USED_UP | {errno.EACCES, errno.EPERM, errno.EROFS}


# Of these an exception that Python code of this project raises itself is a fault of that code, whatever the file.
_OF_CODE = (AssertionError, AttributeError, LookupError, NameError, NotImplementedError)


@contextmanager
def faults_of(
    path: str | Path, what: str, advice: str = "copy or make it again", *, verb: str = "read as", own: bool = True
) -> Iterator[None]:
    """Turn whatever a library raises while it works on a user's file into one sentence about that file.

    Args:
        path: the file or directory that is read in the block, and nothing else.
        what: what it should be, such as ``"a tokenizer"``.
        advice: what to do then.
        verb: what is done with it.
        own: whether a mistake that this project's own code makes in the block, such as a name that is not in a table,
            is the file's fault too, as where a record is taken apart.

    Raises:
        CompressError: instead of any exception, but for those of the system, of memory and of interruption.
    """
    try:
        yield
    except BaseException as error:
        fault = fault_of(error, path, f"{verb} {what}", advice, own=own)
        if fault is error:
            raise
        raise fault from error


def fault_of(error: BaseException, path: str | Path, done: str, advice: str, *, own: bool) -> BaseException:
    """Return what :func:`faults_of` raises; the exception itself, where it says nothing of the file."""
    # Of libraries in Rust, which make it no Exception:
    is_fault = isinstance(error, Exception) or type(error).__name__ == "PanicException"
    if not is_fault or isinstance(error, CompressError | MemoryError | ModuleNotFoundError):
        return error
    if isinstance(error, OSError):
        if error.errno in _OF_THE_SYSTEM:
            return error
    elif number := system_fault(error):
        return OSError(number, os.strerror(number), str(path))
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not own and isinstance(error, _OF_CODE) and frames[-1].f_globals["__name__"].startswith("compress."):
        return error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
    return CompressError(f"{path} cannot be {done} ({reason}); {advice}")


def regular_file(path: Path, limit_bytes: int | None = None) -> Path:
    """Return the path of a regular file, links followed, that is no larger than a limit.

    ``COMPRESS_MAX_TEXT_MB`` raises the limit as many times as that of texts.

    Raises:
        CompressError: nothing is there, it is a directory, a pipe, a socket or a device, or too large.
    """
    try:
        found = path.stat()
    except OSError as error:
        if error.errno in USED_UP:
            raise
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        fault = f"There is no file {str(path)!r}" if is_missing else f"{path} cannot be read ({error.strerror})"
        raise CompressError(f"{fault}: check the path.") from None
    except ValueError:  # a zero byte
        raise CompressError(f"{str(path)!r} is no path: check it.") from None
    if not stat.S_ISREG(found.st_mode):
        is_folder = stat.S_ISDIR(found.st_mode)
        kind = "a directory" if is_folder else "a pipe, a socket or a device"
        advice = "name a file in it" if is_folder else "write it to a file first"
        raise CompressError(f"{path} is {kind}, but a file is needed: {advice}.")
    if limit_bytes is not None:
        limit_bytes = max(limit_bytes, limit_bytes * text_limit_bytes() // (_TEXT_LIMIT_MB * 10**6))
        refuse(
            (
                found.st_size > limit_bytes,
                f"{path} has {found.st_size:,} bytes; at most {limit_bytes:,} are read: give a smaller one, or set "
                f"{TEXT_LIMIT} above {_TEXT_LIMIT_MB}, which raises this limit as many times.",
            )
        )
    return path


def read_text(path: Path, limit_bytes: int = JSON_LIMIT_BYTES) -> str:
    """Return the text of a UTF-8 file.

    Raises:
        CompressError: it is no regular file, too large, or not UTF-8.
    """
    regular_file(path, limit_bytes)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CompressError(f"{path} is not UTF-8 text (byte {error.start:,}): convert it or make it again") from None


def read_json_table(path: Path, limit_bytes: int = JSON_LIMIT_BYTES) -> dict[str, Any]:
    """Return the table that a JSON file holds.

    Raises:
        CompressError: it is no regular file, too large, not valid JSON, or holds something else.
    """
    found = parse_json(read_text(path, limit_bytes), str(path))
    if not isinstance(found, dict):
        raise CompressError(f"{path} is not valid here: it holds no table ({{...}}); copy or make it again")
    return found


def parse_json(text: str, name: str, *, halves: bool = False) -> Any:
    """Return what JSON text holds; NaN and infinities, which JSON does not have, are refused.

    Args:
        name: what the text is called when something is wrong with it.
        halves: whether strings may hold halves of characters (``"\\ud800"``), which no file can be written with.

    Raises:
        CompressError: it is not valid, nested too deeply, or has a number that is too large.
    """
    try:
        found = _DECODER.decode(text)
        if not halves and _HALF_CHARACTER.search(text):
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except (RecursionError, ValueError) as error:
        raise CompressError(f"{name} is not valid JSON ({_reason(error)}); copy or make it again") from error


def _reason(error: Exception) -> str:
    """Say why text is not valid: too deep, half a character, or such as an integer of more digits than Python reads."""
    known = {RecursionError: "nested too deeply", UnicodeEncodeError: "a string holds half a character"}
    return known.get(type(error), str(error).partition(";")[0])


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is no finite number")
    return value


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table that a TOML file holds.

    Raises:
        CompressError: it is no regular file, too large, or not valid TOML.
    """
    import tomllib

    try:
        return tomllib.loads(read_text(path, TOML_LIMIT_BYTES).removeprefix("\ufeff"))
    except (RecursionError, ValueError) as error:
        raise CompressError(f"{path} is not valid TOML ({_reason(error)}): correct it") from None


def text_limit_bytes() -> int:
    """Return how long a text, and a line or row of a file of texts, may be.

    A tokenizer takes a hundred times the memory of its text. ``COMPRESS_MAX_TEXT_MB`` raises the limit.
    """
    given = os.environ.get(TEXT_LIMIT) or str(_TEXT_LIMIT_MB)
    refuse(
        (
            not re.fullmatch("[1-9][0-9]{0,5}", given),
            f"{TEXT_LIMIT} is {given!r}: give a whole number of megabytes, such as 64",
        )
    )
    return int(given) * 10**6


def too_long(where: str, limit_bytes: int) -> CompressError:
    """Return the error for a text, or a line or row of a file of texts, that is longer than the limit."""
    return CompressError(
        f"{where} is longer than {limit_bytes // 10**6} MB: cut the text, or set {TEXT_LIMIT} to a larger number"
    )


def printable_name(path: str | Path) -> str:
    """Return a path as it can be written: bytes of a name that are not UTF-8 as ``\\udcff``."""
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


def write_atomically(path: Path, text: str) -> None:
    """Write a text file whole or not at all; a link at its name is replaced, not followed."""
    import secrets

    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")  # of no name that could be too long, or lie there
    try:
        temporary.touch(exist_ok=False)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines, whole or not at all; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))
