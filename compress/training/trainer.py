"""Training loop: a transformers ``Trainer`` whose loss is a weighted sum of loss plug-ins.

Fine-tuning, pre-training, distillation and the recovery of pruned models all use it, with different rows, losses and
teacher signals.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import rotate_checkpoints

from compress.errors import CompressError
from compress.host import few_kernels
from compress.inference import processes
from compress.inference.compute import Compute, Precision, fast_float32, resolve_precision
from compress.inference.threads import using_threads
from compress.models.manifest import METRICS_NAME, is_whole, seal
from compress.progress import Progress, logger, silent
from compress.recipes import Choice, Training, needs_of
from compress.tasks import NO_LABEL, Task
from compress.training.batches import (
    EpochSampler,
    Masker,
    ProcessBatches,
    average_gradients,
    batch_of,
    column,
    shares,
)
from compress.training.loss_modules import attach_losses, detach_loss_modules
from compress.training.modifiers import Modifier
from compress.training.monitoring import POINTS, Monitor, reporting
from compress.training.row_adamw import RowAdamW, clip_gradients, sparse_gradients
from compress.training.step_plan import evaluations_for
from compress.training.teacher_signal import LIVE, ActivationRecorder, TeacherSignal, needs_of_student
from compress.training.training_data import Selection


@dataclass(frozen=True)
class Outcome:
    """Result of a training run: optimiser steps planned and taken, best score and its step, seconds of this start.

    A run that selects no checkpoint has no score. One that prunes names the units it ``masked``: for ``heads`` and
    ``neurons`` a list a layer, of positions among those that were there. Texts were cut to ``max_length`` tokens, and
    ``truncated_rows`` of the training rows were longer.
    """

    planned_steps: int
    steps: int
    best_score: float | None
    best_step: int | None
    score_name: str
    precision: str
    seconds: float
    precision_reason: str = ""
    masked: Mapping[str, list[list[int]]] | None = None
    max_length: int = 0
    truncated_rows: int = 0

    @property
    def noted(self) -> dict[str, Any]:
        """The manifest's notes on it: everything but the pruned units, which the shapes tell."""
        left_out = {"masked"} if self.precision_reason else {"masked", "precision_reason"}
        return {key: value for key, value in asdict(self).items() if key not in left_out}


@dataclass(frozen=True)
class TrainingRun:
    """Where and how a training runs.

    Args:
        folder: the stage's working directory, or for :func:`train` the folder of checkpoints.
        compute: with a resolved device.
        progress: how progress is shown, with ``title``.
        precision_reason: why it computes in float32, where bfloat16 was wanted.
    """

    folder: Path
    training: Training
    task: Task
    compute: Compute
    progress: Progress = silent
    title: str = "Training"
    precision_reason: str = ""

    @property
    def precision(self) -> Precision:
        wanted = self.training.precision if self.compute.precision == "auto" else self.compute.precision
        return resolve_precision(wanted, self.compute.device)


