"""Spans of entities in a text, as annotation tools write them: words with tags in BIO.

A span is an object with ``start``, ``end`` and ``label`` (or ``start_offset`` and ``end_offset`` of Doccano), or a list
``[start, end, label]``. Places are counted in characters (code points) from 0; ``end`` is that after the last one.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from compress.data.words import split_words
from compress.errors import CompressError, refuse

COLUMNS = ("entities", "spans")  # which hold spans even where all lists are empty
_PLACES = (("start", "end"), ("start_offset", "end_offset"))
# Letters of Thai, Lao, Burmese, Khmer, Japanese, Chinese and Korean: a border between them may be one of words.
_NO_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)
# What else places may count, the latter in JavaScript: encoding, and bytes of a unit.
_UNITS = {"bytes": ("utf-8", 1), "UTF-16 units": ("utf-16-le", 2)}


class _Span(NamedTuple):
    start: int
    end: int
    label: str
    known: bool = False  # whether the file says its text too


def are_spans(cells: Iterable[Any]) -> bool:
    """Tell whether a cell is a list with a span, maybe one that is wrong."""
    return any(_is_span(item) for cell in cells if isinstance(cell, list) for item in cell)


def _is_span(item: Any) -> bool:
    if isinstance(item, Mapping):
        return any(place in item for places in _PLACES for place in places)
    return isinstance(item, list) and len(item) == 3 and isinstance(item[2], str) and not isinstance(item[0], str)


def tagged_text(text: str, spans: Any, place: str) -> tuple[str, tuple[str, ...]]:
    """Return the words of a text with a space between them, and their tags.

    A word ends where a span begins or ends, also in its middle, so that no span loses or gains a character.

    Args:
        place: of the row, for messages.

    Raises:
        CompressError: what the cell holds is no list of spans of the text that lie apart.
    """
    refuse((not isinstance(spans, list), f"{place} has {spans!r:.80}, which is no list of spans: give one."))
    found = sorted(_read(text, item, place) for item in spans)
    unsure = () if text.isascii() or any(span.known for span in found) else found
    cut = next((span for span in unsure if _cuts(text, *span[:2])), None)
    for unit, (encoding, size) in _UNITS.items():
        if cut and _are_of(text, found, encoding, size):
            raise CompressError(
                f"{place} has the span {_shown(text, cut)}; it cuts words, and would not if {unit} were counted: "
                f"count characters (code points), not {unit}, or give each span its text."
            )
    for one, other in pairwise(found):
        refuse(
            (
                other.start < one.end,
                f"{place} has the spans {_shown(text, one)} and {_shown(text, other)}, which overlap, and a word has "
                "one tag: leave one of them out.",
            )
        )
    words, tags, end = list[str](), list[str](), 0
    for span in [*found, _Span(len(text), len(text), "")]:
        between, inside = split_words(text[end : span.start]), split_words(text[span.start : span.end])
        words += between + inside
        tags += ["O"] * len(between) + [f"{'I' if number else 'B'}-{span.label}" for number in range(len(inside))]
        end = span.end
    return " ".join(words), tuple(tags)


def _read(text: str, item: Any, place: str) -> _Span:
    refuse((not _is_span(item), f"{place} has {item!r:.80}, which is no span: give start, end and label."))
    fields: Any = item if isinstance(item, Mapping) else dict(zip(("start", "end", "label"), item, strict=True))
    first, last = next(places for places in _PLACES if {*places} & fields.keys())
    start, end, label, said = map(fields.get, (first, last, "label", "text"))
    shown = f"{place} has the span {start!r:.20} to {end!r:.20}"
    refuse(
        (type(start) is not int or type(end) is not int, f"{shown}: give whole numbers of characters."),
        (
            not isinstance(label, str) or not label.strip(),
            f"{shown} with the label {label!r:.40}: name its class.",
        ),
    )
    encoded = len(text.encode("utf-8", "surrogatepass"))
    refuse(
        (
            len(text) < end <= encoded,
            f"{shown} of a text of {len(text)} characters, which has {encoded} bytes in UTF-8: count characters (code "
            "points), not bytes.",
        ),
        (
            start < 0 or end > len(text),
            f"{shown}, outside the text, which has {len(text)} characters: correct the span.",
        ),
        (
            start >= end or not text[start:end].strip(),
            f"{shown}, which holds no word ({text[max(start, 0) : end]!r:.40}): correct it, or leave it out.",
        ),
        (
            isinstance(said, str) and said != text[start:end],
            f"{shown}, which is {text[start:end]!r:.40} in the text and {said!r:.40} in the file: count characters "
            "(code points) from 0, neither bytes nor UTF-16 units.",
        ),
    )
    return _Span(start, end, str(label).strip(), said is not None)


def _cuts(text: str, start: int, end: int) -> bool:
    """Tell whether a place is between two letters or digits."""
    borders = (text[max(0, at - 1) : at + 1] for at in (start, end))
    return any(
        len(one) == 2 and one[0].isalnum() and one[1].isalnum() and not _NO_SPACES.search(one) for one in borders
    )


def _are_of(text: str, spans: Iterable[_Span], encoding: str, size: int) -> bool:
    """Tell whether spans cut no word where their places count units of so many bytes of an encoding."""
    data = text.encode(encoding, "surrogatepass")
    try:
        places = [[len(data[: at * size].decode(encoding, "surrogatepass")) for at in span[:2]] for span in spans]
    except UnicodeDecodeError:
        return False
    return not any(_cuts(text, *one) for one in places)


def _shown(text: str, span: _Span) -> str:
    return f"{span.start} to {span.end} ({text[span.start : span.end]!r:.40})"
