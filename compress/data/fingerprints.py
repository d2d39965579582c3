"""Content hashes of examples, as manifests record them."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from compress.data.examples import Example


class ContentFingerprint:
    """A fingerprint of rows that does not depend on their order; repeated rows count.

    The rows' digests are added modulo 2**256, so that a stream of any length needs no memory.
    """

    def __init__(self, examples: Iterable[Example] = ()) -> None:
        self.rows = 0
        self._total = 0
        for example in examples:
            self.add(example)

    def add(self, example: Example) -> None:
        parts = [example.text, example.text_pair, example.label, *(example.tags or ())]
        row = "\x1e".join("\x00" if part is None else "\x01" + part for part in parts)
        self._total += int.from_bytes(hashlib.sha256(row.encode("utf-8", "surrogatepass")).digest(), "big")
        self.rows += 1

    def watch(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yield the examples and count each as it streams past, so that a source is read once."""
        for example in examples:
            self.add(example)
            yield example

    def sha256(self) -> str:
        return hashlib.sha256(f"{self.rows}:{self._total % 2**256:064x}".encode()).hexdigest()


def without_label(example: Example) -> Example:
    """Return the row as a pool holds it; pools are fingerprinted without labels."""
    return Example(example.text, example.text_pair)


def content_sha256(examples: Iterable[Example]) -> str:
    """Return the :class:`ContentFingerprint` of a set of rows."""
    return ContentFingerprint(examples).sha256()


def describe_rows(sets: Mapping[str, Sequence[Example]]) -> list[dict[str, Any]]:
    """Return a :func:`data_entry` for every role that has rows."""
    return [data_entry(role, role, ContentFingerprint(rows)) for role, rows in sets.items() if rows]


def data_entry(role: str, name: str, fingerprint: ContentFingerprint) -> dict[str, Any]:
    """Return what a manifest records of a set: its role, name, rows and fingerprint."""
    return {"role": role, "name": name, "rows": fingerprint.rows, "sha256": fingerprint.sha256()}
