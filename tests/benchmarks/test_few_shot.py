"""The script about few labels: its draws, and its figures over draws and rows."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from compress.data import Example
from tests.support import REPOSITORY


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import few_shot

    sys.path.remove(str(REPOSITORY / "benchmarks"))
    return few_shot


def test_a_draw_has_as_many_rows_of_each_intent_and_none_of_the_test(script: Any) -> None:
    train = [Example(f"{label} asks {number // 2}", None, label) for label in "abc" for number in range(80)]
    test = [Example("A asks 3.", None, "a"), Example("b asks 7", None, "b")]
    drawn, validation = script.draw(train, test, 0)
    texts = {row.text for row in [*drawn, *validation]}
    assert len(texts) == len(drawn) + len(validation) == 3 * (script.ROWS + script.VALIDATION_ROWS)
    assert all(sum(row.label == label for row in drawn) == script.ROWS for label in "abc")
    assert not texts & {"a asks 3", "b asks 7"}
    assert script.draw(train, test, 0) == (drawn, validation) != script.draw(train, test, 1)


def test_figures_are_means_over_draws_with_paired_differences(script: Any) -> None:
    generator = np.random.default_rng(0)
    plain = generator.random((3, 400)) < 0.8
    frozen = plain | (generator.random((3, 400)) < 0.5)

    def made(right: np.ndarray, *scores: float) -> list[dict[str, Any]]:
        notes = {"few_shot": {"encoder": "either"}}
        rows = zip(right.astype(int).tolist(), scores, strict=True)
        return [{"right": own, "seconds": 1.5, "score": score, "notes": notes} for own, score in rows]

    found = {"frozen": made(frozen, 0.8, 0.9, 0.7), "contrastive": made(plain, 0.7, 0.9, 0.8)}
    found["plain"] = made(plain, 0.0, 0.0, 0.0)
    lines = {line["way"]: line for line in script.judged(found)}
    assert lines["plain"]["to_plain"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert lines["frozen"]["accuracy"]["value"] == pytest.approx(frozen.mean())
    assert lines["frozen"]["by_seed"] == pytest.approx(frozen.mean(axis=1))
    change = lines["frozen"]["to_plain"]
    assert 0 < change["low"] < change["value"] < change["high"]
    assert change["value"] == pytest.approx(frozen.mean() - plain.mean())
    chosen = np.stack([frozen[0], frozen[1], plain[2]])
    assert lines["chosen"]["by_seed"] == pytest.approx(chosen.mean(axis=1)) and lines["chosen"]["seconds"] == [3.0] * 3
    assert [*script.judged({"frozen": found["frozen"]})][0].keys().isdisjoint({"to_plain", "encoders"})
    assert not [*script.judged({})]
