"""Every command that judges on gold rows refuses labels that mean something else, and takes them with --label-map."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from compress.cli import execute
from compress.inference.predict import load
from compress.models.model_dir import Model
from tests.support.tiny import BAD, GOOD, LABELS, PLAIN, torch_directory

TEACHER = ["--teacher", "MODEL", "--unlabeled", "POOL", "--train", "TRAIN", "--validation", "ROWS"]
COMMANDS: dict[str, Sequence[str]] = {
    "calibrate": ["--model", "MODEL", "--validation", "ROWS"],
    "quantize": ["--model", "MODEL", "--validation", "ROWS"],
    "prune": ["--model", "MODEL", "--train", "TRAIN", "--validation", "ROWS", "--heads", "25%", "--no-measure"],
    "heads": ["--model", "MODEL", "--train", "TRAIN", "--validation", "ROWS"],
    "distill": [*TEACHER, "--student", "bilstm"],
    "search": [*TEACHER, "--max-size-mb", "1", "--trials", "1"],
    "cascade": ["--model", "OTHER", "--model", "MODEL", "--validation", "ROWS"],
    "benchmark": ["--teacher", "MODEL", "--model", "MODEL", "--data", "ROWS", "--rounds", "3", "--runtime", "torch"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return a model, rows to learn from and rows whose labels are its classes in reverse, as numbers."""
    folder, model = tmp_path_factory.mktemp("meaning"), torch_directory("bert")
    words = [*GOOD, *BAD]
    texts = [f"{words[n % 16]} {PLAIN[n % 15]} {PLAIN[n // 7 % 15]} {n}" for n in range(120)]
    found = [LABELS.index(one["label"]) for one in load(model.path).predict(texts)]
    assert 10 < sum(found) < 110

    def write(name: str, rows: range, label: Any) -> str:
        lines = [json.dumps({"text": texts[row], "label": label(found[row])}) for row in rows]
        (folder / name).write_text("\n".join(lines))
        return str(folder / name)

    return {
        "MODEL": str(model.path),
        "OTHER": str(torch_directory("pruned-bert").path),
        "ROWS": write("rows.jsonl", range(60), lambda index: 1 - index),
        "TRAIN": write("train.jsonl", range(60, 90), lambda index: LABELS[index]),
        "POOL": write("pool.jsonl", range(90, 120), lambda index: 0),
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_labels_that_mean_something_else_are_refused(
    command: str, files: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    arguments = [files.get(word, word) for word in COMMANDS[command]]
    assert execute([command, *arguments, "-o", str(output)]) == 2
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert "less than by chance with 2 classes" in last and "--label-map FILE" in last
    assert not output.exists()


def test_a_label_map_makes_them_right(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(json.dumps({"0": LABELS[1], "1": LABELS[0]}))
    given = ["--model", files["MODEL"], "--validation", files["ROWS"], "--label-map", str(tmp_path / "map.json")]
    assert execute(["calibrate", *given, "-o", str(tmp_path / "out")]) == 0
    (metric, _) = Model.open(tmp_path / "out").manifest.metrics
    assert metric["name"] == "accuracy" and metric["value"] == 1.0


@pytest.mark.parametrize("name", ["predict", "pretrain"])
def test_a_label_map_is_no_option_where_no_label_is_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([name, "--label-map", "map.json"]) == 2
    assert "--label-map" in capsys.readouterr().err.splitlines()[-1]
