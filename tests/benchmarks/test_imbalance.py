"""The script about rare classes: its folds, and its figures of weighted rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from tests.support import REPOSITORY


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import imbalance

    sys.path.remove(str(REPOSITORY / "benchmarks"))
    return imbalance


@pytest.mark.parametrize("share", [None, 0.01])
def test_every_message_is_tested_once_by_models_that_did_not_read_it(
    script: Any, share: float | None, tmp_path: Path
) -> None:
    lines = [f"{'spam' if number % 7 == 0 else 'ham'}\tmessage {number}" for number in range(3000)]
    (tmp_path / "messages").write_text("\n".join([*lines, lines[0]]), encoding="utf-8")  # one occurs twice
    tested = []
    for fold in range(script.FOLDS):
        rows = script.split(tmp_path / "messages", share, fold)
        texts = {role: {row.text for row in own} for role, own in rows.items()}
        assert not (texts["test"] & (texts["train"] | texts["validation"]) or texts["train"] & texts["validation"])
        tested += [row.text for row in rows["test"]]
        for role in ("train", "validation"):
            rare = script.spam_rows(rows[role]) / len(rows[role])
            assert rare == pytest.approx(share or 1 / 7, abs=0.002 if share else 0.03)
    assert len(tested) == len({*tested}) == 3000


def test_figures_are_those_of_scikit_learn(script: Any) -> None:
    generator = np.random.default_rng(0)
    gold = generator.random(500) < 0.2
    chances = np.clip(generator.normal(0.3 + 0.3 * gold, 0.2), 0, 1)
    weights = np.where(gold, 0.05, 1.0)
    given = chances > 0.5
    found = script.measured(chances, given, gold, weights)
    weighted = {"sample_weight": weights}
    assert found == pytest.approx(
        {
            "accuracy": metrics.accuracy_score(gold, given, **weighted),
            "recall": metrics.recall_score(gold, given, **weighted),
            "precision": metrics.precision_score(gold, given, **weighted),
            "f1": metrics.f1_score(gold, given, **weighted),
            "macro_f1": metrics.f1_score(gold, given, average="macro", **weighted),
            "average_precision": metrics.average_precision_score(gold, chances, **weighted),
        }
    )
