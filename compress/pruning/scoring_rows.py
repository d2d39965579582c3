"""The labelled rows of a pruning stage by role: a random sample scores, the others recover and evaluate."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compress.data import Example, LabelledData, check_roles, describe_rows, encode_gold, row_key
from compress.data.tokenization import maximum_length
from compress.evaluation.metrics import Metric, find_metric
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import ModelDir
from compress.pruning.evaluation import EvaluationRows
from compress.pruning.importance import check_rows
from compress.training.training_data import Gold, LabelledPool

ON_TRAIN = "train (the scoring rows)"


@dataclass(frozen=True)
class PruningRows:
    """``sample`` scores heads and layers, ``train`` and ``pool`` train the recovery, ``validation`` evaluates."""

    sample: Gold
    train: Gold
    validation: Gold
    pool: LabelledPool | None
    metric: Metric

    @property
    def described(self) -> list[dict[str, Any]]:
        """Entries of a manifest."""
        return describe_rows({"train": self.train.examples, "validation": self.validation.examples})

    def evaluation(self, model: ModelDir) -> EvaluationRows:
        """Return the rows that pruned models are evaluated on: without validation rows the scoring rows."""
        held = self.validation if self.validation.examples else self.sample
        limit = maximum_length(model.load_tokenizer(), model.config)
        split = "validation" if held is self.validation else ON_TRAIN
        return EvaluationRows(held, self.metric, len(model.labels), limit, model.task, split)


def split_rows(
    model: ModelDir, data: LabelledData, *, examples: int, seed: int, labels: Sequence[LabelDir] = ()
) -> PruningRows:
    """Check labelled rows against a model and each other, and draw the rows that score.

    Args:
        examples: how many rows of train to draw.
        labels: text for the recovery.

    Raises:
        CompressError: no rows of train, labels that the model does not know, or rows in two roles.
    """

    def encoded(rows: Sequence[Example], role: str) -> Gold:
        return Gold(rows, encode_gold(rows, model.labels, task=model.task, name=role))

    check_rows(data.train)
    encoded(data.train, "train")  # before rows are left out: errors count the rows as they were given
    validation = encoded(data.validation, "validation")
    given: dict[str, Any] = {
        "train": data.train,
        "unlabeled": LabelledPool(tuple(labels)),
        "validation": data.validation,
    }
    present = {role: rows for role, rows in given.items() if (labels if role == "unlabeled" else rows)}
    sets: dict[str, Any] = dict(check_roles(present, drop_overlap=data.drop_overlap).sets)
    train: Sequence[Example] = sets["train"]
    sample = random.Random(seed).sample(list(train), min(examples, len(train)))
    return PruningRows(
        encoded(sample, "sample"),
        encoded(train, "train"),
        validation,
        sets["unlabeled"].without(frozenset(map(row_key, train))) if labels else None,
        find_metric(data.metric, task=model.task, classes=len(model.labels)),
    )
