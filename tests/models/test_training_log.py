"""How a model was trained, read from its directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compress.errors import CompressError
from compress.models.training_log import TrainingLog, read_training


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{}",
        '{"step": "1"}',
        '{"step": 1, "loss": "x"}',
        '{"step": 1, "loss": 1e301}',
        '{"step": 1, "loss": 9e299}',
        '{"step": 1, "loss": 1e-320}',
        '{"step": -1}',
        f'{{"step": {2**40}}}',
    ],
)
def test_a_damaged_line_is_one_sentence(tmp_path: Path, line: str) -> None:
    (tmp_path / "m").write_text(line)
    with pytest.raises(CompressError, match="is damaged: copy or train the model again"):
        read_training(tmp_path / "m")


def test_the_score_is_the_manifests_metric_on_the_split_that_selected(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "validation": 0.5}')
    assert read_training(tmp_path) == TrainingLog(tmp_path.name, [{"step": 1, "validation": 0.5}])
    named = {"f1": "train", "accuracy": "held-out pool"}
    metrics = [{"name": name, "value": 0.5, "split": split, "rows": 9} for name, split in named.items()]
    notes: dict[str, Any] = {"score_name": "held-out pool"}
    for about in (notes, {"recovery": notes}):
        manifest = {"format_version": 1, "stage": "distill", "metrics": metrics, "notes": about}
        (tmp_path / "compress.json").write_text(json.dumps(manifest))
        log = read_training(tmp_path / "metrics.jsonl")
        assert (log.metric, log.split) == ("accuracy", "held-out pool")
