"""Names, overlaps and single files of outputs: what cannot be written, or must not be, is refused before the work."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compress.errors import CompressError
from compress.models.output_dir import check_file, keep_apart, output_path, places_of


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/", "//", "a/..", "a\0b", "a\udc80b", "\udc80/out", "a" * 246, "é" * 123]
)
def test_names_that_can_be_no_output(name: str) -> None:
    with pytest.raises(CompressError, match="is no name of a new file or directory|give a name of at most 245"):
        places_of(name)


@pytest.mark.parametrize("name", ["out", "out/", "../out", "./a/b", "a" * 245, "日本", ".hidden", "a b"])
def test_names_that_can(name: str) -> None:
    assert output_path(name) == Path(name)


def test_a_path_longer_than_the_system_takes_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="name too long"):
        check_file(tmp_path / "/".join(["a" * 200] * 30))


@pytest.mark.parametrize(
    ("output", "given", "said"),
    [
        ("data", "data", "is"),
        ("data/./x/..", "data", "is"),
        ("link", "data", "is"),
        ("data", "link", "is"),
        ("data/new/out", "data", "lies in"),
        ("link/out", "data", "lies in"),
        ("data", "data/file", "holds"),
        ("link", "data/file", "holds"),
        ("data", "linked file", "holds"),
        ("file/out", "file", "lies in"),
        ("work", ".work.partial/pool", "holds"),
        ("hard link", "data/file", "is"),
    ],
)
def test_outputs_and_inputs_do_not_overlap(output: str, given: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "data" / "x").mkdir(parents=True)
    (tmp_path / ".work.partial").mkdir()
    for file in ("data/file", "file", ".work.partial/pool"):
        (tmp_path / file).write_text("x")
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "linked file").symlink_to("data/file")
    (tmp_path / "hard link").hardlink_to(tmp_path / "data" / "file")
    target = tmp_path / output
    places = [target, target.with_name(f".{target.name}.partial")]
    with pytest.raises(CompressError, match=f" {said} .*, which this command reads and would change; choose another"):
        keep_apart(places, [tmp_path / "elsewhere", tmp_path / given])


def test_neighbours_are_no_overlap(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    keep_apart([tmp_path / "data-2", tmp_path / "out"], [tmp_path / "data", tmp_path / "loop", "bert-base", "a\0"])


def directory(path: Path) -> None:
    path.mkdir()


def link(path: Path) -> None:
    path.with_name("there").write_text("ours")
    path.symlink_to("there")


@pytest.mark.parametrize(
    ("lay", "message"),
    [
        (lambda path: path.write_text("ours"), "already exists; choose another -o or replace it with --force"),
        (lambda path: path.touch(), "already exists"),
        (directory, "is a directory; give a file in it"),
        (link, "is a link or a device"),
        (lambda path: path.symlink_to("nowhere"), "is a link or a device"),
        (os.mkfifo, "is a link or a device"),
    ],
)
def test_files_that_are_not_written_over(lay: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    lay(tmp_path / "file")
    with pytest.raises(CompressError, match=message):
        check_file(tmp_path / "file", force=False)


def test_devices_stay_devices() -> None:
    """An administrator's rename would make a file of them."""
    with pytest.raises(CompressError, match="is a link or a device"):
        check_file("/dev/null")
