"""The script that compares plans of steps on few rows, on tiny models."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import REPOSITORY
from tests.support.tiny import classifier, examples, write

STUDENT = """
description = "tiny"
[architecture]
name = "bilstm"
embedding_size = 16
hidden_size = 8
dense_size = 8
[[phases]]
losses = [{ name = "logit-mse" }]
[training]
epochs = 1.0
min_steps = 9
batch_size = 16
precision = "float32"
"""


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import few_rows

    sys.path.remove(str(REPOSITORY / "benchmarks"))
    return few_rows


def test_both_plans_are_made_and_judged(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"{row.text} {number}", row.label) for number, row in enumerate(examples(120))]
    (tmp_path / "data" / "films").mkdir(parents=True)
    for split, part in (("train", rows[:90]), ("test", rows[90:])):
        with (tmp_path / "data" / "films" / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *part])
    encoder = write(tmp_path / "encoder", classifier("bert"))
    teacher, student = tmp_path / "teacher.toml", tmp_path / "bilstm.toml"
    teacher.write_text(
        f'description = "tiny"\nhub = "{encoder}"\n[training]\nepochs = 1.0\nmin_steps = 5\nbatch_size = 16\n'
    )
    student.write_text(STUDENT, encoding="utf-8")
    monkeypatch.setattr(script, "SETS", {"films-20": ("films", "train", "test", 20)})
    monkeypatch.setattr(script, "VALIDATION_ROWS", 10)
    folders = ["--data-root", str(tmp_path / "data"), "--work", str(tmp_path / "work"), "-o", str(tmp_path / "out")]
    recipes = ["--teacher", str(teacher), "--student", str(student), "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["few_rows.py", *folders, *recipes])
    script.main()
    made = [json.loads(line) for line in (tmp_path / "out").read_text(encoding="utf-8").splitlines()]
    # 20 rows are 2 steps of 16; with the pool of 60 they are 5.
    assert [(line["model"], line["plan"], line["planned_steps"]) for line in made] == [
        ("teacher", "floor", 5),
        ("teacher", "passes", 2),
        ("bilstm", "floor", 9),
        ("bilstm", "passes", 5),
    ]
    assert {(line["train"], line["validation"], line["pool"], line["rows"]) for line in made} == {(20, 10, 60, 30)}
    assert all(0 <= line["low"] <= line["accuracy"] <= line["high"] <= 1 for line in made)


def test_a_plan_is_compared_with_passes_alone(script: Any) -> None:
    right, by_passes = np.array([1, 1, 1, 0] * 25), np.array([1, 1, 0, 0] * 25)
    found = script.judged(right, by_passes)
    assert found["accuracy"] == 0.75 and found["low"] < 0.75 < found["high"]
    assert found["to_passes"]["points"] == 25 and found["to_passes"]["low"] > 0
