"""What a start keeps for the next one is taken as it was written, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compress.models.manifest import Manifest, cached_json, is_whole, keep, kept, seal
from compress.models.output_dir import finish


@pytest.mark.parametrize(
    "content",
    ["", '{"sha', "[]", "\0\xff", '{"sha256": "x", "value": [1]}', "1e999", "{}", "[" * 5000, "null"],
)
def test_damaged_json_counts_as_never_written(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "kept.json"
    assert kept(path) is None and kept(path, []) == []
    keep(path, {"a": [1, 0.1, None]})
    assert kept(path) == {"a": [1, 0.1, None]} and not caplog.messages
    path.write_text(content, encoding="latin-1")
    assert kept(path, []) == [] and not path.exists()
    assert caplog.messages == [f"{path} is damaged: it is deleted and made again"]


def test_another_value_of_the_right_type_is_noticed(tmp_path: Path) -> None:
    keep(tmp_path / "clock.json", {"spent_s": 60.0})
    written = json.loads((tmp_path / "clock.json").read_text())
    (tmp_path / "clock.json").write_text(json.dumps(written | {"value": {"spent_s": -60.0}}))
    assert kept(tmp_path / "clock.json") is None


def test_json_is_computed_once_unless_it_is_damaged(tmp_path: Path) -> None:
    path, values = tmp_path / "plan.json", iter(({"a": 1}, {"a": 2}))
    assert [cached_json(path, lambda: next(values)) for _ in range(2)] == [{"a": 1}] * 2
    path.write_text('{"a":')
    assert [cached_json(path, lambda: next(values)) for _ in range(2)] == [{"a": 2}] * 2


def test_a_file_without_its_hash_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rows.arrow"
    assert not is_whole(path)
    path.write_bytes(b"rows")
    assert not is_whole(path) and not path.exists() and not caplog.messages  # a start was killed before the hash
    path.write_bytes(b"rows")
    seal(path)
    assert is_whole(path)
    path.write_bytes(b"row")
    assert not is_whole(path) and not path.exists() and "rows.arrow is damaged" in caplog.text


def files_of(kind: str, folder: Path) -> Any:
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "weights").write_text("weights")
    return seal(folder) if kind == "checkpoint" else finish(folder, Manifest(stage="label", kind=kind))


@pytest.mark.parametrize("kind", ["checkpoint", "labels"])
@pytest.mark.parametrize("damaged", ["inner/weights", "compress.json"])
def test_a_folder_with_a_damaged_file_is_made_again(kind: str, damaged: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    files_of(kind, folder)
    assert is_whole(folder)
    (folder / damaged).write_text("w")
    assert not is_whole(folder) and not folder.exists()


def test_a_folder_that_is_not_finished_is_no_whole_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "checkpoint-3").mkdir()
    (tmp_path / "checkpoint-3" / "optimizer.pt").write_text("x")
    assert not is_whole(tmp_path / "checkpoint-3") and not any(tmp_path.iterdir()) and not caplog.messages
