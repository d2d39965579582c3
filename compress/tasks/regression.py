"""Each text has a score, a number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compress.arrays import np, torch
from compress.data.examples import Example, finite_number, infer_labels, row_name
from compress.errors import CompressError
from compress.evaluation.metrics import SCORE_METRICS, Array
from compress.evaluation.ranking import RANK_METRICS
from compress.progress import logger
from compress.tasks import labels_of
from compress.tasks._base import Task

LARGEST_CHANGE = 1e-3  # of a score that counts as the same


class Regression(Task):
    asks = "score"
    problem_type = "regression"
    has_classes = False
    no_label = float("nan")
    metrics = (*SCORE_METRICS, *RANK_METRICS)
    baselines = ("majority", "static-embedding", "tfidf")
    pair_baselines = ("bm25", "cosine")
    unfit_losses = {
        "classes": "compares classes (the loss {loss}), and {model} is a regression; use a student that learns by "
        "logit-mse, such as minilm-3"
    }

    def reads_config(self, config: Mapping[str, Any]) -> bool:
        return config.get("problem_type") == self.problem_type or len(labels_of(config)) == 1

    def check_config(self, config: Mapping[str, Any], source: object) -> None:
        if (scores := len(labels_of(config))) > 1:
            raise CompressError(
                f"{source} gives a text {scores} scores (problem_type = regression), not one; correct problem_type in "
                "its config.json, or use a model of one score"
            )

    def reads_rows(self, rows: Sequence[Example]) -> bool:
        return infer_labels(rows) is None

    def new_labels(self, train: Sequence[Example], validation: Sequence[Example]) -> tuple[str, ...]:
        if all((row.label or "").strip().lstrip("+-").isdigit() for row in (*train, *validation)):
            logger.warning(
                "the labels are many different whole numbers, each of few rows, and are read as scores; if they are "
                "classes, write them as class-1, class-2 and so on"
            )
        return ("score",)

    def gold(self, rows: Sequence[Example], labels: Sequence[str], name: str) -> list[float]:
        scores = []
        for number, row in enumerate(rows, 1):
            value = None if row.label is None else finite_number(row.label)
            if value is None:
                raise CompressError(
                    f"{row_name(number, row, name)} has the label {row.label!r}, but regression needs a number: "
                    "correct the row or name another column with --label-column."
                )
            scores.append(value)
        return scores

    def hard_loss(
        self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        known = ~labels.isnan()
        return torch.nn.functional.mse_loss(
            logits[:, 0], labels.where(known, logits[:, 0].detach()), reduction="sum"
        ), known

    def own_labels(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.detach()[..., 0]

    def losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (logits.float().squeeze(-1) - labels) ** 2

    def constant_score(self, gold: Array, labels: Sequence[str], metric: str | None) -> float:
        """Return minus infinity: one score for all rows ranks nothing."""
        return -np.inf

    def predictions(self, logits: np.typing.ArrayLike, clusters: Array | None = None) -> Array:
        return np.asarray(logits)[:, 0].astype(np.float64)

    def probabilities(self, logits: Array) -> None:
        return None

    def flips(
        self, predicted: Array, reference: Array, gold: Array, chances: Array | None, reference_chances: Array | None
    ) -> tuple[Array, Array, Array]:
        """A row is lost when its absolute error grew. The change is how much smaller the error became, in units of the
        score; a change of 0 in four digits counts on neither side.
        """
        change = np.round(np.abs(reference - gold) - np.abs(predicted - gold), 4)
        return change, change < 0, change > 0

    def differ(self, logits: Array, others: Array) -> bool:
        return bool(np.abs(logits - others).max() > LARGEST_CHANGE)

    def mean_logits(self, logits: Array, shares: Array) -> Array:
        """Return the weighted mean of the scores."""
        return np.asarray((shares[:, None, None] * logits).sum(axis=0))

    def prior(self, gold: Array, classes: int) -> Array:
        """Return the mean score ``[1]``."""
        return np.array([gold.mean()])

    def described(
        self,
        rows: Sequence[Example],
        logits: Array,
        labels: Sequence[str],
        thresholds: Array | None = None,
        all_labels: bool = False,
    ) -> Iterator[dict[str, Any]]:
        yield from ({"score": round(float(row[0]), 4)} for row in logits)


TASK = Regression("regression")
