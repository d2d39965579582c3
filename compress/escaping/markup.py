"""Foreign text in HTML, SVG and XML."""

from html import escape
from typing import Any

from compress.escaping.characters import visible


def markup_text(text: str) -> str:
    """Return text for an element or a quoted attribute: no tag, no entity, and no character that XML cannot hold."""
    return escape(visible(text))


def visible_value(value: Any) -> Any:
    """Return a value of a template that escapes by itself; what is marked as HTML already stays."""
    return visible(value) if type(value) is str else value
