"""Label directories on other machines: made here and copied there at the end, or copied here before they are read.

No rename gives a folder there its name at once. So the manifest is copied last, and a folder without one is not
finished. It has the hash of every file: whoever reads the labels finds out whether two commands wrote one folder.
"""

import hashlib
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from compress.errors import CompressError
from compress.escaping.uris import without_secrets
from compress.files import JSON_LIMIT_BYTES
from compress.files.remote import Remote, cache_place
from compress.models.manifest import MANIFEST_NAME, Manifest

_SHARD = re.compile(r"shard-\d{5,}\.(parquet|json)")
_MARK = ".writing"  # holds a random number of the command that began last


def work_place(uri: str) -> Path:
    """Return where the labels for a URI are made: the same place for the same URI, so that a command resumes."""
    shown = without_secrets(uri)
    name = shown.partition("://")[2].rstrip("/").rpartition("/")[2]
    if name in {"", ".", ".."}:
        raise CompressError(f"-o {shown} does not end with a name of a folder: give one, such as s3://bucket/labels")
    return cache_place("outputs", shown.rstrip("/")) / name


@dataclass(frozen=True)
class Upload:
    """The copying of finished labels to a folder. Begin it with :meth:`begin`, before the work."""

    remote: Remote
    force: bool
    mark: bytes

    @classmethod
    def begin(cls, uri: str, *, force: bool) -> Self:
        """Check that labels can be written to a folder, and mark it as being written.

        Raises:
            CompressError: it holds finished labels and ``force`` is not given, or files that no label directory has; or
                what is written there is not there for others.
        """
        if uri.startswith("memory:"):
            raise CompressError(f"-o {uri} is the memory of this command, which ends with it; give a directory")
        upload = cls(Remote.at(uri), force, secrets.token_hex(16).encode())
        upload._check()
        upload.remote.write(_MARK, upload.mark)
        if _MARK not in upload.remote.sizes():
            raise CompressError(f"{upload.remote.uri} does not list what is written there; choose another -o")
        return upload

    def _check(self) -> dict[str, int]:
        """Return the files there, if they may be replaced."""
        there = self.remote.sizes()
        foreign = [name for name in there if not _SHARD.fullmatch(name) and name not in {MANIFEST_NAME, _MARK}]
        if foreign:
            raise CompressError(
                f"-o {self.remote.uri} holds {foreign[0]}, which no label directory has; move that away or choose "
                "another -o"
            )
        if MANIFEST_NAME in there and not self.force:
            raise CompressError(
                f"{self.remote.uri} already holds finished labels; choose another -o or replace them with --force"
            )
        return there

    def finish(self, made: Path) -> None:
        """Copy a label directory, its manifest last.

        Raises:
            CompressError: another command began to write there since, or the files there are not those that were
                copied.
        """
        there = self._check()
        self._check_mark()
        files = [made / name for name in Manifest.read(made / MANIFEST_NAME).files]
        content = (made / MANIFEST_NAME).read_bytes()
        self.remote.remove(name for name in there if name == MANIFEST_NAME)  # nobody shall read the old with the new
        self.remote.put(files)
        self.remote.remove(set(there) - {file.name for file in files} - {MANIFEST_NAME, _MARK})
        self._check_mark()
        sizes = {file.name: file.stat().st_size for file in files}
        if {name: size for name, size in self.remote.sizes().items() if name != _MARK} != sizes:
            raise self._other("holds other files than were copied")
        self.remote.put([made / MANIFEST_NAME])
        if self.remote.read(MANIFEST_NAME, len(content)) != content:
            raise self._other("has another manifest than was copied")
        self.remote.remove([_MARK])

    def _check_mark(self) -> None:
        if _MARK not in self.remote.sizes() or self.remote.read(_MARK, len(self.mark)) != self.mark:
            raise self._other("is being written by a command that began later")

    def _other(self, fault: str) -> CompressError:
        return CompressError(
            f"{self.remote.uri} {fault}: another command writes there; wait for it and choose another -o, or give the "
            "same command again"
        )


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
    if MANIFEST_NAME not in there:
        raise CompressError(
            f"{remote.uri} is not a finished label directory (no {MANIFEST_NAME}); make one with 'compress label'"
        )
    content = remote.read(MANIFEST_NAME, JSON_LIMIT_BYTES)
    place = _copy_place(content)
    if (place / MANIFEST_NAME).is_file():
        return place
    coming = place / f".{secrets.token_hex(8)}.part"
    try:
        coming.write_bytes(content)
        files = Manifest.read(coming).files
        for name, expected in files.items():
            if not _SHARD.fullmatch(name):
                raise CompressError(f"its {MANIFEST_NAME} names {name!r}, which no label directory has")
            if there.get(name) != expected["size_bytes"]:
                raise CompressError(f"{name} is not the file that {MANIFEST_NAME} names; copy or label the text again")
        remote.get(
            [
                (remote.below(name), there[name], place / name)
                for name in files
                if not (place / name).is_file() or (place / name).stat().st_size != there[name]
            ]
        )
        coming.replace(place / MANIFEST_NAME)
    except CompressError as error:
        raise CompressError(f"{remote.uri} cannot be read: {error}") from error
    finally:
        coming.unlink(missing_ok=True)
    return place
