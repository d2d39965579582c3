"""Output directories: nothing is lost, whatever lies there or comes while a command works."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compress.errors import CompressError
from compress.files import write_atomically
from compress.models.manifest import Manifest
from compress.models.output_dir import alone, discard_unfinished, finish, places_of, writing
from tests.support import forked

REQUEST = {"stage": "test", "seed": 0}


def make(target: Path, text: str = "first", kind: str = "model", **options: Any) -> None:
    with writing(target, REQUEST, **options) as working:
        fill(working, text, kind)


def fill(working: Path, text: str = "first", kind: str = "model") -> None:
    (working / "inner").mkdir(exist_ok=True)
    (working / "inner" / "weights").write_text(text)
    finish(working, Manifest(stage="test", kind=kind, notes={"b": 1, "a": 2}))


def tree(directory: Path) -> dict[str, str | None]:
    """Return every file and directory below one with its content; of a link where it leads."""
    return {
        path.relative_to(directory).as_posix(): os.readlink(path)
        if path.is_symlink()
        else path.read_text()
        if path.is_file()
        else None
        for path in directory.rglob("*")
    }


@pytest.fixture
def out(tmp_path: Path) -> Path:
    make(tmp_path / "place" / "out")
    return tmp_path / "place" / "out"


@pytest.mark.parametrize(
    "change",
    [
        lambda out: (out / "pool.txt").write_text("a day's work"),
        lambda out: (out / "inner" / "weights").write_text("tuned by hand"),
        lambda out: (out / "compress.json").write_text("{}"),
        lambda out: (out / "compress.json").unlink(),
        lambda out: (out / "folder").symlink_to(out.parent),
    ],
)
def test_force_moves_what_is_there_aside_whatever_it_is(change: Callable[[Path], Any], out: Path) -> None:
    change(out)
    before = tree(out)
    make(out, "second", force=True)
    assert sorted(tree(out)) == ["README.md", "compress.json", "inner", "inner/weights"]
    assert (out / "inner" / "weights").read_text() == "second" and tree(out.parent / "out.old") == before
    make(out, "third", force=True)
    make(out, "fourth", force=True)
    assert sorted(path.name for path in out.parent.iterdir()) == ["out", "out.old", "out.old.1", "out.old.2"]
    kept = [(out.parent / name / "inner" / "weights").read_text() for name in ("out.old.1", "out.old.2", "out")]
    assert kept == ["second", "third", "fourth"] and tree(out.parent / "out.old") == before


@pytest.mark.parametrize("lay", [lambda path: path.write_text("mine"), lambda path: path.symlink_to("nowhere")])
def test_force_moves_a_file_or_link_aside(lay: Callable[[Path], Any], tmp_path: Path) -> None:
    lay(tmp_path / "out")
    with pytest.raises(CompressError, match="already exists; choose another -o or replace it with --force"):
        make(tmp_path / "out")
    before = tree(tmp_path)["out"]
    make(tmp_path / "out", force=True)
    assert tree(tmp_path)["out.old"] == before and (tmp_path / "out" / "compress.json").is_file()


def test_an_empty_directory_is_no_output(tmp_path: Path) -> None:
    for force in (False, True):
        (tmp_path / f"out-{force}").mkdir()
        make(tmp_path / f"out-{force}", force=force)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-False", "out-True"]


def test_nothing_moves_before_the_work_is_done(out: Path) -> None:
    with pytest.raises(ZeroDivisionError), writing(out, REQUEST, force=True):
        assert (out / "inner" / "weights").read_text() == "first"
        raise ZeroDivisionError
    assert [path.name for path in out.parent.iterdir()] == ["out"]


# What changes while a command runs


def appear(out: Path, kind: str) -> None:
    if kind == "file":
        out.write_text("theirs")
    elif kind == "link":
        (out.parent / "elsewhere").mkdir()
        out.symlink_to("elsewhere")
    else:
        fill(out, "theirs")


@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_what_appears_meanwhile_stays_and_the_same_command_resumes(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(CompressError, match="move it away and repeat the command; what it made lies in .*out.partial"):
        with writing(out, REQUEST, keep=False) as working:
            fill(working)
            if kind == "directory":
                out.mkdir()
            appear(out, kind)
    assert out.is_symlink() or "theirs" in (tree(tmp_path)["out"], tree(tmp_path).get("out/inner/weights"))
    out.rename(tmp_path / "away")
    with writing(out, REQUEST) as working:
        assert (working / "inner" / "weights").read_text() == "first"
    assert (out / "inner" / "weights").is_file() and not (tmp_path / ".out.partial").exists()


@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_force_moves_what_appears_meanwhile_aside(kind: str, tmp_path: Path) -> None:
    with writing(tmp_path / "out", REQUEST, force=True) as working:
        fill(working)
        if kind == "directory":
            (tmp_path / "out").mkdir()
        appear(tmp_path / "out", kind)
    found = tree(tmp_path)
    assert found["out/inner/weights"] == "first"
    assert {"theirs", "elsewhere"} & {found["out.old"], found.get("out.old/inner/weights")}


def test_a_command_killed_between_the_renames_loses_nothing(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == ".out.partial":
            raise KeyboardInterrupt
        return original(self, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", rename)
        make(out, "second", force=True)
    assert sorted(path.name for path in out.parent.iterdir()) == [".out.partial", "out.old"]
    with writing(out, REQUEST) as working:
        assert (working / "inner" / "weights").read_text() == "second"
    assert (out.parent / "out.old" / "inner" / "weights").read_text() == "first"
    assert (out / "inner" / "weights").read_text() == "second"


# Locks

CHILD = """
import sys, time
from pathlib import Path
from compress.models.output_dir import writing
with writing(Path(sys.argv[1]), {"stage": "test", "seed": 0}) as working:
    (working / "shard").write_text("half")
    print("working", flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_nothing_locked(tmp_path: Path) -> None:
    """And while it lives no other process writes the same output."""
    with forked.Forked(["-c", CHILD, str(tmp_path / "out")], stdout=subprocess.PIPE) as child:
        assert child.stdout and child.stdout.readline() == "working\n"
        with pytest.raises(CompressError, match="another command is writing .*out now; wait for it"):
            make(tmp_path / "out")
        child.kill()
    with writing(tmp_path / "out", REQUEST) as working:
        assert (working / "shard").read_text() == "half" and (working / ".lock").is_file()
    assert sorted(tree(tmp_path / "out")) == ["shard"]


def test_a_lock_that_a_command_left_is_taken(tmp_path: Path) -> None:
    (tmp_path / ".out.lock").touch()
    with alone(tmp_path / "out"):
        pass
    assert not any(tmp_path.iterdir())


# Where unfinished work lies


@pytest.mark.parametrize(
    "case", ["link", "file", "of others", "link in it", "lock is a link", "work is a link", "pipe"]
)
def test_no_work_is_done_where_it_would_lead_elsewhere(case: str, tmp_path: Path) -> None:
    elsewhere, working = tmp_path / "elsewhere", tmp_path / "place" / ".out.partial"
    for folder in (elsewhere, working.parent):
        folder.mkdir()
    (elsewhere / "precious").write_text("precious")
    if case == "link":
        working.symlink_to(elsewhere)
    elif case == "file":
        working.write_text("mine")
    else:
        working.mkdir()
        made = {
            "of others": lambda: (working / "notes").write_text("mine"),
            "link in it": lambda: (working / "weights").symlink_to(elsewhere / "precious"),
            "lock is a link": lambda: (working / ".lock").symlink_to(elsewhere / "precious"),
            "work is a link": lambda: (working / ".work").symlink_to(elsewhere),
            "pipe": lambda: os.mkfifo(working / ".lock"),
        }
        made[case]()
    with pytest.raises(CompressError, match=r"\.out\.partial, where unfinished work lies, is .*; move it away"):
        make(tmp_path / "place" / "out", force=True)
    assert tree(elsewhere) == {"precious": "precious"} and not (tmp_path / "place" / "out").exists()
    with pytest.raises(CompressError, match="move it away"):
        discard_unfinished(tmp_path / "place" / "out")
    assert os.path.lexists(working)


def test_work_of_another_user_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated, because only the administrator gives files away."""
    (tmp_path / ".out.partial").mkdir()
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    make(tmp_path / "out")  # some mounts give all files one owner
    (tmp_path / ".other.partial").mkdir()
    if uid == 0:
        os.chown(tmp_path / ".other.partial", 12345, -1)
        with pytest.raises(CompressError, match="is another user's"):
            make(tmp_path / "other")


def test_a_killed_discarding_of_unfinished_work_is_gone_on_with(tmp_path: Path) -> None:
    _, working = places_of(tmp_path / "out")
    (working / ".work" / "pool").mkdir(parents=True)
    (working / ".work" / "pool" / "shard").write_text("x")  # what was asked for is gone
    make(tmp_path / "out", force=True)
    assert (tmp_path / "out" / "compress.json").is_file()


def test_a_text_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "a.json").symlink_to("precious")
    write_atomically(tmp_path / "a.json", "new")
    assert tree(tmp_path) == {"precious": "precious", "a.json": "new"}


def test_work_that_goes_on_is_not_discarded(tmp_path: Path) -> None:
    with writing(tmp_path / "out", REQUEST), pytest.raises(CompressError, match="another command is writing"):
        discard_unfinished(tmp_path / "out")
    assert (tmp_path / "out").is_dir()


def test_a_mount_point_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be renamed to it."""
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "out")
    with pytest.raises(CompressError, match="is a mount point, which cannot be replaced; name a directory in it"):
        make(tmp_path / "out", force=True)


def test_a_lock_that_moved_with_the_finished_work_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another command ended between the opening of its lock and the asking for it."""
    original = fcntl.flock

    def flock(lock: int, operation: int) -> None:
        (tmp_path / ".out.partial").rename(tmp_path / "out")
        original(lock, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(CompressError, match="another command is writing"):
        make(tmp_path / "out")
