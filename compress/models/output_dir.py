"""Output directory of a stage: written beside its final place, renamed when complete, resumable until then."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from compress.errors import CompressError
from compress.models.manifest import MANIFEST_NAME, Manifest, describe_files
from compress.progress import logger

WORK_FOLDER = ".work"
REQUEST_NAME = "request.json"


@contextmanager
def writing(
    output: str | Path, request: Mapping[str, Any], *, force: bool = False, keep: bool = True
) -> Iterator[Path]:
    """Give a working directory beside ``output`` that becomes ``output`` only when everything succeeded.

    Unfinished work stays in the sibling (``keep``) and the same request resumes it. What only serves the making lies
    in its ``.work`` folder, which is no part of the result. A finished ``output`` is refused
    without ``force``; a ``force`` replaces only a directory that this project made.

    Args:
        output: where the finished directory shall lie.
        request: what was asked for (JSON values); unfinished work of another request is refused without ``force``.
    """
    target = Path(output)
    working = target.with_name(f".{target.name}.partial")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CompressError(f"{output} exists and is not a directory; choose another -o")
    if target.exists() and any(target.iterdir()):
        if not force:
            raise CompressError(f"{output} already exists; choose another -o or replace it with --force")
        if not (target / MANIFEST_NAME).is_file():
            raise CompressError(
                f"{output} exists and was not made by compress, so --force does not replace it; choose another -o"
            )
    asked = json.dumps(request, sort_keys=True, default=str)
    try:
        working.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
        raise CompressError(
            f"{output} cannot be written ({error.strerror}); choose another -o, in a folder that can be"
        ) from None
    with _locked(working, output):
        request_file = working / WORK_FOLDER / REQUEST_NAME
        if request_file.exists() and request_file.read_text(encoding="utf-8") != asked:
            if not force:
                raise CompressError(
                    f"{working} holds unfinished work of another command for {output}; "
                    "repeat that command to resume it, choose another -o, or discard it with --force"
                )
            empty(working)
        request_file.parent.mkdir(exist_ok=True)
        if not request_file.exists():
            write_atomically(request_file, asked)
        if _has_progress(working):
            logger.info("going on where this command was stopped: %s", working)
        try:
            yield working
        except BaseException as error:
            if not keep or isinstance(error, CompressError) and not _has_progress(working):
                shutil.rmtree(working, ignore_errors=True)
            raise
        for stray in working.glob(".*.tmp"):  # of a start that was killed while it wrote
            stray.unlink()
        previous = target.with_name(f".{target.name}.previous")
        if target.exists():
            shutil.rmtree(previous, ignore_errors=True)
            target.rename(previous)
        working.rename(target)
        shutil.rmtree(previous, ignore_errors=True)
        if previous.exists():
            logger.warning("could not delete what %s replaced: delete %s yourself", target, previous)
        # Only now: what is needed to resume must be there until the result is.
        shutil.rmtree(target / WORK_FOLDER)
        (target / ".lock").unlink(missing_ok=True)


@contextmanager
def _locked(working: Path, output: str | Path) -> Iterator[None]:
    with (working / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CompressError(f"another command is writing {output} now; wait for it or choose another -o") from None
        yield


def _has_progress(working: Path) -> bool:
    made = [*working.iterdir(), *(working / WORK_FOLDER).glob("*")]
    return any(path.name not in {WORK_FOLDER, REQUEST_NAME, ".lock"} for path in made)


def empty(directory: Path) -> None:
    """Remove everything that a start has left in a working directory, but for its lock."""
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != ".lock":
            entry.unlink()


def finish(working: Path, manifest: Manifest) -> Manifest:
    """Write ``compress.json`` and the model card into a working directory, with the hash of every file."""
    from compress.host import describe_host, library_versions
    from compress.models.model_card import model_card

    complete = replace(manifest, files=describe_files(working), versions=library_versions(), host=describe_host())
    if complete.kind == "model":
        (working / "README.md").write_text(model_card(complete), encoding="utf-8")
    write_atomically(working / MANIFEST_NAME, complete.to_json())
    mode = (working / MANIFEST_NAME).stat().st_mode  # as the umask says; safetensors lets nobody but the owner read
    for name in complete.files:
        (working / name).chmod(mode)
    return complete


def write_atomically(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
