"""Label directory: texts with the logits of a teacher, in shards (:mod:`compress.labelling.shards`).

Labels that come from a table have no teacher (:mod:`compress.labelling.import_labels`).
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from compress.data import Example
from compress.data.parallel import in_processes
from compress.errors import CompressError
from compress.escaping.uris import is_uri, local_path, without_secrets
from compress.files import faults_of
from compress.inference.cores import core_count
from compress.labelling.remote_labels import local_copy
from compress.labelling.shards import Shards, open_shard, shard_path
from compress.models.manifest import MANIFEST_NAME, Manifest, verify_files
from compress.models.model_dir import ModelDir
from compress.progress import logger
from compress.recipes import parse

ALONE_SHARDS = 32  # as quick in one process as in several
IMPORTED = "import"  # the stage of labels without a teacher
ROWS_ASKED = "rows_asked"  # in the notes of labels that end early: how many rows the text has, if that is known
_KEPT = ("stage", "task", "labels", "parents", "data")


@dataclass(frozen=True)
class LabelRecord:
    """What is read of the manifest of labels."""

    stage: str
    task: Literal["classification", "regression", "tagging"]
    labels: tuple[str, ...]
    parents: tuple[Mapping[str, Any], ...]
    data: tuple[Mapping[str, Any], ...]

    def faults(self) -> list[str]:
        """Return what neither labelling nor importing writes."""
        known = all(parent["sha256"] for parent in self.parents)
        known = known and bool(self.parents) is (self.stage != IMPORTED)
        counted = bool(self.data) and all(entry["rows"] >= 0 for entry in self.data)
        checks = {"labels are missing": self.labels, "parents have no hash": known}
        return [fault for fault, holds in {**checks, "data have no rows": counted}.items() if not holds]


@dataclass(frozen=True)
class LabelDir:
    """Pseudo-labels on disk. Make one with :meth:`open`; ``order`` is that of its classes where others count them."""

    path: Path
    manifest: Manifest
    order: tuple[int, ...] = ()

    @classmethod
    def open(cls, path: str | Path, *, part: bool = False) -> Self:
        """Open and check a finished label directory, or a copy of one that a URI names.

        Args:
            part: open a part of labels, instead of whole ones.
        """
        if is_uri(path := local_path(str(path))):
            return cls._open_copy(path, part=part)
        directory = Path(path)
        if not (directory / MANIFEST_NAME).is_file():
            raise CompressError(
                f"{path} is not a finished label directory (no {MANIFEST_NAME}); make one with 'compress label'"
            )
        with faults_of(directory / MANIFEST_NAME, "the manifest of labels", "label the text again"):
            manifest = Manifest.read(directory / MANIFEST_NAME)
            if manifest.kind != "labels":
                raise CompressError(
                    f"{path} is a directory of kind {manifest.kind!r}, not of labels; make one with 'compress label'"
                )
            _refuse_links(directory)
            verify_files(directory, manifest)
            parse(LabelRecord, {name: getattr(manifest, name) for name in _KEPT}, source=str(directory / MANIFEST_NAME))
        opened = cls(directory, manifest)
        if part != ("part" in manifest.notes):
            raise CompressError(
                f"{path} holds whole labels, not a part of them; use it as it is"
                if part
                else f"{path} holds part {manifest.notes['part']} of {manifest.notes.get('parts')} of labels; join all "
                "parts with 'compress labels merge DIR... -o DIR' and use what that writes"
            )
        if not part:
            opened.check_shards()
        return opened

    @classmethod
    def _open_copy(cls, uri: str, *, part: bool) -> Self:
        copy = local_copy(uri)
        try:
            return cls.open(copy, part=part)
        except CompressError as error:
            shutil.rmtree(copy, ignore_errors=True)  # if it was damaged here, the next start copies it again
            raise CompressError(f"{without_secrets(uri)}, copied: {error}") from error

    def check_shards(self) -> None:
        """Raise where shards are missing, or together have other rows than the manifest says."""
        there = {path.name for path in self.path.glob("shard-*.parquet")}
        for number in range(len(there)):
            if shard_path(self.path, number).name not in there:
                raise CompressError(f"{shard_path(self.path, number)} is missing; copy or label the text again")
        found = int(self.shards.starts[-1])
        if found != self.rows:
            raise CompressError(
                f"{self.path} has labels of {found:,} rows, and its {MANIFEST_NAME} says {self.rows:,}; copy or label "
                "the text again"
            )

    @property
    def rows(self) -> int:
        return sum(entry["rows"] for entry in self.manifest.data)

    @property
    def described_rows(self) -> str:
        """How many rows there are, and of how many where labelling ended early: ``2,048 of 10,000 rows``."""
        asked = self.manifest.notes.get(ROWS_ASKED, self.rows)
        of = "" if asked == self.rows else f" of {asked:,}" if isinstance(asked, int) else " of a longer text's"
        return f"{self.rows:,}{of} rows"

    @property
    def teacher_sha256(self) -> str:
        """The hash of the teacher; empty where the labels were imported."""
        return str(self.manifest.parents[0]["sha256"]) if self.manifest.parents else ""

    @property
    def teacher_name(self) -> str:
        """The name of the teacher; of imported labels what they are and the file that they come from."""
        if self.manifest.parents:
            return str(self.manifest.parents[0].get("name"))
        return f"{self.manifest.notes.get('values')} of {self.manifest.data[0].get('name')}"

    @property
    def has_zeros(self) -> bool:
        """Whether a class has a probability of 0 in some row, which is not the softmax of any logits."""
        return bool(self.manifest.notes.get("rows_with_zeros"))

    @property
    def origin(self) -> dict[str, Any]:
        """What a manifest records of labels that are not of the student's teacher."""
        return {
            "name": self.teacher_name,
            "sha256": self.teacher_sha256 or str(self.manifest.notes.get("values_sha256")),
        }

    def for_model(self, model: ModelDir) -> Self:
        """Return these labels with the logits in the order of a model's classes, which must have the same names."""
        ours, theirs = model.labels, self.manifest.labels
        if model.task != self.manifest.task:
            raise CompressError(f"{self.path} is of {self.manifest.task}, and {model.name} of {model.task}; use others")
        same = self.teacher_sha256 == model.sha256 or model.task == "regression"  # whose score has any name
        if ours == theirs or same and len(ours) == len(theirs):
            return self
        if sorted(ours) != sorted(theirs):
            lacking = {str(self.path): set(ours) - set(theirs), model.name: set(theirs) - set(ours)}
            said = "; ".join(
                f"{name} lacks {', '.join(sorted(names)[:10])}{', ...' * (len(names) > 10)}"
                for name, names in lacking.items()
                if names
            )
            raise CompressError(
                f"{self.path} and {model.name} have other classes: {said}; they must have the same names ('compress "
                "labels import --classes ...' gives imported ones others)"
            )
        return replace(self, order=tuple(map(theirs.index, ours)))

    @cached_property
    def shards(self) -> Shards:
        numbers = range(len(list(self.path.glob("shard-*.parquet"))))
        sizes = [open_shard(self.path, number)[0].metadata.num_rows for number in numbers]
        return Shards(self.path, len(self.manifest.labels), self.manifest.task, np.cumsum([0, *sizes]), self.order)

    @cached_property
    def keys(self) -> np.ndarray:
        """The :func:`compress.data.row_keys` of all rows in order, uint64 ``[N]``; on all cores where there are many.

        Raises:
            CompressError: a shard is damaged.
        """
        numbers = range(len(self.shards.starts) - 1)
        processes = core_count() if len(numbers) > ALONE_SHARDS else 1
        parts = [*in_processes(self.shards.keys, numbers, processes=processes)]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint64)

    def __iter__(self) -> Iterator[tuple[Example, np.ndarray]]:
        """Yield every example with its logits ``[C]``, of a tagger ``[W, C]``, a shard in memory at a time."""
        return self.shards.rows_at(np.arange(self.shards.starts[-1]))


def _refuse_links(directory: Path) -> None:
    """Raise where a file is a link that leaves the directory, and so would read what nobody gave for labels."""
    root = directory.resolve()
    for entry in os.scandir(directory):
        if entry.is_symlink() and not Path(entry).resolve().is_relative_to(root):
            raise CompressError(f"{entry.path} is a link that leaves its directory; copy the file itself there")


def open_labels(labels: Sequence[LabelDir | str | Path]) -> tuple[LabelDir, ...]:
    """Open the label directories that are not open yet, and say which of them end early."""
    opened = tuple(part if isinstance(part, LabelDir) else LabelDir.open(part) for part in labels)
    for part in opened:
        if ROWS_ASKED in part.manifest.notes:
            logger.info("labels: %s holds %s, where labelling ended early", part.path, part.described_rows)
    return opened
