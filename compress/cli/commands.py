"""The command of a request: its options from the fields, its help from the docstring."""

import importlib
import inspect
import json
import logging
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import annotated_types
import click
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from compress.cli import Command, options
from compress.cli.printing import show, tell
from compress.cli.values import Assignment, ColumnNames, Duration, Numbers, Percent, Real, Whole
from compress.errors import CompressError, ExitCode, PartlyMade
from compress.escaping.uris import without_secrets
from compress.fields import declared_of, fields_of, kind_of
from compress.progress import for_terminal
from compress.requests import FileList, Request

_KINDS: Mapping[str, Callable[[], click.ParamType[Any]]] = {
    "duration": Duration,
    "columns": ColumnNames,
    "numbers": Numbers,
    "percent": Percent,
    "assignments": Assignment,
    "thread-counts": lambda: Numbers(zero=True),
    "share": click.types.StringParamType,
    "engine": lambda: click.Choice(["local", "ray"]),
}
WIDTH_IN_A_LOG = 180


def command_of(name: str, place: str) -> click.Command:
    """Return the command that makes a request from its options, runs it, and shows the result.

    Args:
        place: of the request, ``module:class``.
    """
    module, _, class_name = place.partition(":")
    declared: type[Request[Any]] = getattr(importlib.import_module(module), class_name)
    known = {name: (field, declared_of(field)) for name, field in fields_of(declared).items()}
    fields = {name: field for name, (field, about) in known.items() if about.has_option or about.argument}

    def call(verbose: bool, quiet: bool, **given: Any) -> None:
        options.set_up_messages(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
        values = {name: _value(fields[name], value) for name, value in given.items() if value is not None}
        asked, show_made = declared(progress=for_terminal(quiet), **values), SHOW.get(class_name, _show_model)
        try:
            made = asked.run()
        except PartlyMade as error:
            show_made(asked, error.made)
            raise
        show_made(asked, made)

    parameters: list[click.Parameter] = [one for name, field in fields.items() for one in _options(name, field)]
    parameters += [
        click.Option(["-v", "--verbose"], is_flag=True, help="Print more."),
        click.Option(["-q", "--quiet"], is_flag=True, help="Print errors only."),
    ]
    return Command(name, callback=call, params=parameters, help=inspect.getdoc(declared))


def _show_model(asked: Any, made: Any) -> None:
    options.show_result(made)


def _show_replay(asked: Any, made: Any) -> None:
    from compress.cli.replay import show_replay

    show_replay(made)


def _show_results(asked: Any, lines: Any) -> None:
    from compress.reporting.terminal import results_table

    show(results_table(lines), WIDTH_IN_A_LOG)
    tell(f"{asked.output}: {len(lines)} lines")


def _show_calibration(asked: Any, made: Any) -> None:
    from compress.calibration.calibrate import PAGE, calibration_verdict

    options.show_result(made)
    tell("\n".join([*calibration_verdict(made), f"Page: {made.path / PAGE}"]))


def _show_cascade(asked: Any, made: Any) -> None:
    from compress.cascades.cascade import PAGE, cascade_verdict

    options.show_result(made)
    tell("\n".join([*cascade_verdict(made), f"Page: {made.path / PAGE}"]))


def _show_pruned(asked: Any, made: Any) -> None:
    options.show_result(made)
    tell(f"Removed: {made.manifest.notes['removed']}. Page: {made.path / 'report.html'}")


def _show_quantized(asked: Any, made: Any) -> None:
    options.show_result(made)
    for note, value in made.manifest.notes.items():
        if isinstance(value, str | int | float):
            tell(f"  {note}: {value}")
    for name, outcome in made.manifest.notes.get("candidates", {}).items():
        tell(f"  {name}: {outcome if isinstance(outcome, str) else _in_words(outcome)}")


def _in_words(outcome: Mapping[str, Any]) -> str:
    speeds = [f"x{found['value']:.2f} at batch size {size}" for size, found in outcome["speedup"].items()]
    quality = f"{outcome['int8']:.4g} where fp32 has {outcome['fp32']:.4g}"
    return ", ".join([*(outcome["reasons"] or speeds), quality, f"{outcome['bytes'] / 1e6:.1f} MB"])


def _show_search(asked: Any, made: Path) -> None:
    from compress.reporting.search_page import verdict
    from compress.searching.search import CONTENT_NAME

    found = json.loads((made / CONTENT_NAME).read_text(encoding="utf-8"))
    tell("\n".join(verdict(found)))
    tell(f"Page: {made / 'report.html'}" + (f"; model: {made / 'best'}" if (made / "best").is_dir() else ""))
    click.get_current_context().exit(ExitCode.DONE if found["met"] else ExitCode.BROKEN)


def _show_labels(asked: Any, made: Any) -> None:
    from compress.benchmarking.results.formatting import plural

    plan = made.manifest.notes
    part_of = "part {} of {} of ".format(*asked.shard) if "part" in plan else ""
    tell(
        f"{without_secrets(str(asked.output))}: {part_of}{made.described_rows} labelled on {plan['runtime']} "
        f"({plan['device']}, {plural(plan['threads'], 'thread')}, {plan['precision']}"
        f"{': ' if plan['reason'] else ''}{plan['reason']})"
    )


def _show_study(asked: Any, made: Path) -> None:
    from compress.reporting.pages import MARKDOWN_NAME
    from compress.requests.studying import REPORT_NAME, RESULTS_NAME

    page = made / REPORT_NAME / MARKDOWN_NAME
    tell(page.read_text(encoding="utf-8"))
    tell(f"Report: {made / REPORT_NAME / 'report.html'}; results: {made / RESULTS_NAME}")


def _show_imported(asked: Any, made: Any) -> None:
    names = made.manifest.labels
    shown = f"{', '.join(names[:10])}{', ...' * (len(names) > 10)}"
    tell(f"{asked.output}: {made.rows:,} rows of {len(names)} classes ({shown})")


# What is printed of the result of a request, by its class; by default that of a model directory.
SHOW: Mapping[str, Callable[[Any, Any], None]] = {
    "Benchmark": _show_results,
    "Label": _show_labels,
    "ImportLabels": _show_imported,
    "MergeLabels": lambda asked, made: tell(f"{asked.output}: {made.rows:,} rows of {len(asked.parts):,} parts"),
    "CloseLabels": lambda asked, made: tell(f"{made.path}: {made.described_rows}"),
    "Replay": _show_replay,
    "Report": lambda asked, page: tell(str(page)),
    "Calibrate": _show_calibration,
    "Cascade": _show_cascade,
    "HeadStudy": lambda asked, made: tell(f"Page: {made / 'report.html'}; figures: {made / 'heads.json'}"),
    "Prune": _show_pruned,
    "Quantize": _show_quantized,
    "Search": _show_search,
    "Run": _show_study,
}


def _value(field: FieldInfo, given: Any) -> Any:
    """Return the value of a field for what click read."""
    if isinstance(given, tuple) and kind_of(field) == "text":
        return FileList(given) if given else None
    if kind_of(field) in {"numbers", "thread-counts", "columns"}:
        return tuple(item for one in given for item in one)
    if kind_of(field) == "assignments":
        if twice := next((name for name, _ in given if [one for one, _ in given].count(name) > 1), None):
            raise CompressError(f"{declared_of(field).flag} {twice} is given twice; keep one")
        return dict(given)
    return given


def _options(name: str, field: FieldInfo) -> Iterator[click.Parameter]:
    declared, kind, type_ = declared_of(field), kind_of(field), _inner(field.annotation)
    help = field.description
    default = None if field.default is PydanticUndefined else field.default
    required = field.is_required() or declared.required
    if declared.argument:
        yield click.Argument(
            [name], nargs=-1 if declared.metavar.endswith("...") else 1, required=True, metavar=declared.metavar
        )
        return
    if declared.flags:
        for flag, (value, said) in declared.flags.items():
            yield click.Option([flag, name], flag_value=value, default=None, help=said)
        return
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
        type=_click_type(type_, kind, bounds),
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
        return _KINDS[kind]()
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
        return Whole(**limits)
    return Real(**limits) if type_ is float else click.STRING
