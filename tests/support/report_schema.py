"""The JSON schema of a report for programs, from the dataclasses behind the page."""

from __future__ import annotations

import types
import typing
from typing import Any

from compress.reporting.page import FORMAT, Page, kept_fields
from compress.reporting.tables.cells import Cell
from compress.reporting.tables.results_table import TableRow

_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


def shape() -> dict[str, Any]:
    """Return the JSON schema of ``report.json``."""
    found = _object(Page)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A compress report",
        **found,
        "properties": {"format": {"const": FORMAT}, **found["properties"]},
        "required": ["format", *found["required"]],
    }


def _object(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in kept_fields(kind)]
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
    return {"type": _JSON_TYPES[hint]} if hint in _JSON_TYPES else _object(hint)
