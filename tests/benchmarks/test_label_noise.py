"""The script that looks for flipped labels, on rows and an encoder that tests make."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import REPOSITORY
from tests.support.samples import words
from tests.support.tiny import BAD, GOOD, classifier, write


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import label_noise

    sys.path.remove(str(REPOSITORY / "benchmarks"))
    return label_noise


def test_flips_are_found_by_each_way(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "films").mkdir()
    with (tmp_path / "films" / "train.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [
            (" ".join(row), sum(word in GOOD for word in row), sum(word in BAD for word in row))
            for row in words(300, 1)
        ]
        labelled = [(text, "good" if good > bad else "bad" if bad > good else "plain") for text, good, bad in rows]
        csv.writer(file).writerows([("text", "label"), *labelled])
    encoder = write(tmp_path / "encoder", classifier("bert"))
    monkeypatch.setattr(script, "SETS", {"films": "films"})
    given = ["--data-root", str(tmp_path), "--encoder", str(encoder), "--seeds", "2", "-o", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["label_noise.py", *given])
    script.main()
    made = [json.loads(line) for line in (tmp_path / "out").read_text(encoding="utf-8").splitlines()]
    ways = ["confident learning, tf-idf", "self-confidence, tf-idf", f"confident learning, {encoder}"]
    assert [(line["noise"], line["way"]) for line in made] == [(noise, way) for noise in script.NOISES for way in ways]
    for line in made:
        assert (line["rows"], line["classes"], line["flipped"], line["seeds"]) == (300, 3, 2 * 15, 2)
        for name in ("recall", "precision", "recall_first"):
            assert 0 <= line[name]["low"] <= line[name]["value"] <= line[name]["high"] <= 1
    assert made[1]["suspects"] == 30 and made[1]["recall"] == made[1]["recall_first"] == made[1]["precision"]


def test_a_share_of_the_labels_becomes_another_class(script: Any) -> None:
    gold = np.arange(100) % 4
    given, flipped = script.flip(gold, 0.1, None, 4, seed=0)
    assert flipped.sum() == 10 and ((given != gold) == flipped).all() and {*given.tolist()} == {0, 1, 2, 3}
    given, flipped = script.flip(gold, 0.1, np.array([2, 0, 0, 1]), 4, seed=0)
    assert (given[flipped] == np.array([2, 0, 0, 1])[gold[flipped]]).all()


def test_a_class_is_taken_for_the_likeliest_other(script: Any) -> None:
    chances = np.array([[0.6, 0.1, 0.3], [0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.3, 0.2, 0.5]])
    assert script.taken_for(chances, np.array([0, 0, 1, 2])).tolist() == [2, 0, 0]


def test_what_is_found_is_counted(script: Any) -> None:
    chances = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.3, 0.7], [0.9, 0.1]])
    given, flipped = np.array([0, 0, 0, 1, 1, 1]), np.array([False, False, True, False, False, True])
    assert script.confident(chances, given, flipped) == {"flipped": 2, "found_first": 2, "suspects": 2, "found": 2}
    assert script.self_confident(chances, given, ~flipped) == {
        "flipped": 4,
        "found_first": 2,
        "suspects": 4,
        "found": 2,
    }
    assert script.shares({"flipped": 4, "found": 2, "suspects": 0, "found_first": 1}).keys() == {
        "recall",
        "recall_first",
    }
