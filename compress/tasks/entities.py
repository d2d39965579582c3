"""Each word of a text has a tag that says whether an entity, and of which class, begins or goes on there.

Tags of a scheme such as BIO or BIOES make a tagger one of entities: metrics count entities, and predictions list them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from compress.arrays import np
from compress.data.examples import Example
from compress.data.tokenization import by_sentence, word_counts
from compress.data.words import places
from compress.evaluation.entities import ENTITY_METRICS, OUTSIDE, Entities, is_scheme
from compress.evaluation.metrics import ACCURACY, Array, Metric
from compress.tasks import labels_of
from compress.tasks.tagging import Tagging


class EntityTagging(Tagging):
    metrics = (*ENTITY_METRICS, ACCURACY)

    def reads_config(self, config: Mapping[str, Any]) -> bool:
        return super().reads_config(config) and is_scheme(labels_of(config))

    def reads_rows(self, rows: Sequence[Example]) -> bool:
        return super().reads_rows(rows) and is_scheme(tag for row in rows for tag in row.tags or ())

    def new_labels(self, train: Sequence[Example], validation: Sequence[Example]) -> tuple[str, ...]:
        """Add the tags that the scheme has for each class: a class of single words may have longer entities too."""
        tags = super().new_labels(train, validation)
        parts, dashes, classes = map(set, zip(*(tag.partition("-") for tag in tags if tag != OUTSIDE), strict=True))
        every = {"".join(one) for one in itertools.product(parts, dashes, classes)}
        return tuple(sorted({OUTSIDE, *every}))

    def metric(self, name: str | None = None, labels: Sequence[str] = ()) -> Metric:
        found = super().metric(name, labels)
        return replace(found, units=Entities(labels)) if found in ENTITY_METRICS and labels else found

    def described(
        self,
        rows: Sequence[Example],
        logits: Array,
        labels: Sequence[str],
        thresholds: Array | None = None,
        all_labels: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Of each entity the probability is the product of those of its words' tags."""
        entities = Entities(labels)
        tags, chances = self.predictions(logits), self.probabilities(logits).max(axis=1)
        counts = word_counts(rows)
        for row, found, sure in zip(rows, by_sentence(tags, counts), by_sentence(chances, counts), strict=True):
            text = row.given or row.text
            where = places(row.words, text)
            spans = []
            for first, last, kind in zip(*entities.read(found, np.zeros(len(found))), strict=True):
                start, end = where[first][0], where[last][1]
                spans.append(
                    {
                        "start": start,
                        "end": end,
                        "label": entities.classes[kind],
                        "text": text[start:end],
                        "probability": round(float(sure[first : last + 1].prod()), 4),
                    }
                )
            yield {"entities": spans}


TASK = EntityTagging("entities")
