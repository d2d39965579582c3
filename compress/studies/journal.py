"""Study journal: finished stages with what they were made from, so that a study resumes."""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pydantic

from compress.errors import CompressError, interruptions, refuse
from compress.files import read_text, write_atomically
from compress.models.manifest import MANIFEST_NAME
from compress.models.output_dir import (
    Busy,
    alone,
    discard_unfinished,
    entry,
    in_turn,
    lock_file,
    output_path,
    set_aside,
)
from compress.progress import logger

JOURNAL_NAME = "study.json"


class OutOfDate(CompressError):
    """A stage was made from other inputs than are now named, and is not made again without being asked to."""


@dataclass(frozen=True)
class StageEntry:
    """A stage: the hashes of its inputs by name, and the seconds that it took where it is finished."""

    inputs: Mapping[str, str]
    seconds: float | None

    def others(self, asked: Self) -> str:
        """Return the names of the inputs that have changed, in one text."""
        changed = [
            key for key in sorted({*self.inputs, *asked.inputs}) if self.inputs.get(key) != asked.inputs.get(key)
        ]
        return f"other data or settings than the study now names (changed: {', '.join(changed)})"


_ENTRIES = pydantic.TypeAdapter(dict[str, StageEntry], config=pydantic.ConfigDict(strict=True, extra="forbid"))


