"""Which texts of a pool are labelled, where each label costs something.

Of near copies the first stays (:mod:`compress.data.near_copies`). Texts are chosen in rounds. Those of the first are
drawn at random; then logistic regression on tf-idf learns from what is labelled so far, and the texts come next between
whose two likeliest classes it is least sure: the smallest margin of probability (Scheffer et al. 2001, "Active Hidden
Markov Models for Information Extraction", section 3.2). Ties are broken at random.

Which texts these are depends on their labels. They teach, and they do not judge: a model is right on fewer of them than
on random texts.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compress.data import Example, TextSource, row_keys
from compress.data.examples import plain_text
from compress.data.near_copies import near_pairs
from compress.errors import refuse
from compress.labelling.label_dir import read_shard
from compress.tasks import Task

STRENGTH = 10.0  # C of the logistic regression
# A text with less in its letters and digits, in UTF-8, is chosen last: two words, or three characters of Chinese.
LEAST_BYTES = 8
PREDICTED_ROWS = 8192  # at once
# Of scripts without spaces each character is a token, and two in a row are a pair.
_TOKEN = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
    r"|[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
    r"|[^\w\s]"
)
CHOSEN_BY, UNCERTAINTY = "chosen_by", "uncertainty"  # in the notes of labels
Answers = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class KeptRows(TextSource):
    """Rows of a source that are kept of it, in memory; ``notes`` are for the manifest."""

    def __init__(self, source: TextSource, rows: Sequence[Example], **notes: Any) -> None:
        self.source, self.rows, self.notes = source, rows, notes
        self.name, self.identity, self.of_words = source.name, source.identity, True

    def __iter__(self) -> Iterator[Example]:
        return iter(self.rows)

    def describe(self) -> str:
        said = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in self.notes.items())
        return f"{self.source.describe()}, {said}"


def without_near_copies(source: TextSource) -> KeptRows:
    """Return the rows of a source but for those that are near copies of an earlier one that stays."""
    rows = [*source]
    distinct = [rows[number] for number in np.sort(np.unique(row_keys(rows), return_index=True)[1])]
    pairs = near_pairs([*map(plain_text, distinct)])[0]
    stays = np.ones(len(distinct), bool)
    for first, second in pairs[np.argsort(pairs[:, 1], kind="stable")].tolist():
        stays[second] &= not stays[first]
    kept = [row for row, stay in zip(distinct, stays.tolist(), strict=True) if stay]
    return KeptRows(source, kept, near_copies_left_out=len(rows) - len(kept))


@dataclass(frozen=True)
class ChosenTexts:
    """``count`` rows of a pool that are to be labelled, in so many rounds; with one they are random.

    Raises:
        CompressError: the pool has fewer.
    """

    pool: KeptRows
    count: int
    rounds: int
    seed: int

    def __post_init__(self) -> None:
        there = len(self.pool.rows)
        but = f", {copies:,} near copies left out" if (copies := self.pool.notes["near_copies_left_out"]) else ""
        refuse(
            (
                self.count > there,
                f"--select {self.count:,} is more than the {there:,} texts of {self.pool.name}{but}; give --select "
                f"{there} at most, or more text",
            )
        )

    @property
    def least_round(self) -> int:
        return -(-self.count // self.rounds)

    def drawn(self, count: int) -> KeptRows:
        """Return rows drawn at random, with which :meth:`rounds_of` begins."""
        rows = [self.pool.rows[number] for number in _order(len(self.pool.rows), self.seed)[:count].tolist()]
        by = UNCERTAINTY if self.rounds > 1 else "chance"
        about = {CHOSEN_BY: by, "rounds": self.rounds, "seed": self.seed, "pool_rows": len(self.pool.rows)}
        return KeptRows(self.pool.source, rows, **about, **self.pool.notes)

    def rounds_of(self, directory: Path, shard_rows: int, task: Task, classes: int) -> Iterator[KeptRows]:
        """Yield the rows of each round; the directory has the shards of all earlier ones when one is asked for."""
        rows = self.pool.rows
        places = {(row.text, row.text_pair): number for number, row in enumerate(rows)}

        def answers(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found, given = list[int](), list[int]()
            for number in range(len(chosen) // shard_rows):  # there may be later ones, of work that was stopped
                examples, logits = read_shard(directory, number, classes, task=task)
                found += [places[row.text, row.text_pair] for row in examples]
                given += task.predictions(logits).tolist()
            return np.array(found, int), np.array(given, int)

        sizes = round_sizes(self.count, self.rounds, shard_rows)
        for numbers in choose_texts([*map(plain_text, rows)], sizes, self.seed, answers):
            yield KeptRows(self.pool.source, [rows[number] for number in numbers.tolist()])


def round_sizes(count: int, rounds: int, multiple: int) -> list[int]:
    """Return how many texts each round has: equal numbers, multiples of a shard but for the last."""
    size = -(-count // (rounds * multiple)) * multiple
    return [min(size, count - start) for start in range(0, count, size)]


def choose_texts(texts: Sequence[str], sizes: Sequence[int], seed: int, answers: Answers) -> Iterator[np.ndarray]:
    """Yield the numbers of the texts of each round.

    Args:
        texts: normalised, each once.
        answers: gets the numbers of all texts so far, and returns those that have a label, and their classes.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    chosen = _order(len(texts), seed)[: sizes[0]]
    yield chosen
    if len(sizes) == 1:
        return
    form = TfidfVectorizer(ngram_range=(1, 2), token_pattern=_TOKEN, sublinear_tf=True, dtype=np.float32)
    features, draw = form.fit_transform(texts), np.random.default_rng([seed, 1])
    short = np.array([len("".join(re.findall(r"\w", text)[:LEAST_BYTES]).encode()) < LEAST_BYTES for text in texts])
    for size in sizes[1:]:
        margins = np.ones(len(texts))
        labelled, classes = answers(chosen)
        if len(np.unique(classes)) > 1:
            margins = _margins(features, labelled, classes)
        margins[chosen] = np.inf
        last = np.where(np.isinf(margins), 2, short)
        following = np.lexsort((draw.random(len(texts)), margins, last))[:size]
        chosen = np.concatenate([chosen, following])
        yield following


def _order(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(count)


def _margins(features: Any, labelled: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the probability of the likeliest class less that of the second, by what is labelled, ``[N]``."""
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    known = np.unique(features[labelled].indices)  # others have no weight
    features = features[:, known]
    with threadpool_limits(1):  # the same choice by any number of threads: work that was stopped goes on with it
        model = LogisticRegression(C=STRENGTH, tol=1e-3, max_iter=1000).fit(features[labelled], classes)
        parts = range(0, features.shape[0], PREDICTED_ROWS)
        chances = (model.predict_proba(features[start : start + PREDICTED_ROWS]) for start in parts)
        return np.concatenate([np.diff(np.partition(one, -2)[:, -2:])[:, 0] for one in chances])
