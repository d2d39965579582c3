"""Output directory of a stage: written beside its final place, renamed when complete, resumable until then."""

import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from compress.errors import CompressError, interruptions, system_fault
from compress.models.manifest import MANIFEST_NAME, METRICS_NAME, Manifest, describe_files, verify_files
from compress.models.output_lock import locked
from compress.models.output_safety import (
    CARD_NAME,
    LOCK_NAME,
    REQUEST_NAME,
    check_working,
    delete_owned,
    entry,
    output_path,
    owned_files,
    unwritable,
)
from compress.models.output_safety import WORK_FOLDER as WORK_FOLDER
from compress.models.signatures import signed
from compress.progress import logger

PREVIOUS, PARTIAL = ".previous", ".partial"
ENDED_EARLY = "request_sha256"  # in the notes of what was finished as it was: the same request goes on with it
# In the work folder: what is made before the first batch, such as tokenised rows. It is no finished work.
PREPARED = "prepared"

_NO_WORK = {REQUEST_NAME, LOCK_NAME, METRICS_NAME}


@contextmanager
def writing(
    output: str | Path, request: Mapping[str, Any], *, force: bool = False, keep: bool = True
) -> Iterator[Path]:
    """Give a working directory beside ``output`` that becomes ``output`` only when everything succeeded.

    Unfinished work stays in the sibling (``keep``) and the same request resumes it; after an error of the work itself,
    only where some of it is finished. What only serves the making lies in its ``.work`` folder, which is no part of the
    result. A finished ``output`` is refused without ``force``; a
    ``force`` replaces only a directory of which this project wrote every file, and which is still as it was then.

    Args:
        output: where the finished directory shall lie.
        request: what was asked for (JSON values); unfinished work of another request is refused without ``force``.
    """
    target, working, previous = places_of(output)
    _make(working, target)
    with locked(working / LOCK_NAME, target):
        with _discarded(working, keep=True):
            _recover(target, previous)
            asked = json.dumps(request, sort_keys=True, default=str)
            replaced = _to_replace(target, force or _ended_early(target) == hashlib.sha256(asked.encode()).hexdigest())
            _begin(working, target, asked, force, keep)
        with _discarded(working, keep):
            yield working
        for stray in working.glob(".*.tmp"):  # of a start that was killed while it wrote
            stray.unlink()
        _put_in_place(target, working, previous, replaced)
        # Only now: what is needed to resume must be there until the result is.
        shutil.rmtree(target / WORK_FOLDER)
        (target / LOCK_NAME).unlink(missing_ok=True)


def places_of(output: str | Path) -> tuple[Path, Path, Path]:
    """Return where a directory will lie, where it is made, and where what it replaces is kept until then."""
    target = output_path(output, added=f".{PREVIOUS}")
    return target, target.with_name(f".{target.name}{PARTIAL}"), target.with_name(f".{target.name}{PREVIOUS}")


def check_free(output: str | Path) -> None:
    """Refuse, before the work and what it imports, an output that exists, as :func:`writing` does without ``force``."""
    target, _, previous = places_of(output)
    if entry(previous) is None:  # else a killed command is to be recovered from first
        _to_replace(target, force=bool(_ended_early(target)))


def _ended_early(target: Path) -> Any:
    """Return the hash of the request that a finished directory goes on with, if there is one."""
    return Manifest.read(target / MANIFEST_NAME).notes.get(ENDED_EARLY)


def work_title(folder: Path) -> str:
    """Return what a folder of unfinished work serves: ``student-phase-1``, with the output's path from here.

    An output that does not lie below the current directory has its name alone.
    """
    parts = [part for part in folder.parts if part != WORK_FOLDER]
    for number, part in enumerate(parts):
        if part.startswith(".") and part.endswith(PARTIAL):
            output = Path(*parts[:number], part[1:].removesuffix(PARTIAL))
            here = Path(os.path.relpath(output))
            shown = output.name if here.parts[0] == ".." else here.as_posix()
            return "-".join([shown, *parts[number + 1 :]])
    return folder.name


def _make(working: Path, target: Path) -> None:
    try:
        working.mkdir(parents=True)
    except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
        if not os.path.lexists(working):
            raise unwritable(target, error) from None
        check_working(working)


@contextmanager
def _discarded(working: Path, keep: bool) -> Iterator[None]:
    """Delete the working directory after a failure that leaves nothing to resume, and that a repetition would meet."""
    try:
        yield
    except BaseException as error:
        lasting = isinstance(error, Exception) and not interruptions and not system_fault(error)
        if not keep or lasting and not _has_progress(working):
            shutil.rmtree(working, ignore_errors=True)
        raise


