"""Every command that reads texts says how many were longer than what the model reads, and records it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModel

from compress.cli import execute
from compress.models.model_dir import Model, open_model
from tests.support.tiny import GOOD, PLAIN, classifier, write
from tests.support.training_data import TINY_STUDENT, TRAINING, finetuned

SAID = "texts longer than what is read were cut: "


def table(path: Path, kind: str) -> Path:
    """Write 40 labelled rows, of which each fourth is longer than the 64 tokens that the encoder reads."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for number in range(40):
            word = GOOD[number % 8] if number % 2 else PLAIN[number % 15]
            text = f"{kind} {number} {word} {PLAIN[number * 7 % 15]}" + f" {word}" * (80 if number % 4 == 0 else 0)
            writer.writerow([text, ("negative", "positive")[number % 2]])
    return path


@pytest.mark.slow
def test_every_command_says_how_many_rows_were_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, validation, test, pool = (table(tmp_path / f"{name}.csv", name) for name in ("one", "two", "three", "four"))
    encoder = write(tmp_path / "encoder", classifier("bert"))
    body: Any = AutoModel.from_pretrained(encoder)
    body.save_pretrained(encoder)
    (tmp_path / "tiny.toml").write_text(TINY_STUDENT)
    rows: dict[str, Any] = {"train": str(train), "validation": str(validation)}
    finetuned(encoder, tmp_path / "teacher", training=TRAINING, **rows)

    def run(command: str, cut: str, output: str = "", **given: Any) -> None:
        flags = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        words = [command, *flags, *(["-o", str(tmp_path / output)] if output else []), "--threads", "1"]
        capsys.readouterr()
        assert execute(words) == 0, capsys.readouterr().err
        assert cut in capsys.readouterr().err.replace("\n", " "), command
        if output and (tmp_path / output).is_dir() and command != "label":
            assert open_model(tmp_path / output).manifest.notes["truncated"][0]["truncated"] >= 10

    teacher, both = tmp_path / "teacher", {"train": train, "validation": validation}
    ten = f"{SAID}10 of 40 rows at 32 tokens"
    assert "truncated" in Model.open(teacher).manifest.notes
    run("finetune", f"{SAID}10 of 40 rows at 64 tokens", "again", teacher=encoder, max_length=64, **both)
    run("label", ten, "labels", teacher=teacher, unlabeled=pool)
    run("distill", SAID, "student", teacher=teacher, student=tmp_path / "tiny.toml", unlabeled=pool, **both)
    run("prune", SAID, "pruned", model=teacher, heads="50%", device="cpu", **both)
    run("quantize", ten, "int8", model=teacher, method="onnx-dynamic", validation=validation, max_accuracy_drop=100)
    run("calibrate", ten, "calibrated", model=tmp_path / "student", validation=validation)
    run("predict", ten, model=teacher, data=test)
    measured = {"teacher": teacher, "model": tmp_path / "student", "data": test, "rounds": 3, "batch_size": 8}
    run("benchmark", "of 40 test rows, longer than what is read, were cut: 10 for", "results.jsonl", **measured)
    capsys.readouterr()
    assert execute(["report", str(tmp_path / "results.jsonl"), "-o", str(tmp_path / "report")]) == 0
    assert "10 of 40 rows (25.0%) by" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
