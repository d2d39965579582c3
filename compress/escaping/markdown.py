"""Foreign text in Markdown, also that of GitHub, which links addresses, people and issues by itself."""

import re

from compress.escaping.characters import one_line

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
