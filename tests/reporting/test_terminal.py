"""How a model was trained, as ``compress show`` prints it."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compress.cli import execute
from compress.models.training_log import read_training
from compress.reporting.terminal import COLUMNS, HEIGHT, LABELS, PLAIN, WIDTH, as_text, plot
from tests.support.training_data import TRAINING, finetuned, train_rows, validation_rows


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_row_an_evaluation_with_the_means_since_the_one_before(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": float(step), "learning_rate": 1e-3, "rows_per_second": 100.0} for step in (1, 2, 3)]
    path = written(
        tmp_path / "m", *lines[:2], {"step": 2, "validation": 0.5}, lines[2], {"step": 3, "validation": 0.75}
    )
    heading, *rows = (line.split() for line in as_text(read_training(path)).rpartition("\n\n")[2].splitlines())
    assert heading == ["step", "validation", "loss", "learning", "rate", "rows", "per", "second"]
    assert rows == [["2", "0.5000", "1.5000", "1.00e-03", "100"], ["3", "0.7500", "3.0000", "1.00e-03", "100"]]


def test_phases_have_tables_of_their_own_and_terms_have_columns(tmp_path: Path) -> None:
    terms = {"loss": None, "loss/kl": 1.0, "loss/hard-label": 2.0}
    path = written(
        tmp_path / "m", {"phase": "phase-1", "step": 1, "loss": 1.0}, {"phase": "phase-2", "step": 1, **terms}
    )
    first, second = as_text(read_training(path)).split("\n\n")
    assert first.startswith("phase-1\n") and "loss/" not in first
    assert second.splitlines()[1].split()[3:5] == ["loss/hard-label", "loss/kl"]
    assert second.splitlines()[2].split()[1:5] == ["–", "–", "2.0000", "1.0000"]


@pytest.mark.parametrize("glyphs", [" ▁▂▃▄▅▆▇█", PLAIN])
def test_a_plot_rises_from_its_lowest_value_to_its_highest(glyphs: str) -> None:
    rising = [(10 * step, step / 100) for step in range(1, 101)]
    title, *rows, steps = plot("validation", rising, glyphs)
    assert {len(row) for row in (title, *rows, steps)} == {WIDTH} and len(rows) == HEIGHT
    cells = [row[LABELS + 1 :] for row in rows]
    assert set("".join(cells)) == set(glyphs)
    heights = ["".join(column).strip() for column in zip(*cells, strict=True)]
    assert [len(column) for column in heights] == sorted(len(column) for column in heights)
    assert heights[0] == glyphs[1] and heights[-1] == glyphs[-1] * HEIGHT
    assert rows[0].split()[0] == "0.985" and rows[-1].split()[0] == "0.025" and steps.split() == ["10", "step", "1,000"]


def test_a_plot_keeps_the_last_value_where_a_column_has_none() -> None:
    bottom = plot("loss", [(1, 1.0), (2, 1.0), (3, 2.0)])[-2]
    assert bottom[LABELS + 1 :] == "▁" * (COLUMNS - 1) + "█"
    assert plot("loss", [(5, 1.0), (5, 1.0), (3, 1.0)])[-2].endswith("▁" * COLUMNS)  # of a file that nobody wrote


def test_the_ends_of_a_plot_keep_their_exponents() -> None:
    _, highest, *_, lowest, _ = plot("loss", [(1, 5.678e-05), (2, 1.234e-05)])
    assert highest.split()[0] == "5.678e-05" and lowest.split()[0] == "1.234e-05"


def test_show_tells_what_a_directory_is_and_how_it_was_trained(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = replace(TRAINING, max_steps=5, evaluations=5)
    made = finetuned(teacher, tmp_path / "made", training=training, train=train_rows(), validation=validation_rows())
    capsys.readouterr()
    assert execute(["show", str(made.path)]) == 0
    shown = capsys.readouterr().out
    assert "made by compress finetune\ntask: classification, 2 labels\n" in shown
    assert f"accuracy on validation: {made.manifest.metrics[0]['value']:.4f}, n = 16" in shown
    steps = made.manifest.notes["steps"]
    assert shown.splitlines()[-1].split()[0] == str(steps) and "rows per second" in shown
    assert "         validation" in shown and "█" in shown
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), "ascii", errors="backslashreplace"))
    assert execute(["show", str(made.path)]) == 0
    sys.stdout.flush()
    plain = sys.stdout.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert "#" in plain and "\\u25" not in plain
    (made.path / "metrics.jsonl").write_text("damaged")
    assert execute(["show", str(made.path)]) == 2
