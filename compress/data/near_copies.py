"""Near copies: texts that are alike, found among many without comparing every two. N texts.

Alike are two texts of a Jaccard similarity of at least 0.8: of the sets of all five characters in a row of their
normalised words, those that both have are at least 0.8 of those that either has. MinHash (Broder 1997, "On the
resemblance and containment of documents") gives a text 100 numbers, and the share of these that two texts agree in
estimates their similarity. Compared are texts that agree in five numbers in a row, of 20 times five (Leskovec et al.
2020, "Mining of Massive Datasets", section 3.4): two of similarity 0.8 with a probability of 99.96%. What is compared
is decided by the sets themselves. Signatures take 400 bytes a text.
"""

from collections.abc import Sequence

from compress.arrays import np
from compress.data.examples import batched

SIMILAR = 0.8
CHARACTERS = 5
BANDS, ROWS = 20, 5
COMPARED = 32  # following texts of a band's bucket, in an order drawn for the band: templates fill buckets of thousands
_FACTOR, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_PART = 65_536  # texts, and pairs


def near_pairs(texts: Sequence[str]) -> tuple["np.ndarray", "np.ndarray"]:
    """Return the pairs of texts that are alike ``[P, 2]``, the smaller first, and their similarities ``[P]``.

    Args:
        texts: normalised, each once.
    """
    signed, draw = signatures(texts), np.random.default_rng(0)
    # An estimate this far below is one in 30,000 of two texts that are alike.
    least = SIMILAR - 4 * (SIMILAR * (1 - SIMILAR) / (BANDS * ROWS)) ** 0.5
    known, alike = np.empty(0, np.int64), dict[int, float]()
    for band in range(BANDS):
        keys = np.zeros(len(texts), np.uint64)
        for column in signed[:, band * ROWS : (band + 1) * ROWS].T:
            keys = (keys ^ column) * _FACTOR
        order = draw.permutation(len(texts))
        order = order[np.argsort(keys[order], kind="stable")]
        keys = keys[order]
        for step in range(1, COMPARED + 1):
            same = np.flatnonzero(keys[step:] == keys[:-step])
            if not len(same):
                break
            pairs = np.sort(np.stack([order[same], order[same + step]], axis=1), axis=1)
            parts = np.split(pairs, range(_PART, len(pairs), _PART))
            close = np.concatenate([(signed[one[:, 0]] == signed[one[:, 1]]).mean(axis=1) >= least for one in parts])
            codes = np.setdiff1d(pairs[close] @ [len(texts), 1], known)
            known = np.union1d(known, codes)
            found = (
                (code, similarity(*(texts[place] for place in divmod(code, len(texts))))) for code in codes.tolist()
            )
            alike |= {code: value for code, value in found if value >= SIMILAR}
    codes = np.array(sorted(alike), np.int64)
    return np.stack(np.divmod(codes, max(len(texts), 1)), axis=1), np.array([alike[code] for code in codes.tolist()])


def signatures(texts: Sequence[str]) -> "np.ndarray":
    """Return the MinHash of texts, uint32 ``[N, 100]``."""
    odd, shifts = np.random.default_rng(0).integers(0, 2**63, (2, BANDS * ROWS), dtype=np.uint64)
    found = [np.empty((0, BANDS * ROWS), np.uint32)]
    for some in batched(map(_padded, texts), _PART, len):
        lengths = np.array([*map(len, some)])
        ends = np.cumsum(lengths)
        codes = np.frombuffer("".join(some).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
        hashed = np.zeros(len(codes) - CHARACTERS + 1, np.uint64)
        for place in range(CHARACTERS):
            hashed = hashed * _FACTOR + codes[place : place + len(hashed)]
        within = np.ones(len(codes), bool)  # whether the five characters from here on are of one text
        within[(ends[:, None] - np.arange(1, CHARACTERS)).ravel()] = False
        hashed = hashed[within[: len(hashed)]]
        hashed = (hashed ^ (hashed >> np.uint64(32))) * _MIX
        counts = lengths - CHARACTERS + 1
        begins = np.cumsum(counts) - counts
        signed = np.empty((len(some), BANDS * ROWS), np.uint32)
        for number, (factor, shift) in enumerate(zip(odd | np.uint64(1), shifts, strict=True)):
            signed[:, number] = np.minimum.reduceat((hashed * factor + shift) >> np.uint64(32), begins)
        found.append(signed)
    return np.concatenate(found)


def similarity(one: str, other: str) -> float:
    """Return the Jaccard similarity of the sets of five characters of two texts."""
    first, second = (
        {text[place : place + CHARACTERS] for place in range(len(text) - CHARACTERS + 1)}
        for text in map(_padded, (one, other))
    )
    return len(first & second) / len(first | second)


def _padded(text: str) -> str:
    return text.ljust(CHARACTERS)
