"""Read files at a git reference without a checkout."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from compress.errors import CompressError


@dataclass(frozen=True)
class Tree:
    """A folder, or a single file, at a commit. ``names`` are the files right below it; of a file, only its own."""

    names: tuple[str, ...]
    is_folder: bool
    read: Callable[[str], str]


def open_tree(spec: str) -> Tree:
    """Open ``REF:PATH``, such as ``origin/main:benchmarks/baselines``; PATH counts from the top of the repository.

    Raises:
        CompressError: it is not of that form, there is no git or no repository here, or no such reference or path.
    """
    reference, colon, path = spec.partition(":")
    if not (colon and reference and path) or reference.startswith("-"):
        raise CompressError(
            f"--against {spec!r} is not REF:PATH; give a git reference and a path in it, such as "
            "origin/main:benchmarks/baselines"
        )
    inside = _git("rev-parse", "--git-dir")
    if inside.returncode:
        raise CompressError(f"--against {spec!r} needs a git repository here, but git says: {_says(inside)}")
    commit = _git("rev-parse", "--verify", "--quiet", f"{reference}^{{commit}}")
    if commit.returncode:
        raise CompressError(
            f"--against {spec!r}: the repository has no reference {reference!r}; fetch it first, such as with "
            "'git fetch origin main', or look at 'git branch --all'"
        )
    found = f"{commit.stdout.decode().strip()}:{path.rstrip('/') or path}"
    kind = _git("cat-file", "-t", found)
    if kind.returncode:
        raise CompressError(
            f"--against {spec!r}: {reference} has no {path!r}; paths count from the top of the repository, or begin "
            f"with ./ : look at 'git ls-tree -r --name-only {reference}'"
        )
    if kind.stdout.strip() != b"tree":
        return Tree((path.rsplit("/", 1)[-1],), False, lambda name: _text(found, spec))
    listed = _git("ls-tree", "--full-tree", "--name-only", "-z", found)
    names = tuple(name for name in listed.stdout.decode("utf-8", "replace").split("\0") if name)
    return Tree(names, True, lambda name: _text(f"{found}/{name}", f"{spec}/{name}"))


def _text(found: str, spec: str) -> str:
    read = _git("cat-file", "blob", found)
    if read.returncode:
        raise CompressError(f"{spec} cannot be read from the repository; git says: {_says(read)}")
    try:
        return read.stdout.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CompressError(f"{spec} cannot be read as results ({error}); give a .jsonl of benchmark") from None


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, env={**os.environ, "LC_ALL": "C"}, check=False)
    except FileNotFoundError:
        raise CompressError("--against needs git, and it is not installed; use --baseline with a file") from None


def _says(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return git's first line of complaint, which names the fault; more lines give advice."""
    return (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"])[0]
