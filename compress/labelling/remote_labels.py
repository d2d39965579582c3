"""Label directories on other machines: made here and copied there at the end, or copied here before they are read.

No rename gives a folder there its name at once. So the manifest is copied last, and a folder without one is not
finished. It has the hash of every file: whoever reads the labels finds out whether two commands wrote one folder.
"""

import hashlib
import re
import secrets
import shutil
from pathlib import Path

from compress.errors import CompressError, refuse, some_of
from compress.escaping import without_secrets
from compress.files import JSON_LIMIT_BYTES
from compress.files.remote import Remote, cache_place
from compress.models.manifest import MANIFEST_NAME, Manifest

_OWN = re.compile(r"shard-\d{5,}\.(parquet|json)|unanswered\.jsonl")
_MARK = ".writing"  # of a command that labels


def work_place(uri: str) -> Path:
    """Return where the labels for a URI are made: the same place for the same URI, so that a command resumes."""
    shown = without_secrets(uri)
    name = shown.partition("://")[2].rstrip("/").rpartition("/")[2]
    refuse(
        (
            name in {"", ".", ".."},
            f"-o {shown} does not end with a name of a folder: give one, such as s3://bucket/labels",
        )
    )
    return cache_place("outputs", shown.rstrip("/")) / name


def open_target(uri: str, *, force: bool) -> Remote:
    """Open the folder that labels are to be copied to, and check before the work that it can be written.

    Raises:
        CompressError: it holds finished labels and ``force`` is not given, or files that no label directory has; or
            what is written there is not there for others.
    """
    refuse((uri.startswith("memory:"), f"-o {uri} is the memory of this command, which ends with it; give a directory"))
    remote = Remote.at(uri)
    _check(remote, force)
    remote.write(_MARK, b"")
    refuse((_MARK not in remote.sizes(), f"{remote.uri} does not list what is written there; choose another -o"))
    return remote


def _check(remote: Remote, force: bool) -> dict[str, int]:
    """Return the files there, if they may be replaced."""
    there = remote.sizes()
    foreign = [name for name in there if not _OWN.fullmatch(name) and name not in {MANIFEST_NAME, _MARK}]
    refuse(
        (
            foreign,
            f"-o {remote.uri} holds {some_of(foreign)}, which no label directory has; move that away or choose "
            "another -o",
        ),
        (
            MANIFEST_NAME in there and not force,
            f"{remote.uri} already holds finished labels; choose another -o or replace them with --force",
        ),
    )
    return there


def upload(made: Path, remote: Remote, *, force: bool) -> None:
    """Copy a label directory, its manifest last; what was there is moved aside first.

    Raises:
        CompressError: another command wrote there meanwhile.
    """
    there = _check(remote, force)
    remote.remove(name for name in there if name == _MARK or MANIFEST_NAME not in there)  # of a copy that broke off
    if MANIFEST_NAME in there:
        remote.set_aside()
    files = [made / name for name in Manifest.read(made / MANIFEST_NAME).files]
    remote.put(files)
    refuse(
        (
            remote.sizes() != {file.name: file.stat().st_size for file in files},
            f"{remote.uri} holds other files than were copied: another command writes there; wait for it and choose "
            "another -o, or give the same command again",
        )
    )
    remote.put([made / MANIFEST_NAME])


def keep_copy(made: Path) -> None:
    """Move labels that were copied to another machine to where copies of it lie, so that nobody copies them back."""
    place = _copy_place((made / MANIFEST_NAME).read_bytes())
    shutil.rmtree(place)
    made.rename(place)


def _copy_place(manifest: bytes) -> Path:
    return cache_place("labels", hashlib.sha256(manifest).hexdigest())


def local_copy(uri: str) -> Path:
    """Copy a label directory to the cache, unless it is there, and return the copy; its hashes are not checked yet.

    Raises:
        CompressError: it is not finished, names files that labels have not, or its files have other sizes.
    """
    remote = Remote.at(uri)
    there = remote.sizes()
    refuse(
        (
            MANIFEST_NAME not in there,
            f"{remote.uri} is not a finished label directory (no {MANIFEST_NAME}); make one with 'compress label'",
        )
    )
    content = remote.read(MANIFEST_NAME, JSON_LIMIT_BYTES)
    place = _copy_place(content)
    if (place / MANIFEST_NAME).is_file():
        return place
    coming = place / f".{secrets.token_hex(8)}.part"
    try:
        coming.write_bytes(content)
        sizes = {name: expected["size_bytes"] for name, expected in Manifest.read(coming).files.items()}
        for name, size in sizes.items():
            refuse(
                (not _OWN.fullmatch(name), f"its {MANIFEST_NAME} names {name!r}, which no label directory has"),
                (
                    there.get(name) != size,
                    f"{name} is not the file that {MANIFEST_NAME} names; copy or label the text again",
                ),
            )
        places = {name: place / name for name in sizes}
        missing = [name for name, file in places.items() if not file.is_file() or file.stat().st_size != sizes[name]]
        remote.get([(remote.below(name), sizes[name], places[name]) for name in missing])
        coming.replace(place / MANIFEST_NAME)
    except CompressError as error:
        raise CompressError(f"{remote.uri} cannot be read: {error}") from error
    finally:
        coming.unlink(missing_ok=True)
    return place
