"""The script that says where the time of a training goes; what it finds is committed, not tested."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import REPOSITORY
from tests.support.training_data import pool_file


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks" / "speed"))
    import training_profile

    return training_profile


def test_every_part_of_a_real_training_is_found(
    profile: Any, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validation = tmp_path / "validation.tsv"
    validation.write_text("text\tlabel\n" + "a good film\t1\na good film\t0\n" * 4)
    pool_file(texts := tmp_path / "texts.txt")
    given: dict[str, object] = {"--teacher": teacher, "--unlabeled": texts, "--validation": validation}
    given |= {"--student": "distilbert-half", "--precision": "float32", "--steps": 3, "--batch-size": 4}
    output = tmp_path / "profile.jsonl"
    words = [str(word) for pair in given.items() for word in pair]
    monkeypatch.setattr(sys, "argv", ["training_profile.py", *words, "-o", str(output)])
    profile.main()
    (line,) = map(json.loads, output.read_text().splitlines())
    assert (line["recipe"], line["steps"], line["validation_rows"]) == ("distilbert-half", 3, 8)
    assert all(spent > 0 for spent in line["seconds"].values()), line["seconds"]  # its teacher runs along
    assert min(line["shares"].values()) >= 0, line["shares"]  # nothing counts twice


def test_what_is_within_another_part_counts_once(profile: Any) -> None:
    seconds = dict.fromkeys(profile.PARTS, 0.0) | {profile.WHOLE: 10.0, "student's pass and losses": 4.0}
    seconds |= {"teacher's pass": 3.0, "backward pass": 2.0, "evaluation": 1.0}
    assert profile.step_ms(seconds, steps=3) == 3000
    shares = profile.shares(seconds)
    assert {part: share for part, share in shares.items() if share} == {
        "student's pass and losses": pytest.approx(0.1),
        "teacher's pass": pytest.approx(0.3),
        "backward pass": pytest.approx(0.2),
        "evaluation": pytest.approx(0.1),
        "rest": pytest.approx(0.3),
    }


def test_nothing_counts_outside_of_a_training(profile: Any) -> None:
    owner, name = profile.PARTS["clipping"]
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    with profile.timed_parts() as seconds:
        assert getattr(owner, name)([weight], 1.0) > 1
    assert not any(seconds.values())
