"""Parse TOML tables into frozen dataclasses; unknown keys and wrong types are reported all at once."""

import dataclasses
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal, TypeVar

from compress import plugins
from compress.errors import CompressError, did_you_mean
from compress.plugins import fits

RecipeType = TypeVar("RecipeType")

# Key of a recipe that holds a plug-in -> the plug-in's folder.
CHOICE_FOLDERS: Mapping[str, str] = {
    "architecture": "architectures",
    "losses": "losses",
    "modifier": "modifiers",
    "by": "augmenters",
}


@dataclass(frozen=True)
class Choice:
    """A plug-in by name with its options, such as ``{name = "kl", temperature = 2.0}``; only losses have a weight."""

    name: str
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)


def parse(recipe_type: type[RecipeType], table: Mapping[str, Any], *, source: str) -> RecipeType:
    """Turn a TOML table into a recipe; a :class:`CompressError` lists all faults."""
    faults: list[str] = []
    recipe = _build(recipe_type, table, "", faults)
    if faults:
        raise CompressError(f"{source} has {len(faults)} fault{'s' * (len(faults) > 1)}: " + "; ".join(faults))
    return typing.cast(RecipeType, recipe)


def _build(kind: Any, value: Any, where: str, faults: list[str]) -> Any:
    """Build a value of a type from TOML; faults are collected and a placeholder returned."""
    if kind is Choice:
        return _choice(value, where, faults)
    if dataclasses.is_dataclass(kind):
        return _dataclass(typing.cast(type, kind), value, where, faults)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [k for k in typing.get_args(kind) if k is not type(None)]
        lists = [k for k in inner if typing.get_origin(k) is tuple]
        if lists and isinstance(value, list | tuple):
            return _build(lists[0], value, where, faults)
        inner = [k for k in inner if k not in lists]
        if value is None or len(inner) == 1:
            return None if value is None else _build(inner[0], value, where, faults)
        if not fits(value, " | ".join(k.__name__ for k in inner)):
            faults.append(f"{where} = {value!r} is not of type {' or '.join(k.__name__ for k in inner)}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            faults.append(f"{where} = {value!r} is not a list")
            return ()
        return tuple(_build(typing.get_args(kind)[0], v, f"{where}[{i}]", faults) for i, v in enumerate(value))
    if origin is Literal:
        allowed = typing.get_args(kind)
        if value not in allowed:
            faults.append(f"{where} = {value!r} is not one of {', '.join(map(repr, allowed))}")
        return value
    if origin is not None:
        if not isinstance(value, Mapping):
            faults.append(f"{where} = {value!r} is not a table")
            return value
        inner = typing.get_args(kind)[-1]
        if dataclasses.is_dataclass(inner):
            return {key: _build(inner, one, f"{where}.{key}", faults) for key, one in value.items()}
        return value
    if not fits(value, kind.__name__):
        faults.append(f"{where} = {value!r} is not of type {kind.__name__}")
    return value


def _dataclass(kind: type, table: Any, where: str, faults: list[str]) -> Any:
    if not isinstance(table, Mapping):
        faults.append(f"{where} = {table!r} is not a table")
        return None
    hints = typing.get_type_hints(kind)
    prefix = f"{where}." if where else ""
    known = {f.name: f for f in dataclasses.fields(kind)}
    table = {_current(key, known): value for key, value in table.items()}
    for key in table:
        if key not in known:
            faults.append(f"unknown key {prefix}{key!s}.{did_you_mean(key, known)}")
    values = {}
    before = len(faults)
    for name, described in known.items():
        if name in table:
            values[name] = _build(hints[name], table[name], f"{prefix}{name}", faults)
        elif described.default is MISSING and described.default_factory is MISSING:
            faults.append(f"{prefix}{name} is missing")
    if len(faults) > before:
        return None
    built = kind(**values)
    if hasattr(built, "faults"):
        faults += [f"{where}: {fault}" if where else fault for fault in built.faults()]
    return built


def _current(key: str, known: Collection[str]) -> str:
    """Return a key as it is called today."""
    return plugins.RENAMED[key] if key not in known and plugins.RENAMED.get(key) in known else key


def _choice(table: Any, where: str, faults: list[str]) -> Choice | None:
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        faults.append(f"{where} = {table!r} is not a table with a name")
        return None
    key = where.rpartition(".")[2].split("[")[0]
    plugin_folder = CHOICE_FOLDERS[key]
    apart = {"name", "weight"} if plugin_folder == "losses" else {"name"}
    options = {key: value for key, value in table.items() if key not in apart}
    weight = table.get("weight", 1.0) if "weight" in apart else 1.0
    if not fits(weight, "float"):
        faults.append(f"{where}.weight = {weight!r} is not a number")
        weight = 1.0
    try:
        plugin = plugins.find(plugin_folder, table["name"])
    except CompressError as error:
        faults.append(str(error))
    else:
        faults += plugin.check(options)
    return Choice(table["name"], float(weight), options)
