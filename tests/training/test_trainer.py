"""What the trainer makes of the devices that it finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from compress.inference.compute import Compute
from compress.recipes import Choice
from compress.tasks import default
from compress.training.trainer import DistillationTrainer, Objective, TrainingRun
from tests.support.tiny import classifier
from tests.support.training_data import TRAINING


def test_one_process_trains_on_one_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On two, ``DataParallel`` would train with twice the batch of the recipe."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    training = replace(TRAINING, precision="float32")
    run = TrainingRun(tmp_path, training, default(), Compute(device="cuda"))
    signal: Any = None  # nothing is trained
    rows, objective = Dataset.from_list([]), Objective((Choice("hard-label"),), signal)
    trainer = DistillationTrainer(classifier(), rows, objective, run, steps=2, collate=dict)
    assert trainer.args.n_gpu == 1 and trainer.args.train_batch_size == training.batch_size
