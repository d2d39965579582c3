"""Outputs of stages: nothing is lost that this project did not write, whatever lies there or comes while it works."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compress.errors import CompressError
from compress.models.manifest import Manifest
from compress.models.output_dir import (
    discard,
    discard_unfinished,
    finish,
    places_of,
    write_atomically,
    writing,
)
from compress.models.signatures import is_signed, signed

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


def refused(target: Path, match: str, **options: Any) -> None:
    """Check that nothing at all changes."""
    before = tree(target.parent)
    with pytest.raises(CompressError, match=match):
        make(target, "second", force=True, **options)
    assert tree(target.parent) == before


@pytest.fixture
def out(tmp_path: Path) -> Path:
    make(tmp_path / "place" / "out")
    return tmp_path / "place" / "out"


def link(path: Path, to: Path) -> None:
    path.unlink()
    path.symlink_to(to)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda out: (out / "pool.txt").write_text("a day's work"), "pool.txt"),
        (lambda out: (out / ".notes").write_text("x"), ".notes"),
        (lambda out: (out / "inner" / "more").write_text("x"), "inner/more"),
        (lambda out: (out / "inner" / "weights").write_text("tuned by hand"), "inner/weights"),
        (lambda out: (out / "README.md").write_text("# My model"), "README.md"),
        (lambda out: (out / "README.md").write_bytes(b"\xff"), "README.md"),
        (lambda out: link(out / "inner" / "weights", out / "README.md"), "inner/weights"),
        (lambda out: (out / "folder").symlink_to(out.parent), "folder"),
        (lambda out: os.mkfifo(out / "pipe"), "pipe"),
    ],
)
def test_force_does_not_replace_what_compress_did_not_write(
    change: Callable[[Path], None], named: str, tmp_path: Path
) -> None:
    make(tmp_path / "out")
    change(tmp_path / "out")
    with pytest.raises(CompressError, match=f"holds {named}, .* move that away or choose another -o"):
        make(tmp_path / "out", "second", force=True)
    assert (tmp_path / "out" / "inner" / "weights").read_bytes() != b"second" and len(list(tmp_path.iterdir())) == 1


def test_force_replaces_what_compress_wrote(out: Path) -> None:
    (out / "inner" / "empty").mkdir()
    (out / ".lock").touch()  # of a command that was killed after the directory got its name
    (out / ".work").mkdir()
    (out / ".work" / "request.json").touch()
    make(out, "second", force=True)
    assert sorted(tree(out)) == ["README.md", "compress.json", "inner", "inner/weights"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert (out / "inner" / "weights").read_text() == "second"


def test_a_card_of_another_version_is_known_by_its_signature(out: Path) -> None:
    assert is_signed((out / "README.md").read_text())
    (out / "README.md").write_text(signed("# As another version writes it\n"))
    make(out, "second", force=True)
    assert (out / "inner" / "weights").read_text() == "second"


def test_the_readme_of_what_has_no_card_is_the_users(tmp_path: Path) -> None:
    make(tmp_path / "out", kind="labels")
    (tmp_path / "out" / "README.md").write_text("what these labels are")
    refused(tmp_path / "out", "holds README.md")


@pytest.mark.parametrize("manifest", ["{}", "[]", "", '{"format_version": 1, "stage": ""}', "\0"])
def test_a_manifest_of_others_makes_nothing_ours(manifest: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "compress.json").write_text(manifest)
    (tmp_path / "out" / "thesis.tex").write_text("x")
    refused(tmp_path / "out", "compress.json|was not made by compress")


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
@pytest.mark.parametrize("force", [False, True])
def test_what_appears_meanwhile_stays_and_the_same_command_resumes(kind: str, force: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(CompressError, match="move it away and repeat the command; what it made lies in .*out.partial"):
        with writing(out, REQUEST, force=force, keep=False) as working:
            fill(working)
            if kind == "directory":
                out.mkdir()
            appear(out, kind)
    assert out.is_symlink() or "theirs" in (tree(tmp_path)["out"], tree(tmp_path).get("out/inner/weights"))
    out.rename(tmp_path / "away")
    with writing(out, REQUEST) as working:
        assert (working / "inner" / "weights").read_text() == "first"
    assert (out / "inner" / "weights").is_file() and not (tmp_path / ".out.partial").exists()


@pytest.mark.parametrize("name", ["notes.txt", "inner/weights"])
def test_force_keeps_what_somebody_changes_meanwhile(name: str, out: Path) -> None:
    with pytest.raises(CompressError, match="appeared or was changed while this command ran"):
        with writing(out, REQUEST, force=True) as working:
            fill(working, "second")
            (out / name).write_text("theirs")
    assert (out / name).read_text() == "theirs" and (out.parent / ".out.partial" / "compress.json").is_file()


def test_force_keeps_another_result_of_ours_that_appears_meanwhile(out: Path) -> None:
    with pytest.raises(CompressError, match="it is another one now"), writing(out, REQUEST, force=True) as working:
        fill(working, "second")
        out.rename(out.parent / "mine")
        out.mkdir()
        fill(out, "theirs")
    assert (out / "inner" / "weights").read_text() == "theirs"


def test_the_old_one_comes_back_when_the_new_one_cannot_get_its_name(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == ".out.partial":
            raise OSError(5, "Input/output error")
        return original(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(CompressError, match="Input/output error"):
        make(out, "second", force=True)
    assert (out / "inner" / "weights").read_text() == "first" and not (out.parent / ".out.previous").exists()


# What a killed command had set aside


def test_what_was_set_aside_comes_back_where_nothing_replaced_it(out: Path) -> None:
    out.rename(out.parent / ".out.previous")
    with pytest.raises(CompressError, match="already exists"):
        make(out, "second")
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert (out / "inner" / "weights").read_text() == "first"


def test_what_was_set_aside_is_deleted_where_something_replaced_it(out: Path) -> None:
    out.rename(out.parent / ".out.previous")
    fill_as_target(out)
    with pytest.raises(CompressError, match="already exists"):
        make(out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert (out / "inner" / "weights").read_text() == "second"


def fill_as_target(out: Path) -> None:
    out.mkdir()
    fill(out, "second")


@pytest.mark.parametrize("case", ["more in it", "no whole replacement", "a link", "not ours"])
def test_what_was_set_aside_stays_where_it_may_be_the_only_copy(case: str, out: Path) -> None:
    aside = out.parent / ".out.previous"
    out.rename(aside)
    if case == "more in it":
        (aside / "pool.txt").write_text("x")
        fill_as_target(out)
    elif case == "no whole replacement":
        out.mkdir()
        (out / "thesis.tex").write_text("x")
    elif case == "a link":
        aside.rename(out.parent / "elsewhere")
        aside.symlink_to("elsewhere")
        fill_as_target(out)
    else:
        (aside / "compress.json").unlink()
    refused(out, "out.previous, where a killed command sets aside.* move it away")


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
    _, working, _ = places_of(tmp_path / "out")
    (working / ".work" / "pool").mkdir(parents=True)
    (working / ".work" / "pool" / "shard").write_text("x")  # what was asked for is gone
    make(tmp_path / "out", force=True)
    assert (tmp_path / "out" / "compress.json").is_file()


def test_a_text_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "a.json").symlink_to("precious")
    write_atomically(tmp_path / "a.json", "new")
    assert tree(tmp_path) == {"precious": "precious", "a.json": "new"}


# Deleting


def test_only_what_is_ours_is_discarded(out: Path) -> None:
    (out / "pool.txt").write_text("x")
    with pytest.raises(CompressError, match="pool.txt"):
        discard(out)
    (out / "pool.txt").unlink()
    discard(out)
    assert not out.exists()


def test_work_that_goes_on_is_not_discarded(tmp_path: Path) -> None:
    with writing(tmp_path / "out", REQUEST), pytest.raises(CompressError, match="another command is writing"):
        discard_unfinished(tmp_path / "out")
    assert (tmp_path / "out").is_dir()


def test_a_mount_point_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be renamed to it."""
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "out")
    refused(tmp_path / "out", "is a mount point, which cannot be replaced; name a directory in it")


def test_a_lock_that_moved_with_the_finished_work_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another command ended between the opening of its lock and the asking for it."""
    original = fcntl.flock

    def flock(lock: int, operation: int) -> None:
        (tmp_path / ".out.partial").rename(tmp_path / "out")
        original(lock, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(CompressError, match="another command is writing"):
        make(tmp_path / "out")
