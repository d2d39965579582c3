"""The command of a request: its options from the fields, its help from the docstring."""

import importlib
import inspect
import logging
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, redirect_stdout
from functools import partial
from typing import Any

import annotated_types
import click
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from compress.cli import Command, values
from compress.cli.printing import set_up_messages
from compress.cli.shown import JSON_HELP, SHOWN, estimated, of_model, print_result
from compress.errors import CompressError, PartlyMade
from compress.fields import declared_of, fields_of, kind_of
from compress.progress import for_terminal
from compress.requests import FileList, Request
from compress.requests.measuring import parse_limit

_KINDS: Mapping[str, click.ParamType[Any]] = {
    "assignments": values.Read(values.assignment),
    "class-weights": values.Read(values.class_weights),
    "columns": values.Read(values.columns),
    "duration": values.Read(values.time_in_seconds),
    "engine": click.Choice(["local", "ray"]),
    "numbers": values.Read(values.numbers),
    "percent": values.Read(values.percent),
    "seconds": values.Read(values.time_or_seconds),
    "share": click.STRING,
    "thread-counts": values.Read(values.numbers_or_zero),
    "usd": values.Read(values.us_dollars),
}
# A script reads their results otherwise: as JSON lines, and in the file that --json FILE writes.
OWN_JSON = {"Check"}
_LISTS = {"columns", "numbers", "thread-counts"}  # each word is several values


def command_of(name: str, place: str) -> click.Command:
    """Return the command that makes a request from its options, runs it, and shows the result.

    Args:
        place: of the request, ``module:class``.
    """
    module, _, class_name = place.partition(":")
    declared: type[Request[Any]] = getattr(importlib.import_module(module), class_name)
    known = {name: (field, declared_of(field)) for name, field in fields_of(declared).items()}
    fields = {name: field for name, (field, about) in known.items() if about.has_option or about.argument}

    def call(verbose: bool, quiet: bool, as_json: bool = False, **given: Any) -> None:
        set_up_messages(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
        taken = {name: _value(fields[name], value) for name, value in given.items() if value is not None}
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            asked, failed = declared(progress=for_terminal(quiet), **taken), None
            try:
                made = asked.run()
            except PartlyMade as error:
                made, failed = error.made, error
        shown = estimated if getattr(asked, "dry_run", False) else SHOWN.get(class_name, of_model)
        found = print_result(as_json, lambda: shown(asked, made))
        if failed:
            raise failed
        click.get_current_context().exit(found.get("exit_code", 0))

    parameters: list[click.Parameter] = [one for name, field in fields.items() for one in _options(name, field)]
    parameters += [
        click.Option(["-v", "--verbose"], is_flag=True, help="Print more."),
        click.Option(["-q", "--quiet"], is_flag=True, help="Print errors only."),
    ]
    if class_name not in OWN_JSON:
        parameters.append(click.Option(["--json", "as_json"], is_flag=True, help=JSON_HELP))
    return Command(name, callback=call, params=parameters, help=inspect.getdoc(declared))


def _value(field: FieldInfo, given: Any) -> Any:
    """Return the value of a field for what click read."""
    if isinstance(given, tuple) and kind_of(field) == "text":
        return FileList(given) if given else None
    if kind_of(field) in _LISTS:
        return tuple(item for one in given for item in one)
    if kind_of(field) == "assignments":
        names = [one for one, _ in given]
        if twice := next((one for one in names if names.count(one) > 1), None):
            raise CompressError(f"{declared_of(field).flag} {twice} is given twice; keep one")
        return dict(given)
    return given


def _options(name: str, field: FieldInfo) -> Iterator[click.Parameter]:
    declared, kind, type_ = declared_of(field), kind_of(field), _inner(field.annotation)
    help = field.description
    default = None if field.default is PydanticUndefined else field.default
    required = field.is_required() or declared.required
    if declared.argument:
        count = -1 if "..." in declared.metavar else 1
        yield click.Argument([name], nargs=count, required=required, metavar=declared.metavar)
        return
    if declared.flags:
        for flag, (value, said) in declared.flags.items():
            yield click.Option([flag, name], flag_value=value, default=None, help=said)
        return
    if kind == "seconds":
        default = f"{default:g}s"
    flag = declared.flag or f"--{name.replace('_', '-')}"
    names = ["-o", flag, name] if kind == "output" else [flag, name]
    if type_ is bool:
        names[-2] += f"/--no-{flag.removeprefix('--')}" * bool(default)
        yield click.Option(names, is_flag=True, default=default, show_default=bool(default), help=help)
        return
    several = typing.get_origin(type_) is tuple or kind in {"text", "labels", "assignments"}
    if typing.get_origin(type_) is tuple:
        item = typing.get_args(type_)[0]  # perhaps Annotated[float, Field(gt=0)]
        bounds = [bound for one in getattr(item, "__metadata__", ()) for bound in getattr(one, "metadata", ())]
        type_ = _inner(item)
    else:
        bounds = field.metadata
    yield click.Option(
        names,
        type=values.Read(partial(parse_limit, name)) if kind == "limit" else _click_type(type_, kind, bounds),
        multiple=several,
        required=required,
        default=(tuple(map(str, default or ())) or None) if several else default,
        show_default=default not in (None, (), ""),
        metavar=declared.metavar or None,
        help=help,
    )


def _inner(type_: Any) -> Any:
    """Return a type without None and without what annotates it."""
    if isinstance(type_, types.UnionType) or typing.get_origin(type_) is typing.Union:
        return _inner(next(one for one in typing.get_args(type_) if one is not types.NoneType))
    return _inner(typing.get_args(type_)[0]) if typing.get_origin(type_) is typing.Annotated else type_


def _click_type(type_: Any, kind: str, bounds: list[Any]) -> click.ParamType[Any]:
    if kind in _KINDS:
        return _KINDS[kind]
    if typing.get_origin(type_) is typing.Literal:
        return click.Choice([*map(str, typing.get_args(type_))])
    limits: dict[str, Any] = {}
    for bound in bounds:
        match bound:
            case annotated_types.Ge(ge=low):
                limits["min"] = low
            case annotated_types.Gt(gt=low):
                limits |= {"min": low, "min_open": True}
            case annotated_types.Le(le=high):
                limits["max"] = high
            case annotated_types.Lt(lt=high):
                limits |= {"max": high, "max_open": True}
    if type_ is int:
        return values.Whole(**limits)
    return values.Real(**limits) if type_ is float else click.STRING
