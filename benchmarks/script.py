"""What the scripts of this folder, and of those in it, share: options, turns, and lines of results."""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from compress.benchmarking.results.files import host_id
from compress.data import Example, open_source, read_examples
from compress.escaping import without_secrets
from compress.files import write_json_lines
from compress.host import describe_host, library_versions, without_home
from compress.progress import quiet_libraries

Name = TypeVar("Name", bound=Any)


def typed_command(program: str) -> str:
    """Return the command line with absolute paths reduced to file names and without secrets, for sharing."""

    def shown(word: str) -> str:
        option, equals, value = word.partition("=") if word.startswith("-") and "=" in word else ("", "", word)
        return f"{option}{equals}{Path(value).name if Path(value).is_absolute() else without_secrets(value)}"

    return without_home(shlex.join([program, *map(shown, sys.argv)]))


def read_options(
    description: str | None,
    output: Any = Path,
    positional: tuple[str, str] | None = None,
    hidden: str = "",
    arguments: Sequence[str] | None = None,
    **options: Any,
) -> argparse.Namespace:
    """Read the options of a script, whose docstring describes them, and quieten libraries.

    Args:
        description: what ``--help`` prints.
        output: ``Path``, or None where ``-o`` may be left out.
        positional: name of what follows without an option, and argparse's ``nargs`` of it.
        hidden: an option that the script gives itself, and ``--help`` leaves out.
        arguments: what was typed; None for the command line.
        options: of each its type, where it has to be given, or its default, None for a text, False for a flag. A tuple
            of texts are choices, the first is the default; a list, of a type or of defaults, stands for several values;
            a list in a tuple for several of these choices, by default all.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if positional:
        parser.add_argument(positional[0], nargs=positional[1])
    several = {}
    for name, given in {**options, "output": output}.items():
        flags = [*(["-o"] if name == "output" else []), f"--{name.replace('_', '-')}"]
        values = given[0] if isinstance(given, tuple) and isinstance(given[0], list) else given
        first = next(iter(values), None) if isinstance(values, list | tuple) else values
        is_needed = isinstance(first, type)
        form = {"type": first if is_needed else str if first is None else type(first), "required": is_needed}
        if isinstance(given, tuple):
            form["choices"] = values
        if name == hidden:
            form["help"] = argparse.SUPPRESS
        if isinstance(values, list):
            several[name] = values
            form |= {"action": "extend", "nargs": "+"}
        elif not is_needed:
            form["default"] = first
        parser.add_argument(*flags, **({"action": "store_true"} if given is False else form))
    found = parser.parse_args(arguments)
    quiet_libraries()
    for name, values in several.items():
        setattr(found, name, getattr(found, name) or values)
    return found


def read_rows(path: Any, role: str = "data", *, labelled: bool = True) -> list[Example]:
    return read_examples(open_source(path, role=role, labelled=labelled))


def in_turns(names: Iterable[Name], rounds: int, seed: int = 0) -> Iterator[tuple[int, Name]]:
    """Yield each of the names with the number of each round, in an order that is drawn anew for every round."""
    generator, every = random.Random(seed), sorted(names)
    for number in range(rounds):
        for name in generator.sample(every, len(every)):
            yield number, name


def milliseconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    begun = clock()
    work()
    return 1000 * (clock() - begun)


def said(ratio: Mapping[str, float]) -> str:
    return "x{value:.2f} ({low:.2f} to {high:.2f})".format(**ratio)


def columns(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table for the terminal."""
    every = [heading, *rows]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in every]
    return "\n".join(" | ".join(row).rstrip() for row in padded)


def provenance() -> dict[str, Any]:
    """Return by which command, when, where and with which versions a line was measured."""
    host = describe_host()
    return {
        "command": typed_command("python"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host,
        "host_id": host_id(host),
        "versions": library_versions(),
    }


def replace_line(path: Path, line: Mapping[str, Any], *keys: str) -> None:
    """Write a line to a file of JSON lines, in place of the one that has the same values of these fields."""
    known = map(json.loads, path.read_text(encoding="utf-8").splitlines() if path.is_file() else [])
    write_json_lines(path, [*(one for one in known if any(one[key] != line[key] for key in keys)), line])
