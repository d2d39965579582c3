"""Files on other machines, named by URIs such as ``s3://bucket/part-*.parquet`` and reached through fsspec.

A file is copied whole before it is read. Readers go over their files several times and look at any place of them, which
a connection does slowly, and a copy keeps their checks as they are. Copies lie in :func:`cache_folder` and are used
again as long as the file is the same; nothing deletes them.
"""

import hashlib
import itertools
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from compress.errors import CompressError, first_line, refuse, system_fault
from compress.escaping import text_without_secrets, without_secrets
from compress.files import KEPT_FREE_BYTES, UNANNOUNCED_BYTES
from compress.progress import logger

CACHE = "COMPRESS_CACHE"
_TOGETHER = 16  # files are copied at a time, and an interruption loses so many
_ANSWER_S, _SLOWEST_BYTES_PER_S = 30, 1000  # after which silence, and below which speed, a server counts as gone
_HOST = re.compile(r"(?<=://)([^/@]*@)?\[[\da-fA-F:.]+\]")  # an IPv6 address has the marks of patterns and chains
_WEB = ("http", "https")
# What file systems say of the content of a file, and, where they do not, of its time.
_CONTENT = ("ETag", "etag", "md5Hash", "blob_id", "Content-MD5")
_TIME = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created")


def cache_folder() -> Path:
    """Return where copies of remote files lie, and unfinished outputs: ``$COMPRESS_CACHE`` or ``~/.cache/compress``."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.environ.get(CACHE) or os.path.join(caches, "compress"))


def cache_place(kind: str, key: str) -> Path:
    """Return the folder in the cache of something, which is made; only this user can read what is below."""
    place = _place_of(kind, key)
    folder = place.parent
    try:
        for made in (folder.parent, folder, place):  # the first may be the user's own, which others may read
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if system_fault(error):
            raise
        raise CompressError(
            f"the cache {folder.parent} cannot be made ({error.strerror}: {error.filename}); set ${CACHE} to a folder "
            "that this user can write"
        ) from None
    return place


def cache_exists(kind: str, key: str) -> bool:
    """Tell whether the folder of :func:`cache_place` was made."""
    return _place_of(kind, key).is_dir()


def _place_of(kind: str, key: str) -> Path:
    return cache_folder() / kind / hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def parquet_parts(folder: str, names: Iterable[str]) -> list[str]:
    """Return the Parquet files among the names below a folder, as Spark and Hive write them; hidden ones do not count.

    Raises:
        CompressError: there is none, or a log says which of them count.
    """
    listed = [(name, name.split("/")) for name in sorted(names)]
    refuse(
        (
            any("_delta_log" in parts for _, parts in listed),
            f"{folder} is a Delta table, whose log says which files count: write it as Parquet files.",
        )
    )
    found = [
        name
        for name, parts in listed
        if name.endswith(".parquet") and not any(part[:1] in {".", "_"} and "=" not in part for part in parts)
    ]
    refuse((not found, f"{folder} is a directory without Parquet files, but a file is needed: name a file in it."))
    return found


@dataclass(frozen=True)
class Remote:
    """What a URI names. Make one with :meth:`at`; ``uri`` has no secrets and ``path`` is what ``system`` calls it."""

    uri: str
    system: Any
    path: str

    @classmethod
    def at(cls, uri: str) -> Self:
        """Open the file system of a URI.

        Raises:
            CompressError: its protocol is unknown or needs a package, or the file system refuses.
        """
        from fsspec.registry import get_filesystem_class, known_implementations

        shown, protocol = without_secrets(uri), uri.partition("://")[0]
        refuse(
            (
                "::" in _HOST.sub("", uri),
                f"{shown} is a chain of URIs, which is not read: unpack the file and give its own URI.",
            )
        )
        try:
            with _faults(shown, "opened"):
                kind: Any = get_filesystem_class(protocol)
                options = kind._get_kwargs_from_urls(uri)
                if protocol in _WEB:  # which may not answer
                    from aiohttp import ClientTimeout

                    timeout = ClientTimeout(total=None, sock_connect=_ANSWER_S, sock_read=_ANSWER_S)
                    options |= {"client_kwargs": {"timeout": timeout}}
                system = kind(**options)
                system.invalidate_cache()
        except ImportError as error:
            package = known_implementations.get(protocol, {}).get("class", "").partition(".")[0]
            if package in {"", "fsspec"}:
                package = getattr(error.__cause__ or error, "name", None) or protocol
            raise CompressError(
                f"{shown} needs the Python package {package}, which is not installed; type pip install {package}"
            ) from error
        return cls(shown, system, kind._strip_protocol(uri))

    def files(self) -> tuple[list["RemoteFile"], bool]:
        """Return the files that the URI names, itself, by a pattern or as a folder, and whether there is a folder.

        Raises:
            CompressError: there is none.
        """
        found, folder = list[RemoteFile](), False
        with _faults(self.uri, "read"):
            is_pattern = any(mark in _HOST.sub("", without_secrets(self.path)) for mark in "*?[")
            if is_pattern and not self.system.exists(self.path):
                self._check_listing()
                places = self.system.glob(self.path, detail=True)
                places = {path: info for path, info in places.items() if not _name(path).startswith(".")}
            else:
                places = {self.path: self.system.info(self.path)}
            for path, info in sorted(places.items()):
                below = {path: info}
                if info["type"] == "directory":
                    folder, listed = True, self.system.find(path, detail=True)
                    names = {one[len(path) :].strip("/"): one for one in listed}
                    below = {names[name]: listed[names[name]] for name in parquet_parts(self._shown(path), names)}
                found += [RemoteFile(self._shown(one), one, of) for one, of in below.items()]
        refuse((not found, f"No file matches {self.uri!r}: check the pattern."))
        return found, folder

    def _check_listing(self) -> None:
        """Refuse to list the files of a web server: that would follow the links of its pages, however many."""
        refuse(
            (
                self.uri.partition("://")[0].lower() in _WEB,
                f"{self.uri} is on a web server, which lists no files: name one data file in full.",
            )
        )

    def _shown(self, path: str) -> str:
        return without_secrets(str(self.system.unstrip_protocol(path)))

    def copied(self, files: Sequence["RemoteFile"]) -> list[Path]:
        """Copy files that are not in the cache yet, and return the copies.

        Raises:
            CompressError: copying broke off; what was copied stays.
        """
        places = [(file, *file.place()) for file in files]
        missing = [(file.path, file.info.get("size"), place) for file, place, is_kept in places if not is_kept]
        if missing:
            size = sum(size or 0 for _, size, _ in missing) / 1e6
            count = f"{len(missing):,} file{'s' * (len(missing) > 1)}"
            logger.info("copying %s, %.1f MB, from %s to %s", count, size, self.uri, cache_folder())
            self.get(missing)
        return [place for _, place, _ in places]

    def get(self, files: Sequence[tuple[str, int | None, Path]]) -> None:
        """Copy files, each of a size if that is known, to their places: each is whole there or not at all."""
        for start in range(0, len(files), _TOGETHER):
            group = files[start : start + _TOGETHER]
            parts = [place.with_name(f".{secrets.token_hex(8)}.part") for _, _, place in group]
            try:
                with _faults(self.uri, "read"):
                    names = [str(part) for part in parts]
                    self.system.get([path for path, _, _ in group], names, callback=self._watched(group))
                    for (_, size, place), part in zip(group, parts, strict=True):
                        if size not in (None, got := part.stat().st_size):
                            raise EOFError(f"{got:,} of {size:,} bytes of {place.name}")
                        part.replace(place)
            finally:
                for part in parts:
                    part.unlink(missing_ok=True)

    def _watched(self, files: Sequence[tuple[str, int | None, Path]]) -> Any:
        """Return what fsspec tells how far each copy is: it ends one that is too long, too slow or fills the disk."""
        from fsspec.callbacks import Callback

        sizes, place = {path: size for path, size, _ in files}, files[0][2].parent
        room = shutil.disk_usage(place).free - KEPT_FREE_BYTES

        class Copies(Callback):  # type: ignore[misc]
            def branched(own, source: str, target: str, **_: Any) -> Any:
                begun = time.monotonic()  # of this file: some systems copy one after the other

                def check(size: int | None, copied: int) -> None:
                    expected = sizes.get(source) or size
                    reason = "that it announced" if expected else "of a file that does not say its size; copy it"
                    limit = expected or UNANNOUNCED_BYTES
                    if room <= limit:
                        limit, reason = room, f"that are free in {cache_folder()}; set {CACHE} to another folder"
                    if max(copied, expected or 0) > limit:
                        raise CompressError(f"{self.uri} sends more than the {limit:,} bytes {reason}.")
                    if copied < (time.monotonic() - begun - _ANSWER_S) * _SLOWEST_BYTES_PER_S:
                        raise TimeoutError(f"fewer than {_SLOWEST_BYTES_PER_S:,} bytes a second")

                return Callback(hooks={"check": check})

        return Copies()

    def below(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    def sizes(self) -> dict[str, int]:
        """Return the size of every file in this folder and below it by name; nothing where there is none."""
        with _faults(self.uri, "read"):
            self.system.invalidate_cache()
            self._check_listing()
            if not self.system.exists(self.path):
                return {}
            # Object stores may list the folder itself, an object without a name.
            named = {
                path[len(self.path) :].strip("/"): info
                for path, info in self.system.find(self.path, detail=True).items()
            }
            return {name: int(info.get("size") or 0) for name, info in named.items() if name}

    def read(self, name: str, limit_bytes: int) -> bytes:
        """Return what a file in this folder holds, and of a larger one a byte more than the limit."""
        with _faults(f"{self.uri.rstrip('/')}/{name}", "read"), self.system.open(self.below(name), "rb") as stream:
            content: bytes = stream.read(limit_bytes + 1)
        return content

    def write(self, name: str, content: bytes) -> None:
        with _faults(self.uri, "written"):
            try:
                if "/" in self.path.strip("/"):  # else it is a bucket, which nothing here makes
                    self.system.mkdir(self.path, create_parents=False)
            except FileNotFoundError:
                raise CompressError(
                    f"{self.uri} cannot be made: the folder that it is to lie in is not there."
                ) from None
            except FileExistsError:
                pass
            self.system.pipe_file(self.below(name), content)

    def put(self, files: Sequence[Path]) -> None:
        for start in range(0, len(files), _TOGETHER):
            group = files[start : start + _TOGETHER]
            with _faults(self.uri, "written"):
                self.system.put([str(file) for file in group], [self.below(file.name) for file in group])

    def set_aside(self) -> None:
        """Rename this folder to the first of ``NAME.old``, ``NAME.old.1``, ... that is free."""
        with _faults(self.uri, "moved"):
            old = f"{self.path.rstrip('/')}.old"
            names = itertools.chain([old], (f"{old}.{number}" for number in itertools.count(1)))
            self.system.mv(self.path, next(name for name in names if not self.system.exists(name)), recursive=True)

    def remove(self, names: Iterable[str]) -> None:
        with _faults(self.uri, "written"):
            for name in names:
                self.system.rm_file(self.below(name))


@dataclass(frozen=True)
class RemoteFile:
    """A file that a URI names: its own URI without secrets, its path, and what its file system says of it."""

    uri: str
    path: str
    info: Mapping[str, Any]

    def place(self) -> tuple[Path, bool]:
        """Return where the copy of the file as it is now lies, and whether it is there."""
        name = _name(self.uri)
        refuse(
            (
                name in {"", ".", ".."} or "\0" in name,
                f"{self.uri} has no name that a file can have: copy it to another.",
            )
        )
        tags = [f"{key}={self.info[key]}" for key in _CONTENT if self.info.get(key)]
        # Without a mark of the content the query tells files apart, which is in the path alone; the host in the URI.
        source = self.uri if tags else f"{self.uri}\n{self.path}"
        tags = tags or [f"{key}={self.info[key]}" for key in _TIME if self.info.get(key)]
        place = cache_place("data", "\n".join([source, str(self.info.get("size")), *tags])) / name
        return place, bool(tags) and place.is_file()


def _name(path: str) -> str:
    return path.rpartition("/")[2]


@contextmanager
def _faults(uri: str, done: str) -> Iterator[None]:
    """Turn whatever a file system raises, each of them its own, into one sentence without secrets."""
    try:
        yield
    except (CompressError, ImportError, MemoryError):
        raise
    except Exception as error:
        if system_fault(error):  # of this machine
            raise
        says, kind = text_without_secrets(first_line(error)), type(error).__name__
        reason = kind if says == kind else f"{kind}: {says[:200]}"
        if isinstance(error, FileNotFoundError):
            fault = f"There is no file {uri!r}, or it cannot be reached: check the URI."
        elif isinstance(error, ValueError) and "Protocol not known" in says:
            protocol = uri.partition("://")[0]
            fault = f"{uri} has the unknown protocol {protocol!r}: use s3://, gs://, hf:// or another of fsspec."
        elif isinstance(error, PermissionError):
            fault = f"{uri} cannot be {done}, for lack of permission ({reason}): check the credentials of this machine."
        else:
            fault = (
                f"{uri} could not be {done} ({reason}): check connection and credentials; what was copied stays, and "
                "the same command goes on."
            )
        raise CompressError(fault) from error
