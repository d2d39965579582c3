"""The script that compares what can be removed together, on a tiny teacher; its real figures are committed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY, module_from
from tests.support.tiny import classifier, examples, write
from tests.support.training_data import labelled_file

SCRIPT = REPOSITORY / "benchmarks" / "pruning" / "compositions.py"


def test_every_line_has_shape_accuracy_and_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = module_from(SCRIPT)
    monkeypatch.setattr(script, "HELD_OUT", 0.3)
    teacher = write(tmp_path / "tiny-bert", classifier("bert"))
    train = labelled_file(tmp_path / "train.csv", examples(120))
    options = ["--teacher", teacher, "--train", train, "--work", tmp_path / "work", "--steps", "2"]
    only = ["units-53", "vocabulary"]
    output = tmp_path / "compositions.jsonl"
    monkeypatch.setattr(sys, "argv", ["compositions.py", *map(str, options), "--only", *only, "-o", str(output)])
    script.main()
    lines = {line["composition"]: line for line in map(json.loads, output.read_text().splitlines())}
    assert list(lines) == only and str(tmp_path) not in output.read_text()
    assert {line["teacher_value"] for line in lines.values()} == {lines["vocabulary"]["value"]}  # its text is covered
    assert lines["vocabulary"]["vocabulary"]["fallbacks"]["words"] > 0 and lines["vocabulary"]["flops_share"] == 1
    assert sum(lines["units-53"]["architecture"]["heads_per_layer"]) == 4
    assert lines["units-53"]["architecture"]["ffn_per_layer"] == [32, 32] and lines["units-53"]["flops_share"] < 0.6
    for line in lines.values():
        assert line["steps"] == 2 and line["points"] == pytest.approx(100 * (line["value"] - line["teacher_value"]))
        for speed in (line["batch_1"], line["batch_32"]):
            assert 0 < speed["low"] <= speed["speedup"] <= speed["high"]
    monkeypatch.setattr(script, "prune", None)  # what is there is not made again
    script.main()
