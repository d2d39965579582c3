"""Reference results: a file, or a directory with one file for each host, here or at a git reference."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from compress.benchmarking.results.files import parse_results, read_results, write_results
from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError
from compress.gating.git_reference import open_tree

REFERENCE_SUFFIX = ".jsonl"
_HOST = re.compile(r"[0-9A-Za-z_-]{1,64}")


def read_reference(path: str | Path, hosts: Iterable[str]) -> list[Measurement]:
    """Return the lines of a baseline, those of the given hosts first.

    Of a directory, ``<host_id>.jsonl`` is read for each host; where a host has none, the files of all others are
    read too, as quality is comparable across hosts.

    Raises:
        CompressError: there is nothing, or a file is damaged or named after another host than its lines.
    """
    folder = Path(path)
    if not folder.exists():
        raise CompressError(
            f"--baseline {path} does not exist; make it with 'compress check RESULTS --update-baseline DIRECTORY', or "
            "name older results"
        )
    if not folder.is_dir():
        return read_results([folder])
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    return _of_hosts(names, lambda name: read_results([folder / name]), hosts, str(path))


def read_against(spec: str, hosts: Iterable[str]) -> list[Measurement]:
    """Return the lines of a baseline, file or directory, as it is at ``REF:PATH`` in git.

    Raises:
        CompressError: as :func:`read_reference`, and where git finds nothing.
    """
    tree = open_tree(spec)
    if not tree.is_folder:
        return parse_results(tree.read(tree.names[0]), spec)
    return _of_hosts(tree.names, lambda name: parse_results(tree.read(name), f"{spec}/{name}"), hosts, spec)


def update_baseline(directory: str | Path, lines: Sequence[Measurement]) -> list[Path]:
    """Replace ``<host_id>.jsonl`` of each host in the lines by its lines, each file whole or not at all.

    Raises:
        CompressError: the directory is a file, or a host's fingerprint cannot be the name of a file.
    """
    if Path(directory).is_file():
        raise CompressError(f"--update-baseline {directory} is a file; give the directory that holds one file a host")
    by_host: dict[str, list[Measurement]] = {}
    for line in lines:
        by_host.setdefault(line.host_id, []).append(line)
    for host in by_host:
        if not _HOST.fullmatch(host):
            raise CompressError(f"host_id {host!r} cannot name a file; run the benchmark again")
    paths = [Path(directory) / f"{host}{REFERENCE_SUFFIX}" for host in by_host]
    for path, own in zip(paths, by_host.values(), strict=True):
        write_results(path, own)
    return paths


def _of_hosts(
    names: Sequence[str], read: Callable[[str], list[Measurement]], hosts: Iterable[str], where: str
) -> list[Measurement]:
    there = sorted(name for name in names if name.endswith(REFERENCE_SUFFIX))
    if not there:
        raise CompressError(f"{where} holds no baseline; make one with 'compress check RESULTS --update-baseline DIR'")
    wanted = [f"{host}{REFERENCE_SUFFIX}" for host in dict.fromkeys(hosts)]
    own = [name for name in wanted if name in there]
    others = [name for name in there if name not in own] if len(own) < len(wanted) else []
    lines: list[Measurement] = []
    for name in own + others:
        found = read(name)
        strangers = {line.host_id for line in found} - {name.removesuffix(REFERENCE_SUFFIX)}
        if strangers:
            raise CompressError(
                f"{where}/{name} holds lines of another host ({', '.join(sorted(strangers))}); a baseline is named "
                "after its host: write it with --update-baseline"
            )
        lines += found
    return lines
