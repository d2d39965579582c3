"""Windows over documents that are longer than a model reads: where they lie, and what joins their logits.

A document of more tokens than a window is cut every ``stride`` tokens of text into windows of ``size`` tokens, its
special tokens around each; the last one ends where the document ends, so that no token is left out. The logits of a
document are those of its windows, pooled for each class::

    mean       sum_w z_w / W
    max        max_w z_w
    attention  sum_w a_w z_w  with  a = softmax_w(max_c z_wc - mean_c z_wc)

The weights of ``attention`` have no parameters and are ours: a window counts more, the surer of a class it is. Ilse et
al. 2018, "Attention-based Deep Multiple Instance Learning" (arXiv:1802.04712), learn them; Pappagari et al. 2019,
"Hierarchical Transformers for Long Document Classification" (arXiv:1910.10781), train networks on top of windows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from compress.arrays import np
from compress.data.examples import Example
from compress.data.stored_tokenizer import AnyTokenizer
from compress.data.tokenization import WHOLE, TokenRows, encode, shared_encoder
from compress.errors import refuse

POOLINGS = ("mean", "max", "attention")
LEAST_SIZE = 8  # special tokens and some text
WINDOWS_KEY = "compress_windows"  # of a config.json
READS_WHOLE = "{} reads documents whole, by windows of {}, and --max-length cuts them; leave one out"
_FORM = re.compile(r"([0-9]{1,7}),([0-9]{1,7})(?:,([a-z]+))?")


@dataclass(frozen=True)
class Windows:
    """How documents are read; ``size`` and ``stride`` in tokens, special tokens of a window included.

    A stride of more tokens than a window has of text leaves no overlap.
    """

    size: int
    stride: int
    pooling: str = "mean"

    @classmethod
    def read(cls, given: Any, where: str = "") -> Self:
        """Return what ``SIZE,STRIDE`` or ``SIZE,STRIDE,POOLING`` says.

        Raises:
            CompressError: it says something else, or they leave tokens out; the message begins with ``where``.
        """
        if isinstance(given, cls):
            return given
        found = _FORM.fullmatch(given) if isinstance(given, str) else None
        allowed = f"SIZE,STRIDE,POOLING in tokens and one of {', '.join(POOLINGS)}, such as 256,128,mean"
        size, stride, pooling = found.groups("mean") if found else ("0", "0", "")
        made = cls(int(size), int(stride), pooling)
        refuse(
            (pooling not in POOLINGS, f"{where}windows {given!r:.80} are not {allowed}"),
            (made.size < LEAST_SIZE, f"{where}windows of {size} tokens are too short; give {LEAST_SIZE} or more"),
            (
                not 0 < made.stride <= made.size,
                f"{where}a stride of {stride} leaves tokens between windows of {size}, or never ends; give 1 to {size}",
            ),
        )
        return made

    def __str__(self) -> str:
        return f"{self.size},{self.stride},{self.pooling}"

    def check(self, source: object, longest: int, logits: int, *, by_word: bool) -> None:
        """Refuse windows that do not fit a model.

        Args:
            source: what messages call it.
            longest: tokens that it reads at once.
            logits: how many it gives.
        """
        refuse(
            (by_word, f"{source} tags words, and windows are of whole texts; leave the windows out"),
            (
                self.size > longest,
                f"windows of {self.size} tokens are more than the {longest} that {source} reads; give {longest} or "
                "fewer",
            ),
            (
                self.pooling == "attention" and logits == 1,
                f"attention weighs windows by how sure of a class they are, and {source} gives one score; pool by mean "
                "or max",
            ),
        )

    def starts(self, tokens: int, room: int) -> np.ndarray:
        """Return where the windows of a document begin.

        Args:
            tokens: of the document, without special ones.
            room: how many of them a window has.
        """
        last = max(tokens - room, 0)
        return np.append(np.arange(0, last, min(self.stride, room)), last)

    def pool(self, logits: np.ndarray, counts: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return logits ``[N, C]`` of documents, of those of their windows ``[W, C]`` one document after the other.

        Args:
            counts: windows of each document.
        """
        if len(logits) == len(counts):
            return logits
        firsts = np.cumsum([0, *counts[:-1]])
        if self.pooling == "max":
            return np.asarray(np.maximum.reduceat(logits, firsts))
        weights = np.ones(len(logits))
        if self.pooling == "attention":
            sure = logits.max(axis=1).astype(float) - logits.mean(axis=1)
            weights = np.exp(sure - np.repeat(np.maximum.reduceat(sure, firsts), counts))
        weights /= np.repeat(np.add.reduceat(weights, firsts), counts)
        return np.asarray(np.add.reduceat(weights[:, None] * logits, firsts), logits.dtype)