@dataclass(frozen=True)
class Objective:
    """What training minimises in every step: losses, the source of teacher outputs, masking and modifier.

    ``trained_layers`` are the student's layers, counted from 1, that losses read; None is all. With
    ``keep_loss_modules`` the modules of the losses stay on the student for :func:`detach_loss_modules`.
    """

    losses: Sequence[Choice]
    signal: TeacherSignal
    teacher: PreTrainedModel | None = None
    masker: Masker | None = None
    modifier: Modifier | None = None
    trained_layers: tuple[int, ...] | None = None
    keep_loss_modules: bool = False


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the manifest's notes on a whole training: the last step range's score, the steps and seconds of all."""
    *before, last = outcomes
    steps_before = sum(outcome.steps for outcome in before)
    return {
        **last.noted,
        "planned_steps": sum(outcome.planned_steps for outcome in outcomes),
        "steps": steps_before + last.steps,
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        "best_step": steps_before + (last.best_step or 0),
        **({"step_ranges": [outcome.noted for outcome in outcomes]} if before else {}),
    }


def _score(prediction: Any, *, task: Task, metric: str | None) -> dict[str, float]:
    """Return the metric. Logits that are not numbers still have a largest one: they score minus infinity."""
    logits, labels = prediction.predictions, prediction.label_ids
    if not np.isfinite(logits).all():
        return {"score": -math.inf}
    if task.by_word:
        words = labels != NO_LABEL
        logits, labels = logits[words], labels[words]
    return {"score": task.evaluate(logits, labels, metric)}


class DistillationTrainer(Trainer):
    """A ``Trainer`` that sums loss plug-ins and batches rows of similar length together.

    :meth:`release` removes what it adds to the model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        rows: Dataset,
        objective: Objective,
        run: TrainingRun,
        *,
        steps: int,
        collate: Callable[..., dict[str, Tensor]],
        selection: Selection | None = None,
    ) -> None:
        training = run.training
        evaluations = evaluations_for(steps, training, len(selection.rows) if selection else 0)
        interval = math.ceil(steps / evaluations)  # the last step is evaluated too
        selecting: dict[str, Any] = {
            "eval_strategy": "steps",
            "eval_steps": interval,
            "load_best_model_at_end": True,
            "metric_for_best_model": "score",
        }
        arguments = TrainingArguments(
            output_dir=str(run.folder),
            max_steps=steps,
            per_device_train_batch_size=training.batch_size,
            per_device_eval_batch_size=128,
            learning_rate=training.learning_rate,
            weight_decay=training.weight_decay,
            warmup_steps=math.ceil(training.warmup_share * steps),
            # The plain "constant" of transformers has no warm-up.
            lr_scheduler_type="constant_with_warmup" if training.schedule == "constant" else training.schedule,
            max_grad_norm=training.max_gradient_norm,
            bf16=run.precision == "bfloat16",
            save_steps=interval,
            logging_steps=max(1, steps // POINTS),
            logging_nan_inf_filter=False,  # which waits for the GPU in every step
            disable_tqdm=True,
            seed=run.compute.seed,
            use_cpu=run.compute.device == "cpu",
            remove_unused_columns=False,
            restore_callback_states_from_checkpoint=True,
            **(selecting if selection else {}),
        )
        # One process trains on one GPU: torchrun starts more. DataParallel would multiply the batch by their number.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        self.objective: Objective = objective
        self.folder, self.task = run.folder, run.task
        # Before the optimiser, which trains their modules too.
        self.losses = attach_losses(objective.losses, objective.teacher, model)
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=rows,
            eval_dataset=selection.rows if selection else None,
            data_collator=collate,
            compute_metrics=partial(_score, task=run.task, metric=selection.metric) if selection else None,
            callbacks=[EarlyStoppingCallback(training.patience)] if selection and training.patience else [],
            optimizer_cls_and_kwargs=(RowAdamW, self.get_optimizer_cls_and_kwargs(arguments)[1]),
        )
        # Gradients are exchanged by average_gradients, which says why.
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
        assert self.accelerator.num_processes == processes.active()
        # With weight decay every row of a table changes in every step, and processes exchange dense gradients.
        if getattr(model, "sparse", False) and not training.weight_decay and self.accelerator.num_processes == 1:
            sparse_gradients(model, on=True)
        self.accelerator.clip_grad_norm_ = clip_gradients  # which takes sparse ones too, and less time for all
        self.remove_callback(PrinterCallback)
        self.monitor = Monitor(run.folder / METRICS_NAME, objective.losses, run.title)
        self.add_callback(self.monitor)
        self.reads_teacher = bool(needs_of(objective.losses) & ({"logits"} | LIVE))
        # Modifiers look at the activations of a pass, or draw at random in each: they see the batch as a whole.
        wants = needs_of_student(objective.losses)
        self.student = ActivationRecorder(model, wants, whole=objective.modifier is not None)
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not learning:
            raise CompressError("frozen names all parts of the student, so that nothing learns; leave a part out")
        self.anchor = min(learning, key=lambda parameter: parameter.numel())
        self.model_accepts_loss_kwargs = False
        self.has_ended = False

    def _run_epoch(self, *given: Any, **named: Any) -> None:
        """Run a pass; none where the training had ended when it was stopped, else it would take one step more."""
        if self.has_ended:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*given, **named)  # type: ignore[no-untyped-call]

    def training_step(self, model: Any, *inputs: Any, **named: Any) -> Tensor:
        if self.objective.modifier:
            self.objective.modifier.step(self.state.global_step / self.state.max_steps)
        loss = super().training_step(model, *inputs, **named)
        if gather := getattr(self.objective.modifier, "gather", None):
            gather()
        if processes.active() > 1:
            average_gradients(model.parameters())
        return loss

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        batch = batch_of(inputs, task=self.task)
        if self.objective.masker:
            batch = self.objective.masker(batch)
        raw, student = self.student(batch, model)
        student = replace(student, trained_layers=self.objective.trained_layers)
        teacher = self.objective.signal(batch, inputs.get("teacher_logits")) if self.reads_teacher else student
        weighted = []
        for one in self.losses:
            mixed = self.args.bf16 and one.computes_in == "run"  # relations and divergences need the digits
            with torch.autocast(student.logits.device.type, torch.bfloat16, enabled=mixed):
                weighted.append(one.weight * one.function(student, teacher, batch, *one.trained))
        if processes.active() > 1:
            sizes = {"batch_size": self.args.train_batch_size, "rows": len(self.train_dataset)}  # type: ignore[arg-type]
            share_of = shares(batch, step=self.state.global_step, **sizes)
            weighted = [share_of[one.mean_over] * loss for one, loss in zip(self.losses, weighted, strict=True)]
        self.monitor.add(weighted, len(batch.input_ids))
        # The anchor gives a gradient path where no layer is trained now, or all are replaced by the teacher's.
        total = 0.0 * self.anchor.sum() + sum(weighted)
        return (total, raw) if return_outputs else total

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        if "loss" in logs:
            if not math.isfinite(logs["loss"]):
                self._tr_loss.zero_()  # the Trainer subtracts it from itself, which leaves no number
            logs = {**logs, **self.monitor.since_last()}
        super().log(logs, start_time)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint with the hashes of its files, then delete older ones but for the best."""
        super()._save_checkpoint(model, trial)
        processes.total(torch.zeros(1, device=self.args.device))  # each has written its part
        if self.args.should_save:
            seal(self.folder / f"checkpoint-{self.state.global_step}")
            best = self.state.best_model_checkpoint
            rotate_checkpoints(str(self.folder), save_total_limit=2, best_model_checkpoint=best)

    def _load_best_model(self) -> None:
        """Load it from the folder as it is called now: the state has its name of the start that wrote it."""
        self.state.best_model_checkpoint = str(self.folder / f"checkpoint-{self.state.best_global_step}")
        super()._load_best_model()

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs = self._prepare_inputs(inputs)
        batch = batch_of(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            raw, outputs = self.student(batch, model, records=False)
        if batch.words is None or batch.labels is None:
            return None, outputs.logits.float(), batch.labels
        # The Trainer joins batches of rows, of whatever length: words stay at their tokens until they are scored.
        labels = torch.full_like(batch.input_ids, NO_LABEL)
        labels[batch.words] = batch.labels
        return None, raw.float(), labels

    def release(self) -> None:
        """Leave the model as it was but for its weights: in float32, and without loss modules unless they are kept.

        Mixed precision wraps ``forward`` in autocast for good, and the model must be measured and saved in float32.
        """
        model: Any = self.model
        self.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        vars(model).pop("_is_accelerate_prepared", None)  # else the next training of it would not be in mixed precision
        sparse_gradients(model, on=False)
        if not self.objective.keep_loss_modules:
            detach_loss_modules(model)

    def get_train_dataloader(self) -> DataLoader[Any]:
        rows: Any = self.train_dataset
        order = EpochSampler(self.args.train_batch_size, column(rows, "length"), seed=self.args.seed)
        batches = ProcessBatches(order, self.args.train_batch_size, drop_last=False)
        pinned = self.args.dataloader_pin_memory
        loader: Any = DataLoader(rows, batch_sampler=batches, collate_fn=self.data_collator, pin_memory=pinned)
        divided: DataLoader[Any] = prepare_data_loader(  # into one part, as it is already
            loader, self.args.device, num_processes=1, process_index=0, put_on_device=True, non_blocking=True
        )
        return divided


def last_whole_checkpoint(directory: Path) -> Path | None:
    """Return the newest checkpoint from which a training can go on; delete those that are cut short or damaged.

    The best one so far must be there too: the training ends with the better of it and what follows.
    """
    states = {path: _state(path) for path in directory.glob("checkpoint-*") if is_whole(path)}
    steps = {None, *(state.global_step for state in states.values())}
    usable = [path for path, state in states.items() if state.best_global_step in steps]
    return max(usable, key=lambda path: states[path].global_step, default=None)


def _state(checkpoint: Path) -> Any:
    return TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))


def train(
    model: PreTrainedModel,
    rows: Dataset,
    objective: Objective,
    run: TrainingRun,
    *,
    steps: int,
    collate: Callable[..., dict[str, Tensor]],
    selection: Selection | None = None,
) -> Outcome:
    """Train ``model`` in place and leave it in eval mode with its best weights, or its last ones without a selection.

    A run that was stopped resumes from the last whole checkpoint in its folder.

    Args:
        rows: tokenised, as are those of ``selection``.
    """
    set_seed(run.compute.seed)
    trainer = DistillationTrainer(model, rows, objective, run, steps=steps, collate=collate, selection=selection)
    if processes.active() > 1:
        torch.manual_seed(run.compute.seed + processes.rank())  # dropout and masks of each are others
    started = time.monotonic()
    with processes.main_first():
        resumed = last_whole_checkpoint(run.folder)
    begun = 0
    if resumed:
        logger.info("resuming after %s", resumed.name)
        last = _state(resumed)
        begun = last.global_step
        trainer.has_ended = last.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]
    with (
        few_kernels(),
        fast_float32(),
        using_threads(run.compute.threads) as trainer.monitor.choose_threads,
        reporting(trainer, run.compute.report_to, begun),
        run.progress(run.title, steps - begun) as trainer.monitor.advance,
    ):
        trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
    trainer.release()
    state = trainer.state
    best = state.best_metric
    finite = all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    if (selection and (best is None or not math.isfinite(best))) or not finite:
        raise CompressError(
            f"training diverged: the validation score is {best}; lower training.learning_rate in the recipe"
        )
    if selection and best is not None:
        labels = np.hstack(selection.rows["labels"][:])  # type: ignore[call-overload]
        least = run.task.constant_score(labels, len(model.config.id2label or ()), selection.metric)
        if best <= least:
            logger.warning(
                "%s: the best validation score, %.4f, is no better than that of one class for all rows, %.4f; lower "
                "training.learning_rate in the recipe, train for more steps, or, where some classes are rare, select "
                "by --metric macro-f1",
                run.title,
                best,
                least,
            )
    model.eval()  # type: ignore[no-untyped-call, unused-ignore]
    return Outcome(
        planned_steps=steps,
        steps=state.global_step,
        best_score=float(best) if selection and best is not None else None,
        best_step=int(state.best_global_step or state.global_step) if selection else None,
        score_name=selection.split if selection else "",
        precision=run.precision,
        precision_reason=run.precision_reason,
        seconds=round(time.monotonic() - started, 1),
    )
