"""The examples of docs/labels.md: the commands read its tables."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from compress.cli import execute
from compress.labelling.label_dir import LabelDir
from tests.support import REPOSITORY
from tests.support.tiny import examples
from tests.support.training_data import TINY_STUDENT
from tests.test_docs import commands_in

PAGE = (REPOSITORY / "docs" / "labels.md").read_text(encoding="utf-8")
FILES: dict[str, str] = dict(re.findall(r"^`([\w.]+)`:\n\n```\w*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def command_of_page(start: str) -> list[str]:
    """Return the words of the first command of the page that begins like this."""
    return shlex.split(next(line for line in commands_in(PAGE) if line.startswith(f"compress {start}")))[1:]


def softmax(logits: np.ndarray) -> np.ndarray:
    powers: np.ndarray = np.exp(logits.astype(np.float64))
    return powers / powers.sum()


def test_answers_of_a_language_model(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    other = {"negative": "positive", "positive": "negative"}
    answers = [{"text": row.text, str(row.label): 7 / 8, other[str(row.label)]: 1 / 8} for row in examples()]
    Path("answers.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in answers), encoding="utf-8")
    assert execute(command_of_page("labels import answers.jsonl")) == 0
    for (example, logits), row in zip(LabelDir.open("models/answers"), examples(), strict=True):
        expected = 0.99 * 7 / 8 + 0.005
        shares = [expected, 1 - expected] if row.label == "negative" else [1 - expected, expected]
        assert example.text == row.text
        np.testing.assert_allclose(softmax(logits), shares, rtol=1e-5)
    Path("tiny.toml").write_text(TINY_STUDENT)
    student = ["distill", "--teacher", str(teacher), "--student", "tiny.toml", "--device", "cpu", "--threads", "1"]
    labels = ["--labels", "models/answers"] * 2
    added = [*labels, "-o", "models/added"]
    combined = [*labels, "--combine", "mean", "--weight", "2", "--weight", "1", "-o", "models/combined"]
    assert execute([*student, *added]) == execute([*student, *combined]) == 0
    notes = {
        name: json.loads(Path(f"models/{name}/compress.json").read_text())["notes"] for name in ("added", "combined")
    }
    assert [notes[name]["pool_rows"] for name in ("added", "combined")] == [80, 40]
    assert "labels: probabilities of answers.jsonl, whose logits are not of tiny-bert" in capsys.readouterr().err


def test_votes_of_annotators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("votes.csv").write_text(FILES["votes.csv"], encoding="utf-8")
    command = next(line for line in commands_in(PAGE) if "votes.csv" in line and "--smoothing" in line)
    assert execute(shlex.split(command)[1:]) == 0
    made = LabelDir.open("models/votes")
    votes = np.array([[1, 3, 1], [0, 0, 5], [4, 1, 0]]) / 5
    found = np.stack([softmax(logits) for _, logits in made])
    np.testing.assert_allclose(found, 0.95 * votes + 0.05 / 3, rtol=1e-5)
    assert made.manifest.labels == ("negative", "neutral", "positive") and not made.has_zeros
