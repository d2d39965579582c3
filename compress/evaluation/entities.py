"""Entities in tags of words, and the metrics that count them. W words, S sentences, E entities, C tags, K classes.

Schemes are IOB1, IOB2 (BIO), BIOES and BILOU. Tags that break the rules of a scheme are read as the script
``conlleval`` of CoNLL-2000 reads them, and so the package ``seqeval`` in its default mode: an inside tag after another
class, or after none, begins an entity. Models predict none of these: :meth:`Entities.legal_tags`.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

from compress.arrays import np
from compress.evaluation.metrics import Array, Metric, percentiles, resampled_sums

OUTSIDE = "O"
_TAG = re.compile(r"([BIESLU])-(.+)", re.DOTALL)
_BARE = frozenset("BIESLUO")  # tags of a single class without a name
_UNNAMED = "_"
_BEGINS, _INSIDE, _ENDS, _SINGLE, _OUT = range(5)
_GO_ON, _MAY_GO_ON = (_INSIDE, _ENDS), (_BEGINS, _INSIDE)  # parts that continue an entity, and those before them
_PARTS = {"B": _BEGINS, "I": _INSIDE, "E": _ENDS, "L": _ENDS, "S": _SINGLE, "U": _SINGLE}


def is_scheme(tags: Iterable[str]) -> bool:
    """Tell whether tags mark the beginning, inside and end of entities, and what is outside."""
    inner = {*tags} - {OUTSIDE}
    return bool(inner) and ({"B"} <= inner <= _BARE or all(map(_TAG.fullmatch, inner)))


def strays(counts: Counter[str]) -> set[str]:
    """Return the tags that are of no scheme, where most are: half of the different ones, or nearly all in words."""
    inner = {*counts} - {OUTSIDE}
    odd = {tag for tag in inner if not _TAG.fullmatch(tag)}
    words, odd_words = (sum(counts[tag] for tag in some) for some in (inner, odd))
    return odd if 2 * len(odd) < len(inner) or 20 * odd_words < words else set()


class Entities:
    """The entities that tags stand for; ``classes`` are theirs, in the order of the first tag of each.

    Args:
        legal: whether a model predicts legal tags.
    """

    def __init__(self, labels: Sequence[str], legal: bool = False) -> None:
        pairs = [self._parts(label) for label in labels]
        self.classes = tuple(dict.fromkeys(name for part, name in pairs if part != _OUT))
        # The last of both is for a word without an answer, -1, which is outside.
        self._part = [*(part for part, _ in pairs), _OUT]
        self._class = [*(-1 if part == _OUT else self.classes.index(name) for part, name in pairs), -1]
        self._set_moves(legal and OUTSIDE in labels)

    def _set_moves(self, legal: bool) -> None:
        """Find which tags may follow each other.

        One that continues an entity needs one of its class before it that is open. In schemes that mark the end of
        entities, an open one must be continued. Where a class has nothing to begin with, as in IOB1, all is legal.
        """
        tags = [*zip(self._part, self._class, strict=True)]
        self._numbers = {tag: number for number, tag in enumerate(tags[:-1])}
        self._with_end = {kind for part, kind in tags if part == _ENDS}
        self._continues = [kind if part in _GO_ON else -1 for part, kind in tags]
        self._opens = [kind if part in _MAY_GO_ON else -1 for part, kind in tags]
        self._unfinished = [part in _MAY_GO_ON and kind in self._with_end for part, kind in tags]
        begun = {kind for part, kind in tags if part == _BEGINS}
        self._has_moves = legal and begun.issuperset({*self._continues} - {-1})

    @property
    def moves(self) -> tuple[tuple[str, ...], bytes, bool]:
        """What the native library reads: classes, int32 ``[C, 4]``, and whether tags must be legal."""
        columns = zip(self._class, self._continues, self._opens, self._unfinished, strict=True)
        numbers = array("i", itertools.chain.from_iterable([*columns][:-1]))
        return self.classes, numbers.tobytes(), self._has_moves

    def _is_legal(self, tags: Sequence[int]) -> bool:
        before = -1
        for tag in (*tags, -1):
            kind = self._continues[tag]
            if self._unfinished[before] if kind < 0 else kind != self._opens[before]:
                return False
            before = tag
        return True

    def legal_tags(self, tags: Array, logits: Array, sentences: Array) -> Array:
        """Return the likeliest legal tags of each sentence ``[W]``, of the likeliest tag of each word and all logits.

        It is the path of Viterbi (1967) where every legal move is as likely. The likeliest tags are that path where
        they are legal themselves, as in nearly all sentences. Words without an answer, -1, are outside.
        """
        found = tags.copy()
        numbers, of = tags.tolist(), sentences.tolist()
        runs = itertools.groupby(range(len(numbers)), lambda word: (of[word], numbers[word] < 0))
        for words in (list(run) for _, run in runs if self._has_moves):
            begin, end = words[0], words[-1] + 1
            if not self._is_legal(numbers[begin:end]):
                found[begin:end] = self._path(logits[begin:end])
        return found

    def _path(self, logits: Array) -> list[int]:
        """Return the legal tags of the highest sum of logits ``[T, C]``, so that of their probabilities too."""
        values = np.nan_to_num(logits.astype(float), neginf=-1e30)  # of tags that are impossible
        continues, unfinished = np.array(self._continues[:-1]), np.array(self._unfinished[:-1])
        # What may be before each tag that continues an entity, in the order of the tags.
        begins = [self._numbers.get((_BEGINS, kind), 0) for kind in continues.tolist()]
        insides = [self._numbers.get((_INSIDE, kind), begin) for kind, begin in zip(continues, begins, strict=True)]
        first, second = before = np.sort([begins, insides], axis=0)
        scores, steps = np.where(continues >= 0, -np.inf, values[0]), []
        for row in values[1:]:
            finished, later = int(np.where(unfinished, -np.inf, scores).argmax()), scores[second] > scores[first]
            steps.append((finished, later))
            own = np.where(later, scores[second], scores[first])
            scores = row + np.where(continues >= 0, own, scores[finished])
        path = [int(np.where(unfinished, -np.inf, scores).argmax())]
        for finished, later in reversed(steps):
            tag = path[-1]
            path.append(int(before[int(later[tag]), tag]) if continues[tag] >= 0 else finished)
        return path[::-1]

    def made_legal(self, tags: list[int]) -> list[int]:
        """Return legal tags of the same entities, of the tags of one sentence."""
        if not self._has_moves or self._is_legal(tags):
            return tags
        found = tags.copy()
        for first, last, kind in zip(*self.read(np.array(tags), np.zeros(len(tags))), strict=True):
            parts = [_BEGINS, *[_INSIDE] * int(last - first)]
            if kind in self._with_end:
                parts = [*parts[:-1], _ENDS] if first < last else [_SINGLE]
            for word, part in enumerate(parts, first):
                found[word] = self._numbers.get((part, kind), tags[word])
        return found

    @staticmethod
    def _parts(label: str) -> tuple[int, str]:
        found = _TAG.fullmatch(label)
        return (_PARTS[found[1]], found[2]) if found else (_PARTS.get(label, _OUT), _UNNAMED)

    def read(self, tags: Array, sentences: Array) -> tuple[Array, Array, Array]:
        """Return the first word, the last word and the class of each entity ``[E]``; of tags ``[W]``."""
        # A loop, because most calls are of one short text, where each operation on arrays takes longer than all of it.
        found, open_class, before = list[tuple[int, int, int]](), -1, _OUT
        begun, previous = 0, None
        words = zip([*tags.tolist(), -1], [*sentences.tolist(), None], strict=True)  # what is outside ends the last one
        for word, (tag, sentence) in enumerate(words):
            part, kind = self._part[tag], self._class[tag]
            goes_on = sentence == previous and part in _GO_ON and kind == open_class and before in _MAY_GO_ON
            if not goes_on:
                if open_class >= 0:
                    found.append((begun, word - 1, open_class))
                begun = word
            open_class, before, previous = kind, part, sentence
        starts, ends, kinds = np.array(found, dtype=np.int64).reshape(-1, 3).T
        return starts, ends, kinds

    def found(self, predicted: Array, gold: Array, sentences: Array) -> Array:
        """Tell which gold entities were predicted with the same words and class, bool ``[E]``."""
        starts, ends, kinds = self.read(gold, sentences)
        last, kind = np.full((2, len(gold)), -1)
        at, to, of = self.read(predicted, sentences)
        last[at], kind[at] = to, of
        return np.asarray((last[starts] == ends) & (kind[starts] == kinds))

    def judged(self, gold: Array, sentences: Array) -> Array:
        """Return that all words count."""
        return np.ones(len(gold), dtype=bool)

    def counts(self, predicted: Array, gold: Array, sentences: Array) -> Array:
        """Return how many entities of each class were found, predicted and in gold, in each sentence: ``[S, 3, K]``."""
        _, row = np.unique(sentences, return_inverse=True)
        starts, _, kinds = self.read(gold, sentences)
        others, _, of_others = self.read(predicted, sentences)
        hits = self.found(predicted, gold, sentences)
        size = (row.max() + 1, len(self.classes))
        events = ((starts[hits], kinds[hits]), (others, of_others), (starts, kinds))
        counted = [
            np.bincount(row[first] * size[1] + kind, minlength=size[0] * size[1]).reshape(size)
            for first, kind in events
        ]
        return np.stack(counted, axis=1)


# Of sums ``[..., 3, K]`` of counts. What divides by nothing is 0, as in conlleval.


def _precision_by_class(sums: Array) -> Array:
    return np.asarray(sums[..., 0, :] / np.maximum(sums[..., 1, :], 1))


def _f1_by_class(sums: Array) -> Array:
    return np.asarray(2 * sums[..., 0, :] / np.maximum(sums[..., 1, :] + sums[..., 2, :], 1))


def class_figures(counts: Array) -> list[dict[str, float]]:
    """Return precision, F1 and its 95% interval of each class; of counts ``[S, 3, K]``, whose sentences are drawn."""
    sums = counts.sum(axis=0)
    bounds = [percentiles(drawn) for drawn in _f1_by_class(resampled_sums(counts)).T]
    return [
        {"precision": precision, "f1": f1, "f1_low": low, "f1_high": high}
        for precision, f1, (low, high) in zip(
            _precision_by_class(sums).tolist(), _f1_by_class(sums).tolist(), bounds, strict=True
        )
    ]


def _all(sums: Array) -> Array:
    return np.asarray(sums.sum(axis=-1, keepdims=True))


def _precision(sums: Array) -> Array:
    return np.asarray(_precision_by_class(_all(sums))[..., 0])


def _recall(sums: Array) -> Array:
    return _precision(sums[..., [0, 2, 1], :])


def _f1(sums: Array) -> Array:
    return np.asarray(_f1_by_class(_all(sums))[..., 0])


def _macro_f1(sums: Array) -> Array:
    occur = (sums[..., 1, :] + sums[..., 2, :] > 0).sum(axis=-1)
    return np.asarray(_f1_by_class(sums).sum(axis=-1) / np.maximum(occur, 1))


ENTITY_METRICS = tuple(
    Metric(f"entity-{name}", True, of_sums, counts="entities")
    for name, of_sums in (("f1", _f1), ("precision", _precision), ("recall", _recall), ("macro-f1", _macro_f1))
)
