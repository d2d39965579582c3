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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import EarlyStoppingCallback, PrinterCallback, Trainer, TrainingArguments, set_seed
from transformers.trainer_pt_utils import LengthGroupedSampler

from compress import plugins
from compress.errors import CompressError
from compress.evaluation.metrics import evaluate
from compress.inference.compute import resolve_precision
from compress.models.batch import Batch, Outputs
from compress.recipes import Choice, Training, needs_of
from compress.training.modifier import Modifier
from compress.training.teacher_signal import LIVE, TeacherSignal, Watched, needs_of_student
from compress.training.token_masking import Masker
from compress.training.tokenized_dataset import NO_LABEL

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel


logger = logging.getLogger("compress")


@dataclass(frozen=True)
class Outcome:
    """How a training went: optimiser steps planned and taken, the best score and when, seconds of this start.

    A stretch of training by which nothing is selected has no score. One that prunes says which units it ``masked``: of
    ``heads`` and ``neurons`` a list a layer, of positions among those that were there.
    """

    planned_steps: int
    steps: int
    best_score: float | None
    best_step: int | None
    score_name: str
    precision: str
    seconds: float
    masked: Mapping[str, list[list[int]]] | None = None

    @property
    def noted(self) -> dict[str, Any]:
        """What a manifest says of it: everything but which units were masked, which the shapes tell."""
        return {key: value for key, value in asdict(self).items() if key != "masked"}


@dataclass(frozen=True)
class Target:
    """What the student is selected by: rows with labels, the metric's name and what the score is called."""

    rows: Dataset
    metric: str | None
    score_name: str
    task: str


@dataclass(frozen=True)
class Term:
    """A loss of the sum: its function with options, and the module it trains beside the student, if any."""

    weight: float
    function: Callable[..., Tensor]
    options: dict[str, Any]
    learned: nn.Module | None = None

    def __call__(self, student: Outputs, teacher: Outputs, batch: Batch) -> Tensor:
        learned = () if self.learned is None else (self.learned,)
        return self.weight * self.function(student, teacher, batch, *learned, **self.options)


@dataclass(frozen=True)
class Teaching:
    """What happens in every step: the losses, where the teacher's outputs come from, and what is changed meanwhile.

    ``taught`` are the student's layers, counted from 1, that losses may teach; None is all. With ``keep_learned`` what
    the losses trained beside the student stays on it for :func:`take_learned`.
    """

    losses: Sequence[Choice]
    signal: TeacherSignal
    teacher: PreTrainedModel | None = None
    masker: Masker | None = None
    modifier: Modifier | None = None
    taught: tuple[int, ...] | None = None
    keep_learned: bool = False


LEARNED = "learned_by_losses"  # a submodule of the student while it trains: checkpoints hold it, and then it goes


def steps_for(rows: int, training: Training) -> int:
    """Return the number of optimiser steps for so many rows: ``epochs`` passes, capped by ``max_steps``."""
    steps = max(1, math.ceil(training.epochs * rows / training.batch_size))
    return min(steps, training.max_steps) if training.max_steps else steps


def train(
    model: PreTrainedModel,
    rows: Dataset,
    *,
    teaching: Teaching,
    target: Target | None,
    training: Training,
    steps: int,
    collate: Callable[..., dict[str, Tensor]],
    checkpoints: Path,
    seed: int,
    device: str,
    threads: int = 0,
    quiet: bool = True,
) -> Outcome:
    """Train ``model`` in place and leave it in eval mode with its best weights, or its last ones without a target.

    A run that was stopped goes on after the last whole checkpoint in ``checkpoints``.
    """
    if threads:
        torch.set_num_threads(threads)
    set_seed(seed)
    trainer = trainer_for(
        model,
        rows,
        teaching=teaching,
        target=target,
        training=training,
        steps=steps,
        collate=collate,
        checkpoints=checkpoints,
        seed=seed,
        device=device,
        quiet=quiet,
    )
    started = time.monotonic()
    resumed = last_whole_checkpoint(checkpoints)
    if resumed:
        logger.info("resuming after %s", resumed.name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pin_memory.*")
        trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
    trainer.release()
    state = trainer.state
    best = state.best_metric
    if (target and (best is None or not math.isfinite(best))) or not _finite(model):
        raise CompressError(
            f"training diverged: the validation score is {best}; lower training.learning_rate in the recipe"
        )
    model.eval()
    return Outcome(
        planned_steps=steps,
        steps=state.global_step,
        best_score=float(best) if target and best is not None else None,
        best_step=int(state.best_global_step or state.global_step) if target else None,
        score_name=target.score_name if target else "",
        precision=resolve_precision(training.precision, device),
        seconds=round(time.monotonic() - started, 1),
    )


def trainer_for(
    model: PreTrainedModel,
    rows: Dataset,
    *,
    teaching: Teaching,
    target: Target | None,
    training: Training,
    steps: int,
    collate: Callable[..., dict[str, Tensor]],
    checkpoints: Path,
    seed: int,
    device: str,
    quiet: bool = True,
) -> DistillationTrainer:
    """Return the trainer of :func:`train`, which has not begun. What it adds to the model, its ``release`` removes."""
    precision = resolve_precision(training.precision, device)
    terms = build_terms(teaching, model)
    interval = max(1, steps // training.evaluations)
    selecting: dict[str, Any] = {
        "eval_strategy": "steps",
        "eval_steps": interval,
        "load_best_model_at_end": True,
        "metric_for_best_model": "score",
        "greater_is_better": True,
    }
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
        save_strategy="steps",
        save_steps=interval,
        save_total_limit=2,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=quiet or not sys.stderr.isatty(),
        seed=seed,
        use_cpu=device == "cpu",
        dataloader_pin_memory=device != "cpu",
        remove_unused_columns=False,
        restore_callback_states_from_checkpoint=True,
        **(selecting if target else {}),
    )
    trainer = DistillationTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=target.rows if target else None,
        data_collator=collate,
        compute_metrics=partial(_score, target=target) if target else None,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=training.patience)] if target else [],
        teaching=teaching,
        terms=terms,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _score(prediction: Any, target: Target) -> dict[str, float]:
    """Logits that are not numbers still have a largest one, and so an accuracy: they score minus infinity."""
    logits, labels = prediction.predictions, prediction.label_ids
    if not np.isfinite(logits).all():
        return {"score": -math.inf}
    if target.task == "tagging":
        words = labels != NO_LABEL
        logits, labels = logits[words], labels[words]
    return {"score": evaluate(logits, labels, task=target.task, metric=target.metric)}