class WindowRows:
    """The windows of documents, one document after the other: token ids by input name, made when they are read.

    Args:
        tokens: whole documents, by input name, with their special tokens.
        ends: special tokens at the start and the end of each.
        most: windows of a document, spread evenly over it, where it has more; 0 for all.

    ``counts`` are the windows of each document ``[N]``; ``documents``, ``lengths`` and ``begins`` say of each window
    ``[W]`` of which document it is, how many tokens it has, and whether it is the first one.

    Raises:
        CompressError: special tokens fill a window.
    """

    def __init__(
        self, windows: Windows, tokens: Mapping[str, Sequence[Any]], ends: tuple[int, int], most: int = 0
    ) -> None:
        self._tokens, self._ends, self._size = tokens, ends, windows.size
        self._room = windows.size - sum(ends)
        refuse((self._room < 1, f"special tokens fill windows of {windows.size} tokens; give larger ones"))
        sizes = [len(row) for row in tokens["input_ids"]]
        starts = [_spread(windows.starts(size - sum(ends), self._room), most) for size in sizes]
        self.counts = np.array([*map(len, starts)], dtype=np.int64)
        self.documents = np.repeat(np.arange(len(sizes)), self.counts)
        self._starts = np.concatenate([np.zeros(0, np.int64), *starts])
        self.begins = self._starts == 0
        self.lengths = np.minimum(np.array(sizes, dtype=np.int64), windows.size)[self.documents]

    @classmethod
    def of_texts(cls, windows: Windows, tokenizer: AnyTokenizer, examples: Sequence[Example], most: int = 0) -> Self:
        """Return the windows of texts.

        Raises:
            CompressError: they are pairs.
        """
        return cls(windows, whole_rows(tokenizer, examples), shared_encoder(tokenizer).ends(pairs=False), most)

    def tokens(self) -> TokenRows:
        """Return all windows."""
        rows = [*self]
        return TokenRows({key: [row[key] for row in rows] for key in self._tokens})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.row, range(len(self.documents)))

    def row(self, number: int) -> dict[str, Any]:
        """Return the tokens of a window, by input name."""
        document, start = self.documents[number], self._starts[number]
        before, after = self._ends
        found = {}
        for key, rows in self._tokens.items():
            row = rows[document]
            if len(row) > self._size:
                part = row[before + start : before + start + self._room]
                row = np.concatenate([row[:before], part, row[len(row) - after :]])
            found[key] = row
        return found


def windows_of(config: Mapping[str, Any], source: object) -> Windows | None:
    """Return the windows that a ``config.json`` says; None where it says none.

    Raises:
        CompressError: it says something else; ``source`` is what the message calls its directory.
    """
    given = config.get(WINDOWS_KEY)
    return None if given is None else Windows.read(given, f"{WINDOWS_KEY} in the config.json of {source}: ")


def _spread(starts: np.ndarray, most: int) -> np.ndarray:
    """Return at most so many, spread evenly, the first and the last among them."""
    if not 0 < most < len(starts):
        return starts
    return np.asarray(starts[np.linspace(0, len(starts) - 1, most).round().astype(int)])


def encode_rows(
    tokenizer: AnyTokenizer,
    examples: Sequence[Example],
    max_length: int,
    windows: Windows | None,
    most: int = 0,
    **options: bool,
) -> tuple[TokenRows, np.ndarray]:
    """Return the tokens of texts, or of their windows, and of which text each row is.

    Args:
        max_length: of texts without windows.
        most: see :class:`WindowRows`.
        options: of :func:`compress.data.tokenization.encode`, without windows.
    """
    if windows is None:
        return encode(tokenizer, examples, max_length, **options), np.arange(len(examples))
    cut = WindowRows.of_texts(windows, tokenizer, examples, most)
    return cut.tokens(), cut.documents


def set_windows(config: Any, windows: Windows | None) -> None:
    """Let a config say how documents are read; what it says of another model's is removed."""
    if windows:
        setattr(config, WINDOWS_KEY, str(windows))
    elif hasattr(config, WINDOWS_KEY):
        delattr(config, WINDOWS_KEY)


def whole_rows(tokenizer: AnyTokenizer, examples: Sequence[Example]) -> TokenRows:
    """Return the tokens of whole texts.

    Raises:
        CompressError: they are pairs.
    """
    pairs = "windows are of one text, and these rows are pairs of texts; leave the windows out"
    refuse((any(example.text_pair is not None for example in examples), pairs))
    return encode(tokenizer, examples, WHOLE)
