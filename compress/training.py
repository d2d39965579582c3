"""The one training loop: a transformers ``Trainer`` whose loss is a weighted sum of plug-ins.

Fine-tuning a teacher, distilling a student and recovering a pruned model all run here; what differs is the rows, the
losses and the teacher's signal.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import EarlyStoppingCallback, PrinterCallback, Trainer, TrainingArguments, set_seed
from transformers.trainer_pt_utils import LengthGroupedSampler

from compress import plugins
from compress.errors import CompressError
from compress.host import has_fast_bfloat16
from compress.metrics import evaluate
from compress.recipes import Choice, Training
from compress.rows import collator
from compress.signals import needs
from compress.types import Batch, Outputs, TeacherSignal

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

logger = logging.getLogger("compress")


@dataclass(frozen=True)
class Outcome:
    """How a training went: optimiser steps planned and taken, the best score and when, seconds of this start."""

    planned_steps: int
    steps: int
    best_score: float
    best_step: int
    score_name: str
    precision: str
    seconds: float


@dataclass(frozen=True)
class Target:
    """What the student is selected by: rows with labels, the metric's name and what the score is called."""

    rows: Dataset
    metric: str | None
    score_name: str
    task: str


def steps_for(rows: int, training: Training) -> int:
    """Return the number of optimiser steps for so many rows: ``epochs`` passes, capped by ``max_steps``."""
    steps = max(1, math.ceil(training.epochs * rows / training.batch_size))
    return min(steps, training.max_steps) if training.max_steps else steps


def train(
    model: PreTrainedModel,
    rows: Dataset,
    *,
    losses: Sequence[Choice],
    signal: TeacherSignal,
    target: Target,
    training: Training,
    steps: int,
    padding_id: int,
    checkpoints: Path,
    seed: int,
    device: str,
    threads: int = 0,
    quiet: bool = True,
) -> Outcome:
    """Train ``model`` in place and leave it with its best weights, in eval mode.

    A run that was stopped goes on after the last whole checkpoint in ``checkpoints``.
    """
    if threads:
        torch.set_num_threads(threads)
    set_seed(seed)
    precision = resolve_precision(training.precision, device)
    interval = max(1, steps // training.evaluations)
    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        max_steps=steps,
        per_device_train_batch_size=training.batch_size,
        per_device_eval_batch_size=128,
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        warmup_steps=math.ceil(training.warmup_share * steps),
        lr_scheduler_type=training.schedule,
        max_grad_norm=training.max_gradient_norm,
        bf16=precision == "bfloat16",
        eval_strategy="steps",
        eval_steps=interval,
        save_strategy="steps",
        save_steps=interval,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=True,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=quiet or not sys.stderr.isatty(),
        seed=seed,
        use_cpu=device == "cpu",
        dataloader_pin_memory=device != "cpu",
        remove_unused_columns=False,
        restore_callback_states_from_checkpoint=True,
    )
    trainer = DistillationTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=target.rows,
        data_collator=collator(padding_id, target.task),
        compute_metrics=lambda p: {
            # Logits that are not numbers still have a largest one, and so an accuracy.
            "score": evaluate(p.predictions, p.label_ids, task=target.task, metric=target.metric)
            if np.isfinite(p.predictions).all()
            else -math.inf
        },
        callbacks=[EarlyStoppingCallback(early_stopping_patience=training.patience)],
        losses=losses,
        signal=signal,
    )
    trainer.remove_callback(PrinterCallback)
    started = time.monotonic()
    resumed = last_whole_checkpoint(checkpoints)
    if resumed:
        logger.info("resuming after %s", resumed.name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pin_memory.*")
        trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
    # Mixed precision wraps forward in autocast for good; what is measured and saved afterwards must be float32.
    trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    state = trainer.state
    best = state.best_metric
    if best is None or not math.isfinite(best):
        raise CompressError(
            f"training diverged: the validation score is {best}; lower training.learning_rate in the recipe"
        )
    model.eval()
    return Outcome(
        planned_steps=steps,
        steps=state.global_step,
        best_score=float(best),
        best_step=int(state.best_global_step or state.global_step),
        score_name=target.score_name,
        precision=precision,
        seconds=round(time.monotonic() - started, 1),
    )


class DistillationTrainer(Trainer):
    """A ``Trainer`` that sums loss plug-ins and batches rows of like length together."""

    def __init__(self, *, losses: Sequence[Choice], signal: TeacherSignal, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.signal = signal
        self.terms = [
            (choice.weight, plugins.find("losses", choice.name).function, dict(choice.options)) for choice in losses
        ]
        self.needs = needs(losses)
        self.model_accepts_loss_kwargs = False

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        cached = inputs.get("teacher_logits")
        batch = _batch(inputs)
        wants_hidden = {"output_hidden_states": True} if "hidden" in self.needs else {}
        raw = model(**batch.inputs(), **wants_hidden)
        student = Outputs(raw.logits, tuple(getattr(raw, "hidden_states", None) or ()))
        teacher = self.signal(batch, cached) if self.needs & {"logits", "hidden"} else student
        total = student.logits.new_zeros((), dtype=torch.float32)
        for weight, function, options in self.terms:
            total = total + weight * function(student, teacher, batch, **options)
        return (total, raw) if return_outputs else total

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs = self._prepare_inputs(inputs)
        batch = _batch(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**batch.inputs()).logits
        return None, logits.float(), batch.labels

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:
        rows: Any = self.train_dataset if train_dataset is None else train_dataset
        lengths = np.asarray(rows.with_format("numpy")["length"]).tolist()
        return EpochSampler(self.args.train_batch_size, lengths, seed=self.args.seed)


class EpochSampler(LengthGroupedSampler):
    """Batches of like length in an order that depends on seed and epoch only.

    A run that is resumed in its third epoch then reads what an undisturbed one reads there; a generator that just
    runs on would start again with the first epoch's order.
    """

    def __init__(self, batch_size: int, lengths: list[int], *, seed: int) -> None:
        super().__init__(batch_size, lengths=lengths, generator=torch.Generator())
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the training loop, through accelerate's data loader."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator.manual_seed(self.seed + self.epoch)
        return super().__iter__()


def _batch(inputs: dict[str, Tensor]) -> Batch:
    return Batch(inputs["input_ids"], inputs["attention_mask"], inputs.get("token_type_ids"), inputs.get("labels"))


def resolve_precision(precision: str, device: str) -> str:
    """Return ``float32`` or ``bfloat16``; ``auto`` is bfloat16 where the hardware multiplies it natively."""
    if precision != "auto":
        return precision
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    return "bfloat16" if has_fast_bfloat16() else "float32"


def resolve_device(device: str) -> str:
    """Return ``cpu`` or ``cuda`` for ``--device``."""
    if device not in {"auto", "cpu", "cuda"}:
        raise CompressError(f"--device {device} is not known; use auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise CompressError("--device cuda was asked for, but this host has no usable GPU; use --device cpu")
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


def last_whole_checkpoint(directory: Path) -> Path | None:
    """Return the newest checkpoint that was written to its end; remove one that was cut short.

    ``trainer_state.json`` is the last file the Trainer writes, so a checkpoint without a readable one is not whole.
    """
    found = sorted(directory.glob("checkpoint-*"), key=lambda path: int(path.name.rsplit("-", 1)[1]), reverse=True)
    for checkpoint in found:
        try:
            json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            shutil.rmtree(checkpoint)
            continue
        return checkpoint
    return None
