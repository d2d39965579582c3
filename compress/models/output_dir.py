"""Outputs of commands: written beside their final place, renamed when complete, resumable until then.

A stage opens its inputs, checks the request, does its work in ``stage.working`` and writes the result::

    with Stage.begin("distill", output, parents={"teacher": teacher}, settings=settings, data=data, seed=seed,
                     force=force) as stage:
        student, tokenizer = ...  # what serves the resumption alone lies in stage.scratch
        stage.write_model(student, tokenizer, recipe=recipe, metrics=metrics, notes=notes)
    return Model.open(output)

A stage whose result is no torch model writes its own files and ends with ``stage.finish(...)`` instead.

No command writes into a directory that exists. ``--force`` renames what is there to ``NAME.old`` and deletes nothing.
An output that is an input, holds one or lies in one is refused, and two commands never write one output at once.
"""

import errno
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from compress import tasks
from compress.data.truncation import READS_NO_MORE, Truncation, counting
from compress.errors import CompressError, interruptions, refuse, system_fault
from compress.escaping import Markdown, is_uri, markdown_text, visible, without_secrets
from compress.files import printable_name, write_atomically
from compress.host import describe_host, library_versions
from compress.models.loading import load_network
from compress.models.manifest import (
    MANIFEST_NAME,
    METRICS_NAME,
    NATIVE_NAME,
    ONNX_NAME,
    PACKED_NAME,
    Manifest,
    describe_files,
)
from compress.models.model_dir import Model, parent_entry
from compress.models.modeling import ENCODERS, auto_class
from compress.progress import logger

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

PARTIAL = ".partial"
CARD_NAME = "README.md"
WORK_FOLDER, LOCK_NAME = ".work", ".lock"  # in working directories
REQUEST_NAME = "request.json"  # in the work folder: what was asked for, which every command writes first
# In the work folder: what is made before the first batch, such as tokenised rows. It is no finished work.
PREPARED = "prepared"
ENDED_EARLY = "request_sha256"  # in the notes of what was finished as it was: the same request goes on with it
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
_LONGEST_NAME = 245  # bytes; systems allow 255, and .NAME.partial and NAME.old.1 are longer
_NO_WORK = {REQUEST_NAME, LOCK_NAME, METRICS_NAME}
_TAKES_LENGTH = ("finetune", "label", "distill")
_READS_MORE = "--max-length N reads more of them, if the model can"
_WAIT_S = 0.1  # between two looks at a lock that another command holds


class Busy(CompressError):
    """Another command holds the lock of an output."""


