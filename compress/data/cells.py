"""Cells of records: values at dotted paths, and what is a text, a label or a list of words among them.

A cell is text, None, or a list or an object as a record holds it. Structure is no text: only lists of words or segments
are joined, and a list of one label is that label.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Cell: TypeAlias = "str | list[Any] | Mapping[str, Any] | None"
Classes: TypeAlias = Mapping[str, tuple[str, ...]]  # by column, the names of the integers that it holds
_MOST_FIELDS, _MOST_LEVELS = 50, 4  # an object of more fields is a dictionary and no record
_NESTED_ROWS = 20  # rows whose objects are looked into for their fields
_SURROGATE = re.compile("[\ud800-\udfff]")


class Several(list[Any]):
    """The items of a list where a dotted path does not say which of them it means; ``path`` leads to the list."""

    path = ""


class StructureError(ValueError):
    """A cell is a list or an object where a text or one label is needed; says what it is."""


def cell(value: Any, names: Sequence[str] = ()) -> Cell:
    """Return a value of JSON or Parquet as a cell; integers by their ``names``, if they have any, and -1 as None."""
    if isinstance(value, list) and names:
        return [cell(one, names) for one in value]
    if value is None or isinstance(value, (str, list, Mapping)):
        return _whole(value) if isinstance(value, str) else value
    if isinstance(value, float) and math.isnan(value):  # how pandas and polars write that there is none
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if names and isinstance(value, int) and -1 <= value < len(names):
        return None if value < 0 else names[value]
    return str(value)


def _whole(text: str) -> str:
    """Replace halves of characters, which JSON can spell; no tokenizer and no file can hold them."""
    if _SURROGATE.search(text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def text_of(value: Cell) -> str:
    """Return a cell as text, with lists of words and of segments joined.

    Raises:
        StructureError: it is another list, or an object.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return _whole(" ".join(value))
    if isinstance(value, list):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in value]
        if all(isinstance(part, str) for part in parts):
            return _whole("".join(map(str, parts)).strip())
    raise StructureError(f"{_shown(value)}, which is no text")


def label_of(value: Cell) -> str | None:
    """Return the only label of a cell: of a list its only item, of an object of ones and zeros what has the one.

    Raises:
        StructureError: it holds several, or something else.
    """
    found: Any = value
    while isinstance(found, list) and len(found) == 1:
        (found,) = found
    shares = list(found.values()) if isinstance(found, Mapping) else []
    if len(shares) > 1 and sum(one == 1 for one in shares) == 1 == len(shares) - sum(one == 0 for one in shares):
        found = next(name for name, share in found.items() if share)
    if isinstance(found, (list, Mapping)) and found:
        raise StructureError(f"{_shown(found)}, and a text has one label here")
    return None if isinstance(found, (list, Mapping)) else text_of(cell(found))


def words_of(value: Cell) -> list[str]:
    """Return a list of words, or of tags, as text.

    Raises:
        StructureError: it is no list, or holds something that is neither a word nor a number.
    """
    found = [part if isinstance(part, str) else cell(part) for part in value] if isinstance(value, list) else [None]
    if not all(isinstance(part, str) and part.strip() for part in found):
        raise StructureError(f"{_shown(value)}, and needs a list of words and one of tags")
    return [_whole(str(part)) for part in found]


def at(value: Any, path: str) -> Any:
    """Return what stands at a dotted path: names of fields, and places in lists from 0; None where nothing does.

    A list of one item is stepped into; one of several is a :class:`Several` where the path does not say which of them.
    """
    if isinstance(value, Mapping) and path in value:
        return value[path]
    parts = path.split(".")
    for number, part in enumerate(parts):
        place = part.isdecimal() and len(part) < 10
        while isinstance(value, list) and len(value) == 1 and not place:
            (value,) = value
        if isinstance(value, list):
            if not place:
                several = Several(value)
                several.path = ".".join(parts[:number])
                return several
            value = value[int(part)] if int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def field_names(records: Sequence[Mapping[str, Any]], wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of records: fields, those of objects by dotted paths, and ``wanted`` paths with values."""
    found: dict[str, dict[str, None]] = {}
    for number, record in enumerate(records):
        for key, value in record.items():
            if key not in found or (number < _NESTED_ROWS and value is not None):
                paths = () if value is None else _inner(key, value, _MOST_LEVELS)
                found.setdefault(key, {}).update(dict.fromkeys(paths))
    names = dict.fromkeys(path for key, paths in found.items() for path in paths or [key])
    names |= dict.fromkeys(path for path in wanted if any(at(record, path) is not None for record in records))
    return tuple(names)


def _inner(name: str, value: Any, levels: int, lists: bool = False) -> Iterator[str]:
    """Yield the paths of the fields of an object, of ``lists`` those of their items too; of another value its own."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping) or (lists and isinstance(value, list)):
        pairs = list(value.items() if isinstance(value, Mapping) else enumerate(value))
    if not levels or not 0 < len(pairs) <= _MOST_FIELDS:
        yield name
        return
    for key, inner in pairs:
        yield from _inner(f"{name}.{key}", inner, levels - 1, lists)


def inner_fields(name: str, value: Cell) -> list[str]:
    """Return the paths of what a structured cell holds, such as ``messages.0.content``; none of other cells."""
    name = value.path if isinstance(value, Several) else name
    return [path for path in _inner(name, value, _MOST_LEVELS, lists=True) if path != name]


def class_names(features: Any, prefix: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the columns of classes among the features of the library ``datasets``, with the names of their integers."""
    if isinstance(features, list) and len(features) == 1:
        (features,) = features
    kind = features.get("_type") if isinstance(features, Mapping) else ""
    if kind in ("Sequence", "List", "LargeList"):
        yield from class_names(features.get("feature"), prefix)
    elif kind == "ClassLabel" and isinstance(names := features.get("names"), list):
        yield prefix, tuple(_whole(str(name)).strip() for name in names)
    elif not isinstance(kind, str):
        for key, inner in features.items():
            yield from class_names(inner, f"{prefix}.{key}" if prefix else key)


def _shown(value: Any) -> str:
    kind = (
        "an object" if isinstance(value, Mapping) else f"a list of {len(value)}" if isinstance(value, list) else "text"
    )
    return f"{kind} ({json.dumps(value, ensure_ascii=False, default=str):.60})"
