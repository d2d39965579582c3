"""Plain text as the words of a tagger, and where words stand in a text. Offsets are in characters (code points)."""

import re
from collections.abc import Iterable, Iterator

_OPENING, _CLOSING = "\"'`([{<«“‘„‚‹¿¡", "\"'`)]}>»”’›.,;:!?…"
_SUFFIXES = ("'s", "’s")
_ABBREVIATION = re.compile(r"(\w\.)+\w")
_ENGLISH = re.compile(r"['’](s|m|d|t|ll|re|ve)", re.IGNORECASE)  # words of their own, where a text was split before
_MARKS = re.compile(r"(.)\1*", re.DOTALL)


def split_words(text: str) -> list[str]:
    """Return the words of a text: between white space, punctuation marks at their ends and ``'s`` apart.

    Marks inside a word, such as those of a number or an address, stay; so does the dot of ``U.S.``
    """
    return [word for chunk in text.split() for word in _split(chunk)]


def _split(chunk: str) -> Iterator[str]:
    if chunk.isalnum() or _ENGLISH.fullmatch(chunk):
        yield chunk
        return
    inner = chunk.lstrip(_OPENING)
    word = inner.rstrip(_CLOSING)
    before, after = chunk[: len(chunk) - len(inner)], inner[len(word) :]
    if after.startswith(".") and _ABBREVIATION.fullmatch(word):
        word, after = f"{word}.", after[1:]
    suffix = word[-2:] if word.endswith(_SUFFIXES) else ""
    yield from _marks(before)
    yield from filter(None, (word.removesuffix(suffix), suffix))
    yield from _marks(after)


def _marks(text: str) -> Iterator[str]:
    return (match[0] for match in _MARKS.finditer(text))


def places(words: Iterable[str], text: str) -> list[tuple[int, int]]:
    """Return where words, which stand in a text in this order, begin and end in it."""
    found, end = list[tuple[int, int]](), 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        found.append((start, end))
    return found
