"""The script about the promise of agreement: who reads which rows, and its figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tests.support import REPOSITORY


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import agreement

    sys.path.remove(str(REPOSITORY / "benchmarks"))
    return agreement


def test_no_row_is_read_and_tested(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    intents = [[f"question {number}", f"intent {number % 3}"] for number in range(60)]
    sets = {"train": intents[:40], "val": intents[38:50], "test": intents[50:]}
    sets |= {f"oos_{role}": [[f"other {role}", "oos"]] for role in sets}
    (tmp_path / "clinc150").mkdir()
    (tmp_path / "clinc150" / "data_full.json").write_text(json.dumps(sets))
    (tmp_path / "trec").mkdir()
    (tmp_path / "trec" / "TREC.train.all").write_text("0 what is this ?\n1 question 55\n" * 2)
    monkeypatch.setitem(script.SETS, "clinc150", (*script.SETS["clinc150"][:2], 30, "oos"))
    monkeypatch.setattr(script, "CHECKPOINT_ROWS", 5)
    rows = {role: [row.text for row in own] for role, own in script.parted("clinc150", tmp_path).items()}
    assert {role: len(own) for role, own in rows.items() if role != "pool"} == {
        "checkpoint": 5,
        "train": 25,
        "unread": 30,
        "outside": 3,
    }
    assert {*rows["checkpoint"], *rows["train"], *rows["unread"]} == {text for text, _ in intents}
    assert {*rows["pool"]} == {*rows["train"], "what is this ?"}


def test_figures_of_splits(script: Any) -> None:
    generator = np.random.default_rng(0)
    sure = generator.random(4000)
    same = generator.random(4000) < np.where(sure > 0.3, 0.998, 0.7)
    outside = generator.random(300) * 0.5
    found = script.over_splits({"unread": sure, "outside": outside}, same, 0.98, 40)
    assert found["none"] == 0 and found["broken"]["value"] <= 0.05 and found["broken_of_whole"]["value"] <= 0.05
    assert 0.65 < found["coverage"]["value"] < 0.75 and found["agreement"]["low"] > 0.98
    assert found["outside"]["to_the_last"]["value"] == pytest.approx(0.6, abs=0.1)
    area = found["outside"]["auroc"]
    gold = np.r_[np.ones(4000), np.zeros(300)]
    assert area["value"] == pytest.approx(roc_auc_score(gold, np.r_[sure, outside])) and area["low"] < area["value"]
    none = script.over_splits({"unread": sure}, generator.random(4000) < 0.9, 0.98, 5)
    assert none["none"] == 5 and none["coverage"]["value"] == 0 and none["agreement"] is None
    assert script.share(0, 100)["high"] == pytest.approx(1 - 0.025**0.01)


def test_confidences_are_of_two_classes_the_same_order(script: Any) -> None:
    logits = np.random.default_rng(0).normal(size=(50, 2))
    orders = [np.argsort(of(logits)).tolist() for of in script.CONFIDENCES.values()]
    assert orders[0] == orders[1] == orders[2]
    three = np.array([[3.0, 1.0, 0.0]])
    chances = np.exp(three) / np.exp(three).sum()
    assert script.probability_margin(three) == pytest.approx(chances[0, 0] - chances[0, 1])
    assert script.logit_margin(three) == pytest.approx(2.0)
