"""Variants of unlabelled text for the teacher to label: word masking and n-gram sampling.

Tang et al. 2019 (arXiv:1903.12136), section 3.3. Their replacement of words by others of the same part of speech
needs a tagger and is not done here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from compress.data import Example, TextSource, row_key
from compress.recipes import Augmentation

LONGEST_NGRAM = 5


class AugmentedSource:
    """A source with ``copies`` variants after each of its rows; the same seed gives the same variants."""

    def __init__(
        self,
        source: TextSource,
        augmentation: Augmentation,
        mask_token: str,
        seed: int,
        held_out: frozenset[bytes] = frozenset(),
    ) -> None:
        """Wrap a source; a variant that is one of the ``held_out`` rows (a short phrase can be) is left out."""
        self.source = source
        self.augmentation = augmentation
        self.mask_token = mask_token
        self.seed = seed
        self.held_out = held_out
        self.name = source.name
        self.identity = source.identity

    def __iter__(self) -> Iterator[Example]:
        for example in self.source:
            yield example
            # Seeded by the row, not by its place, so that a resumed run draws the same variants.
            generator = random.Random(row_key(example) + self.seed.to_bytes(8, "big"))
            for _ in range(self.augmentation.copies):
                text = vary(example.text, self.augmentation, self.mask_token, generator)
                variant = Example(text, example.text_pair)
                if text != example.text and row_key(variant) not in self.held_out:
                    yield variant


def vary(text: str, augmentation: Augmentation, mask_token: str, generator: random.Random) -> str:
    """Return one variant of a text; the text itself when every word would be masked."""
    words = text.split()
    masked = [mask_token if generator.random() < augmentation.mask else word for word in words]
    if generator.random() < augmentation.ngram:
        length = min(generator.randint(1, LONGEST_NGRAM), len(words))
        start = generator.randint(0, len(words) - length)
        masked = masked[start : start + length]
    if all(word == mask_token for word in masked):
        return text
    return " ".join(masked)