def _recover(target: Path, previous: Path) -> None:
    """Put back what a killed command had set aside, or delete it where what should replace it is whole."""
    found = entry(previous)
    if found is None:
        return
    if stat.S_ISDIR(found.st_mode) and Manifest.read(previous / MANIFEST_NAME).stage and entry(target) is None:
        previous.rename(target)
        logger.info("put %s back, which a killed command had set aside", target)
        return
    with suppress(CompressError):
        manifest = Manifest.read(target / MANIFEST_NAME)
        verify_files(target, manifest)
        if manifest.stage and stat.S_ISDIR(found.st_mode):
            delete_owned(previous, owned_files(previous))
    if entry(previous) is not None:
        raise CompressError(
            f"{previous}, where a killed command sets aside what it replaces, holds what {target} does not; "
            "move it away or choose another -o"
        )


def _to_replace(target: Path, force: bool) -> dict[str, str] | None:
    """Return the files of what lies at the output, None for nothing; refuse what is not to be replaced."""
    found = entry(target)
    if found is None:
        return None
    if not stat.S_ISDIR(found.st_mode):
        raise CompressError(f"{target} exists and is not a directory; choose another -o")
    if target.is_mount():
        raise CompressError(f"{target} is a mount point, which cannot be replaced; name a directory in it")
    if not any(target.iterdir()):
        return None
    if not force:
        raise CompressError(f"{target} already exists; choose another -o or replace it with --force")
    return owned_files(target)


def _begin(working: Path, target: Path, asked: str, force: bool, keep: bool) -> None:
    request_file = working / WORK_FOLDER / REQUEST_NAME
    before = request_file.read_text(encoding="utf-8", errors="replace") if request_file.is_file() else None
    differs = before != asked
    if differs or not keep:
        if differs and not force and _has_progress(working):
            raise CompressError(
                f"{working} holds unfinished work of another command for {target}; "
                "repeat that command to resume it, choose another -o, or discard it with --force"
            )
        empty(working)
    (request_file.parent / PREPARED).mkdir(parents=True, exist_ok=True)
    if not request_file.exists():
        write_atomically(request_file, asked)
    if _has_progress(working):
        logger.info("going on where this command was stopped: %s", working)


def _put_in_place(target: Path, working: Path, previous: Path, replaced: Mapping[str, str] | None) -> None:
    """Give the finished work its name, unless what lies there is no longer what was checked before the work."""
    try:
        if replaced is not None and entry(target) is not None:
            if owned_files(target) != replaced:
                raise CompressError("it is another one now")
            target.rename(previous)
        try:
            working.rename(target)
        except OSError:
            if replaced is not None and entry(target) is None:
                previous.rename(target)
            raise
    except (CompressError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CompressError(
            f"{target} appeared or was changed while this command ran, and is left as it is ({reason}); move it away "
            f"and repeat the command; what it made lies in {working}"
        ) from None
    if entry(previous) is None:
        return
    with suppress(OSError):
        delete_owned(previous, replaced or ())
    if entry(previous) is not None:
        logger.warning("could not delete all of what %s replaced: look at %s", target, previous)


def discard(output: Path) -> None:
    """Delete a finished directory, if this project wrote every file of it.

    Raises:
        CompressError: a file is not as this project wrote it.
    """
    if (files := _to_replace(output, force=True)) is not None:
        delete_owned(output, files)


def discard_unfinished(output: Path) -> None:
    """Delete unfinished work for a directory.

    Raises:
        CompressError: a command is writing it now, or it is no work of ours.
    """
    target, working, _ = places_of(output)
    if entry(working) is not None:
        check_working(working)
        with locked(working / LOCK_NAME, target):
            shutil.rmtree(working)


def _has_progress(working: Path) -> bool:
    """Tell whether something is finished that takes part in the result, or spares a later start work."""
    made = (path.relative_to(working) for path in working.rglob("*") if not path.is_dir())
    return any(path.name not in _NO_WORK and path.suffix != ".tmp" and PREPARED not in path.parts for path in made)


def empty(directory: Path) -> None:
    """Remove everything that a start has left in a working directory but its lock; what was asked for comes last."""
    for path in sorted(directory.iterdir(), key=lambda path: path.name == WORK_FOLDER):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK_NAME:
            path.unlink()


def finish(working: Path, manifest: Manifest) -> Manifest:
    """Write ``compress.json`` and the model card into a working directory, with the hash of every file."""
    from compress.host import describe_host, library_versions
    from compress.models.model_card import model_card

    complete = replace(manifest, files=describe_files(working), versions=library_versions(), host=describe_host())
    write_atomically(working / MANIFEST_NAME, complete.to_json())
    if complete.kind == "model":
        (working / CARD_NAME).write_text(signed(model_card(complete)), encoding="utf-8")
    mode = (working / MANIFEST_NAME).stat().st_mode  # as the umask says; safetensors lets nobody but the owner read
    for name in complete.files:
        (working / name).chmod(mode)
    return complete


def write_atomically(path: Path, text: str) -> None:
    """Write a text file whole or not at all; a link at its name is replaced, not followed."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")  # of no name that could be too long, or lie there
    try:
        temporary.touch(exist_ok=False)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines, whole or not at all; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))
