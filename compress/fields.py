"""Fields of requests and recipes, declared once: type, default, bounds, help and option, validated all at once."""

import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast, dataclass_transform

import pydantic
import pydantic.dataclasses
from pydantic.fields import FieldInfo

from compress.errors import CompressError, did_you_mean, refuse

_CONFIG = pydantic.ConfigDict(strict=True, arbitrary_types_allowed=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Holds:
    """What a field holds where its Python type does not tell, such as ``model`` or ``duration``."""

    name: str


@dataclass(frozen=True)
class Declared:
    """What a field is beside its type, default, bounds and help.

    Args:
        metavar: its value in the help, such as ``FILE``.
        flag: its option, where that is not its name.
        flags: options without a value, each with the value of the field that it stands for, and its help.
        decides: whether the result depends on it, so that it is in the key.
        needs: fields without any of which this one has no effect; ``data`` is any text or rows, and what a field has
            to be may follow: ``engine=ray``.
        has_option: whether the command line has an option for it.
        argument: whether the command line takes it by position instead.
        required: whether the command line needs it.
    """

    metavar: str = ""
    flag: str = ""
    flags: Mapping[str, tuple[Any, str]] | None = None
    decides: bool = True
    needs: tuple[str, ...] = ()
    has_option: bool = True
    argument: bool = False
    required: bool = False


def option(*, default: Any = ..., help: str = "", **more: Any) -> Any:
    """Declare a field: its default (none: it is required), its help, fields of :class:`Declared`, and its bounds.

    Bounds are those of ``pydantic.Field``: ``ge``, ``gt``, ``le``, ``lt``.
    """
    declared = {key: more.pop(key) for key in Declared.__dataclass_fields__ if key in more}
    return pydantic.Field(
        default=default,
        description=help,
        json_schema_extra={"declared": cast(Any, Declared(**declared))},
        **more,
    )


@dataclass_transform(frozen_default=True, field_specifiers=(option,))
def validated(declared: type[Any], *, kw_only: bool = False) -> Any:
    """Make a class a frozen dataclass that pydantic validates: a request."""
    made: Any = pydantic.dataclasses.dataclass(frozen=True, kw_only=kw_only, config=_CONFIG)(declared)
    build = made.__init__
    parameters = [*inspect.signature(made).parameters.values()]
    positional = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]

    @functools.wraps(build)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        refuse(
            (
                len(arguments) > len(positional),
                f"{snake_case(made)}() takes {', '.join(positional)} by position, and everything else by name",
            )
        )
        given = dict(zip(positional, arguments, strict=False))
        if twice := [*given.keys() & named.keys()]:
            raise CompressError(
                f"{snake_case(made)}() is given {twice[0]} twice, by position and by name; leave one out"
            )
        try:
            # By name: pydantic takes the fields of groups by position too.
            build(self, **given, **named)
        except pydantic.ValidationError as error:
            unknown = f"{snake_case(made)}() has no argument {{!r}}."
            raise CompressError("; ".join(sentences(error, made, unknown, _IN_PYTHON))) from None

    made.__init__ = __init__
    return made


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option,))
def group(declared: type[Any]) -> Any:
    """Make a class fields that some requests share, all given by name."""
    return validated(declared, kw_only=True)


# What a value is not, by the faults that pydantic finds: of files, and of arguments in Python.
_IN_FILES = {
    "int_type": "is not of type int",
    "int_from_float": "is not of type int",
    "float_type": "is not of type float",
    "bool_type": "is not of type bool",
    "string_type": "is not of type str",
    "tuple_type": "is not a list",
    "dataclass_type": "is not a table",
    "dict_type": "is not a table",
    "dataclass_exact_type": "is not of type {class_name}",
    "finite_number": "is not a finite number",
    "literal_error": "is not one of {expected}",
    "string_too_long": "is not text of at most {max_length} characters",
    "form": "is not {form}",
}
_IN_PYTHON = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "dict_type": "must be a dict",
    "callable_type": "must be a function of a title, the steps done and all steps",
    "dataclass_exact_type": "must be of type {class_name}",
    "literal_error": "must be one of {expected}",
    "string_too_long": "must be text of at most {max_length} characters",
}
_BOUNDS = {
    "greater_than": "above {gt:.10g}",
    "greater_than_equal": "at least {ge:.10g}",
    "less_than": "below {lt:.10g}",
    "less_than_equal": "at most {le:.10g}",
}


