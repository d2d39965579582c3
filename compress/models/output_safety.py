"""What an output may not touch: inputs, and whatever this project did not write or somebody changed since."""

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from compress.errors import CompressError
from compress.escaping.uris import is_uri, without_secrets
from compress.files import faults_of
from compress.models.manifest import MANIFEST_NAME, Manifest, file_sha256
from compress.models.signatures import is_signed

CARD_NAME = "README.md"
# In working directories; in a finished one where a command was killed after that got its name.
WORK_FOLDER, LOCK_NAME = ".work", ".lock"
REQUEST_NAME = "request.json"  # in the work folder: what was asked for, which every command writes first
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
_LONGEST_NAME = 255


def output_path(output: str | Path, option: str = "-o", *, added: str = "", file: bool = False) -> Path:
    """Return the path of a directory or file to write, if it has a name that can be one.

    Args:
        added: what the longest name has that is made of it.
        file: it shall be a file, so that a slash at its end is a mistake.

    Raises:
        CompressError: it is empty, ``.``, ``..`` or ``/``, a URI, too long, or not UTF-8; or a directory for a file.
    """
    text = os.fspath(output)
    if is_uri(text):
        raise CompressError(
            f"{option} {without_secrets(text)} is on another machine, where only 'compress label' writes; give a "
            "directory or file here, and copy it"
        )
    try:
        valid = "\0" not in text and bool(text.encode("utf-8"))
    except UnicodeEncodeError:
        valid = False
    path = Path(text)
    if not valid or path.name in {"", ".."}:
        raise CompressError(f"{option} {ascii(text)} is no name of a new file or directory; give one, such as result")
    if file and os.path.basename(text) in {"", "."}:
        raise CompressError(
            f"{option} {text} names a directory; give a file, such as {path} or {os.path.join(text, 'new')}"
        )
    longest = _LONGEST_NAME - len(added)
    if (size := len(path.name.encode("utf-8"))) > longest:
        raise CompressError(f"{option} {path.name[:20]}... has {size} bytes; give a name of at most {longest}")
    return path


def keep_apart(outputs: Iterable[str | Path], inputs: Iterable[str | Path], option: str = "-o") -> None:
    """Refuse outputs that are an input, hold one or lie in one, whatever names and links lead there.

    Raises:
        CompressError: one does.
    """
    read = [(given, _places(Path(given))) for given in inputs]
    for output in outputs:
        own = _places(Path(output))
        for given, places in read:
            where = "is" if own[:1] == places[:1] else "lies in" if places[0] in own else "holds"
            if places[0] and (places[0] in own or own[0] and own[0] in places):
                raise CompressError(
                    f"{option} {output} {where} {given}, which this command reads and would change; "
                    f"choose another {option}"
                )


def _places(path: Path) -> list[tuple[int, int] | None]:
    """Return device and inode of a path and of every directory above it; None for what is not there."""
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, or no path at all
        return [None]
    return [_identity(place) for place in (resolved, *resolved.parents)]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


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


def append_summary(text: str) -> None:
    """Add text to the summary that GitHub shows of a workflow's step, where there is one."""
    if summary := os.environ.get(SUMMARY_VARIABLE):
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        except OSError as error:
            raise unwritable(summary, error, f"${SUMMARY_VARIABLE}") from None


def refuse_other_outputs(target: Path, advice: str) -> None:
    """Refuse to put files of another kind into a model or another output, which ``--force`` then could not replace."""
    if made := [name for name in (MANIFEST_NAME, "config.json") if (target / name).exists()]:
        raise CompressError(f"{target} holds {made[0]}, so that it is a model or another output; give {advice}")


