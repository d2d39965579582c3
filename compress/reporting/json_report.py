"""The report for programs: ``report.json`` holds what the page shows as structured data, without pictures and texts.

Its shape is that of the dataclasses behind the page, and :func:`shape` writes it down as a JSON schema. Two things
differ: pictures and what is for the page alone are left out, and the cells of a table's row are named by its columns.
A cell has ``text`` and ``small`` as shown, and ``value`` with its interval ``low`` to ``high`` as numbers or null.
"""

import types
import typing
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any

from compress.reporting.page import Page
from compress.reporting.tables.cells import Cell
from compress.reporting.tables.results_table import ResultsTable, TableRow

FORMAT = 1
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def machine(page: Page) -> dict[str, Any]:
    """Return a report as plain data for JSON."""
    return {"format": FORMAT, **_plain(page)}


def shape() -> dict[str, Any]:
    """Return the JSON schema of :func:`machine`."""
    found = _object(Page)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A compress report",
        **found,
        "properties": {"format": {"const": FORMAT}, **found["properties"]},
        "required": ["format", *found["required"]],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, ResultsTable):
        return {"columns": _plain(value.columns), "rows": [_row(value, row) for row in value.rows]}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in _kept(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _row(table: ResultsTable, row: TableRow) -> dict[str, Any]:
    named = {column.key: _plain(cell) for column, cell in zip(table.columns, row.cells, strict=True)}
    return {"kind": row.kind, "model": row.model, "runtime": row.runtime, "cells": named}


def _kept(kind: Any) -> list[Field[Any]]:
    return [f for f in fields(kind) if not f.metadata.get("page_only") and "Picture" not in str(f.type)]


def _object(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in _kept(kind)]
    properties = {name: _schema(hints[name]) for name in names}
    if kind is TableRow:
        properties["cells"] = {"type": "object", "additionalProperties": _object(Cell)}
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


def _schema(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(one) for one in arguments]}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is tuple:
        return {"type": "array", "prefixItems": [_schema(one) for one in arguments]}
    return _object(hint) if isinstance(hint, type) and is_dataclass(hint) else {"type": _JSON_TYPES[hint]}
