"""Label directories: texts with the logits of a teacher, in shards (:mod:`compress.labelling.shards`).

Labels that come from a table have no teacher (:mod:`compress.labelling.import_labels`). Several directories of the same
texts count as one by the weighted mean of their probabilities, the prediction that is closest to those of all teachers
in the sense of the loss kl: ``sum_k w_k KL(p_k || q)`` is least at ``q = sum_k w_k p_k``, and at temperature 1 the
gradient of a student is the same as from each teacher in turn. Hinton et al. 2015 (arXiv:1503.02531) take this mean or
the geometric one, which is that of the logits; there one teacher that is certain outweighs all others.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from compress.data import Example
from compress.data.examples import batched
from compress.errors import CompressError, refuse, some_of
from compress.escaping.uris import is_uri, local_path, without_secrets
from compress.files import faults_of
from compress.labelling.remote_labels import local_copy
from compress.labelling.shards import SHARD_ROWS, Shards, open_shard, shard_path
from compress.models.manifest import MANIFEST_NAME, Manifest, verify_files
from compress.models.model_dir import ModelDir
from compress.progress import logger
from compress.tasks import everything, find_task

IMPORTED = "import"  # the stage of labels without a teacher
ROWS_ASKED = "rows_asked"  # in the notes of labels that end early: how many rows the text has, if that is known


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
        place = directory / MANIFEST_NAME
        if not place.is_file():
            raise CompressError(
                f"{path} is not a finished label directory (no {MANIFEST_NAME}); make one with 'compress label'"
            )
        with faults_of(place, "the manifest of labels", "label the text again"):
            opened = cls(directory, Manifest.read(place))
            opened._check(part)
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

    def _check(self, part: bool) -> None:
        """Raise where the manifest is none of labels, or of a part of them, or files are not those that it names."""
        manifest, notes = self.manifest, self.manifest.notes
        if manifest.kind != "labels":
            raise CompressError(
                f"{self.path} is a directory of kind {manifest.kind!r}, not of labels; make one with 'compress label'"
            )
        known = all(parent["sha256"] for parent in manifest.parents)
        holds = {
            f"task = {manifest.task!r} is not one of {', '.join(everything())}": manifest.task in everything(),
            "labels are missing": manifest.labels,
            "parents have no hash": known and bool(manifest.parents) is (manifest.stage != IMPORTED),
            "data have no rows": manifest.data and all(entry["rows"] >= 0 for entry in manifest.data),
        }
        faults = [fault for fault, right in holds.items() if not right]
        refuse((faults, f"{self.path / MANIFEST_NAME}: {'; '.join(faults)}; label the text again"))
        for entry in os.scandir(self.path):
            if entry.is_symlink() and not Path(entry).resolve().is_relative_to(self.path.resolve()):
                raise CompressError(f"{entry.path} is a link that leaves its directory; copy the file itself there")
        verify_files(self.path, manifest)
        if part != ("part" in notes):
            raise CompressError(
                f"{self.path} holds whole labels, not a part of them; use it as it is"
                if part
                else f"{self.path} holds part {notes['part']} of {notes.get('parts')} of labels; join all parts with "
                "'compress labels merge DIR... -o DIR' and use what that writes"
            )

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
        same = self.teacher_sha256 == model.sha256 or not model.task.has_classes  # whose score has any name
        if ours == theirs or same and len(ours) == len(theirs):
            return self
        if sorted(ours) != sorted(theirs):
            lacking = {self.path: set(ours) - set(theirs), model.name: set(theirs) - set(ours)}
            said = "; ".join(f"{name} lacks {some_of(sorted(names))}" for name, names in lacking.items() if names)
            raise CompressError(
                f"{self.path} and {model.name} have other classes: {said}; they must have the same names ('compress "
                "labels import --classes ...' gives imported ones others)"
            )
        return replace(self, order=tuple(map(theirs.index, ours)))

    @cached_property
    def shards(self) -> Shards:
        numbers = range(len(list(self.path.glob("shard-*.parquet"))))
        sizes = [open_shard(self.path, number)[0].metadata.num_rows for number in numbers]
        task = find_task(self.manifest.task)
        return Shards(self.path, len(self.manifest.labels), task, np.cumsum([0, *sizes]), self.order)

    @cached_property
    def keys(self) -> np.ndarray:
        """The :func:`compress.data.row_keys` of all rows in order, uint64 ``[N]``.

        Raises:
            CompressError: a shard is damaged.
        """
        parts = list(map(self.shards.keys, range(len(self.shards.starts) - 1)))
        return np.concatenate(parts) if parts else np.zeros(0, np.uint64)

    def __iter__(self) -> Iterator[tuple[Example, np.ndarray]]:
        """Yield every example with its logits ``[C]``, of a tagger ``[W, C]``, a shard in memory at a time."""
        return self.shards.rows_at(np.arange(self.shards.starts[-1]))


def open_labels(labels: Sequence[LabelDir | str | Path]) -> tuple[LabelDir, ...]:
    """Open the label directories that are not open yet, and say which of them end early."""
    opened = tuple(part if isinstance(part, LabelDir) else LabelDir.open(part) for part in labels)
    for part in opened:
        if ROWS_ASKED in part.manifest.notes:
            logger.info("labels: %s holds %s, where labelling ended early", part.path, part.described_rows)
    return opened


@dataclass(frozen=True)
class CombinedLabels(LabelDir):
    """Label directories of the same texts in the same order; a shard of each is in memory at a time."""

    parts: tuple[LabelDir, ...] = ()
    weights: tuple[float, ...] = ()

    @property
    def origin(self) -> dict[str, Any]:
        parts = [{**part.origin, "weight": weight} for part, weight in zip(self.parts, self.weights, strict=True)]
        return {"name": self.teacher_name, "mean_of": parts}

    @property
    def teacher_sha256(self) -> str:
        return ""

    @property
    def teacher_name(self) -> str:
        weighted = [f"{weight:g} x " if len(set(self.weights)) > 1 else "" for weight in self.weights]
        names = [f"{weight}{part.teacher_name}" for weight, part in zip(weighted, self.parts, strict=True)]
        return f"the mean of {', '.join(names)}"

    @property
    def has_zeros(self) -> bool:
        return any(part.has_zeros for part in self.parts)

    @cached_property
    def shards(self) -> "CombinedShards":  # type: ignore[override]
        return CombinedShards(tuple(part.shards for part in self.parts), self.weights)


@dataclass(frozen=True)
class CombinedShards:
    """The shards of label directories of the same texts; see :class:`compress.labelling.shards.Shards`."""

    parts: tuple[Shards, ...]
    weights: tuple[float, ...]

    @property
    def starts(self) -> np.ndarray:
        return self.parts[0].starts

    def keys(self, number: int) -> np.ndarray:
        return self.parts[0].keys(number)

    def rows_at(self, numbers: np.ndarray) -> Iterator[tuple[Example, np.ndarray]]:
        """Yield examples with the logits of their mean probabilities, of a regression with their mean score."""
        task = self.parts[0].task
        shares = np.asarray(self.weights) / sum(self.weights)
        rows_of_parts = zip(*(part.rows_at(numbers) for part in self.parts), strict=True)
        for start, rows in enumerate(batched(rows_of_parts, SHARD_ROWS)):
            numbers_here = numbers[start * SHARD_ROWS :]
            examples = [self._same(row, int(number)) for row, number in zip(rows, numbers_here, strict=False)]
            columns = [[logits for _, logits in column] for column in zip(*rows, strict=True)]
            mean = task.mean_logits(np.stack([np.vstack(one).astype(np.float64) for one in columns]), shares)
            yield from zip(examples, task.by_row(mean.astype(np.float32), examples), strict=True)

    def _same(self, row: Sequence[tuple[Example, np.ndarray]], number: int) -> Example:
        """Return the example that all directories have in a row."""
        first, *others = (example for example, _ in row)
        for other, part in zip(others, self.parts[1:], strict=True):
            if other != first:
                raise CompressError(
                    f"row {number + 1:,} of {part.path} is {other.text[:40]!r}, and of {self.parts[0].path} "
                    f"{first.text[:40]!r}; labels are combined row by row, so label one file with every teacher"
                )
        return first


def combine_labels(parts: Sequence[LabelDir], weights: Sequence[float] = ()) -> CombinedLabels:
    """Return label directories as one, each with its weight (by default the same).

    Raises:
        CompressError: there are fewer than two, or they have different numbers of rows.
    """
    given = ", ".join(map(str, weights))
    refuse(
        (len(parts) < 2, "--combine takes two label directories or more; give --labels DIR for each"),
        (
            weights and len(weights) != len(parts),
            f"there are {len(parts)} label directories and {len(weights)} weights; give one for each",
        ),
        (
            not all(1e-100 <= weight <= 1e100 for weight in weights),
            f"the weights {given} must be numbers above 0, from 1e-100 to 1e100; leave the others out",
        ),
        *(
            (
                one.rows != other.rows,
                f"{one.path} has {one.rows:,} rows, and {other.path} has {other.rows:,}; labels are combined row by "
                "row, so label one file with every teacher",
            )
            for one, other in pairwise(parts)
        ),
    )
    return CombinedLabels(
        parts[0].path, parts[0].manifest, parts=tuple(parts), weights=tuple(weights) or (1.0,) * len(parts)
    )
