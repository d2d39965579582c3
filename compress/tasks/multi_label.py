"""Each text has several of the labels, one, or none.

A label is a decision of its own: the logits go through a sigmoid, which no graph holds, and a label is given from a
probability of 0.5 on. What 0.5 means is for ``compress calibrate`` to move. An answer is a set of labels, one value
(:func:`compress.evaluation.metrics.as_sets`), so that rows that are equal are counted as for classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compress.arrays import np, torch
from compress.data.examples import Example, LabelIndex, infer_labels, row_name, warn_of_joint_classes
from compress.errors import CompressError, refuse, some_of
from compress.evaluation.metrics import SET_METRICS, Array, as_sets, score, set_members
from compress.progress import logger
from compress.tasks import check_count, labels_of
from compress.tasks._base import Task


class MultiLabel(Task):
    asks = "labels"
    problem_type = "multi_label_classification"
    no_label = (float("nan"),)
    label_probabilities = True
    native_answers = "several"
    metrics = SET_METRICS
    baselines = ("majority", "static-embedding", "tfidf")
    no_calibration = ""
    accepts_by = ("class",)
    decides_by = ("probability", "f1")
    right_share = "hamming"
    no_cascade = "a cascade joins models that give a text one label; use one of its models"
    no_search = "gives a text several labels, and a search compares models of one; use 'compress distill'"

    def reads_config(self, config: Mapping[str, Any]) -> bool:
        return config.get("problem_type") == self.problem_type

    def check_config(self, config: Mapping[str, Any], source: object) -> None:
        refuse(
            (
                len(labels_of(config)) < 2,
                f"{source} has one label that a text has or not; make it a classifier of two classes, such as yes and "
                "no",
            )
        )

    def reads_rows(self, rows: Sequence[Example]) -> bool:
        if not any(row.has_set for row in rows):
            return False
        several = sum(row.labels is not None for row in rows)
        refuse(
            (
                several < len(rows),
                f"{several:,} of {len(rows):,} rows have a list of labels and the others do not: give data of one "
                "kind, lists, or text with --label-separator",
            )
        )
        return True

    def new_labels(self, train: Sequence[Example], validation: Sequence[Example]) -> tuple[str, ...]:
        labels = infer_labels([*train, *validation]) or ()
        counts = Counter(label for row in train for label in row.labels or ())
        refuse(
            (
                len(labels) < 2 or not counts,
                f"train has {some_of([*counts]) or 'no label in any row'}, and a model of several labels needs two or "
                "more; give rows that have them",
            ),
        )
        check_count(len(labels), "different labels in train and validation")
        warn_of_joint_classes(labels)
        without = sum(not row.labels for row in train)
        least_first = [f"{label!r:.40} {counts[label]:,}" for label in sorted(labels, key=lambda one: counts[one])]
        logger.info("rows of each label of train: %s; of none: %s", some_of(least_first), f"{without:,}")
        for rows, what in ((0, "no row"), (1, "a single row")):
            if few := [label for label in labels if counts[label] == rows]:
                logger.warning("train has %s to learn these labels from: %s", what, some_of(few))
        return labels

    def gold(self, rows: Sequence[Example], labels: Sequence[str], name: str) -> list[tuple[float, ...]]:
        index, found = LabelIndex(labels, ordered=False), []
        for number, row in enumerate(rows, 1):
            if row.labels is None:
                raise CompressError(
                    f"{row_name(number, row, name)} has no list of labels, which the model gives; say what stands "
                    "between them with --label-separator, or name their columns with --label-column A,B,..."
                )
            held = {index.of(row, label, number, name) for label in row.labels}
            found.append(tuple(float(place in held) for place in range(len(labels))))
        return found

    def column(self, gold: Sequence[Any]) -> Array:
        return as_sets(np.array(gold) > 0.5)

    # Training

    def hard_loss(
        self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A weight is that of a label where a row has it, and 1 where it has not."""
        known = ~labels.isnan().any(dim=1)
        losses = self.losses(logits, labels.nan_to_num(), weights)
        return (losses * known).sum(), known

    def balanced_weights(self, gold: Array, classes: int) -> Array:
        """Return how many rows have not a label for each that has it: both sides of a label count the same."""
        counts = set_members(gold).sum(axis=0)
        return np.where((counts > 0) & (counts < len(gold)), (len(gold) - counts) / np.maximum(counts, 1), 1.0)

    def losses(self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Return the mean over labels of the binary cross-entropy of every answer, ``[N]``."""
        given, entropy = labels.float().expand_as(logits), torch.nn.functional.binary_cross_entropy_with_logits
        return entropy(logits.float(), given, reduction="none", pos_weight=weights).mean(dim=1)

    def divergence(self, student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """Return ``T**2`` times the mean over N and labels of ``KL(p_teacher || p_student)``; ``p = sigmoid(z/T)``."""
        ours, theirs = student.float() / temperature, teacher.float() / temperature
        chances, entropy = theirs.sigmoid(), torch.nn.functional.binary_cross_entropy_with_logits
        return temperature**2 * (entropy(ours, chances) - entropy(theirs, chances))

    def own_labels(self, logits: torch.Tensor) -> torch.Tensor:
        return (logits.detach() > 0).float()

    def pseudo_labels(self, logits: Sequence[Array]) -> list[Any]:
        return [*map(tuple, (np.stack(logits) > 0).astype(float).tolist())]

    def constant_score(self, gold: Array, labels: Sequence[str], metric: str | None) -> float:
        """Return the best metric of one set for all rows: none, the most frequent one or label, or all labels."""
        measure, classes = self.metric(metric, labels), len(labels)
        if measure.of_probabilities:
            return -np.inf  # one answer for all rows ranks nothing
        values, counts = np.unique(gold, return_counts=True)
        frequent = np.arange(classes) == set_members(gold).sum(axis=0).argmax()
        simple = np.stack([np.zeros(classes, bool), np.ones(classes, bool), frequent])
        sets = [*as_sets(simple), values[counts.argmax()]]
        return max(score(np.full_like(gold, one), gold, metric=measure, classes=classes) for one in sets)

    # Judging

    def evaluate(
        self,
        logits: np.typing.ArrayLike,
        gold: np.typing.ArrayLike,
        labels: Sequence[str],
        metric: str | None = None,
        clusters: Array | None = None,
    ) -> float:
        """Return a metric of logits ``[N, C]`` and gold labels ``[N, C]``, ones and zeros, or sets ``[N]``."""
        answers = np.asarray(gold)
        return super().evaluate(logits, answers if answers.ndim == 1 else self.column([*answers]), labels, metric)

    def predictions(self, logits: np.typing.ArrayLike, clusters: Array | None = None) -> Array:
        """Return the sets of labels whose logits ``[N, C]`` are above 0, ``[N]``."""
        return as_sets(np.asarray(logits) > 0)

    def probabilities(self, logits: Array) -> Array:
        """Return the probability of each label, ``[N, C]``, float64."""
        return np.asarray(0.5 * (1 + np.tanh(0.5 * logits.astype(float))))

    def sureness(self, chances: Array) -> Array:
        """Return the probability that a whole set is right, if labels do not depend on each other."""
        return np.asarray(np.maximum(chances, 1 - chances).prod(axis=1))

    def decisions(self, chances: Array, predicted: Array, gold: Array) -> tuple[Array, Array, Array]:
        """Each label of each row is a decision."""
        right = set_members(predicted) == set_members(gold)
        rows = np.repeat(np.arange(len(gold)), chances.shape[1])
        return np.maximum(chances, 1 - chances).ravel(), right.ravel(), rows

    def members(self, gold: Array, classes: int) -> Array:
        return set_members(gold)

    def surprise(self, logits: Array, gold: Array) -> Array:
        return np.asarray(np.logaddexp(0, np.where(set_members(gold), -logits, logits)).sum(axis=1))

    def held(self, answers: Array, index: int) -> Array:
        return np.asarray(set_members(answers)[:, index])

    def margins(self, logits: Array, index: int) -> Array:
        return logits[:, index]

    def flips(
        self, predicted: Array, reference: Array, gold: Array, chances: Array | None, reference_chances: Array | None
    ) -> tuple[Array, Array, Array]:
        """A row is lost that the reference has all right and the model not. The change is the sum over labels of that
        of the probability of what is right, in points.
        """
        assert chances is not None and reference_chances is not None
        better = np.where(set_members(gold), chances - reference_chances, reference_chances - chances)
        change = np.round(100 * better.sum(axis=1), 4)
        return change, (reference == gold) & (predicted != gold), (reference != gold) & (predicted == gold)

    def mean_logits(self, logits: Array, shares: Array) -> Array:
        """Return the logits ``[N, C]`` of the weighted mean of probabilities."""
        yes, no = (
            np.logaddexp.reduce(np.log(shares)[:, None, None] - np.logaddexp(0, sign * logits), axis=0)
            for sign in (-1, 1)
        )
        return np.asarray(yes - no)

    def logits(self, chances: Array) -> Array:
        return np.asarray(np.log(chances / (1 - chances)))

    def prior(self, gold: Array, classes: int) -> Array:
        """Return the logits of the labels' shares ``[C]``, a row that has each and one that has none added."""
        held = set_members(gold)
        shares = (held.sum(axis=0) + 1) / (len(held) + 2)
        return self.logits(shares)

    def described(
        self,
        rows: Sequence[Example],
        logits: Array,
        labels: Sequence[str],
        thresholds: Array | None = None,
        all_labels: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Labels are the likeliest first; ``accepted`` are those whose probability reaches their threshold."""
        for chances in self.probabilities(logits):
            order = np.argsort(-chances, kind="stable")
            given = [int(label) for label in order if chances[label] > 0.5]
            found: dict[str, Any] = {"labels": [labels[label] for label in given]}
            if thresholds is not None:
                found["accepted"] = [labels[label] for label in given if chances[label] >= thresholds[label]]
            listed = range(len(labels)) if all_labels else given
            found["probabilities"] = {labels[label]: round(float(chances[label]), 4) for label in listed}
            yield found


TASK = MultiLabel("multi-label")
