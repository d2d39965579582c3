"""Reference results, here or at a git reference: a file, or a directory with one file for each host."""

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from compress.benchmarking.results.files import (
    Results,
    grouped,
    parse_results,
    write_results,
)
from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError, refuse
from compress.files import RESULTS_LIMIT_BYTES
from compress.models.output_dir import check_file

SAYS = "<git>"  # stands for git's own words in a message
REFERENCE_SUFFIX = ".jsonl"
_HOST = re.compile(r"[0-9A-Za-z_-]{1,64}")


def read_reference(path: str | Path, hosts: Iterable[str]) -> Sequence[Measurement]:
    """Return the lines of a baseline, those of the given hosts first.

    Of a directory, ``<host_id>.jsonl`` is read for each host; where a host has none, the files of all others are
    read too, as quality is comparable across hosts.

    Raises:
        CompressError: there is nothing, or a file is damaged or named after another host than its lines.
    """
    folder = Path(path)
    refuse(
        (
            not folder.exists(),
            f"--baseline {path} does not exist; make it with 'compress check RESULTS --update-baseline DIRECTORY', or "
            "name older results",
        )
    )
    if not folder.is_dir():
        return Results.open(folder)
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    return _of_hosts(names, lambda name: Results.open(folder / name), hosts, str(path))


def read_against(spec: str, hosts: Iterable[str]) -> Sequence[Measurement]:
    """Return the lines of a baseline, file or directory, as it is at ``REF:PATH`` in git.

    PATH counts from the top of the repository: ``origin/main:benchmarks/baselines``. No checkout is needed.

    Raises:
        CompressError: as :func:`read_reference`, and where there is no git, no repository, no such reference or path.
    """
    reference, colon, path = spec.partition(":")
    refuse(
        (
            not (colon and reference and path) or reference.startswith("-"),
            f"--against {spec!r} is not REF:PATH; give a git reference and a path in it, such as "
            "origin/main:benchmarks/baselines",
        )
    )
    _git(f"--against {spec!r} needs a git repository here, but git says: {SAYS}", "rev-parse", "--git-dir")
    commit = _git(
        f"--against {spec!r}: the repository has no reference {reference!r}; fetch it first, such as with "
        "'git fetch origin main', or look at 'git branch --all'",
        *("rev-parse", "--verify", "--quiet", f"{reference}^{{commit}}"),
    )
    found = f"{commit.decode().strip()}:{path.rstrip('/') or path}"
    kind = _git(
        f"--against {spec!r}: {reference} has no {path!r}; paths count from the top of the repository, or begin "
        f"with ./ : look at 'git ls-tree -r --name-only {reference}'",
        *("cat-file", "-t", found),
    )

    def read(inside: str = "") -> Sequence[Measurement]:
        fault = f"{spec}{inside} cannot be read from the repository; git says: {SAYS}"
        size = int(_git(fault, "cat-file", "-s", f"{found}{inside}"))
        too_large = f"{spec}{inside} has more than {RESULTS_LIMIT_BYTES:,} bytes; give a smaller one"
        refuse((size > RESULTS_LIMIT_BYTES, too_large))
        content = _git(fault, "cat-file", "blob", f"{found}{inside}")
        try:
            return parse_results(content.decode("utf-8"), f"{spec}{inside}")
        except UnicodeDecodeError as error:
            raise CompressError(
                f"{spec}{inside} cannot be read as results ({error}); give a .jsonl of benchmark"
            ) from None

    if kind.strip() != b"tree":
        return read()
    listed = _git(f"{spec} cannot be listed; git says: {SAYS}", "ls-tree", "--full-tree", "--name-only", "-z", found)
    return _of_hosts(listed.decode("utf-8", "replace").split("\0"), lambda name: read(f"/{name}"), hosts, spec)


def _git(fault: str, *arguments: str) -> bytes:
    """Return what git prints; where it fails, ``fault`` is raised with git's own first line in the place of SAYS."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, env={**os.environ, "LC_ALL": "C"}, check=False)
    except FileNotFoundError:
        raise CompressError("--against needs git, and it is not installed; use --baseline with a file") from None
    if done.returncode:
        says = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise CompressError(fault.replace(SAYS, says[0]))
    return done.stdout


def store_reference(results: Sequence[str | Path], directory: str | Path) -> dict[Path, list[str]]:
    """Make results the baseline of their hosts: ``directory/<host_id>.jsonl``, each replaced whole.

    Returns:
        The files, with the models of each that were in it before and no longer are; on data that no longer is, with it.

    Raises:
        CompressError: the directory is a file, or holds something else under the name of a host.
    """
    lines, folder = Results.open(*results), Path(directory)
    refuse(
        (folder.is_file(), f"--update-baseline {folder} is a file; give the directory that holds one file a host"),
        *(
            (not _HOST.fullmatch(line.host_id), f"host_id {line.host_id!r} cannot name a file; run the benchmark again")
            for line in lines
        ),
    )
    by_host = grouped(lines, lambda line: folder / f"{line.host_id}{REFERENCE_SUFFIX}")
    gone: dict[Path, list[str]] = {}
    for path, own in by_host.items():
        check_file(path, "--update-baseline")
        before = Results.open(path) if path.is_file() else []
        names, sets = {line.model for line in own}, {line.data for line in own}
        missing = [line for line in before if line.model not in names or line.data not in sets]
        said = (line.model + (f" on {line.data}" if line.data not in sets else "") for line in missing)
        gone[path] = list(dict.fromkeys(said))
    for path, own in by_host.items():
        write_results(path, own)
    return gone


def _of_hosts(
    names: Sequence[str], read: Callable[[str], Sequence[Measurement]], hosts: Iterable[str], where: str
) -> Sequence[Measurement]:
    there = sorted(name for name in names if name.endswith(REFERENCE_SUFFIX))
    refuse((not there, f"{where} holds no baseline; make one with 'compress check RESULTS --update-baseline DIR'"))
    wanted = [f"{host}{REFERENCE_SUFFIX}" for host in dict.fromkeys(hosts)]
    own = [name for name in wanted if name in there]
    others = [name for name in there if name not in own] if len(own) < len(wanted) else []
    lines: list[Measurement] = []
    for name in own + others:
        found = read(name)
        strangers = ", ".join(sorted({line.host_id for line in found} - {name.removesuffix(REFERENCE_SUFFIX)}))
        advice = "a baseline is named after its host: write it with --update-baseline"
        refuse((strangers, f"{where}/{name} holds lines of another host ({strangers}); {advice}"))
        lines += found
    return lines
