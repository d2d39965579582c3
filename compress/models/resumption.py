"""What a command keeps in its work folder for its next start: taken only as it was written, else made again.

A killed process, a full disk or somebody's editor may leave a file that is cut short or holds something else. Each file
has a hash; one that has another is deleted, which is said, and counts as never made.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from compress.errors import CompressError
from compress.models.manifest import MANIFEST_NAME, Manifest, describe_files, file_sha256, verify_files
from compress.models.output_dir import write_atomically
from compress.progress import logger

UNREADABLE = (ValueError, LookupError, TypeError, RecursionError, IsADirectoryError, CompressError)


def keep(path: Path, value: Any) -> None:
    """Write a JSON value with its hash, whole or not at all."""
    write_atomically(path, json.dumps({"sha256": _sha256(value), "value": value}) + "\n")


def kept(path: Path, absent: Any = None) -> Any:
    """Return the JSON value that :func:`keep` wrote; ``absent`` where there is none, or no longer that one."""
    if not os.path.lexists(path):
        return absent
    with suppress(*UNREADABLE):
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["sha256"] == _sha256(found["value"]):
            return found["value"]
    _delete(path)
    return absent


def cached_json(path: Path, compute: Callable[[], Any]) -> Any:
    """Return a JSON value that is computed once: a resumed run reads that of the first run from the file."""
    if kept(path) is None:
        keep(path, compute())
    return kept(path)


def seal(path: Path) -> None:
    """Note the hash of a finished file beside it, or those of the files of a folder in its manifest."""
    if path.is_dir():
        manifest = Manifest(stage="checkpoint", kind="checkpoint", files=describe_files(path))
        write_atomically(path / MANIFEST_NAME, manifest.to_json())
    else:
        keep(_noted(path), file_sha256(path))


def is_whole(path: Path) -> bool:
    """Tell whether a file or folder was sealed, or is a finished stage, and is as it was then; else delete it."""
    if not os.path.lexists(path):
        return False
    whole, finished = False, True
    with suppress(*UNREADABLE):
        if path.is_dir():
            manifest = Manifest.read(path / MANIFEST_NAME)
            finished = bool(manifest.stage)
            verify_files(path, manifest)
            whole = finished
        else:
            finished = _noted(path).exists()
            whole = kept(_noted(path)) == file_sha256(path)
    if not whole:
        _delete(path, said=finished)
    return whole


def _delete(path: Path, said: bool = True) -> None:
    if said:
        logger.warning("%s is damaged: it is deleted and made again", path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _noted(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
