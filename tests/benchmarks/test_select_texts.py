"""The script about texts that are chosen to be labelled: its pool, and its figures over draws and rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import REPOSITORY


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import select_texts

    sys.path.remove(str(REPOSITORY / "benchmarks"))
    return select_texts


def write_set(folder: Path) -> None:
    (folder / "banking77").mkdir()
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()
    texts = [(f"{one} {other} {colour}", colour) for one in words for other in words for colour in ("red", "blue")]
    parts = {"train": [*texts[:150], texts[0]], "test": [("Alpha alpha red!", "red"), *texts[150:]]}
    for role, rows in parts.items():
        lines = ["text,category", *(",".join(row) for row in rows)]
        (folder / "banking77" / f"{role}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_pool_has_each_text_once_and_none_of_the_test_set(script: Any, tmp_path: Path) -> None:
    write_set(tmp_path)
    pool, test = script.read_set("banking77", tmp_path)
    assert len(pool) == len({row.text for row in pool}) == 149 and len(test) == 51
    assert pool[0].text == "alpha alpha blue"


def test_both_ways_learn_from_as_many_rows(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path)
    for role, rows in (("pool", 149), ("test", 51)):
        np.save(tmp_path / f"banking77-minilm-l6-{role}.npy", np.random.default_rng(0).normal(size=(rows, 4)))
    output = tmp_path / "results.jsonl"
    words = ["--data-root", str(tmp_path), "--work", str(tmp_path), "-o", str(output), "--only", "banking77"]
    monkeypatch.setattr("sys.argv", ["select_texts.py", *words, "--budget", "40", "--rounds", "4", "--seeds", "2"])
    script.main()
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert {(line["way"], line["model"]) for line in lines} == {
        (way, model) for way in ("random", "uncertainty") for model in ("tfidf", "frozen")
    }
    known = {(line["way"], line["model"]): line for line in lines}
    assert (
        known["uncertainty", "tfidf"]["accuracy"]["value"] > 0.9 > 0.7 > known["random", "frozen"]["accuracy"]["value"]
    )


def test_differences_are_paired(script: Any) -> None:
    generator = np.random.default_rng(0)
    random = (generator.random((3, 400)) < 0.7).astype(float)
    ours = np.maximum(random, generator.random((3, 400)) < 0.3)
    found = script.judged(ours, random)
    assert found["by_seed"] == pytest.approx(ours.mean(axis=1), abs=1e-4) and found["seeds"] == 3
    change = found["to_random"]
    assert (
        change["value"] == pytest.approx((ours - random).mean())
        and 0 < change["low"] < change["value"] < change["high"]
    )
    assert script.judged(random, random)["to_random"] == {"value": 0.0, "low": 0.0, "high": 0.0}
