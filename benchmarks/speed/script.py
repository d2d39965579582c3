"""What the scripts of this folder share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from compress.progress import quiet_libraries


def read_options(description: str | None, output: Any = Path, **options: Any) -> argparse.Namespace:
    """Read the options of a script, whose docstring describes them, and quieten libraries.

    Args:
        description: what ``--help`` prints.
        output: ``Path``, or None where ``-o`` may be left out.
        options: of each its type, where it has to be given, or its default, None for a text. A tuple of texts are
            choices, the first is the default; a list, of a type or of defaults, stands for what may be repeated.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    repeated = {name: given for name, given in options.items() if isinstance(given, list)}
    for name, given in {**options, "output": output}.items():
        flags = [*(["-o"] if name == "output" else []), f"--{name.replace('_', '-')}"]
        first = given[0] if isinstance(given, list | tuple) else given
        is_needed = isinstance(first, type)
        form = {"type": first if is_needed else str if first is None else type(first), "required": is_needed}
        if isinstance(given, tuple):
            form["choices"] = given
        if name in repeated:
            form["action"] = "append"
        elif not is_needed:
            form["default"] = first
        parser.add_argument(*flags, **form)
    found = parser.parse_args()
    quiet_libraries()
    for name, given in repeated.items():
        setattr(found, name, getattr(found, name) or given)
    return found