@dataclass(frozen=True)
class Stage:
    """A stage at work.

    ``manifest`` holds what is known at its start, and ``truncation`` counts the rows that were cut.
    """

    output: Path
    working: Path
    manifest: Manifest
    truncation: Truncation

    @classmethod
    @contextmanager
    def begin(
        cls,
        name: str,
        output: str | Path,
        *,
        parents: Mapping[str, Model | None],
        settings: Mapping[str, Any],
        data: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        force: bool = False,
        keep: bool = True,
    ) -> Iterator[Self]:
        """Give a stage its working directory, which becomes ``output`` when the block succeeds.

        Args:
            name: the stage, as the manifest names it.
            parents: the models that the result is made from, by role; those that are None do not occur in the
                manifest. Task and labels of the result are those of the first, unless they are given at the end, as
                they are where there is none.
            settings: every other setting that the result depends on. Settings, parents, data and seed are the request:
                the same request resumes unfinished work, and another is refused without ``force``.
            data: entries of :func:`compress.data.describe_rows`, where they are known before the work.
            seed: None for a stage that draws nothing.
            force: move an existing ``output`` aside, and discard unfinished work of another request.
            keep: keep unfinished work, so that it can be resumed.
        """
        request = {"stage": name, **settings, **{role: model and model.sha256 for role, model in parents.items()}}
        request |= {} if data is None else {"data": list(data)}
        request |= {} if seed is None else {"seed": seed}
        given = {role: model for role, model in parents.items() if model}
        keep_apart(places_of(output), [model.path for model in given.values()])
        first = next(iter(given.values()), None)
        manifest = Manifest(
            stage=name,
            name=Path(output).name,
            task=first.task if first else tasks.default(),
            labels=first.labels if first else (),
            parents=tuple(parent_entry(role, parent) for role, parent in given.items()),
            data=tuple(dict(entry) for entry in data or ()),
            seeds={} if seed is None else {"seed": seed},
        )
        with counting() as truncation, writing(output, request, force=force, keep=keep) as working:
            yield cls(Path(output), working, manifest, truncation)
        if said := truncation.sentence(_READS_MORE if name in _TAKES_LENGTH else READS_NO_MORE):
            logger.info("%s", said)

    @property
    def scratch(self) -> Path:
        """The folder of what serves the work alone; it is no part of the result."""
        return self.working / WORK_FOLDER

    def finish(self, **described: Any) -> Manifest:
        """Write ``compress.json`` with the hash of every file, and a model's card.

        Args:
            described: fields of :class:`compress.models.manifest.Manifest` that the start did not know.
        """
        notes = {**described.get("notes", {}), **self.truncation.notes()}
        return finish(self.working, replace(self.manifest, **{**described, "notes": notes}))

    def write_model(self, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", **described: Any) -> None:
        """Write a torch model, its tokenizer, the manifest and the card; then reopen it and compare outputs."""
        import transformers

        from compress.models.saving import check_same, describe_architecture, save_model

        model = model.cpu().float().eval()
        save_model(model, tokenizer, self.working)
        manifest = self.finish(**{"architecture": describe_architecture(model), **described})
        reopened, _ = load_network(getattr(transformers, auto_class(manifest.task)), self.working)
        check_same(model, reopened.eval())


@contextmanager
def writing(
    output: str | Path, request: Mapping[str, Any], *, force: bool = False, keep: bool = True
) -> Iterator[Path]:
    """Give a working directory beside ``output`` that becomes ``output`` only when everything succeeded.

    Unfinished work stays in the sibling (``keep``) and the same request resumes it; after an error of the work itself,
    only where some of it is finished. What only serves the making lies in its ``.work`` folder, which is no part of the
    result. A finished ``output`` is refused without ``force``, which moves it aside at the end of the work.

    Args:
        output: where the finished directory shall lie.
        request: what was asked for (JSON values); unfinished work of another request is refused without ``force``.
    """
    target, working = places_of(output)
    asked = json.dumps(request, sort_keys=True, default=str)
    if not force:
        _reopen(target, working, asked)
    try:
        working.mkdir(parents=True)
    except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
        if not os.path.lexists(working):
            raise unwritable(target, error) from None
        _check_working(working)
    with locked(working / LOCK_NAME, target):
        with _discarded(working, keep=True):
            check_free(target, force)
            _begin(working, target, asked, force, keep)
        with _discarded(working, keep):
            yield working
        for stray in working.glob(".*.tmp"):  # of a start that was killed while it wrote
            stray.unlink()
        try:
            if force and _is_occupied(target):
                set_aside(target)
            working.rename(target)
        except OSError as error:
            raise CompressError(
                f"{target} appeared while this command ran, and is left as it is ({error.strerror}); move it away "
                f"and repeat the command; what it made lies in {working}"
            ) from None
        # Only now: what is needed to resume must be there until the result is.
        shutil.rmtree(target / WORK_FOLDER)
        (target / LOCK_NAME).unlink(missing_ok=True)


def places_of(output: str | Path) -> tuple[Path, Path]:
    """Return where a directory will lie, and where it is made."""
    target = output_path(output)
    return target, target.with_name(f".{target.name}{PARTIAL}")


def check_free(output: str | Path, force: bool = False) -> None:
    """Refuse an output directory that exists, or that cannot be replaced.

    Raises:
        CompressError: it does, and is not empty.
    """
    target = output_path(output)
    occupied = _is_occupied(target)
    refuse(
        (target.is_mount(), f"{target} is a mount point, which cannot be replaced; name a directory in it"),
        (occupied and not force, f"{target} already exists; choose another -o or replace it with --force"),
    )


def ended_early(output: str | Path) -> Any:
    """Return the hash of the request that a finished directory goes on with; None where its manifest has none."""
    with suppress(CompressError):
        return Manifest.read(Path(output) / MANIFEST_NAME).notes.get(ENDED_EARLY)
    return None


def set_aside(path: Path) -> None:
    """Rename what lies at a path, if anything, to the first of ``NAME.old``, ``NAME.old.1``, ... that is free."""
    if entry(path) is None:
        return
    aside = path.with_name(f"{path.name}.old")
    numbers = itertools.count(1)
    while os.path.lexists(aside):
        aside = path.with_name(f"{path.name}.old.{next(numbers)}")
    path.rename(aside)
    logger.info("%s is %s now", path, aside)


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


def discard_unfinished(output: Path) -> None:
    """Delete unfinished work for a directory.

    Raises:
        CompressError: a command is writing it now, or it is no work of ours.
    """
    target, working = places_of(output)
    if entry(working):
        _check_working(working)
        with locked(working / LOCK_NAME, target):
            shutil.rmtree(working)


def empty(directory: Path) -> None:
    """Remove everything that a start has left in a working directory but its lock; what was asked for comes last."""
    for path in sorted(directory.iterdir(), key=lambda path: path.name == WORK_FOLDER):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK_NAME:
            path.unlink()


def finish(working: Path, manifest: Manifest) -> Manifest:
    """Write ``compress.json`` and the model card into a working directory, with the hash of every file."""
    complete = replace(manifest, files=describe_files(working), versions=library_versions(), host=describe_host())
    write_atomically(working / MANIFEST_NAME, complete.to_json())
    if complete.kind == "model":
        (working / CARD_NAME).write_text(model_card(complete), encoding="utf-8")
    mode = (working / MANIFEST_NAME).stat().st_mode  # as the umask says; safetensors lets nobody but the owner read
    for name in complete.files:
        (working / name).chmod(mode)
    return complete


def model_card(manifest: Manifest) -> str:
    """Return the card as Markdown with the front matter that the Hugging Face hub reads."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("compress.models"),
        finalize=markdown_text,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    task = manifest.task
    return environment.get_template("model_card.md.j2").render(
        manifest=manifest,
        architecture=manifest.architecture,
        recipe=Markdown(visible(json.dumps(manifest.recipe, indent=2, sort_keys=True, ensure_ascii=False))),
        pipeline=task if task in ENCODERS else tasks.everything().get(task, tasks.default()).pipeline,
        auto_class=auto_class(task),
        is_onnx=ONNX_NAME in manifest.files,
        is_native=NATIVE_NAME in manifest.files,
        is_packed=PACKED_NAME in manifest.files,
    )


def _is_occupied(target: Path) -> bool:
    """Tell whether something lies at an output, other than an empty directory."""
    found = entry(target)
    return found is not None and (not stat.S_ISDIR(found.st_mode) or any(target.iterdir()))


def _reopen(target: Path, working: Path, asked: str) -> None:
    """Make a directory that was finished as it was unfinished work again, for the request that it was made by."""
    if ended_early(target) == hashlib.sha256(asked.encode()).hexdigest() and not os.path.lexists(working):
        with suppress(FileNotFoundError):  # another command was faster
            (target / WORK_FOLDER).mkdir(exist_ok=True)
            write_atomically(target / WORK_FOLDER / REQUEST_NAME, asked)
            target.rename(working)


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


def _has_progress(working: Path) -> bool:
    """Tell whether something is finished that takes part in the result, or spares a later start work."""
    made = (path.relative_to(working) for path in working.rglob("*") if not path.is_dir())
    return any(path.name not in _NO_WORK and path.suffix != ".tmp" and PREPARED not in path.parts for path in made)


def _check_working(working: Path) -> None:
    """Refuse to work in a directory that no command of this user began, or that leads out of itself."""
    found, fault = working.lstat(), ""
    if not stat.S_ISDIR(found.st_mode):
        fault = "no directory"
    elif found.st_uid not in {os.geteuid(), working.parent.stat().st_uid}:  # some mounts give all files one owner
        fault = "another user's"
    else:
        modes = {path.relative_to(working): path.lstat().st_mode for path in working.rglob("*")}
        files = [path for path, mode in modes.items() if not stat.S_ISDIR(mode)]
        link = next((path for path in files if not stat.S_ISREG(modes[path])), None)
        if link is not None:
            fault = f"not safe: {link} in it is a link or a device"
        elif not (working / WORK_FOLDER / REQUEST_NAME).is_file() and any(
            path.parts[0] not in {WORK_FOLDER, LOCK_NAME} for path in files
        ):
            fault = "not unfinished work of compress"
    if fault:
        raise CompressError(f"{working}, where unfinished work lies, is {fault}; move it away or choose another -o")


# Locks


@contextmanager
def locked(lock: Path, output: Path, *, shared: bool = False) -> Iterator[int]:
    """Hold the lock file of an output, and give its descriptor; the system frees it when the process ends.

    Args:
        shared: others that say so may hold it too.

    Raises:
        Busy: another command holds it.
    """
    busy = Busy(f"another command is writing {output} now; wait for it or choose another -o")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:  # a command that ended has just removed the folder, which it had made
        raise busy from None
    except OSError as error:
        raise unwritable(output, error) from None
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        if not _is_at(lock, descriptor):  # it has just moved to its place
            raise busy
        yield descriptor
    finally:
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    found = entry(path)
    return found is not None and os.path.samestat(found, os.fstat(descriptor))


@contextmanager
def alone(file: Path, *, shared: bool = False) -> Iterator[None]:
    """Keep other commands from writing a file at the same time, by an empty hidden file beside it.

    Folders that are missing are made, and removed again where nothing was written in them.

    Args:
        shared: keep only those off that want to be alone; they keep this one off.

    Raises:
        Busy: another command holds it.
    """
    lock = lock_file(file)
    missing = [folder for folder in lock.parents if not folder.exists()]
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(file, error) from None
    try:
        with locked(lock, file, shared=shared) as descriptor:
            try:
                yield
            finally:
                if not os.fstat(descriptor).st_size:  # ours, and not a file of somebody's
                    with suppress(BlockingIOError):  # others still share it
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        if _is_at(lock, descriptor):  # else the last to share it was faster
                            lock.unlink()
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def in_turn(file: Path, what: str = "", *, shared: bool = False) -> Iterator[None]:
    """As :func:`alone`, but wait for the command that holds the lock, and say once for what."""
    with ExitStack() as held:
        for attempt in itertools.count():
            try:
                held.enter_context(alone(file, shared=shared))
                break
            except Busy:
                if what and not attempt:
                    logger.info("%s: waiting for another command", what)
                time.sleep(_WAIT_S)
        yield


def lock_file(file: Path) -> Path:
    """Return the lock of a file."""
    return file.with_name(f".{file.name}.lock")


# Names and places


def output_path(output: str | Path, option: str = "-o", *, added: str = "", file: bool = False) -> Path:
    """Return the path of a directory or file to write, if it has a name that can be one.

    Args:
        added: what the longest name has that is made of it.
        file: it shall be a file, so that a slash at its end is a mistake.

    Raises:
        CompressError: it is empty, ``.``, ``..`` or ``/``, a URI, too long, or not UTF-8; or a directory for a file.
    """
    text = os.fspath(output)
    path, longest = Path(text), _LONGEST_NAME - len(added)
    size = len(path.name.encode("utf-8", "replace"))
    refuse(
        (
            is_uri(text),
            f"{option} {without_secrets(text)} is on another machine, where only 'compress label' writes; give a "
            "directory or file here, and copy it",
        ),
        (
            path.name in {"", ".."} or "\0" in text or printable_name(text) != text,
            f"{option} {ascii(text)} is no name of a new file or directory; give one, such as result",
        ),
        (
            file and os.path.basename(text) in {"", "."},
            f"{option} {text} names a directory; give a file, such as {path} or {os.path.join(text, 'new')}",
        ),
        (size > longest, f"{option} {path.name[:20]}... has {size} bytes; give a name of at most {longest}"),
    )
    return path


def keep_apart(outputs: Iterable[str | Path], inputs: Iterable[str | Path], option: str = "-o") -> None:
    """Refuse outputs that are an input, hold one or lie in one, whatever names and links lead there.

    Raises:
        CompressError: one does.
    """
    for output, given in itertools.product(outputs, inputs):
        own, places = _places(Path(output)), _places(Path(given))
        where = "is" if own[:1] == places[:1] else "lies in" if places[0] in own else "holds"
        refuse(
            (
                places[0] and (places[0] in own or own[0] and own[0] in places),
                f"{option} {output} {where} {given}, which this command reads and would change; "
                f"choose another {option}",
            )
        )


def _places(path: Path) -> list[tuple[int, int] | None]:
    """Return device and inode of a path and of every directory above it; None for what is not there."""
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, or no path at all
        return [None]
    found: list[tuple[int, int] | None] = []
    for place in (resolved, *resolved.parents):
        try:
            about = place.stat()
            found.append((about.st_dev, about.st_ino))
        except OSError:
            found.append(None)
    return found


def entry(path: Path, option: str = "-o") -> os.stat_result | None:
    """Return what lies at a path, links not followed; None for nothing.

    Raises:
        CompressError: the path cannot be: it is too long, or passes through a file.
    """
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unwritable(path, error, option) from None


def unwritable(path: str | Path, error: OSError, option: str = "-o") -> CompressError | OSError:
    """Return the error for a place that the system does not let us write to; where another would not help, its own."""
    if error.errno in {errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM}:
        return error
    return CompressError(f"{option} {path} cannot be written ({error.strerror}); choose another {option}")


# Single files


def check_file(path: str | Path, option: str = "-o", *, force: bool = True) -> None:
    """Refuse, before the work, a file that cannot be written after it, or that is there without ``force``.

    Raises:
        CompressError: for each of these.
    """
    target = output_path(path, option, file=True)
    found = entry(target, option)
    refuse(
        (
            found and stat.S_ISDIR(found.st_mode),
            f"{option} {path} is a directory; give a file in it, such as {path}/new",
        ),
        (
            found and not stat.S_ISREG(found.st_mode),
            f"{option} {path} is a link or a device, not a file; choose another",
        ),
        (found and not force, f"{path} already exists; choose another {option} or replace it with --force"),
    )
    folder = next(parent for parent in target.absolute().parents if parent.exists())
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise unwritable(path, error, option) from None


def refuse_other_outputs(target: Path, advice: str) -> None:
    """Refuse to put files of another kind into a model or another output."""
    if made := [name for name in (MANIFEST_NAME, "config.json") if (target / name).exists()]:
        raise CompressError(f"{target} holds {made[0]}, so that it is a model or another output; give {advice}")


def append_summary(text: str) -> None:
    """Add text to the summary that GitHub shows of a workflow's step, where there is one."""
    if summary := os.environ.get(SUMMARY_VARIABLE):
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        except OSError as error:
            raise unwritable(summary, error, f"${SUMMARY_VARIABLE}") from None