@dataclass
class Stages:
    """The stages that are done, so that a study that was stopped goes on where it was.

    Each finished stage is remembered with hashes of everything it was made from. When one changes, the stage is refused
    rather than made again in silence: it may have cost hours. What gathers the others is made again.

    Several commands may work on one study, each on a stage of its own, and one at a time measures.

    Args:
        waits: wait for a stage that another command makes; otherwise raise Busy.
        makes: make what is missing; otherwise raise CompressError.
    """

    directory: Path
    force: bool
    waits: bool = True
    makes: bool = True
    _asked: dict[str, StageEntry] = field(default_factory=dict)  # by this run

    @classmethod
    @contextmanager
    def open(cls, output: str | Path, force: bool) -> Iterator[Self]:
        """Open a study, or begin one. A command with ``force`` is alone: it is refused, and others wait for it.

        Raises:
            Busy: with ``force``, another command works on the study.
        """
        # A study may be resumed in the current directory: nothing in it is replaced but its own stages.
        directory = Path(output) if str(output) in {".", ".."} else output_path(output)
        refuse((entry(directory) and not directory.is_dir(), f"{directory} is a file; choose another -o"))
        journal = directory / JOURNAL_NAME
        refuse(
            (
                directory.exists()
                and any(directory.iterdir())
                and not entry(journal)
                and not entry(lock_file(journal)),
                f"{directory} is not empty and is not a study; choose another -o",
            )
        )
        with alone(journal) if force else in_turn(journal, str(directory), shared=True):
            stages = cls(directory, force)
            try:
                stages.done()  # a damaged journal shows before any work
            except CompressError as error:
                if not force:
                    raise
                kept = journal.rename(journal.with_name(f"{JOURNAL_NAME}.old"))
                logger.warning("%s; it is %s now, and every stage is made again", error, kept)
            yield stages

    def done(self) -> dict[str, StageEntry]:
        """Return what the journal says now of each stage."""
        journal = self.directory / JOURNAL_NAME
        return read_journal(journal) if entry(journal) else {}

    def make(self, name: str, inputs: Mapping[str, Any], make: Callable[[Path], Any], *, gathers: bool = False) -> Path:
        """Make ``directory/name`` by ``make(path)`` unless it was made from the same inputs before.

        Args:
            gathers: it only gathers what other stages made, and changes whenever there are more of these. ``make``
                replaces what is there.

        Raises:
            OutOfDate: it was made from other inputs, gathers nothing, and there is no ``force``.
            Busy: another command makes it, and this one does not wait.
            CompressError: it would have to be made, and this one does not make.
        """
        asked = StageEntry({key: _sha256(value)[:16] for key, value in sorted(inputs.items())}, None)
        refuse(
            (
                not gathers and self._asked.setdefault(name, asked) != asked,
                f"two parts of the study are called {name}; give one of them another name",
            )
        )
        path, lock = self.directory / name, self.directory / f"{name}.stage"
        with ExitStack() as turn:
            try:
                turn.enter_context(alone(lock))
            except Busy:
                under_way = self.done().get(name)
                if under_way and under_way.inputs != asked.inputs and not gathers:
                    raise OutOfDate(
                        f"another command makes {path} from {under_way.others(asked)}; choose another -o"
                    ) from None
                if not self.waits:
                    raise
                turn.enter_context(in_turn(lock, name))
            known = self.done().get(name)
            # A stage that ended just before the study was stopped has its manifest, but not yet its time.
            if not path.exists() or (known and known.seconds is None and not (path / MANIFEST_NAME).is_file()):
                known = None
            if known and known.inputs == asked.inputs:
                if self.makes:
                    logger.info("%s: done before", name)
                return path
            if known and not self.makes:
                logger.warning("%s is not measured: it was made from %s", path, known.others(asked))
            if not self.makes:
                raise CompressError(f"{path} is not made")
            if known and not (self.force or gathers):
                raise OutOfDate(
                    f"{path} was made from {known.others(asked)}; make it again with --force or choose another -o"
                )
            if known and gathers:
                logger.info("%s: made again, from other models or settings than before", name)
            elif known or self.force:
                set_aside(path)
            if self.force:
                discard_unfinished(path)
            logger.info("%s: started", name)
            self._remember(name, asked)
            started = time.monotonic()
            make(path)
            seconds = round(time.monotonic() - started, 1)
            self._remember(name, replace(asked, seconds=seconds))
            logger.info("%s: done in %.0f s", name, seconds)
            return path

    def making(self) -> AbstractContextManager[None]:
        """Keep other commands from measuring: beside a training all speeds are others."""
        return in_turn(self.directory / "making", "making", shared=True)

    def measuring(self) -> AbstractContextManager[None]:
        """Wait until no other command makes or measures anything, and keep them from it."""
        return in_turn(self.directory / "making", "measuring")

    def make_all(
        self, rows: Mapping[str, Sequence[Callable[[Self], Path]]], only: Collection[str] = ()
    ) -> dict[str, Exception]:
        """Make the stages of all rows, and return what rows failed with.

        What another command makes now is left for the end, so that commands share the work. What fails ends its row,
        and the other rows are made; beside what another command made it is tried once more.

        Args:
            rows: by name, calls that make a path each with the stages that they are given. Where one raises Busy, the
                next ones are made nevertheless.
            only: names of the rows to make; by default all.
        """
        failed: dict[str, Exception] = {}
        left = {name: calls for name, calls in rows.items() if not only or name in only}
        for stages in (replace(self, waits=False), self):
            busy = {}
            for name, calls in left.items():
                failed.pop(name, None)
                try:
                    for call in calls:
                        try:
                            call(stages)
                        except Busy:
                            if stages.waits:
                                raise
                            busy[name] = calls
                except (OutOfDate, OSError):
                    raise
                except Exception as error:
                    if interruptions:
                        raise KeyboardInterrupt from error
                    failed[name] = error
                    logger.warning("%s failed: %s", name, error)
            left = busy
        return failed

    def found(self, rows: Mapping[str, Sequence[Callable[[Self], Path]]]) -> dict[str, list[Path]]:
        """Return by name the paths of rows that are made, and leave out rows of which the first is not."""
        found: dict[str, list[Path]] = {}
        for name, calls in rows.items():
            for call in calls:
                with suppress(CompressError):  # not made, or what it reads cannot be
                    found.setdefault(name, []).append(call(replace(self, makes=False)))
                if not found.get(name):  # a student is the first: its control may be another's too
                    break
        return {name: paths for name, paths in found.items() if paths}

    def _remember(self, name: str, stage: StageEntry) -> None:
        journal = self.directory / JOURNAL_NAME
        with in_turn(journal.with_suffix(".entry")):
            done = {known: asdict(entry) for known, entry in {**self.done(), name: stage}.items()}
            write_atomically(journal, json.dumps(done, indent=1) + "\n")


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def read_journal(path: Path) -> dict[str, StageEntry]:
    """Return the stages of a study, in the order in which they were begun.

    Raises:
        CompressError: the file is damaged.
    """
    try:
        return _ENTRIES.validate_json(read_text(path))
    except (CompressError, pydantic.ValidationError):
        raise CompressError(
            f"{path} is damaged, so that nobody knows what its stages were made from; make them again with --force, or "
            "choose another -o"
        ) from None