def sentences(
    error: pydantic.ValidationError,
    declared: Any,
    unknown: str = "unknown key {}",
    words: Mapping[str, str] = _IN_FILES,
) -> Iterator[str]:
    """Say each fault that pydantic found in a class: what, its value, what is allowed; outer unknown keys first."""
    faults = sorted(
        error.errors(include_url=False),
        key=lambda one: len(one["loc"]) if one["type"] == "unexpected_keyword_argument" else math.inf,
    )
    places = [_place(declared, fault["loc"]) for fault in faults]
    misfits: dict[str, list[str]] = {}
    for fault, (_, where) in zip(faults, places, strict=True):
        if fault["type"] in words:
            misfits.setdefault(where, []).append(words[fault["type"]].format(**fault.get("ctx", {})))
    for fault, (table, where) in zip(faults, places, strict=True):
        value, about = fault["input"], fault.get("ctx", {})
        owner, _, name = where.rpartition(".")
        before = f"{owner}: " if owner else ""
        match fault["type"]:
            case "missing" | "missing_argument" | "missing_keyword_only_argument":
                yield f"{where} is missing"
            case "unexpected_keyword_argument":
                hint = getattr(table, "REPLACED", {}).get(name) or did_you_mean(name, fields_of(table))
                said = unknown.format(where)
                yield f"{said.removesuffix('.')}.{hint}" if hint else said
            case "table":
                yield from (f"{where}: {said}" if where else said for said in about["faults"])
            case "value":
                yield before + about["said"]
            case "too_long":
                yield f"{where} has {about['actual_length']} values; give at most {about['max_length']}"
            case kind if kind in _BOUNDS:
                yield f"{before}{name.partition('[')[0]} = {value} must be {_BOUNDS[kind].format(**about)}"
            case kind if kind in words:
                # Of several types that a value may have, one may fit so far that its own faults say more.
                allowed = misfits.pop(where, [])
                if allowed and not any(other.startswith((f"{where}.", f"{where}[")) for _, other in places):
                    said = " or ".join(allowed).replace(" or is not of type", " or").replace(" or is not", " or")
                    if allowed == [_IN_FILES["tuple_type"]] and isinstance(value, Mapping):  # one table of several
                        said += f"; write {'it in brackets, [ ]' if '[' in where else f'[{where}] as [[{where}]]'}"
                    yield f"{where} = {value!r:.200} {said}"
            case _:
                said = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
                yield f"{where} = {value!r:.200} {said}" if where else said


def _place(declared: Any, location: tuple[int | str, ...]) -> tuple[Any, str]:
    """Return the class of the table that a fault is in, and where it is, in the user's words."""
    table, where, is_type = declared, "", False
    for part in location:
        if is_type:  # which of several types was tried
            is_type = False
            continue
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
        if field := table.__pydantic_fields__.get(part):
            several = typing.get_origin(field.annotation) in {typing.Union, types.UnionType}
            is_type = several and len({*typing.get_args(field.annotation)} - {types.NoneType}) > 1
            table = _table_in(field.annotation) or table
    return table, where


def _table_in(annotation: Any) -> Any:
    """Return the class of the tables that a field holds, one or several."""
    if hasattr(annotation, "__pydantic_fields__"):
        return annotation
    return next((found for one in typing.get_args(annotation) if (found := _table_in(one))), None)


def fields_of(declared: Any) -> dict[str, FieldInfo]:
    """Return the fields of a request, its own before those of its groups."""
    known: dict[str, FieldInfo] = declared.__pydantic_fields__
    owners = [one for one in (declared if isinstance(declared, type) else type(declared)).__mro__]
    names = [name for owner in owners for name in vars(owner).get("__annotations__", {}) if name in known]
    return {name: known[name] for name in dict.fromkeys(names)}


def declared_of(field: FieldInfo) -> Declared:
    return cast(Declared, cast("dict[str, Any]", field.json_schema_extra or {}).get("declared", Declared()))


def kind_of(field: FieldInfo) -> str:
    """Return what a field holds, by its :class:`Holds`, also where it may be None; empty where its type tells."""
    parts = [getattr(one, "__metadata__", ()) for one in typing.get_args(field.annotation)]
    return next((one.name for part in (field.metadata, *parts) for one in part if isinstance(one, Holds)), "")


def option_of(name: str, field: FieldInfo) -> str:
    """Return the option of a field, such as ``--validation FILE``."""
    declared = declared_of(field)
    if declared.flags:
        return " or ".join(declared.flags)
    return f"{declared.flag or '--' + name.replace('_', '-')} {declared.metavar}".strip()


def flag_of(name: str, field: FieldInfo, value: Any) -> str:
    """Return the option that gives a field a value, without the value."""
    if flags := declared_of(field).flags:
        return next(flag for flag, (means, _) in flags.items() if means == value)
    flag = option_of(name, field).split(" ")[0]
    return f"--no-{flag.removeprefix('--')}" if value is False else flag


def is_given(value: Any) -> bool:
    """Tell whether a value says anything: not None, no, nothing and none of something."""
    return value is not None and not (
        isinstance(value, bool | int | float | str | tuple | list | Mapping) and not value
    )


def is_default(value: Any, field: FieldInfo) -> bool:
    """Tell whether a field has its default; a data frame, which compares each cell, has not."""
    return isinstance(value, (type(field.default), int, float)) and bool(value == field.default)


def without_effect(declared: Any) -> Iterator[str]:
    """Yield which values have no effect for want of others."""
    known = fields_of(declared)
    changed = {name for name, field in known.items() if not is_default(getattr(declared, name), field)}
    given = {name for name in changed if is_given(getattr(declared, name))}
    data = [name for name, field in known.items() if kind_of(field) in {"text", "rows"}]
    for name in (one for one in known if one in changed):
        needs = getattr(declared, "NEEDS", {}).get(name, declared_of(known[name]).needs)
        others = [one for need in needs for one in (data if need == "data" else [need])]
        values = {one.partition("=")[0]: one.partition("=")[2] for one in others if one.partition("=")[0] in known}
        if values and not given & values.keys():
            flag = flag_of(name, known[name], getattr(declared, name))
            missing = " or ".join(
                f"{flag_of(one, known[one], value)} {value}" if value else option_of(one, known[one])
                for one, value in values.items()
            )
            yield f"{flag} changes nothing without {missing}; add it, or leave {flag} out"


def snake_case(declared: type[Any]) -> str:
    """Return the name of a class as its function and its command have it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", declared.__name__).lower()
