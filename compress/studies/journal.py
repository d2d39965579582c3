"""Study journal: finished stages with fingerprints of their inputs, so that a study resumes."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from compress.errors import CompressError
from compress.files import read_json_table
from compress.models.manifest import MANIFEST_NAME
from compress.models.output_dir import discard, discard_unfinished, write_atomically
from compress.models.output_lock import alone, lock_file
from compress.models.output_safety import entry, output_path, unwritable
from compress.progress import logger
from compress.recipes import parse

JOURNAL_NAME = "study.json"


class OutOfDate(CompressError):
    """A stage was made from other inputs than are now named, and is not made again without being asked to."""


@dataclass
class Stages:
    """The stages that are done, so that a study that was stopped goes on where it was.

    Each finished stage is remembered with a fingerprint of everything it was made from. When that changes, the stage
    is refused rather than made again in silence: it may have cost hours. What gathers the others is made again.
    """

    directory: Path
    force: bool
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    _asked: dict[str, str] = field(default_factory=dict)  # the fingerprints of this run

    @classmethod
    @contextmanager
    def open(cls, output: str | Path, force: bool) -> Iterator[Self]:
        """Open a study, or begin one; another command for the same directory is refused meanwhile."""
        # A study may be resumed in the current directory: nothing in it is replaced but its own stages.
        directory = Path(output) if str(output) in {".", ".."} else output_path(output)
        if entry(directory) and not directory.is_dir():
            raise CompressError(f"{directory} is a file; choose another -o")
        journal = directory / JOURNAL_NAME
        others = {path.name for path in directory.iterdir()} if directory.exists() else set()
        if JOURNAL_NAME not in others and others - {lock_file(journal).name}:
            raise CompressError(f"{directory} is not empty and is not a study; choose another -o")
        with alone(journal):
            yield cls(directory, force, _read_journal(journal) if entry(journal) else {})

    def make(self, name: str, inputs: Mapping[str, Any], make: Callable[[Path], Any], *, gathers: bool = False) -> Path:
        """Make ``directory/name`` by ``make(path)`` unless it was made from the same inputs before.

        Args:
            gathers: it only gathers what other stages made, and changes whenever there are more of these.

        Raises:
            OutOfDate: it was made from other inputs, gathers nothing, and there is no ``force``.
        """
        path = self.directory / name
        fingerprint = hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()
        if not gathers and self._asked.setdefault(name, fingerprint) != fingerprint:
            raise CompressError(f"two parts of the study are called {name}; give one of them another name")
        known = self.done.get(name)
        # A stage that ended just before the study was stopped has its manifest, but not yet its time.
        if known and path.exists() and (known["seconds"] is not None or (path / MANIFEST_NAME).is_file()):
            if known["fingerprint"] == fingerprint:
                logger.info("%s: done before", name)
                return path
            if not (self.force or gathers):
                raise OutOfDate(
                    f"{path} was made from other data or settings than the study now names; make it again with --force "
                    "or choose another -o"
                )
        if self.force:
            if (path / MANIFEST_NAME).is_file():
                discard(path)
            discard_unfinished(path)
        logger.info("%s: started", name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path.parent, error) from None
        self._remember(name, fingerprint, None)
        started = time.monotonic()
        make(path)
        seconds = round(time.monotonic() - started, 1)
        self._remember(name, fingerprint, seconds)
        logger.info("%s: done in %.0f s", name, seconds)
        return path

    def _remember(self, name: str, fingerprint: str, seconds: float | None) -> None:
        self.done[name] = {"fingerprint": fingerprint, "seconds": seconds}
        write_atomically(self.directory / JOURNAL_NAME, json.dumps(self.done, indent=1) + "\n")


@dataclass(frozen=True)
class _Entry:
    fingerprint: str
    seconds: float | None


@dataclass(frozen=True)
class _Journal:
    stages: Mapping[str, _Entry]


def _read_journal(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found = parse(_Journal, {"stages": read_json_table(path)}, source=str(path))
    except CompressError as error:
        raise CompressError(
            f"{path} is damaged, so that nobody knows what its stages were made from ({error}); choose another -o"
        ) from None
    return {name: asdict(entry) for name, entry in found.stages.items()}