def _finite(model: PreTrainedModel) -> bool:
    return all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


def build_terms(teaching: Teaching, model: PreTrainedModel) -> list[Term]:
    """Return the losses with their options; modules that they train become a submodule of ``model`` until the end."""
    terms, learned = [], nn.ModuleDict()
    for number, choice in enumerate(teaching.losses):
        plugin = plugins.find("losses", choice.name)
        options = dict(choice.options)
        module = None
        if hasattr(plugin.load(), "learned"):
            module = plugin.load().learned(model, teaching.teacher, **options)
            learned[f"{number}_{choice.name.replace('-', '_')}"] = module
        terms.append(Term(choice.weight, plugin.function, options, module))
    if learned:
        model.add_module(LEARNED, learned.to(model.device))
    return terms


def take_learned(model: PreTrainedModel) -> nn.Module | None:
    """Take off the model and return what losses trained beside it; None when there is nothing."""
    learned: nn.Module | None = model._modules.pop(LEARNED, None)
    return learned


class DistillationTrainer(Trainer):
    """A ``Trainer`` that sums loss plug-ins and batches rows of like length together."""

    def __init__(self, *, teaching: Teaching, terms: Sequence[Term], **arguments: Any) -> None:
        super().__init__(**arguments)
        self.teaching = teaching
        self.terms = terms
        self.reads_teacher = bool(needs_of(teaching.losses) & ({"logits"} | LIVE))
        self.student = Watched(arguments["model"], needs_of_student(teaching.losses))
        learning = [parameter for parameter in arguments["model"].parameters() if parameter.requires_grad]
        if not learning:
            raise CompressError("frozen names all parts of the student, so that nothing learns; leave a part out")
        self.anchor = min(learning, key=lambda parameter: parameter.numel())
        self.model_accepts_loss_kwargs = False

    def training_step(self, *inputs: Any, **named: Any) -> Tensor:
        if self.teaching.modifier:
            self.teaching.modifier.step(self.state.global_step / self.state.max_steps)
        return super().training_step(*inputs, **named)

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        batch = _batch(inputs)
        if self.teaching.masker:
            batch = self.teaching.masker(batch)
        raw, student = self.student(batch, model)
        student = replace(student, taught=self.teaching.taught)
        teacher = self.teaching.signal(batch, inputs.get("teacher_logits")) if self.reads_teacher else student
        with torch.autocast(student.logits.device.type, enabled=False):  # relations and divergences need the digits
            # The first part gives a gradient path where no layer is taught now, or all are replaced by the teacher's.
            total = 0.0 * self.anchor.sum() + sum(term(student, teacher, batch) for term in self.terms)
        return (total, raw) if return_outputs else total

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs = self._prepare_inputs(inputs)
        batch = _batch(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            raw, outputs = self.student(batch, model)
        if batch.words is None or batch.labels is None:
            return None, outputs.logits.float(), batch.labels
        # The Trainer joins batches of rows, of whatever length: words stay at their tokens until they are scored.
        labels = torch.full_like(batch.input_ids, NO_LABEL)
        labels[batch.words] = batch.labels
        return None, raw.logits.float(), labels

    def release(self) -> None:
        """Leave the model as it was found but for its weights, in float32, without what losses learned unless kept.

        Mixed precision wraps ``forward`` in autocast for good, and what is measured and saved must be float32.
        """
        model: Any = self.model
        self.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        if not self.teaching.keep_learned:
            take_learned(model)

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
    names = ("input_ids", "attention_mask", "token_type_ids", "labels", "mixed_ids", "mixed_mask", "rows", "words")
    return Batch(**{name: inputs[name] for name in names if name in inputs})


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
