"""Foreign text on a terminal and in the log of a CI job, which takes some lines for commands."""

import re
from typing import TYPE_CHECKING

from compress.escaping.characters import one_line, visible

if TYPE_CHECKING:
    from rich.text import Text

# '::error::' at the start of a line on GitHub; '##[error]', '##vso[...]', '##teamcity[...]' anywhere in one.
_COMMAND = re.compile(r"^[^\S\n]*:(?=:)|##(?=[\w-]*\[)", re.MULTILINE)


def terminal_text(text: str) -> str:
    """Return lines without a character that moves, colours or asks, and without a command to a CI job."""
    return _COMMAND.sub(lambda found: found[0][:-1] + f"\\u{ord(found[0][-1]):04x}", visible(text))


def terminal_cell(text: object, style: str = "") -> "Text":
    """Return text for a table, where rich finds no markup in it."""
    from rich.text import Text

    return Text(terminal_text(one_line(text)), style)
