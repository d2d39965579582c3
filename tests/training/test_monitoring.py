"""The lines of a training, by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from compress.recipes import Choice
from compress.training import trainer
from compress.training.trainer import Monitor


def test_the_short_batch_of_a_pass_counts_the_rows_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, clock = Monitor(tmp_path / "metrics.jsonl", [Choice("kl")]), iter(range(10))
    monkeypatch.setattr(trainer.time, "monotonic", lambda: float(next(clock)))
    for rows in (32, 8):  # of a second each
        log.on_step_begin()
        log.add([torch.tensor(3.0)], rows)
        log.on_step_end()
    assert log.since_last() == {"rows_per_second": 20.0, "loss/kl": 3.0}
    assert log.since_last() == {}
