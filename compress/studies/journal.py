"""Study journal: finished stages with fingerprints of their inputs, so that a study resumes."""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from compress.errors import CompressError, interruptions
from compress.fields import validated
from compress.files import read_json_table, write_atomically
from compress.models.manifest import MANIFEST_NAME
from compress.models.model_dir import ModelDir
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
from compress.recipes import parse

JOURNAL_NAME = "study.json"


class NotMade(CompressError):
    """A stage is asked for that is not there, or was made from other inputs, and it is not to be made."""


class OutOfDate(CompressError):
    """A stage was made from other inputs than are now named, and is not made again without being asked to."""


@validated
class StageEntry:
    """A stage, by what it was made from; its ``seconds`` where it is finished. Old journals have no ``inputs``."""

    fingerprint: str
    seconds: float | None
    inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Stages:
    """The stages that are done, so that a study that was stopped goes on where it was.

    Each finished stage is remembered with a fingerprint of everything it was made from. When that changes, the stage
    is refused rather than made again in silence: it may have cost hours. What gathers the others is made again.

    Several commands may work on one study, each on a stage of its own, and one at a time measures.

    Args:
        waits: wait for a stage that another command makes; otherwise raise Busy.
        makes: make what is missing; otherwise raise NotMade.
    """

    directory: Path
    force: bool
    waits: bool = True
    makes: bool = True
    _asked: dict[str, str] = field(default_factory=dict)  # the fingerprints of this run

    @classmethod
    @contextmanager
    def open(cls, output: str | Path, force: bool) -> Iterator[Self]:
        """Open a study, or begin one. A command with ``force`` is alone: it is refused, and others wait for it.

        Raises:
            Busy: with ``force``, another command works on the study.
        """
        # A study may be resumed in the current directory: nothing in it is replaced but its own stages.
        directory = Path(output) if str(output) in {".", ".."} else output_path(output)
        if entry(directory) and not directory.is_dir():
            raise CompressError(f"{directory} is a file; choose another -o")
        journal = directory / JOURNAL_NAME
        others = directory.exists() and any(directory.iterdir())
        if others and not entry(journal) and not entry(lock_file(journal)):
            raise CompressError(f"{directory} is not empty and is not a study; choose another -o")
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
            gathers: it only gathers what other stages made, and changes whenever there are more of these.

        Raises:
            OutOfDate: it was made from other inputs, gathers nothing, and there is no ``force``.
            Busy: another command makes it, and this one does not wait.
            NotMade: it would have to be made, and this one does not make.
        """
        fingerprint = _sha256(inputs)
        given = {key: _sha256(value)[:16] for key, value in inputs.items()}
        if not gathers and self._asked.setdefault(name, fingerprint) != fingerprint:
            raise CompressError(f"two parts of the study are called {name}; give one of them another name")
        lock = self.directory / f"{name}.stage"
        with ExitStack() as turn:
            try:
                turn.enter_context(alone(lock))
            except Busy:
                under_way = self.done().get(name)
                if under_way and under_way.fingerprint != fingerprint and not gathers:
                    raise OutOfDate(
                        f"another command makes {self.directory / name} from {_others(under_way, given)}; choose "
                        "another -o"
                    ) from None
                if not self.waits:
                    raise
                turn.enter_context(in_turn(lock, name))
            return self._make(name, StageEntry(fingerprint, None, given), make, gathers)

    def made(self, name: str) -> ModelDir:
        """Open the model of a stage.

        Raises:
            Busy: another command makes it, and this one did not wait.
        """
        path = self.directory / name
        if not path.exists():
            raise Busy(f"another command makes {path} now")
        return ModelDir.open(path)

    def _make(self, name: str, asked: StageEntry, make: Callable[[Path], Any], gathers: bool) -> Path:
        path = self.directory / name
        known = self.done().get(name)
        # A stage that ended just before the study was stopped has its manifest, but not yet its time.
        if not path.exists() or (known and known.seconds is None and not (path / MANIFEST_NAME).is_file()):
            known = None
        if known and known.fingerprint == asked.fingerprint:
            if self.makes:
                logger.info("%s: done before", name)
            return path
        if not self.makes:
            if known:
                logger.warning("%s is not measured: it was made from %s", path, _others(known, asked.inputs))
            raise NotMade(f"{path} is not made")
        if known:
            if not (self.force or gathers):
                raise OutOfDate(
                    f"{path} was made from {_others(known, asked.inputs)}; make it again with --force or choose "
                    "another -o"
                )
            if gathers:
                logger.info("%s: made again, from other models or settings than before", name)
        if known or self.force:
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
        self, plan: Callable[[Self], Mapping[str, Iterator[Callable[[], Path]]]], only: Collection[str] = ()
    ) -> dict[str, Exception]:
        """Make all of a plan, and return what names failed with.

        What another command makes now is left for the end, in the order of the plan, so that commands share the work.
        What fails ends its name, and the other names are made; beside what another command made it is tried once more.

        Args:
            plan: returns, by name, calls that make a path each, with the stages that it is given. Where one raises
                Busy, the next ones are made nevertheless.
            only: names of the plan to make; by default all.
        """
        failed: dict[str, Exception] = {}
        busy = set(only or plan(self))
        for waits in (False, True):
            left, busy = busy, set()
            for name, making in plan(replace(self, waits=waits)).items():
                if name not in left:
                    continue
                failed.pop(name, None)
                try:
                    for make in making:
                        try:
                            make()
                        except Busy:
                            if waits:
                                raise
                            busy.add(name)
                except (OutOfDate, OSError):
                    raise
                except Exception as error:
                    if interruptions:
                        raise KeyboardInterrupt from error
                    if isinstance(error, Busy) and not waits:
                        busy.add(name)
                        continue
                    failed[name] = error
                    logger.warning("%s failed: %s", name, error)
        return failed

    def found(self, plan: Callable[[Self], Mapping[str, Iterator[Callable[[], Path]]]]) -> dict[str, list[Path]]:
        """Return by name the paths of a plan that are made, and leave out names of which the first is not."""
        found: dict[str, list[Path]] = {}
        for name, making in plan(replace(self, makes=False)).items():
            paths: list[Path] = []
            with suppress(NotMade):  # labels that only these models read
                for make in making:
                    with suppress(NotMade, Busy):
                        paths.append(make())
                    if not paths:  # a student is the first: its control may be another's too
                        break
            if paths:
                found[name] = paths
        return found

    def _remember(self, name: str, stage: StageEntry) -> None:
        journal = self.directory / JOURNAL_NAME
        with in_turn(journal.with_suffix(".entry")):
            done = {known: asdict(entry) for known, entry in {**self.done(), name: stage}.items()}
            write_atomically(journal, json.dumps(done, indent=1) + "\n")


@validated
class _Journal:
    stages: Mapping[str, StageEntry]


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _others(made: StageEntry, asked: Mapping[str, str]) -> str:
    """Name the inputs in which a stage that was made differs from the request."""
    changed = sorted(key for key in {*made.inputs, *asked} if made.inputs.get(key) != asked.get(key))
    which = f" (changed: {', '.join(changed)})" if made.inputs else ""
    return f"other data or settings than the study now names{which}"


def read_journal(path: Path) -> dict[str, StageEntry]:
    """Return the stages of a study, in the order in which they were begun.

    Raises:
        CompressError: the file is damaged.
    """
    try:
        found = parse(_Journal, {"stages": read_json_table(path)}, source=str(path))
    except CompressError as error:
        raise CompressError(
            f"{path} is damaged, so that nobody knows what its stages were made from ({error}); make them again with "
            "--force, or choose another -o"
        ) from None
    return {**found.stages}
