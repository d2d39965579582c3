"""Which files a path, a pattern, a folder or a URI names, and in which order they are read."""

import glob
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from compress.errors import CompressError
from compress.escaping.uris import is_uri, local_path
from compress.files import printable_name
from compress.files.remote import Remote, parquet_parts

DataFile: TypeAlias = tuple[Path, str]  # where it lies, and the URI that it was copied from, if it was
MOST_IN_TURN = 250  # files that are open at the same time; systems allow a thousand
MOST_LISTED = 200_000  # files below a folder
_PARQUET = ".parquet"


def find_files(typed: str) -> tuple[list[DataFile], bool]:
    """Return the files in the order of their names, and whether they are read in turn, a row from each.

    So are those of a pattern, up to 250. More of them, and those of a folder, are Parquet files and are read one after
    the other: a group of rows of each in memory, and all of them open, would be too much.

    Raises:
        CompressError: nothing matches a pattern, or too much.
    """
    if is_uri(typed := local_path(typed)):
        remote = Remote.at(typed)
        found, folder = remote.files()
        _check_number([file.path for file in found], remote.uri)
        files = list(zip(remote.copied(found), [file.uri for file in found], strict=True))
    else:
        names = [typed]
        if not os.path.lexists(typed) and any(mark in typed for mark in "*?["):
            names = sorted(glob.glob(typed))
        if not names:
            raise CompressError(f"No file matches {typed!r}: check the pattern.")
        folder = any(map(os.path.isdir, names))
        paths = [path for name in names for path in (_parts(Path(name)) if os.path.isdir(name) else [Path(name)])]
        _check_number([path.name for path in paths], typed)
        files = [(path, "") for path in paths]
    return files, not folder and len(files) <= MOST_IN_TURN


def _check_number(names: Sequence[str], typed: str) -> None:
    if len(names) > MOST_IN_TURN and not all(name.endswith(_PARQUET) for name in names):
        raise CompressError(
            f"{len(names):,} files match {typed!r}, and at most {MOST_IN_TURN} are read at a time unless all are named "
            f"*{_PARQUET}: check the pattern."
        )


def _parts(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder and the folders in it; none of them may be a link that leaves it."""

    def refuse(error: OSError) -> None:
        raise error

    root = folder.resolve()
    places = ((place, name) for place, _, files in os.walk(folder, onerror=refuse) for name in files)
    names = [os.path.relpath(os.path.join(*one), folder) for one in itertools.islice(places, MOST_LISTED + 1)]
    if len(names) > MOST_LISTED:
        raise CompressError(f"{printable_name(folder)} holds more than {MOST_LISTED:,} files: name a folder in it.")
    if {"state.json", "dataset_dict.json"} & set(names):
        raise CompressError(
            f"{printable_name(folder)} was written by save_to_disk of the library datasets: write splits as Parquet, "
            "by datasets.load_from_disk(...).to_parquet('train.parquet')."
        )
    parts = [folder / name for name in parquet_parts(printable_name(folder), names)]
    for part in parts:
        if not part.resolve().is_relative_to(root):
            raise CompressError(f"{printable_name(part)} is a link that leaves its folder: name the file itself.")
    return parts
