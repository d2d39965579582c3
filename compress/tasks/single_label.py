"""Each text has one of several classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from compress.arrays import np
from compress.data.examples import Example, LabelIndex, check_classes, warn_of_joint_classes
from compress.evaluation.metrics import Array, probabilities
from compress.tasks._base import Task


class SingleLabel(Task):
    asks = "label"
    fallback = True
    problem_type = "single_label_classification"
    label_probabilities = True
    native_forms = ("native", "c", "wasm")
    baselines = ("majority", "static-embedding", "tfidf")
    pair_baselines = ("bm25", "cosine")
    no_calibration = no_cascade = no_few_shot = no_selection = ""

    def new_labels(self, train: Sequence[Example], validation: Sequence[Example]) -> tuple[str, ...]:
        labels = super().new_labels(train, validation)
        check_classes(train, validation)
        warn_of_joint_classes(labels)
        return labels

    def gold(self, rows: Sequence[Example], labels: Sequence[str], name: str) -> list[int]:
        index = LabelIndex(labels)
        return [index.of(row, row.label, number, name) for number, row in enumerate(rows, 1)]

    def described(
        self,
        rows: Sequence[Example],
        logits: Array,
        labels: Sequence[str],
        thresholds: Array | None = None,
        all_labels: bool = False,
    ) -> Iterator[dict[str, Any]]:
        chances, best = probabilities(logits), logits.argmax(axis=1)
        highest = chances.max(axis=1)
        accepted = None if thresholds is None else (highest >= thresholds[best]).tolist()
        for number, (label, probability) in enumerate(zip(best.tolist(), highest.tolist(), strict=True)):
            found: dict[str, Any] = {"label": labels[label], "probability": round(probability, 4)}
            if accepted:
                found["accepted"] = accepted[number]
            if all_labels:
                found["probabilities"] = dict(zip(labels, np.round(chances[number], 4).tolist(), strict=True))
            yield found


TASK = SingleLabel("classification")
