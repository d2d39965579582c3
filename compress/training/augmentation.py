"""Variants of text for the teacher to label; how a text is varied is a plug-in of ``compress/training/augmenters``."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from compress import plugins
from compress.data import Example, TextSource, row_key
from compress.errors import refuse
from compress.models.model_dir import ModelDir
from compress.recipes import Augmentation

# An example and a random generator -> a variant of it, or the example itself where there is none.
Variation = Callable[[Example, random.Random], Example]

# Which texts of a pair are varied.
_SIDES = ((True, False), (False, True), (True, True))


@dataclass(eq=False)
class AugmentedSource(TextSource):
    """A source with up to ``copies`` variants after each of its rows; the same seed gives the same variants.

    A variant that equals its row or an earlier variant of it is left out. So are one that is a held-out row (a short
    phrase can be) and those of a row that is held out itself: what selects has no likeness in what is trained on.
    """

    source: TextSource
    vary: Variation
    copies: int
    seed: int
    held_out: Callable[[Example], bool] = lambda example: False
    originals: bool = True

    def __post_init__(self) -> None:
        self.name, self.identity = self.source.name, self.source.identity

    def count(self) -> None:
        """Not known before all variants are made."""

    def __iter__(self) -> Iterator[Example]:
        for example in self.source:
            if self.originals:
                yield example
            if self.held_out(example):
                continue
            # Seeded by the row, not by its place, so that a resumed run draws the same variants.
            generator = random.Random(row_key(example) + self.seed.to_bytes(8, "big"))
            met = {(example.text, example.text_pair)}
            for _ in range(self.copies):
                variant = self.vary(example, generator)
                texts = (variant.text, variant.text_pair)
                if texts not in met and not self.held_out(variant):
                    met.add(texts)
                    yield Example(*texts)


def augmented(
    source: TextSource,
    augmentation: Augmentation,
    teacher: ModelDir,
    tokenizer: PreTrainedTokenizerFast,
    *,
    seed: int,
    held_out: Callable[[Example], bool] = lambda example: False,
    originals: bool = True,
) -> AugmentedSource:
    """Return a source with its variants, as a recipe's ``[augmentation]`` describes them.

    Args:
        teacher: whose embeddings and special tokens an augmenter may use, with its ``tokenizer``.
        held_out: tells rows that no variant may be, and of which none is made.
        originals: give the rows of the source too; without, the variants alone.
    """
    augmenter = plugins.find("augmenters", augmentation.by.name).function
    vary = augmenter(teacher, tokenizer, source, **augmentation.by.options)
    return AugmentedSource(source, vary, augmentation.copies, seed, held_out, originals=originals)


def one_of(examples: Iterable[Example]) -> Callable[[Example], bool]:
    """Return what tells whether a row has the words of one of these."""
    keys = frozenset(map(row_key, examples))
    return lambda example: row_key(example) in keys


def vary_sides(example: Example, generator: random.Random, vary: Callable[[str], str]) -> Example:
    """Return an example with a text varied; of a pair the first, the second, or both, equally often.

    Tang et al. 2019 (arXiv:1903.12136), section 3.3, take these three in turn.
    """
    if example.text_pair is None:
        return Example(vary(example.text))
    first, second = generator.choice(_SIDES)
    return Example(
        vary(example.text) if first else example.text,
        vary(example.text_pair) if second else example.text_pair,
    )


def check_share(name: str, value: float) -> None:
    refuse((not 0 <= value <= 1, f"augmentation: {name} = {value} is not possible; give at least 0 and at most 1"))
