"""The learning curve of a trained model, as ``compress show`` prints it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compress.cli import execute
from compress.errors import CompressError
from compress.reporting.learning_curve import learning_curve
from tests.support.training_data import finetuned, train_rows, validation_rows


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_row_an_evaluation_with_the_means_since_the_one_before(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": float(step), "learning_rate": 1e-3, "rows_per_second": 100.0} for step in (1, 2, 3)]
    path = written(
        tmp_path / "m", *lines[:2], {"step": 2, "validation": 0.5}, lines[2], {"step": 3, "validation": 0.75}
    )
    heading, *rows = (line.split() for line in learning_curve(path).splitlines())
    assert heading == ["step", "validation", "loss", "learning", "rate", "rows", "per", "second"]
    assert rows == [["2", "0.5000", "1.5000", "1.00e-03", "100"], ["3", "0.7500", "3.0000", "1.00e-03", "100"]]


def test_phases_have_tables_of_their_own_and_terms_have_columns(tmp_path: Path) -> None:
    terms = {"loss": None, "loss/kl": 1.0, "loss/hard-label": 2.0}
    path = written(
        tmp_path / "m", {"phase": "phase-1", "step": 1, "loss": 1.0}, {"phase": "phase-2", "step": 1, **terms}
    )
    first, second = learning_curve(path).split("\n\n")
    assert first.startswith("phase-1\n") and "loss/" not in first
    assert second.splitlines()[1].split()[3:5] == ["loss/hard-label", "loss/kl"]
    assert second.splitlines()[2].split()[1:5] == ["–", "–", "2.0000", "1.0000"]


@pytest.mark.parametrize(
    "line", ["[]", "{}", '{"step": "1"}', '{"step": 1, "loss": "x"}', '{"step": 1, "loss": 1e301}']
)
def test_a_damaged_line_is_one_sentence(tmp_path: Path, line: str) -> None:
    (tmp_path / "m").write_text(line)
    with pytest.raises(CompressError, match="is damaged: copy or train the model again"):
        learning_curve(tmp_path / "m")


def test_show_tells_what_a_directory_is_and_how_it_was_trained(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = finetuned(teacher, tmp_path / "made", train=train_rows(), validation=validation_rows())
    capsys.readouterr()
    assert execute(["show", str(made.path)]) == 0
    shown = capsys.readouterr().out
    assert "made by compress finetune\ntask: classification, 2 labels\n" in shown
    assert f"accuracy on validation: {made.manifest.metrics[0]['value']:.4f}, n = 16" in shown
    steps = made.manifest.notes["planned_steps"]
    assert shown.splitlines()[-1].split()[0] == str(steps) and "rows per second" in shown
    (made.path / "metrics.jsonl").write_text("damaged")
    assert execute(["show", str(made.path)]) == 2