def check_file(
    path: str | Path, is_ours: Callable[[Path], object], what: str, *, option: str = "-o", force: bool = True
) -> None:
    """Refuse, before the work, a file that cannot be written after it, or that is not ours to replace.

    Args:
        is_ours: reads an existing file, and raises where it is not ``what`` the command writes.
        force: replace a file of ours.

    Raises:
        CompressError: for each of these.
    """
    target = output_path(path, option, file=True)
    found = entry(target, option)
    if found and stat.S_ISDIR(found.st_mode):
        raise CompressError(f"{option} {path} is a directory; give a file in it, such as {path}/new")
    if found and not stat.S_ISREG(found.st_mode):
        raise CompressError(f"{option} {path} is a link or a device, not a file; choose another")
    if found and found.st_size:
        try:
            with faults_of(target, what):
                is_ours(target)
        except CompressError:
            raise CompressError(
                f"{option} {path} exists and is not {what}, so that it is not replaced; choose another"
            ) from None
    if found and not force:
        raise CompressError(f"{path} already exists; choose another {option} or replace it with --force")
    folder = next(parent for parent in target.absolute().parents if parent.exists())
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise unwritable(path, error, option) from None


def owned_files(directory: Path) -> dict[str, str]:
    """Return the sha256 of every file below a finished directory, if this project wrote all of them as they are.

    Raises:
        CompressError: it has no valid manifest, or holds a file that this does not list or that was changed.
    """
    there = list(_files(directory))
    manifest = Manifest.read(directory / MANIFEST_NAME)
    if there and not manifest.stage:
        raise CompressError(
            f"{directory} exists and was not made by compress, so --force does not replace it; choose another -o"
        )
    found, foreign = {}, []
    for path in there:
        name = path.relative_to(directory).as_posix()
        if not stat.S_ISREG(path.lstat().st_mode) or not _is_listed(name, manifest):
            foreign.append(name)
            continue
        found[name] = file_sha256(path)
        if not (_is_own_card(path) if name == CARD_NAME else _is_as_written(name, found[name], manifest)):
            foreign.append(name)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise CompressError(
            f"{directory} holds {foreign[0]}{more}, which compress did not write or somebody changed since, so "
            "--force does not replace it; move that away or choose another -o"
        )
    return found


def _files(directory: Path) -> Iterator[Path]:
    """Yield everything below a directory that is no directory itself; links are not followed."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(directory, onerror=refuse):
        yield from (Path(folder, name) for name in files)
        yield from (path for name in folders if (path := Path(folder, name)).is_symlink())


def _is_listed(name: str, manifest: Manifest) -> bool:
    known = name in {MANIFEST_NAME, CARD_NAME, LOCK_NAME} or name.startswith(f"{WORK_FOLDER}/")
    return known or name in manifest.files


def _is_as_written(name: str, sha256: str, manifest: Manifest) -> bool:
    # The manifest itself, and what a killed command left, are not in it.
    return bool(manifest.files.get(name, {"sha256": sha256})["sha256"] == sha256)


def _is_own_card(path: Path) -> bool:
    try:
        return is_signed(path.read_text(encoding="utf-8"))
    except ValueError:  # bytes that are no text
        return False


def delete_owned(directory: Path, files: Iterable[str]) -> None:
    """Delete these files of a directory, its manifest last, and then the directory if nothing else is in it."""
    for name in sorted(files, key=lambda name: name == MANIFEST_NAME):
        with suppress(FileNotFoundError):
            (directory / name).unlink()
    for folder, _, _ in os.walk(directory, topdown=False):
        with suppress(OSError):
            os.rmdir(folder)


def check_working(working: Path) -> None:
    """Refuse to work in a directory that no command of this user began, or that leads out of itself."""
    found = working.lstat()
    fault = None
    if not stat.S_ISDIR(found.st_mode):
        fault = "no directory"
    elif found.st_uid not in {os.geteuid(), working.parent.stat().st_uid}:  # some mounts give all files one owner
        fault = "another user's"
    else:
        there = {path.relative_to(working).as_posix(): path for path in _files(working)}
        own = {name for name in there if name == LOCK_NAME or name.startswith(f"{WORK_FOLDER}/")}
        link = next((name for name, path in there.items() if not stat.S_ISREG(path.lstat().st_mode)), None)
        if link is not None:
            fault = f"not safe: {link} in it is a link or a device"
        elif f"{WORK_FOLDER}/{REQUEST_NAME}" not in there and set(there) - own:
            fault = "not unfinished work of compress"
    if fault:
        raise CompressError(f"{working}, where unfinished work lies, is {fault}; move it away or choose another -o")
