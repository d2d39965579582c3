"""What the running command is given to read."""

import glob
from collections.abc import Sequence
from pathlib import Path

import click

from compress.escaping.uris import is_uri, local_path
from compress.models.output_dir import keep_apart

# What stands for a path in the help, and options of such that are written, or only searched.
_PATHS = {"FILE", "DIR", "PATH", "LOCK", "RESULTS"}
_NOT_READ = {"output", "json_file", "junit", "update_baseline", "roots"}


def keep_inputs(outputs: Sequence[str | Path], option: str = "-o") -> None:
    """Refuse, before the work, outputs that overlap a file or directory that the running command is given to read."""
    local = [name for name in map(local_path, _inputs()) if not is_uri(name)]
    keep_apart(outputs, [path for name in local for path in glob.glob(name) or [name]], option)


def _inputs() -> list[str]:
    """Return the files and directories that the running command is given to read, as they were typed."""
    context = click.get_current_context()
    given: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name not in _NOT_READ and (parameter.metavar or "").strip(".") in _PATHS and value:
            given += [value] if isinstance(value, str) else value
    return given
