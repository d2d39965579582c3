"""The script about a language model as teacher: what it pays, and how it judges."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import REPOSITORY

pytest.importorskip("openai")


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import language_model

    sys.path.remove(str(REPOSITORY / "benchmarks"))
    return language_model


def test_labels_are_those_of_the_stand_in_and_each_question_is_paid(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "COMPRESS_CACHE"):  # which the script sets
        monkeypatch.setenv(name, "")
    texts = [f"text {number}" for number in range(6)]
    chances = np.array([[0.2 + number / 10, 0.8 - number / 10] for number in range(6)])
    options = Namespace(work=tmp_path, set="tiny")
    made, paid = script.paid_labels(texts, dict(zip(texts, chances, strict=True)), ("a", "b"), options)
    np.testing.assert_allclose(
        [logits[0] - logits[1] for _, logits in made], np.log(chances[:, 0] / chances[:, 1]), atol=1e-5
    )
    assert paid["questions"] == script.ORDERS * len(texts)
    usd = (paid["input_tokens"] * script.PRICES["input"] + 2 * paid["questions"] * script.PRICES["output"]) / 1e6
    assert paid["usd"] == pytest.approx(usd) and paid["usd_per_million_texts"] == pytest.approx(usd / 12 * 1e6)


def test_figures(script: Any) -> None:
    gold, reference = np.array([0, 1, 1, 0] * 50), np.array([0, 1, 0, 0] * 50)
    found = script.judged(gold, reference, gold, 2)
    assert found["accuracy"]["value"] == 1 and found["to_model"]["points"] == pytest.approx(25)
    assert 0 < found["to_model"]["low"] < 25 < found["to_model"]["high"]
