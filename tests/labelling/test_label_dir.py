"""A label directory of somebody else is checked before a student learns from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compress.data import Example
from compress.errors import CompressError
from compress.labelling.label_dir import LabelDir, write_shard
from compress.models.manifest import MANIFEST_NAME, Manifest, describe_files
from compress.tasks import default


def directory(path: Path, shards: tuple[int, ...] = (0, 1), widths: tuple[int, ...] = (2, 2), **fields: Any) -> Path:
    for number, width in zip(shards, widths, strict=True):
        write_shard(path, number, [Example("a"), Example("b")], np.ones((2, width), np.float32), {}, default())
    described: dict[str, Any] = {
        "stage": "label",
        "labels": ("0", "1"),
        "parents": ({"role": "teacher", "name": "t", "sha256": "a" * 64},),
        "data": ({"role": "unlabeled", "name": "pool", "rows": 4},),
        "files": describe_files(path),
    }
    (path / MANIFEST_NAME).write_text(Manifest(kind="labels", **{**described, **fields}).to_json())
    return path


def test_labels_are_read_in_order(tmp_path: Path) -> None:
    assert [row.text for row, _ in LabelDir.open(directory(tmp_path))] == ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shards": (0, 2)}, "shard-00001.parquet is missing"),
        (
            {"data": ({"role": "unlabeled", "name": "pool", "rows": 5},)},
            "has labels of 4 rows, and its compress.json says 5",
        ),
        ({"data": ({"role": "unlabeled", "name": "pool", "rows": "4"},)}, "data is not a list of role, name and rows"),
        ({"data": ()}, "data have no rows"),
        ({"parents": ()}, "parents have no hash"),
        ({"parents": ({"role": "teacher", "name": "t", "sha256": ""},)}, "parents have no hash"),
        ({"stage": "import"}, "parents have no hash"),
        ({"labels": ()}, "labels are missing"),
        ({"task": "luck"}, "task = 'luck' is not one of"),
        ({"files": {"shard-00000.parquet": 3}}, "files is not a table"),
    ],
    ids=str,
)
def test_a_manifest_that_no_stage_writes_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(CompressError, match=message):
        LabelDir.open(directory(tmp_path, **change))


def test_a_width_that_differs_between_shards_is_refused(tmp_path: Path) -> None:
    opened = LabelDir.open(directory(tmp_path, widths=(2, 3)))
    with pytest.raises(CompressError, match="shard-00001.parquet has not 2 logits for each text, one a class"):
        list(opened)


@pytest.mark.parametrize("break_it", [lambda p: p.write_text("{"), lambda p: p.write_text("[" * 9000), Path.mkdir])
def test_a_broken_manifest_is_one_sentence(tmp_path: Path, break_it: Callable[[Path], Any]) -> None:
    manifest = directory(tmp_path) / MANIFEST_NAME
    assert json.loads(manifest.read_text())
    manifest.unlink()
    break_it(manifest)
    with pytest.raises(CompressError):
        LabelDir.open(tmp_path)


def test_a_shard_that_is_a_link_out_of_its_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    labels = directory(tmp_path / "labels")
    shard = labels / "shard-00000.parquet"
    outside = shard.rename(tmp_path / "outside.parquet")
    shard.symlink_to(outside)
    with pytest.raises(CompressError, match="shard-00000.parquet is a link that leaves its directory"):
        LabelDir.open(labels)
    shard.unlink()
    (labels / ".inside").write_bytes(outside.read_bytes())
    shard.symlink_to(".inside")
    (tmp_path / "elsewhere").symlink_to(labels)
    assert LabelDir.open(tmp_path / "elsewhere").rows == 4
