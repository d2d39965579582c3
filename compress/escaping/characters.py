"""Characters that control how text is shown, of escape sequences and directions, written as ``\\uXXXX``."""

import json

# Spaces and joiners that writing needs, though Python does not call them printable.
_KEPT = frozenset("\n\t\u00a0\u1680\u202f\u205f\u3000\u200c\u200d").union(map(chr, range(0x2000, 0x200B)))


def escaped(char: str) -> str:
    """Return a character as JSON escapes it, so that JSON with such escapes is the same JSON."""
    return json.dumps(char)[1:-1]


def visible(text: str) -> str:
    """Return text in which every character shows itself; line feeds and tabs stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _KEPT else escaped(char) for char in text)


def one_line(text: object) -> str:
    """Return text in which every character shows itself, on one line."""
    return visible(" ".join(str(text).split()))
