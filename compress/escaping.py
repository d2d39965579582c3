"""Foreign text stays text: one function a medium shows names, texts and messages of others, and nothing in it acts."""

import json
import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from rich.text import Text


# Characters that control how text is shown, of escape sequences and directions, written as ``\uXXXX``.

# Spaces and joiners that writing needs, though Python does not call them printable.
_KEPT = frozenset("\n\t\u00a0\u1680\u202f\u205f\u3000\u200c\u200d").union(map(chr, range(0x2000, 0x200B)))


def escaped(char: str) -> str:
    """Return a character as JSON escapes it, so that JSON with such escapes is the same JSON."""
    return json.dumps(char)[1:-1]


def visible(text: str) -> str:
    """Return text in which every character shows itself; line feeds and tabs stay."""
    return "\n".join(line if line.isprintable() else "".join(map(_shown, line)) for line in text.split("\n"))


def _shown(char: str) -> str:
    return char if char.isprintable() or char in _KEPT else escaped(char)


def one_line(text: object) -> str:
    """Return text in which every character shows itself, on one line."""
    return visible(" ".join(str(text).split()))


# HTML, SVG and XML.


def markup_text(text: str) -> str:
    """Return text for an element or a quoted attribute: no tag, no entity, and no character that XML cannot hold."""
    from html import escape

    return escape(visible(text))


def visible_value(value: Any) -> Any:
    """Return a value of a template that escapes by itself; what is marked as HTML already stays."""
    return visible(value) if type(value) is str else value


# Markdown, also that of GitHub, which links addresses, people and issues by itself.

_MARKS = re.compile(
    r"[\\|*_`\[\]~$#]"  # table, emphasis, code, link, image, strikethrough, maths, heading
    r"|:(?=//)|(?<=www)\."  # address
    r"|^(?:>|[-+=](?=[\s=+-]|$))",  # quotation, list, underlined heading
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"^(\d+)(?=[.)](?:\s|$))")
# GitHub finds people, issues and emoji in the text that is rendered: no mark hides them there, an invisible space does.
_FOUND = re.compile(r"@(?=\w)|#(?=\d)|:(?=[a-z+-][\w+-]*:)", re.IGNORECASE)
_SPACE = "\u200b"


class Markdown(str):
    """What is Markdown already."""


def code_span(text: str) -> Markdown:
    """Return text on one line as code, which is copied from the source as it is; no mark in it counts."""
    line = one_line(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    pad = " " * (line.startswith(("`", " ")) or line.endswith(("`", " ")))
    return Markdown(f"{fence}{pad}{line}{pad}{fence}")


def markdown_text(text: object) -> str:
    """Return text on one line for a paragraph, a list, a heading or a cell of a table; it renders as itself."""
    if isinstance(text, Markdown):
        return text
    parted = _FOUND.sub(rf"\g<0>{_SPACE}", one_line(text))
    marked = _NUMBERED.sub(r"\1\\", _MARKS.sub(r"\\\g<0>", parted))
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(_SPACE, "&#8203;")


# Terminals, and the log of a CI job, which takes some lines for commands.

# '::error::' at the start of a line on GitHub; '##[error]', '##vso[...]', '##teamcity[...]' anywhere in one.
_COMMAND = re.compile(r"^[^\S\n]*:(?=:)|##(?=[\w-]*\[)", re.MULTILINE)


def terminal_text(text: str) -> str:
    """Return lines without a character that moves, colours or asks, and without a command to a CI job."""
    shown = visible(text)
    if "::" not in shown and "##" not in shown:  # faster than the pattern, on a million lines
        return shown
    return _COMMAND.sub(lambda found: found[0][:-1] + f"\\u{ord(found[0][-1]):04x}", shown)


def terminal_cell(text: object, style: str = "") -> "Text":
    """Return text for a table, where rich finds no markup in it."""
    from rich.text import Text

    return Text(terminal_text(one_line(text)), style)


# URIs, and what opens them: user names, passwords, keys and signatures, which nothing shows and nothing records.

_URI = re.compile(r"[A-Za-z][\w+.-]{1,20}://")
_LOCAL = re.compile(r"(?:file|local)://(?:localhost(?=/))?", re.IGNORECASE)
_IN_TEXT = re.compile(_URI.pattern + r"\S+")
# Before an @: a user, or a user and a password, in which some write a slash; a port is neither.
_USER = re.compile(r"(?<=://)(?:[^/@]*:(?!\d+/).*|[^/@]*)@")
_QUERY, _WEB_QUERY = re.compile(r"\?[^/?]*=.*"), re.compile(r"[?#].*")  # elsewhere a name may hold ? and #


def is_uri(name: object) -> bool:
    """Tell whether a name is a URI, such as ``s3://bucket/part-*.parquet``."""
    return isinstance(name, str) and bool(_URI.match(name))


def local_path(name: str) -> str:
    """Return the path that a URI of this machine names, such as ``file:///data/a.csv``; any other name as it is."""
    found = _LOCAL.match(name)
    path = name[found.end() :] if found else name
    return path if not found or os.path.lexists(path) else unquote(path)


def without_secrets(uri: str) -> str:
    """Return a URI without user, password and query string."""
    query = _WEB_QUERY if uri.lower().startswith("http") else _QUERY
    # Azure has the name of a container there.
    return query.sub("", uri if uri.lower().startswith("abfs") else _USER.sub("", uri))


def text_without_secrets(text: str) -> str:
    """Return a text in which every URI is :func:`without_secrets`."""
    return _IN_TEXT.sub(lambda found: without_secrets(found[0]), text)
