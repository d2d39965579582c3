"""The script that times training steps; what it finds on a quiet machine is committed, not tested."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compress import plugins
from compress.models.batch import Batch, Outputs
from compress.training.teacher_signal import cached_teacher
from tests.support import REPOSITORY
from tests.support.tiny import classifier, write
from tests.support.training_data import pool_file

FOLDER = REPOSITORY / "benchmarks" / "speed"


@pytest.fixture(scope="module")
def speed() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    import distillation_speed

    yield distillation_speed
    sys.path.remove(str(FOLDER))


def test_every_loss_is_measured_or_said_not_to_be(speed: Any) -> None:
    alone = {candidate.losses[0] for candidate in speed.candidates() if len(candidate.losses) == 1}
    assert alone | set(speed.LEFT_OUT) == set(plugins.names("losses"))
    assert not alone & set(speed.LEFT_OUT)


def test_all_that_is_compared_is_measured(speed: Any) -> None:
    everyone = [*speed.candidates(), *speed.textbrewer_candidates((3, 6))]
    names = [candidate.name for candidate in everyone]
    assert len(set(names)) == len(names)
    step_ms = {name: [100.0, 100.0] for name in [*names, speed.LABELLING]}
    step_ms["kl, live, TextBrewer"] = [200.0, 200.0]
    step_ms[speed.Candidate(speed.TOGETHER, speed.PASS_FOR_EACH).name] = [150.0, 150.0]
    lines = {line["name"]: line for line in speed.results(everyone, step_ms, seed=0)}
    assert list(lines) == names
    compared = lines["kl, live, TextBrewer"]["ours_is_faster_by"]
    assert compared["kl, live"]["value"] == 2
    assert compared["kl, cached logits, labelled for 1 epoch"]["value"] == 1  # 200 / (100 + 100)
    assert math.isclose(compared["kl, cached logits, labelled for 2 epochs"]["value"], 200 / 150)
    together = lines[speed.Candidate(speed.TOGETHER, speed.LIVE_TEACHER).name]
    assert together["faster_than_a_pass_for_each"]["value"] == 1.5
    assert together["faster_than_one_by_one"]["value"] == len(speed.TOGETHER)


def test_textbrewers_layers_are_those_of_the_uniform_map(speed: Any) -> None:
    _, hidden, attention = speed.textbrewer_candidates((3, 6))
    assert [(m["layer_S"], m["layer_T"]) for m in hidden.request["matches"]] == [(1, 2), (2, 4), (3, 6)]
    assert [(m["layer_S"], m["layer_T"]) for m in attention.request["matches"]] == [(0, 1), (1, 3), (2, 5)]


def test_both_sides_read_the_same_batches(speed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "DEPTH", 1)
    monkeypatch.setattr(speed, "TRAINING", speed.Training(batch_size=4, precision="float32", max_length=32))
    teacher = write(tmp_path / "teacher", classifier("bert"))
    unlabeled = tmp_path / "pool.txt"
    pool_file(unlabeled)
    ours = speed.Ours.prepare(str(teacher), str(unlabeled), rounds=2, steps=1, threads=1, seed=0, scratch=tmp_path)
    training_plan = ours.training_plan(1)
    read: list[Batch] = []

    def reader(batch: Batch, cached_logits: Any) -> Outputs:
        read.append(batch)
        return cached_teacher(batch, cached_logits)

    monkeypatch.setattr(speed, "cached_teacher", reader)
    before = {name: value.clone() for name, value in ours.student.state_dict().items()}
    assert ours.train(speed.Candidate(("kl",), speed.CACHED), training_plan) > 0
    assert any(not torch.equal(value, before[name]) for name, value in ours.student.state_dict().items())
    assert not (tmp_path / "checkpoints" / "checkpoint-3").exists()
    arrays = np.load(training_plan.batches)
    assert len(read) == speed.WARM_UP + 1
    for index, batch in enumerate(read):
        assert batch.input_ids.tolist() == arrays[f"{index}/input_ids"].tolist()
        assert batch.attention_mask.tolist() == arrays[f"{index}/attention_mask"].tolist()


def test_too_little_text_is_refused(speed: Any, tmp_path: Path) -> None:
    texts = tmp_path / "few.txt"
    texts.write_text("good film\nbad film\n", encoding="utf-8")
    with pytest.raises(speed.CompressError, match="use fewer --rounds"):
        speed.Ours.prepare(
            str(write(tmp_path / "teacher", classifier("bert"))),
            str(texts),
            rounds=1,
            steps=1,
            threads=1,
            seed=0,
            scratch=tmp_path,
        )


def test_a_competitor_that_ends_says_why(speed: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ModuleNotFoundError|Error"):
        speed.Competitor(Path(sys.executable), tmp_path, tmp_path, 1, tmp_path)


def test_the_table_of_results(speed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs"))
    import script_tables

    everyone = [*speed.candidates(), *speed.textbrewer_candidates((3, 6))]
    step_ms = {candidate.name: [100.0, 100.0] for candidate in everyone} | {speed.LABELLING: [100.0, 100.0]}
    common = {
        "teacher_model": "t",
        "data": "d",
        "batch_size": 32,
        "tokens_median": 20.0,
        "precision": "float32",
        "threads": 2,
        "host": {"cpu": "c", "cpu_family_model": "6/1"},
        "rounds": 2,
        "steps": 8,
        "command": "typed",
        "peer_versions": {"textbrewer": "1", "torch": "2", "transformers": "3"},
    }
    lines = [json.dumps({**line, **common}) for line in speed.results(everyone, step_ms, seed=0)]
    monkeypatch.setattr(script_tables, "RESULTS", tmp_path)
    (tmp_path / "distillation-speed.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    table = script_tables.distillation_speed_tables()
    assert "| kl | cached logits | float32 | 10.0 | ×1.00 (0.98 to 1.02) |" in table
    assert "| kl + hidden-mse | kl + hidden-mse, live | 10.0 | ×1.00 (0.98 to 1.02) |" in table
    assert "×4.00 (3.92 to 4.08) as fast as one after the other" in table
