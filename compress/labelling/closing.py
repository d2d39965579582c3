"""Labels that end before their text does: finished as they are, and taken up again by the same command.

What is there are the shards that are whole. They get consecutive numbers, which those of a part or of several workers
have not; the manifest of each keeps the number that it has in the whole text.
"""

from dataclasses import replace
from pathlib import Path

from compress.data import ContentFingerprint, data_entry
from compress.data.truncation import READS_NO_MORE, Truncation
from compress.errors import CompressError
from compress.files import read_json_table
from compress.labelling.label_dir import LabelDir
from compress.labelling.shards import count_truncated, link_or_copy, read_shard, shard_is_done, shard_number, shard_path
from compress.models.manifest import Manifest, file_sha256
from compress.models.output_dir import ENDED_EARLY, PARTIAL, PREPARED, WORK_FOLDER, finish, places_of, writing
from compress.models.output_safety import REQUEST_NAME
from compress.progress import logger

DRAFT_NAME = "draft.json"  # in the work folder: the manifest, as far as it is known before the end


def close_labels(output: str | Path) -> LabelDir:
    """Make a label directory of what was labelled before a command was stopped.

    Args:
        output: where the labels were to lie, or the hidden directory of unfinished work beside that.

    Raises:
        CompressError: there are no unfinished labels or no whole shard, or a command is at work on them now.
    """
    given = Path(output)
    if given.name.startswith(".") and given.name.endswith(PARTIAL):
        given = given.with_name(given.name[1:].removesuffix(PARTIAL))
    draft = places_of(given)[1] / WORK_FOLDER / PREPARED / DRAFT_NAME
    if not draft.is_file():
        raise CompressError(
            f"there are no unfinished labels of {given}; name the output of a 'compress label' that was stopped"
        )
    with writing(given, read_json_table(draft.parent.with_name(REQUEST_NAME))) as working:
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
    if not done:
        raise CompressError(f"{working} holds no labels yet: rows are written {draft.notes['shard_rows']:,} at a time")
    for new, old in enumerate(done):
        for suffix in (".parquet", ".json"):
            shard_path(working, old).with_suffix(suffix).replace(shard_path(working, new).with_suffix(suffix))
    for path in working.glob("shard-*"):
        if shard_number(path) >= len(done):
            path.unlink()
    shards = (read_shard(working, number, len(draft.labels), task=draft.task)[0] for number in range(len(done)))
    fingerprint = ContentFingerprint(example for examples in shards for example in examples)
    data = (data_entry("unlabeled", draft.data[0]["name"], fingerprint),)
    truncation = Truncation()
    count_truncated(truncation, working.glob("shard-*.json"), draft.notes["max_length"])
    notes = {**draft.notes, ENDED_EARLY: file_sha256(work / REQUEST_NAME), **truncation.notes()}
    finish(working, replace(draft, data=data, notes=notes))
    if said := truncation.sentence(READS_NO_MORE):
        logger.info("%s", said)


def take_up(labels: LabelDir, working: Path) -> None:
    """Put the shards of labels that ended early into a working directory, by their numbers in the whole text."""
    like = (working / WORK_FOLDER / REQUEST_NAME).stat()
    for path in map(labels.path.joinpath, sorted(labels.manifest.files)):
        number = read_json_table(path).get("shard") if path.suffix == ".json" else None
        if isinstance(number, int) and 0 <= number < 10**9:
            for suffix in (".parquet", ".json"):
                link_or_copy(path.with_suffix(suffix), shard_path(working, number).with_suffix(suffix), like)
