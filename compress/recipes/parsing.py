"""Parse TOML tables into frozen dataclasses; unknown keys and wrong types are reported all at once."""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal, ParamSpec, TypeVar

from compress import plugins
from compress.errors import CompressError, did_you_mean
from compress.plugins import fits

RecipeType = TypeVar("RecipeType")
Parameters = ParamSpec("Parameters")
LARGEST_NUMBER = 2**63
LARGEST_FRACTION = 1e100  # of numbers with a decimal point
LARGEST_SEED = 2**32 - 1  # of numpy

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


def listed(faults: Callable[Parameters, Iterator[str]]) -> Callable[Parameters, list[str]]:
    """Let the faults that a function yields be returned as a list."""

    @functools.wraps(faults)
    def found(*arguments: Parameters.args, **named: Parameters.kwargs) -> list[str]:
        return list(faults(*arguments, **named))

    return found


def parse(recipe_type: type[RecipeType], table: Mapping[str, Any], *, source: str) -> RecipeType:
    """Turn a TOML table into a recipe; a :class:`CompressError` lists all faults."""
    faults: list[str] = []
    try:
        _check_numbers(table, "", faults)
        recipe = _build(recipe_type, table, "", faults) if not faults else None
    except RecursionError:
        raise CompressError(f"{source} is nested too deeply; make it again") from None
    if faults:
        raise CompressError(f"{source} has {len(faults)} fault{'s' * (len(faults) > 1)}: " + "; ".join(faults))
    return typing.cast(RecipeType, recipe)


def _check_numbers(value: Any, where: str, faults: list[str]) -> None:
    """Find the numbers that nothing can be done with: infinite ones, NaN, and those that no library holds."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_numbers(item, f"{where}.{key}" if where else str(key), faults)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _check_numbers(item, f"{where}[{number}]", faults)
    elif isinstance(value, int | float):
        limit = LARGEST_NUMBER if isinstance(value, int) else LARGEST_FRACTION
        if not abs(value) < limit:
            faults.append(f"{where} = {value!r:.60} is not a number below {limit:g}")


def _build(kind: Any, value: Any, where: str, faults: list[str]) -> Any:
    """Build a value of a type from TOML; faults are collected and a placeholder returned."""
    if kind is Choice:
        return _choice(value, where, faults)
    if dataclasses.is_dataclass(kind):
        return _dataclass(typing.cast(type, kind), value, where, faults)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(inner, value, where, faults)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_build(inner[0], item, f"{where}[{number}]", faults) for number, item in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return {key: _build(inner[1], item, f"{where}.{key}", faults) for key, item in value.items()}
    if origin is Literal:
        wrong = "" if value in inner else f"one of {', '.join(map(repr, inner))}"
    elif origin is not None:
        is_one = origin is tuple and isinstance(value, Mapping)
        form = f"[{where}] as [[{where}]]" if "[" not in where else "it in brackets, [ ]"
        wrong = f"a list; write {form}" if is_one else "a list" if origin is tuple else "a table"
    else:
        wrong = "" if fits(value, kind.__name__) else f"of type {kind.__name__}"
    if wrong:
        faults.append(f"{where} = {value!r} is not {wrong}")
    return () if origin is tuple else value


def _union(kinds: Collection[Any], value: Any, where: str, faults: list[str]) -> Any:
    """Build one of several types: a list if the value is one, else the only other type or a plain value."""
    lists = [kind for kind in kinds if typing.get_origin(kind) is tuple]
    others = [kind for kind in kinds if kind not in (*lists, types.NoneType)]
    if lists and isinstance(value, list | tuple):
        return _build(lists[0], value, where, faults)
    if len(others) == 1 and value is not None:
        return _build(others[0], value, where, faults)
    names = [kind.__name__ for kind in others]
    if value is not None and not fits(value, " | ".join(names)):
        faults.append(f"{where} = {value!r} is not of type {' or '.join(names)}")
    return value


def _dataclass(kind: type, table: Any, where: str, faults: list[str]) -> Any:
    if not isinstance(table, Mapping):
        faults.append(f"{where} = {table!r} is not a table")
        return None
    hints = typing.get_type_hints(kind)
    prefix = f"{where}." if where else ""
    known = {f.name: f for f in dataclasses.fields(kind)}
    unknown = {key: did_you_mean(key, known) for key in table if key not in known}
    faults += [f"unknown key {prefix}{key!s}{'.' * bool(hint)}{hint}" for key, hint in unknown.items()]
    before = len(faults)
    values = {name: _build(hints[name], table[name], f"{prefix}{name}", faults) for name in known if name in table}
    faults += [
        f"{prefix}{name} is missing"
        for name, described in known.items()
        if name not in table and described.default is MISSING and described.default_factory is MISSING
    ]
    if len(faults) > before:
        return None
    built = kind(**values)
    found = built.faults() if hasattr(built, "faults") else ()
    faults += [f"{where}: {fault}" if where else fault for fault in found]
    return built


def _choice(table: Any, where: str, faults: list[str]) -> Choice | None:
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        example = table if isinstance(table, str) else "..."
        faults.append(f"{where} = {table!r} is not a table with a name, such as {{ name = {example!r} }}")
        return None
    plugin_folder = CHOICE_FOLDERS[where.rpartition(".")[2].split("[")[0]]
    options = dict(table)
    name = options.pop("name")
    weight = options.pop("weight", 1.0) if plugin_folder == "losses" else 1.0
    if not fits(weight, "float"):
        faults.append(f"{where}.weight = {weight!r} is not a number")
        weight = 1.0
    try:
        faults += plugins.find(plugin_folder, name).check(options)
    except CompressError as error:
        faults.append(str(error))
    return Choice(name, float(weight), options)
