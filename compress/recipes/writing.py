"""Write a student recipe as TOML, so that what was made in memory can be made again from a file."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from compress.recipes.parsing import Choice
from compress.recipes.student import StudentRecipe


def student_toml(recipe: StudentRecipe) -> str:
    """Return the file of a student recipe; reading it gives the same recipe, named by the file."""
    table = _plain(dataclasses.replace(recipe, name=""))
    lines = [f"{key} = {_inline(value)}" for key, value in table.items() if not _is_table(value)]
    for key, value in table.items():
        if not _is_table(value):
            continue
        for one in value if isinstance(value, list) else [value]:
            lines += ["", f"[[{key}]]" if isinstance(value, list) else f"[{key}]"]
            lines += [f"{name} = {_inline(item)}" for name, item in one.items()]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> Any:
    """Return a value of a recipe as tables and lists; what a dataclass has by default is left out."""
    if isinstance(value, Choice):
        weight = {} if value.weight == 1.0 else {"weight": value.weight}
        return {"name": value.name, **weight, **{key: _plain(item) for key, item in value.options.items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _plain(item) for f in dataclasses.fields(value) if (item := getattr(value, f.name)) != _default(f)
        }
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _is_table(value: Any) -> bool:
    """Tell whether a value is a table of its own, or a list of such."""
    return isinstance(value, dict) or isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    # Texts, numbers and booleans are written as in JSON, but for the one control character that JSON leaves alone.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
