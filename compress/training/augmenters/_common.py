"""Shared by augmenters: which texts of a pair are varied, and words replaced by similar ones as in TinyBERT.

Jiao et al. 2020 (arXiv:1909.10351), section 3.2 and Algorithm 1: every word that may be replaced is replaced with a
fixed probability, by one of its candidates drawn evenly. Here a candidate is never the word itself.
"""

import functools
import itertools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from sklearn.preprocessing import normalize
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.errors import CompressError, refuse
from compress.files import faults_of, regular_file
from compress.models.components import input_embeddings

# A word -> words like it.
Neighbours = Callable[[str], tuple[str, ...]]

# Runs of letters that no letter, digit or underscore touches; not what follows an apostrophe, nor the "don" of "don't".
_WORD = re.compile(r"(?<![\w'’])[^\W\d_]+(?!\w|['’]t\b)")
SIDES = ((True, False), (False, True), (True, True))  # which texts of a pair are varied
READ_VECTORS = 100_000  # files of word vectors begin with the most frequent words
_REMEMBERED_WORDS = 100_000


@dataclass(frozen=True)
class Word:
    text: str
    start: int
    end: int


# A text and some of its words -> the candidates of each.
Proposals = Callable[[str, Sequence[Word]], Sequence[Sequence[str]]]


def vary_sides(example: Example, generator: random.Random, vary: Callable[[str], str]) -> Example:
    """Return an example with a text varied; of a pair the first, the second, or both, equally often.

    Tang et al. 2019 (arXiv:1903.12136), section 3.3, take these three in turn.
    """
    if example.text_pair is None:
        return Example(vary(example.text))
    first, second = generator.choice(SIDES)
    return Example(
        vary(example.text) if first else example.text,
        vary(example.text_pair) if second else example.text_pair,
    )


def check_share(name: str, value: float) -> None:
    refuse((not 0 <= value <= 1, f"augmentation: {name} = {value} is not possible; give at least 0 and at most 1"))


def replaceable_words(text: str) -> list[Word]:
    """Return the words of letters that are no English stop words (scikit-learn's list), in order."""
    found = (Word(match.group(), *match.span()) for match in _WORD.finditer(text))
    return [word for word in found if word.text.casefold() not in ENGLISH_STOP_WORDS]


def reword(text: str, generator: random.Random, probability: float, propose: Proposals) -> str:
    """Return the text with each replaceable word replaced with a probability; spacing and punctuation stay.

    A word without candidates stays, and a capitalised word gets a capitalised one.
    """
    drawn = [word for word in replaceable_words(text) if generator.random() < probability]
    if not drawn:
        return text
    pieces, end = [], 0
    for word, candidates in zip(drawn, propose(text, drawn), strict=True):
        new = generator.choice(candidates) if candidates else word.text
        pieces += [text[end : word.start], new.title() if word.text.istitle() else new]
        end = word.end
    return "".join(pieces) + text[end:]


def check_rewording(candidates: int, probability: float) -> None:
    refuse((candidates < 1, f"augmentation: candidates = {candidates} is not possible; give at least 1"))
    check_share("probability", probability)


def nearest_words(
    words: Sequence[str], vectors: np.ndarray, vector_of: Callable[[str], np.ndarray | None], *, count: int
) -> Neighbours:
    """Return a function from a word to up to ``count`` nearest words by the cosine of their vectors, nearest first.

    ``words`` have the ``vectors`` ``[V, D]``; ``vector_of`` gives a word's own ``[D]``, or None where it has none.
    """
    directions = normalize(vectors)
    wanted = min(count + 4, len(words))  # a few more, because spellings of the word in other cases are passed over

    @functools.lru_cache(_REMEMBERED_WORDS)
    def nearest(word: str) -> tuple[str, ...]:
        vector = vector_of(word)
        if vector is None:
            return ()
        similarity = directions @ normalize(vector[None])[0]
        found = np.argpartition(-similarity, wanted - 1)[:wanted]
        ordered = found[np.lexsort((found, -similarity[found]))]
        return tuple([words[index] for index in ordered if words[index].casefold() != word.casefold()][:count])

    return nearest


def whole_words(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Return the words of letters that are a single subword token in the middle of a text, with their token ids.

    Raises:
        CompressError: there are none.
    """
    special = set(tokenizer.all_special_ids)
    ids = [[index] for index in range(len(tokenizer)) if index not in special]
    words = sorted({text.strip() for text in tokenizer.batch_decode(ids) if text.strip().isalpha()})
    pieces = tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"] if words else []
    found = {word: ids[0] for word, ids in zip(words, pieces, strict=True) if len(ids) == 1 and ids[0] not in special}
    refuse(
        (
            not found,
            "augmentation: the tokenizer has no token that is a whole word, and so no candidates; for the augmenter "
            "neighbours give vectors = 'FILE', for masked-lm another model",
        )
    )
    return found


def embedding_neighbours(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, count: int) -> Neighbours:
    """Return neighbours by a model's input embeddings: among words of one subword token, for words of any number.

    A word of several has the mean of their embeddings.

    Raises:
        CompressError: the tokenizer has no words of one token, or the embeddings are not those of its tokens.
    """
    embeddings = input_embeddings(model).weight.detach().float().cpu().numpy()
    refuse(
        (
            len(embeddings) < len(tokenizer),
            f"augmentation: a {model.config.model_type!r} model has {len(embeddings)} embeddings for the "
            f"{len(tokenizer)} tokens of its tokenizer, so that they give no neighbours; give vectors = 'FILE'",
        )
    )
    vocabulary = whole_words(tokenizer)

    def vector_of(word: str) -> np.ndarray | None:
        pieces = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        if not pieces or tokenizer.unk_token_id in pieces:
            return None
        return np.asarray(embeddings[pieces].mean(axis=0))

    return nearest_words(list(vocabulary), embeddings[list(vocabulary.values())], vector_of, count=count)


def file_neighbours(path: str | Path, *, count: int) -> Neighbours:
    """Return neighbours by the word vectors of a file in GloVe's text format, among its words of letters.

    A word that is not in the file is looked up in lower case.
    """
    words, vectors = read_vectors(path)
    index = {word: row for row, word in enumerate(words)}

    def vector_of(word: str) -> np.ndarray | None:
        row = index.get(word, index.get(word.lower()))
        return None if row is None else vectors[row]

    return nearest_words(words, vectors, vector_of, count=count)


def read_vectors(path: str | Path) -> tuple[list[str], np.ndarray]:
    """Read the words of letters, and their vectors ``[V, D]``, of ``READ_VECTORS`` lines ``word number number ...``.

    Raises:
        CompressError: no such file, or a line with other than as many numbers as the first.
    """
    words, rows, width = list[str](), list[np.ndarray](), 0
    faults = faults_of(path, "word vectors in GloVe's text format", "give another file")
    with faults, regular_file(Path(path)).open(encoding="utf-8") as lines:
        for number, line in enumerate(itertools.islice(lines, READ_VECTORS), start=1):
            width = width or line.rstrip().count(" ")
            word, *numbers = line.rstrip().rsplit(" ", width) if width else [line]
            if not width or len(numbers) != width:
                raise CompressError(
                    f"{path}, line {number} is not a word and {width or 'its'} numbers; give word vectors in "
                    "GloVe's text format, without a first line of counts"
                )
            if word.isalpha():
                words.append(word)
                rows.append(np.array(numbers, dtype=np.float32))
    refuse((not words, f"{path} holds no vector of a word; give a file of word vectors in GloVe's text format"))
    return words, np.stack(rows)
