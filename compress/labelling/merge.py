"""Join the parts of labels that several commands made into the label directory of one that labelled everything."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compress.data.truncation import Truncation
from compress.errors import CompressError, some_of
from compress.labelling.label_dir import LabelDir
from compress.labelling.shards import Part, count_truncated, link_or_copy, shard_path
from compress.models.manifest import MANIFEST_NAME, file_sha256
from compress.models.output_dir import WORK_FOLDER, finish, places_of, writing
from compress.models.output_safety import REQUEST_NAME, keep_apart
from compress.progress import Progress, each, silent
from compress.recipes import parse

MOST_NAMED = 10  # of missing parts


@dataclass(frozen=True)
class PartNotes:
    """What is read of the notes of a part; :func:`compress.labelling.label.label` writes them."""

    part: int
    parts: int
    tokenizer_sha256: str
    shards_sha256: str  # of the texts of every shard, those of other parts too, in order
    max_length: int
    precision: str
    shard_rows: int

    def faults(self) -> list[str]:
        """Return what the labelling stage does not write."""
        there = 1 <= self.part <= self.parts and self.shard_rows > 0
        return [] if there else [f"there is no part {self.part} of {self.parts}, of shards of {self.shard_rows} rows"]


@dataclass(frozen=True)
class LabelPart:
    """A part on disk."""

    labels: LabelDir
    notes: PartNotes

    @classmethod
    def open(cls, path: str | Path) -> "LabelPart":
        labels = LabelDir.open(path, part=True)
        kept = {name: labels.manifest.notes.get(name) for name in PartNotes.__dataclass_fields__}
        return cls(labels, parse(PartNotes, kept, source=str(labels.path / MANIFEST_NAME)))

    @property
    def path(self) -> Path:
        return self.labels.path

    def belongs_to(self) -> dict[str, Any]:
        """Return what all parts of the same labels have in common, by what it is called."""
        manifest = self.labels.manifest
        return {
            "the teacher": [manifest.task, manifest.labels, self.labels.teacher_sha256],
            "the tokenizer": self.notes.tokenizer_sha256,
            "the number of parts": self.notes.parts,
            "the text or the order of its rows": [self.labels.rows, self.notes.shards_sha256],
            "--max-length": self.notes.max_length,
            "--precision": self.notes.precision,
            "the rows of a shard": self.notes.shard_rows,
        }

    def files(self) -> list[str]:
        """Return the names of its shards and their manifests.

        Raises:
            CompressError: one is missing.
        """
        shards, names = -(-self.labels.rows // self.notes.shard_rows), list[str]()
        for number in range(self.notes.part - 1, shards, self.notes.parts):  # that a manifest may say, of any length
            path = shard_path(Path(), number)
            names += [path.name, path.with_suffix(".json").name]
            if lacks := [name for name in names[-2:] if name not in self.labels.manifest.files]:
                raise CompressError(f"{self.path} lacks {lacks[0]}, which belongs to its part; label this part again")
        return names


def merge_labels(
    parts: Sequence[str | Path], output: str | Path, *, force: bool = False, progress: Progress = silent
) -> LabelDir:
    """Join all parts of the labels of a text; the shards are those of one command that labelled the whole text.

    A shard is a hard link to that of its part where the system allows it, else a copy.

    Args:
        parts: what :func:`compress.labelling.label.label` wrote with ``part``, in any order.

    Raises:
        CompressError: one is missing, there twice or damaged, or does not belong to the others.
    """
    keep_apart(places_of(output), parts)
    found = sorted(map(LabelPart.open, parts), key=lambda part: part.notes.part)
    _check(found)
    names = {part.path: part.files() for part in found}
    request = {"stage": "labels merge", "parts": [file_sha256(part.path / MANIFEST_NAME) for part in found]}
    with writing(output, request, force=force) as working:
        like = (working / WORK_FOLDER / REQUEST_NAME).stat()
        with progress("Joining parts", len(found)) as advance:
            for part in each(found, advance):
                for name in names[part.path]:
                    link_or_copy(part.path / name, working / name, like)
        manifest = replace(found[0].labels.manifest, name=Path(output).name, notes=_plan(found))
        labels = LabelDir(working, finish(working, manifest))
        labels.check_shards()
    return LabelDir(Path(output), labels.manifest)


def _check(parts: Sequence[LabelPart]) -> None:
    """Raise where these are not all parts of the same labels, each once."""
    if not parts:
        raise CompressError("no part was named; give the directories of all parts")
    first, expected = parts[0], parts[0].belongs_to()
    for part in parts:
        for what, value in part.belongs_to().items():
            if value != expected[what]:
                told = f" ({value} and {expected[what]})" if isinstance(value, int) or what == "--precision" else ""
                raise CompressError(
                    f"{part.path} and {first.path} are parts of different labels: {what} differs{told}; label one of "
                    "them again as the other was"
                )
    by_number: dict[int, Path] = {}
    for part in parts:
        if (other := by_number.setdefault(part.notes.part, part.path)) is not part.path:
            both = Part(part.notes.part, part.notes.parts)
            raise CompressError(f"{other} and {part.path} are both part {both}; name one of them")
    of = first.notes.parts
    if missing := of - len(by_number):
        named = [*itertools.islice((number for number in range(1, of + 1) if number not in by_number), MOST_NAMED)]
        raise CompressError(
            f"{missing:,} of {of:,} parts are missing: {', '.join(map(str, named))}{', ...' * (missing > len(named))}; "
            f"name their directories too, or make them as the others were, with --shard {named[0]}/{of}"
        )


def _plan(parts: Sequence[LabelPart]) -> dict[str, Any]:
    """Return the notes of whole labels: how the parts were made, with the values that occur where they differ."""
    kept = [part.labels.manifest.notes for part in parts]
    values = {name: list(dict.fromkeys(str(notes.get(name)) for notes in kept)) for name in kept[0]}
    own = {"part", "parts", "tokenizer_sha256", "shards_sha256", "truncated"}
    truncation = Truncation()
    files = (part.path / name for part in parts for name in part.files() if name.endswith("json"))
    count_truncated(truncation, files, parts[0].notes.max_length)
    plan = {
        name: kept[0][name] if len(all_) == 1 else some_of(all_) for name, all_ in values.items() if name not in own
    }
    return plan | truncation.notes()
