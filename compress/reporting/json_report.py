"""The report for programs: ``report.json`` holds what the page shows as structured data, without pictures and texts.

Its shape is that of the dataclasses behind the page. Two things differ: pictures and what is for the page alone are
left out, and the cells of a table's row are named by its columns.
A cell has ``text`` and ``small`` as shown, and ``value`` with its interval ``low`` to ``high`` as numbers or null.
"""

from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any

from compress.reporting.page import Page
from compress.reporting.tables.results_table import ResultsTable, TableRow

FORMAT = 1


def machine(page: Page) -> dict[str, Any]:
    """Return a report as plain data for JSON."""
    return {"format": FORMAT, **_plain(page)}


def _plain(value: Any) -> Any:
    if isinstance(value, ResultsTable):
        return {"columns": _plain(value.columns), "rows": [_row(value, row) for row in value.rows]}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in kept_fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _row(table: ResultsTable, row: TableRow) -> dict[str, Any]:
    named = {column.key: _plain(cell) for column, cell in zip(table.columns, row.cells, strict=True)}
    return {"kind": row.kind, "model": row.model, "runtime": row.runtime, "cells": named}


def kept_fields(kind: Any) -> list[Field[Any]]:
    """Return the fields of a dataclass of the page, or of its type, that the report for programs has too."""
    return [f for f in fields(kind) if not f.metadata.get("page_only") and "Picture" not in str(f.type)]
