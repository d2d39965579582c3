"""URIs, and what opens them: user names, passwords, keys and signatures, which nothing shows and nothing records."""

import os
import re
from urllib.parse import unquote

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
