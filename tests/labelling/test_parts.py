"""Parts of labels: shards in turn, and together the bytes of one command that labelled the whole text."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compress
from compress.cli import execute
from compress.data import Example
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.labelling import label as label_module
from compress.labelling import parts as merge_module
from compress.labelling.label import Engine
from compress.labelling.label_dir import LabelDir, write_shard
from compress.models.manifest import MANIFEST_NAME, Manifest, describe_files
from compress.requests.labelling import merge_labels
from compress.tasks import default
from tests.labelling.test_label import ROWS, pool, text_file, tree
from tests.support.labelling import LabelOptions, label
from tests.support.tiny import classifier, write

ONE = Compute(threads=1)
PARTS = 3


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return text_file(tmp_path / "pool.txt")


@pytest.fixture
def parts(teacher: Path, text: Path, tmp_path: Path, small_shards: None) -> list[Path]:
    """Five shards in three parts: 0 and 3, 1 and 4, 2."""
    made = [tmp_path / f"part-{number}" for number in range(1, PARTS + 1)]
    for number, path in enumerate(made, 1):
        label(teacher, pool(text), path, compute=ONE, options=LabelOptions(part=(number, PARTS)))
    return made


def shards(directory: Path) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.parquet"))


def relabelled(
    parts: list[Path],
    teacher: Path,
    text: Path,
    *,
    by: Path | None = None,
    source: Path | None = None,
    threads: int = 1,
    **changed: Any,
) -> None:
    """Make the second part again, in another way."""
    options = LabelOptions(**{"part": (2, PARTS), **changed})
    label(by or teacher, pool(source or text), parts[1], compute=Compute(threads=threads), options=options, force=True)


def test_parts_together_are_what_one_command_writes(parts: list[Path], teacher: Path, text: Path) -> None:
    assert [shards(part) for part in parts] == [
        ["shard-00000", "shard-00003"],
        ["shard-00001", "shard-00004"],
        ["shard-00002"],
    ]
    whole = label(teacher, pool(text), text.parent / "whole" / "labels", compute=ONE)
    joined = merge_labels([parts[1], parts[2], parts[0]], text.parent / "labels")
    assert tree(joined.path) == tree(whole.path)  # compress.json too
    assert LabelDir.open(joined.path) == joined and joined.rows == ROWS == len(list(joined))
    assert (joined.path / "shard-00000.parquet").samefile(parts[0] / "shard-00000.parquet")
    assert not (text.parent / ".labels.partial").exists()


@pytest.mark.parametrize("why", ["no links", "another mode"])
def test_shards_are_copied_where_a_link_cannot_be_or_would_change_the_part(
    why: str, parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = parts[0] / "shard-00000.parquet"

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    if why == "no links":
        monkeypatch.setattr(os, "link", refuse)
    else:
        shard.chmod(0o400)
    joined = merge_labels(parts, tmp_path / "labels").path / shard.name
    assert joined.read_bytes() == shard.read_bytes() and not joined.samefile(shard)
    assert why == "no links" or shard.stat().st_mode & 0o777 == 0o400


def test_a_part_may_be_empty(teacher: Path, tmp_path: Path, small_shards: None) -> None:
    """An array job of more tasks than there are shards ends without a failure."""
    text = text_file(tmp_path / "pool.txt", 10)  # two shards
    paths = [tmp_path / f"part-{number}" for number in range(1, 5)]
    for number, path in enumerate(paths, 1):
        label(teacher, pool(text), path, compute=ONE, options=LabelOptions(part=(number, 4)))
    assert [len(shards(path)) for path in paths] == [1, 1, 0, 0]
    assert len(list(merge_labels(paths, tmp_path / "labels"))) == 10


def test_a_part_goes_on_after_an_interruption(
    teacher: Path,
    text: Path,
    parts: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[int] = []
    original = label_module.write_shard

    def stopping(directory: Path, number: int, *rest: Any) -> None:
        written.append(number)
        if written == [1, 4]:
            raise KeyboardInterrupt
        original(directory, number, *rest)

    monkeypatch.setattr(label_module, "write_shard", stopping)
    output = text.parent / "again" / "part-2"
    with pytest.raises(KeyboardInterrupt):
        label(teacher, pool(text), output, compute=ONE, options=LabelOptions(part=(2, PARTS)))
    for other in ((1, PARTS), (2, 4), None):
        with pytest.raises(CompressError, match="holds unfinished work of another command"):
            label(teacher, pool(text), output, compute=ONE, options=LabelOptions(part=other))
    label(teacher, pool(text), output, compute=ONE, options=LabelOptions(part=(2, PARTS)))
    assert written == [1, 4, 4] and tree(output) == tree(parts[1])


def test_any_engine_and_any_order_write_the_same_bytes(
    teacher: Path,
    text: Path,
    small_shards: None,
) -> None:
    class Backwards(Engine):
        def run(self, *given: Any) -> Any:
            yield from reversed(list(super().run(*given)))

    one, other = (text.parent / name / "labels" for name in ("one", "other"))
    label(teacher, pool(text), one, compute=ONE)
    label(teacher, pool(text), other, compute=ONE, options=LabelOptions(engine=Backwards()))
    assert tree(one) == tree(other)


def test_an_engine_that_stops_is_closed(teacher: Path, text: Path, small_shards: None) -> None:
    """What it holds, such as worker processes, ends with the command and not with the garbage collection."""
    ended = []

    class Ending(Engine):
        def run(self, *given: Any) -> Any:
            try:
                yield from super().run(*given)
            finally:
                ended.append(True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_module, "write_shard", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            label(teacher, pool(text), text.parent / "labels", compute=ONE, options=LabelOptions(engine=Ending()))
        assert ended == [True]


# Killed


def test_a_killed_merge_starts_again(parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = merge_module.link_or_copy
    left = [3]

    def stopping(source: Path, target: Path, *rest: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            target.write_bytes(source.read_bytes()[:10])  # a copy that was cut short
            raise KeyboardInterrupt
        original(source, target, *rest)

    monkeypatch.setattr(merge_module, "link_or_copy", stopping)
    with pytest.raises(KeyboardInterrupt):
        merge_labels(parts, tmp_path / "labels")
    assert not (tmp_path / "labels").exists()
    assert len(list(merge_labels(parts, tmp_path / "labels"))) == ROWS


# Refusals


def test_a_part_is_no_label_directory(parts: list[Path], teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="part-1 holds part 1 of 3 of labels; join all parts with 'compress labels"):
        LabelDir.open(parts[0])
    whole = merge_labels(parts, tmp_path / "labels").path
    with pytest.raises(CompressError, match="labels holds whole labels, not a part of them; use it as it is"):
        merge_labels([whole], tmp_path / "more")


Change = Callable[[list[Path], Path, Path], Any]
DIFFERENT: dict[str, tuple[Change, str]] = {
    "teacher": (
        lambda parts, teacher, text: relabelled(
            parts, teacher, text, by=write(text.parent / "other", classifier("bert", seed=1))
        ),
        "the teacher differs; label one of them again",
    ),
    "text": (
        lambda parts, teacher, text: relabelled(
            parts, teacher, text, source=text_file(text.parent / "more.txt", ROWS + 1)
        ),
        "the text or the order of its rows differs",
    ),
    "order": (
        lambda parts, teacher, text: relabelled(
            parts, teacher, text, source=backwards(text, text.parent / "backwards.txt")
        ),
        "the text or the order of its rows differs",
    ),
    "length": (
        lambda parts, teacher, text: relabelled(parts, teacher, text, max_length=16),
        r"--max-length differs \(16 and 64\)",
    ),
    "precision": (
        lambda parts, teacher, text: relabelled(parts, teacher, text, precision="bfloat16"),
        r"--precision differs \(bfloat16 and float32\)",
    ),
    "number": (
        lambda parts, teacher, text: relabelled(parts, teacher, text, part=(2, 4)),
        r"the number of parts differs \(4 and 3\)",
    ),
    "missing": (lambda parts, teacher, text: parts.pop(1), r"1 of 3 parts are missing: 2; .* with --shard 2/3"),
    "twice": (lambda parts, teacher, text: parts.append(parts[1]), "are both part 2/3; name one of them"),
    "none": (lambda parts, teacher, text: parts.clear(), "no part was named"),
    "unfinished": (
        lambda parts, teacher, text: (parts[1] / MANIFEST_NAME).unlink(),
        "part-2 is not a finished label directory",
    ),
    "damaged": (
        lambda parts, teacher, text: (parts[1] / "shard-00001.parquet").write_bytes(b"?"),
        "shard-00001.parquet is not the file that compress.json names",
    ),
    "incomplete": (
        lambda parts, teacher, text: edited(parts[1], lambda it: it["files"].popitem()),
        "part-2 lacks shard",
    ),
    "notes": (
        lambda parts, teacher, text: edited(parts[1], lambda it: it["notes"].update(part=7)),
        "there is no part 7 of 3",
    ),
    "a million million parts": (
        lambda parts, teacher, text: all_edited(parts, lambda it: it["notes"].update(parts=10**12)),
        r"999,999,999,997 of 1,000,000,000,000 parts are missing: 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, \.\.\.; name",
    ),
    "a million million rows": (
        lambda parts, teacher, text: all_edited(parts, lambda it: it["data"][0].update(rows=10**12)),
        "part-1 lacks shard-00006",
    ),
}


def backwards(text: Path, other: Path) -> Path:
    other.write_text("\n".join(reversed(text.read_text().splitlines())) + "\n")
    return other


def edited(part: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    manifest = json.loads((part / MANIFEST_NAME).read_text())
    change(manifest)
    (part / MANIFEST_NAME).write_text(json.dumps(manifest))


def all_edited(parts: list[Path], change: Callable[[dict[str, Any]], Any]) -> None:
    for part in parts:
        edited(part, change)


@pytest.mark.parametrize("case", DIFFERENT)
def test_parts_that_do_not_make_labels_are_refused(
    case: str, parts: list[Path], teacher: Path, text: Path, tmp_path: Path
) -> None:
    change, message = DIFFERENT[case]
    change(parts, teacher, text)
    with pytest.raises(CompressError, match=message):
        merge_labels(parts, tmp_path / "labels")
    assert not (tmp_path / "labels").exists() and not (tmp_path / ".labels.partial").exists()


def test_parts_of_other_threads_are_joined_and_recorded(parts: list[Path], teacher: Path, text: Path) -> None:
    """Machines of a cluster differ."""
    relabelled(parts, teacher, text, threads=2)
    joined = merge_labels(parts, text.parent / "labels")
    assert joined.manifest.notes["threads"] == "1, 2" and joined.manifest.notes["runtime"] == "torch"


def test_an_output_that_is_a_part_is_refused(parts: list[Path]) -> None:
    with pytest.raises(CompressError, match="-o .*part-1 is .*part-1, which this command reads"):
        merge_labels(parts, parts[0], force=True)


@pytest.mark.slow
def test_a_thousand_parts(tmp_path: Path) -> None:
    count = 1000
    for number in range(1, count + 1):
        path = tmp_path / f"part-{number}"
        path.mkdir()
        write_shard(path, number - 1, [Example(f"text {number}")], np.ones((1, 2), np.float32), {}, default())
        notes = {"part": number, "parts": count, "tokenizer_sha256": "a", "shards_sha256": "b", "threads": number % 9}
        notes |= {"max_length": 64, "precision": "float32", "shard_rows": 1}
        described: dict[str, Any] = {
            "labels": ("0", "1"),
            "parents": ({"role": "teacher", "name": "t", "sha256": "a" * 64},),
            "data": ({"role": "unlabeled", "name": "pool", "rows": count},),
            "files": describe_files(path),
        }
        manifest = Manifest(stage="label", kind="labels", notes=notes, **described)
        (path / MANIFEST_NAME).write_text(manifest.to_json())
    joined = merge_labels(list(tmp_path.glob("part-*")), tmp_path / "labels")
    assert [example.text for example, _ in joined] == [f"text {number}" for number in range(1, count + 1)]
    assert joined.manifest.notes["threads"] == "1, 2, 3, 4, 5, 6, 7, 8, 0"
    for number in range(7, 20):
        shutil.rmtree(tmp_path / f"part-{number}")
    with pytest.raises(CompressError, match=r"13 of 1,000 parts are missing: 7, .*, 16, \.\.\.; name"):
        merge_labels(list(tmp_path.glob("part-*")), tmp_path / "labels-2")


# As users type it


@pytest.mark.parametrize("value", ["0/4", "5/4", "x/4", "4", "1/4/2", "-1/4", "1/0", "1/99999999999", "１/4"])
def test_what_is_no_part_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["label", "--teacher", "t", "--unlabeled", "u", "-o", "o", "--shard", value]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"Error: shard = {value!r} ") and said.count("\n") == 1
    assert "is not K/N with K from 1 to N, such as 1/4 to 4/4" in said


def test_an_empty_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["label", "--teacher", "t", "--unlabeled", "u", "-o", "o", "--shard", ""]) == 2
    assert "'--shard': it is empty: give a value or leave it out" in capsys.readouterr().err


@pytest.mark.parametrize("shard", [(0, 4), (5, 4), (1, 0)])
def test_what_is_no_part_is_refused_in_python(shard: tuple[int, int]) -> None:
    with pytest.raises(CompressError, match="shard = .* is not K/N with K from 1 to N"):
        compress.label("t", "u", "o", shard=shard)


def test_the_commands(
    teacher: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        given = ["--teacher", str(teacher), "--unlabeled", "pool.txt", "--threads", "1"]
        assert execute(["label", *given, "--shard", f"{number}/2", "-o", f"part-{number}"]) == 0
    assert "part-1: part 1 of 2 of 40 rows labelled on torch (cpu, 1 thread, float32)" in capsys.readouterr().out
    distilled = ["--teacher", str(teacher), "--student", "bilstm", "--labels", "part-1", "-o", "student"]
    assert execute(["distill", *distilled]) == 2
    assert "compress labels merge" in capsys.readouterr().err
    assert execute(["labels", "merge", "part-1", "part-2", "-o", "labels"]) == 0
    assert capsys.readouterr().out == "labels: 40 rows of 2 parts\n"
    assert execute(["labels", "merge", "part-1", "part-2", "-o", "labels"]) == 2
    assert "labels already exists" in capsys.readouterr().err
    assert execute(["labels", "merge", "part-1", "part-2", "-o", "labels", "--force", "-q"]) == 0
    assert execute(["labels", "merge", "-o", "labels"]) == 2
    assert "Missing argument 'DIR...'" in capsys.readouterr().err
