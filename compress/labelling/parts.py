"""Labels that several commands made, or that end before their text does: parts joined, unfinished ones closed.

Joined parts are the label directory of one command that labelled the whole text. Of unfinished labels the shards that
are whole get consecutive numbers, which those of a part or of several workers have not; the manifest of each keeps the
number that it has in the whole text, by which the same command takes them up again.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from compress.data.truncation import READS_NO_MORE, Truncation
from compress.errors import CompressError, refuse, some_of
from compress.fields import validated
from compress.files import read_json_table
from compress.labelling.label_dir import (
    BOUGHT,
    UNANSWERED,
    LabelDir,
    answer_notes,
    count_truncated,
    kept_entry,
    link_or_copy,
    shard_is_done,
    shard_number,
    shard_path,
)
from compress.models.manifest import MANIFEST_NAME, Manifest, file_sha256
from compress.models.output_dir import (
    ENDED_EARLY,
    PARTIAL,
    PREPARED,
    REQUEST_NAME,
    WORK_FOLDER,
    finish,
    places_of,
    writing,
)
from compress.progress import each, logger
from compress.recipes.parsing import Checked, parse
from compress.requests.labelling import CloseLabels, MergeLabels

DRAFT_NAME = "draft.json"  # in the work folder: the manifest, as far as it is known before the end
MOST_NAMED = 10  # of missing parts


@validated
class PartNotes(Checked):
    """What is read of the notes of a part; :func:`compress.labelling.label.label` writes them."""

    part: int
    parts: int
    tokenizer_sha256: str
    shards_sha256: str  # of the texts of every shard, those of other parts too, in order
    max_length: int
    precision: str
    shard_rows: int
    windows: str | None = None

    def faults(self) -> list[str]:
        """Return what the labelling stage does not write."""
        there = 1 <= self.part <= self.parts and self.shard_rows > 0
        return [] if there else [f"there is no part {self.part} of {self.parts}, of shards of {self.shard_rows} rows"]


@dataclass(frozen=True)
class LabelPart(LabelDir):
    @cached_property
    def notes(self) -> PartNotes:
        kept = {name: self.manifest.notes.get(name) for name in PartNotes.__dataclass_fields__}
        return parse(PartNotes, kept, source=str(self.path / MANIFEST_NAME))

    def belongs_to(self) -> dict[str, Any]:
        """Return what all parts of the same labels have in common, by what it is called."""
        return {
            "the teacher": [self.manifest.task, self.manifest.labels, self.origin["sha256"]],
            "the tokenizer": self.notes.tokenizer_sha256,
            "the number of parts": self.notes.parts,
            "the text or the order of its rows": [self.rows, self.notes.shards_sha256],
            "--max-length": self.notes.max_length,
            "--windows": self.notes.windows,
            "--precision": self.notes.precision,
            "the rows of a shard": self.notes.shard_rows,
        }

    def files(self) -> list[str]:
        """Return the names of its shards and their manifests.

        Raises:
            CompressError: one is missing.
        """
        shards, names = -(-self.rows // self.notes.shard_rows), list[str]()
        for number in range(self.notes.part - 1, shards, self.notes.parts):  # that a manifest may say, of any length
            path = shard_path(Path(), number)
            names += [path.name, path.with_suffix(".json").name]
            if lacks := [name for name in names[-2:] if name not in self.manifest.files]:
                raise CompressError(f"{self.path} lacks {lacks[0]}, which belongs to its part; label this part again")
        return names


def merge_labels(request: MergeLabels) -> LabelDir:
    """Join all parts of the labels of a text; the shards are those of one command that labelled the whole text.

    Raises:
        CompressError: one is missing, there twice or damaged, or does not belong to the others.
    """
    output = Path(str(request.output))
    found = sorted((LabelPart.open(path, part=True) for path in request.parts), key=lambda part: part.notes.part)
    _check(found)
    names = {part.path: part.files() for part in found}
    key = {"stage": "labels merge", "parts": [file_sha256(part.path / MANIFEST_NAME) for part in found]}
    with writing(output, key, force=request.force) as working:
        like = (working / WORK_FOLDER / REQUEST_NAME).stat()
        with request.progress("Joining parts", len(found)) as advance:
            for part in each(found, advance):
                for name in names[part.path]:
                    link_or_copy(part.path / name, working / name, like)
        manifest = replace(
            found[0].manifest, name=output.name, notes=_notes(found) | (left_out := answer_notes(working))
        )
        if UNANSWERED in left_out:
            manifest = replace(manifest, data=(kept_entry(working, manifest, manifest.data[0]["name"]),))
        manifest = finish(working, manifest)
        LabelDir(working, manifest).check_shards()
    return LabelDir(output, manifest)


def _check(parts: Sequence[LabelPart]) -> None:
    """Raise where these are not all parts of the same labels, each once."""
    refuse((not parts, "no part was named; give the directories of all parts"))
    first, expected = parts[0], parts[0].belongs_to()
    for what, part in itertools.product(expected, parts):
        value, other = part.belongs_to()[what], expected[what]
        told = f" ({value} and {other})" if isinstance(value, int) or what == "--precision" else ""
        fault = f"{part.path} and {first.path} are parts of different labels: {what} differs{told}"
        refuse((value != other, f"{fault}; label one of them again as the other was"))
    for part, following in itertools.pairwise(parts):
        fault = f"are both part {part.notes.part}/{part.notes.parts}; name one of them"
        refuse((part.notes.part == following.notes.part, f"{part.path} and {following.path} {fault}"))
    of, there = first.notes.parts, {part.notes.part for part in parts}
    if missing := of - len(there):
        named = [*itertools.islice((number for number in range(1, of + 1) if number not in there), MOST_NAMED)]
        raise CompressError(
            f"{missing:,} of {of:,} parts are missing: {', '.join(map(str, named))}{', ...' * (missing > len(named))}; "
            f"name their directories too, or make them as the others were, with --shard {named[0]}/{of}"
        )


def _notes(parts: Sequence[LabelPart]) -> dict[str, Any]:
    """Return the notes of whole labels: how the parts were made, with the values that occur where they differ."""
    kept = [part.manifest.notes for part in parts]
    truncation = Truncation()
    files = (part.path / name for part in parts for name in part.files() if name.endswith("json"))
    count_truncated(truncation, files, parts[0].notes.max_length)
    own = {"part", "parts", "tokenizer_sha256", "shards_sha256", "truncated", UNANSWERED, BOUGHT}
    values = {name: list(dict.fromkeys(str(notes.get(name)) for notes in kept)) for name in kept[0].keys() - own}
    plan = {name: kept[0][name] if len(found) == 1 else some_of(found) for name, found in values.items()}
    return plan | truncation.notes()


def close_labels(request: CloseLabels) -> LabelDir:
    """Make a label directory of what was labelled before a command was stopped.

    Its output is named, or the hidden directory of unfinished work beside that.

    Raises:
        CompressError: there are no unfinished labels or no whole shard, or a command is at work on them now.
    """
    given = Path(str(request.directory))
    if given.name.startswith(".") and given.name.endswith(PARTIAL):
        given = given.with_name(given.name[1:].removesuffix(PARTIAL))
    work = places_of(given)[1] / WORK_FOLDER
    refuse(
        (
            not (work / PREPARED / DRAFT_NAME).is_file(),
            f"there are no unfinished labels of {given}; name the output of a 'compress label' that was stopped",
        )
    )
    with writing(given, read_json_table(work / REQUEST_NAME)) as working:
        close_shards(working)
    return LabelDir.open(given)


def close_shards(working: Path) -> None:
    """Give the shards in a working directory consecutive numbers, write their manifest, and say how many were cut.

    Raises:
        CompressError: there is no whole shard.
    """
    work = working / WORK_FOLDER
    draft = Manifest.read(work / PREPARED / DRAFT_NAME)
    numbers = sorted(map(shard_number, working.glob("shard-*.parquet")))
    teacher = {"teacher_sha256": draft.parents[0]["sha256"]}
    done = [number for number in numbers if shard_is_done(working, number, teacher)]
    refuse((not done, f"{working} holds no labels yet: rows are written {draft.notes['shard_rows']:,} at a time"))
    for new, old in enumerate(done):
        _renumber(working, old, new)
    for path in working.glob("shard-*"):
        if shard_number(path) >= len(done):
            path.unlink()
    data = (kept_entry(working, draft, draft.data[0]["name"]),)
    truncation = Truncation()
    count_truncated(truncation, working.glob("shard-*.json"), draft.notes["max_length"])
    notes = {**draft.notes, ENDED_EARLY: file_sha256(work / REQUEST_NAME), **truncation.notes()}
    notes |= answer_notes(working)
    finish(working, replace(draft, data=data, notes=notes))
    if said := truncation.sentence(READS_NO_MORE):
        logger.info("%s", said)


def take_up(working: Path) -> None:
    """Give the shards of labels that ended early their numbers in the whole text again; the last of them first."""
    for path in sorted(working.glob("shard-*.json"), reverse=True):
        number = read_json_table(path).get("shard")
        if isinstance(number, int) and 0 <= number < 10**9:
            _renumber(working, shard_number(path), number)
    (working / MANIFEST_NAME).unlink()


def _renumber(working: Path, old: int, new: int) -> None:
    """Rename a shard, its manifest last: what was stopped in between is gone on with."""
    for suffix in (".parquet", ".json"):
        if (source := shard_path(working, old).with_suffix(suffix)).is_file():
            source.replace(shard_path(working, new).with_suffix(suffix))
