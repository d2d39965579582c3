"""A file system in memory, ``faulty://``, that refuses what it is told to refuse and counts what is copied from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class FaultyFileSystem(MemoryFileSystem):
    protocol = "faulty"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    copied: ClassVar[list[str]] = []
    # What happens before a file is copied from here, or to here: it may raise.
    before_get: ClassVar[Callable[[str], object]] = str
    before_put: ClassVar[Callable[[str], object]] = str

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("faulty://", "memory://").split("@")[-1].split("?key=")[0])

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        type(self).before_get(rpath)
        super().get_file(rpath, lpath, **options)
        self.copied.append(rpath)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        type(self).before_put(rpath)
        super().put_file(lpath, rpath, **options)


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)


@contextmanager
def remote_files(cache: Path) -> Iterator[FaultyFileSystem]:
    """Give an empty file system; copies of its files lie in the cache."""
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPRESS_CACHE", str(cache))
        for name, value in (("store", {}), ("pseudo_dirs", [""]), ("copied", [])):
            patch.setattr(FaultyFileSystem, name, value)
        patch.setattr(FaultyFileSystem, "before_get", staticmethod(str))
        patch.setattr(FaultyFileSystem, "before_put", staticmethod(str))
        yield FaultyFileSystem()
