"""Pages that are known again as long as nobody changes them, by a comment with their hash at their end."""

import hashlib

_SIGNATURE = "<!-- written by compress, sha256 "


def signed(text: str) -> str:
    """Return a page of HTML or Markdown with the comment at its end."""
    lines = "\n".join(text.splitlines())  # however they end
    return f"{text}{_SIGNATURE}{hashlib.sha256(lines.encode()).hexdigest()} -->\n"


def unsigned(text: str) -> str:
    """Return a page without the comment at its end, which earlier versions did not write."""
    return text.rsplit(_SIGNATURE, 1)[0]


def is_signed(text: str) -> bool:
    """Tell whether a page is as it was written."""
    return signed(unsigned(text)) == text
