"""Each word of a text has a tag that says whether an entity, and of which class, begins or goes on there.

Tags of a scheme such as BIO or BIOES make a tagger one of entities: metrics count entities, and predictions list them.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from compress.arrays import np
from compress.data.examples import Example, row_name
from compress.data.tokenization import by_sentence, word_counts
from compress.data.words import places
from compress.errors import refuse, some_of
from compress.evaluation.entities import ENTITY_METRICS, OUTSIDE, Entities, is_scheme, strays
from compress.evaluation.metrics import ACCURACY, Array, Metric
from compress.progress import logger
from compress.tasks import LEGAL_TAGS, check_count, labels_of
from compress.tasks.tagging import Tagging

_SCHEMES = ("BI", "BIES", "BILU")


class EntityTagging(Tagging):
    """Models that learned legal tags here predict tags of whole sentences, so that none breaks the rules of the scheme.

    Those from elsewhere may mean something else by tags, as by those of IOB1, and keep the likeliest of each word.
    On 2,077 sentences of web text (:file:`benchmarks/results/tag-decoding.jsonl`) entity F1 of a MiniLM tagger is 1.7
    points higher (1.0 to 2.5) with legal tags.

    Attributes:
        legal: whether tags are predicted of whole sentences: of new models, and as their config says.
        entities: those of the labels of a model, which :meth:`of_model` knows.
    """

    asks = "spans"
    metrics = (*ENTITY_METRICS, ACCURACY)
    legal = True
    entities: Entities

    def of_model(self, config: Mapping[str, Any]) -> EntityTagging:
        return _of_labels(labels_of(config), config.get(LEGAL_TAGS) is True)

    def head_settings(self, labels: Sequence[str]) -> dict[str, Any]:
        return super().head_settings(labels) | ({LEGAL_TAGS: True} if self.legal else {})

    def reads_config(self, config: Mapping[str, Any]) -> bool:
        return super().reads_config(config) and is_scheme(labels_of(config))

    def reads_rows(self, rows: Sequence[Example]) -> bool:
        tags = Counter(tag for row in rows for tag in row.tags or ())
        if not super().reads_rows(rows) or is_scheme(tags):
            return bool(tags)
        odd = strays(tags)
        for number, row in enumerate(rows, 1):
            for tag in odd.intersection(row.tags or ()):
                some = some_of(sorted({*tags} - odd))
                refuse(
                    (
                        True,
                        f"{row_name(number, row, 'the rows')} has the tag {tag!r}, and most tags are of entities, such "
                        f"as {some}: correct it; what is outside of entities is O.",
                    )
                )
        return False

    def gold(self, rows: Sequence[Example], labels: Sequence[str], name: str) -> list[list[int]]:
        """Illegal tags, such as those of IOB1 in a model of BIO, become legal ones of the same entities."""
        return [self.entities.made_legal(tags) for tags in super().gold(rows, labels, name)]

    def new_labels(self, train: Sequence[Example], validation: Sequence[Example]) -> tuple[str, ...]:
        """Add the tags that the scheme has for each class: a class of single words may have longer entities too.

        Data of I alone, whose entities nothing parts, keep it.
        """
        tags = super().new_labels(train, validation)
        parts, dashes, classes = map(set, zip(*(tag.partition("-") for tag in tags if tag != OUTSIDE), strict=True))
        if parts != {"I"}:
            parts |= {*next((one for one in _SCHEMES if parts <= {*one}), "")}
        check_count(len(classes), "classes of entities in train and validation", "their tags or spans")
        self._say_counts(train, tags)
        every = {"".join(one) for one in itertools.product(parts, dashes, classes)}
        return tuple(sorted({OUTSIDE, *every}))

    def _say_counts(self, train: Sequence[Example], tags: Sequence[str]) -> None:
        numbers, entities = {tag: number for number, tag in enumerate(tags)}, Entities(tags)
        found = np.array([numbers[tag] for row in train for tag in row.tags or ()], dtype=int)
        _, _, kinds = entities.read(found, np.repeat(np.arange(len(train)), word_counts(train)))
        counts = np.bincount(kinds, minlength=len(entities.classes)).tolist()
        pairs = sorted(zip(counts, entities.classes, strict=True))
        logger.info("entities of each class of train: %s", some_of([f"{one!r:.40} {count:,}" for count, one in pairs]))
        for rows, what in ((0, "no entity"), (1, "a single entity")):
            if few := [one for count, one in pairs if count == rows]:
                logger.warning("train has %s to learn these classes from: %s", what, some_of(few))

    def metric(self, name: str | None = None, labels: Sequence[str] = ()) -> Metric:
        found = super().metric(name, labels)
        return replace(found, units=Entities(labels)) if found in ENTITY_METRICS and labels else found

    def predictions(self, logits: np.typing.ArrayLike, clusters: Array | None = None) -> Array:
        tags, values = super().predictions(logits), np.asarray(logits)
        return self.entities.legal_tags(tags, values, np.zeros_like(tags) if clusters is None else clusters)

    def decisions(self, chances: Array, predicted: Array, gold: Array) -> tuple[Array, Array, None]:
        return self._of_tags(chances, predicted), predicted == gold, None

    @staticmethod
    def _of_tags(chances: Array, tags: Array) -> Array:
        """Return the probability of each tag; without an answer all are as likely."""
        return np.asarray(chances[np.arange(len(tags)), np.maximum(tags, 0)])

    def described(
        self,
        rows: Sequence[Example],
        logits: Array,
        labels: Sequence[str],
        thresholds: Array | None = None,
        all_labels: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Of each entity the probability is the product of those of its words' tags."""
        counts = word_counts(rows)
        tags = self.predictions(logits, np.repeat(np.arange(len(rows)), counts))
        chances = self._of_tags(self.probabilities(logits), tags)
        for row, found, sure in zip(rows, by_sentence(tags, counts), by_sentence(chances, counts), strict=True):
            text = row.given or row.text
            where = places(row.words, text)
            spans = []
            for first, last, kind in zip(*self.entities.read(found, np.zeros_like(found)), strict=True):
                start, end = where[first][0], where[last][1]
                spans.append(
                    {
                        "start": start,
                        "end": end,
                        "label": self.entities.classes[kind],
                        "text": text[start:end],
                        "probability": round(float(sure[first : last + 1].prod()), 4),
                    }
                )
            yield {"entities": spans}


@functools.cache
def _of_labels(labels: tuple[str, ...], legal: bool) -> EntityTagging:
    task = EntityTagging("entities")
    task.legal, task.entities = legal, Entities(labels, legal=legal)
    task.native_spans = task.entities.moves
    return task


TASK = EntityTagging("entities")
