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
from compress.training import cpu_steps
from compress.training.row_adamw import RowAdamW
from compress.training.trainer import DistillationTrainer, Objective, TrainingRun
from tests.support.tiny import classifier, write
from tests.support.training_data import TRAINING, TRANSFORMER, distilled, pool_file, train_rows


def test_one_process_trains_on_one_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On two, ``DataParallel`` would train with twice the batch of the recipe."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    training = replace(TRAINING, precision="float32")
    run = TrainingRun(tmp_path, training, "classification", Compute(device="cuda"))
    signal: Any = None  # nothing is trained
    rows, objective = Dataset.from_list([]), Objective((Choice("hard-label"),), signal)
    trainer = DistillationTrainer(classifier(), rows, objective, run, steps=2, collate=dict)
    assert trainer.args.n_gpu == 1 and trainer.args.train_batch_size == training.batch_size


def test_dropout_is_fast_in_forward_passes_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dropped: list[torch.Size] = []
    watched: list[int] = []
    step = RowAdamW.step

    def counted(values: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        dropped.append(values.shape)
        return values

    def watching(self: RowAdamW, *given: Any) -> Any:
        watched.append(torch._C._len_torch_function_stack())
        return step(self, *given)

    monkeypatch.setattr(cpu_steps, "dropout", counted)
    monkeypatch.setattr(RowAdamW, "step", watching)
    teacher = write(tmp_path / "teacher", classifier())
    distilled(
        teacher, TRANSFORMER, tmp_path / "student", unlabeled=pool_file(tmp_path / "pool.txt"), train=train_rows()
    )
    assert len(dropped) >= 2 * len(watched) > 0 and not any(watched)
