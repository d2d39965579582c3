"""Mask words, replace words by others that are as frequent, and keep a run of one to five words.

Tang et al. 2019, "Distilling Task-Specific Knowledge from BERT into Simple Neural Networks" (arXiv:1903.12136),
section 3.3: for each word one number is drawn; below ``mask`` the word becomes the mask token, else below ``mask +
replace`` another word. Then, with probability ``ngram``, only a run of words is kept. A text of which no word is left
as it was is not used. Of a pair the first text is varied, the second, or both.

The paper draws a replacement among the words of the same part of speech, in proportion to their counts. A tagger would
have to be trained for each language, so that here *frequency bands of the corpus* take the place of parts of speech:
words in the order of their counts, the first 16 together, then 16, 32, 64, ... more, words of letters apart from the
rest (numbers, punctuation). The first bands hold mostly function words, the later ones words of content. The draw is in
proportion to counts, as in the paper, and never gives the word itself.
"""

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import accumulate, islice

from transformers import PreTrainedTokenizerFast

from compress.data.examples import Example, texts_of
from compress.errors import refuse
from compress.models.model_dir import Model
from compress.training.augmenters._common import check_share, vary_sides
from compress.training.training_data import Variation

LONGEST_NGRAM = 5
FIRST_BAND_WORDS = 16
COUNTED_ROWS = 1_000_000  # bands hardly change after this many rows, and counting must end


def augmenter(
    teacher: Model,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Iterable[Example],
    *,
    mask: float = 0.1,
    replace: float = 0.1,
    ngram: float = 0.25,
) -> Variation:
    """Return the function that varies an example.

    Args:
        corpus: the texts whose words are counted; read once, and not at all when ``replace`` is 0.
        mask, replace: shares of the words; words are what white space separates.
        ngram: the share of variants that are cut to a run of 1 to 5 words.
    """
    for name, value in (("mask", mask), ("replace", replace), ("mask + replace", mask + replace), ("ngram", ngram)):
        check_share(name, value)
    mask_token = str(tokenizer.mask_token or tokenizer.unk_token or "")
    refuse(
        (
            mask and not mask_token,
            "augmentation: the teacher's tokenizer has no mask and no unknown token to hide words with; set mask = 0",
        )
    )
    bands = FrequencyBands(corpus if replace else ())

    def changed(word: str, generator: random.Random) -> str:
        drawn = generator.random()
        if drawn < mask:
            return mask_token
        return bands.another(word, generator) if drawn < mask + replace else word

    def vary_text(text: str, generator: random.Random) -> str:
        before = text.split()
        after = [changed(word, generator) for word in before]
        start, end = 0, len(before)
        if before and generator.random() < ngram:
            length = min(generator.randint(1, LONGEST_NGRAM), len(before))
            start = generator.randint(0, len(before) - length)
            end = start + length
        is_kept = [old == new for old, new in zip(before[start:end], after[start:end], strict=True)]
        if not any(is_kept) or (all(is_kept) and end - start == len(before)):
            return text
        return " ".join(after[start:end])

    return lambda example, generator: vary_sides(example, generator, lambda text: vary_text(text, generator))


class FrequencyBands:
    """The words of a corpus by how frequent they are; :meth:`another` draws one like a given one."""

    def __init__(self, corpus: Iterable[Example]) -> None:
        counts = Counter(word for text in texts_of(islice(corpus, COUNTED_ROWS)) for word in text.split())
        self._place: dict[str, tuple[tuple[bool, int], int]] = {}  # band, and index in it
        members: defaultdict[tuple[bool, int], list[str]] = defaultdict(list)
        ranks: Counter[bool] = Counter()
        for word in sorted(counts, key=lambda word: (-counts[word], word)):
            is_word = word.isalpha()
            band = (is_word, (ranks[is_word] // FIRST_BAND_WORDS).bit_length())
            ranks[is_word] += 1
            self._place[word] = (band, len(members[band]))
            members[band].append(word)
        self._bands = {
            band: (words, list(accumulate(counts[word] for word in words))) for band, words in members.items()
        }

    def another(self, word: str, generator: random.Random) -> str:
        """Return another word of the same band, drawn in proportion to counts; the word itself where there is none."""
        if word not in self._place:
            return word
        band, index = self._place[word]
        words, cumulated = self._bands[band]
        below, above = cumulated[index - 1] if index else 0, cumulated[index]
        others = cumulated[-1] - (above - below)
        if not others:
            return word
        drawn = generator.randrange(others)
        return words[bisect_right(cumulated, drawn if drawn < below else drawn + above - below)]
