"""Training loop: a transformers ``Trainer`` whose loss is a weighted sum of loss plug-ins, and what it says meanwhile.

Fine-tuning, pre-training, distillation and the recovery of pruned models all use it, with different rows, losses and
teacher signals.
"""

import inspect
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer_utils import rotate_checkpoints

from compress import plugins
from compress.errors import CompressError, refuse
from compress.files import write_json_lines
from compress.host import few_kernels
from compress.inference import processes
from compress.inference.compute import Compute, Precision, fast_float32, resolve_precision
from compress.inference.threads import using_threads
from compress.models.batch import Balance
from compress.models.manifest import METRICS_NAME, is_whole, seal
from compress.models.output_dir import work_title
from compress.models.training_log import read_training
from compress.progress import Progress, logger, silent
from compress.recipes import Choice, Training, needs_of
from compress.tasks import NO_LABEL, Task, labels_of
from compress.training.teacher_signal import LIVE, ActivationRecorder, TeacherSignal, needs_of_student
from compress.training.training_data import (
    Collator,
    EpochSampler,
    Masker,
    ProcessBatches,
    Selection,
    average_gradients,
    batch_of,
    column,
    shares,
)

EVALUATION_SHARE = 0.25  # of the work of all training steps, that the evaluations take at most
EVALUATED_AT_LEAST = 3
PASSES_A_STEP = 3  # the work of a training step as forward passes: backwards is two
LOSS_MODULES = "loss_modules"  # a submodule of the student while it trains, so that checkpoints hold it

POINTS = 100  # lines of one training, beside those of its evaluations
TENSORBOARD_FOLDER = "runs"  # the default of TensorBoard's own writer; transformers' is deleted with the checkpoints
_TERM = "loss/"
# What lines keep of the Trainer's history, beside the terms of the loss, and what they call it.
_KEPT = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "rows_per_second": "rows_per_second",
    "eval_score": "validation",
}


@dataclass(frozen=True)
class Outcome:
    """Result of a training run: optimiser steps planned and taken, best score and its step, seconds of this start.

    A run that selects no checkpoint has no score. One that prunes names the units it ``masked``: for ``heads`` and
    ``neurons`` a list a layer, of positions among those that were there. Texts were cut to ``max_length`` tokens, and
    ``truncated_rows`` of the training rows were longer. ``balance`` is what was made up for rare classes, by name.
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
    balance: Mapping[str, Mapping[str, float]] | None = None

    @property
    def noted(self) -> dict[str, Any]:
        """The manifest's notes on it: everything but the pruned units, which the shapes tell."""
        without = {"masked", *(name for name in ("precision_reason", "balance") if not getattr(self, name))}
        return {key: value for key, value in asdict(self).items() if key not in without}


@dataclass(frozen=True)
class TrainingRun:
    """Where and how a training runs.

    Args:
        folder: the stage's working directory, or for :func:`train` the folder of checkpoints.
        compute: with a resolved device.
        progress: how progress is shown, with ``title``.
        precision_reason: why it computes in float32, where bfloat16 was wanted.
        balance: of the gold labels.
    """

    folder: Path
    training: Training
    task: Task
    compute: Compute
    progress: Progress = silent
    title: str = "Training"
    precision_reason: str = ""
    balance: Balance = Balance()

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
    modifier: Any = None  # compress.training.modifiers says what it has
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


def _score(prediction: Any, *, task: Task, labels: Sequence[str], selection: Selection) -> dict[str, float]:
    """Return the metric. Logits that are not numbers still have a largest one: they score minus infinity."""
    logits, gold, sentences = prediction.predictions, prediction.label_ids, selection.queries
    if selection.windows and selection.documents is not None:
        _, firsts, counts = np.unique(selection.documents, return_index=True, return_counts=True)
        order = np.argsort(selection.documents, kind="stable")
        logits, gold = selection.windows.pool(logits[order], counts), gold[firsts]
        sentences = None if sentences is None else sentences[firsts]
    if not np.isfinite(logits).all():
        return {"score": -math.inf}
    if task.by_word:
        words = gold != NO_LABEL
        logits, gold, sentences = logits[words], gold[words], words.nonzero()[0]
    return {"score": task.evaluate(logits, gold, labels, selection.metric, sentences)}


class WeightedLoss(NamedTuple):
    """A loss: its weight, its function of student, teacher and batch, and the module that it trains, if any.

    ``mean_over`` names what it is a mean over, of :func:`compress.training.training_data.shares`. ``computes_in`` is
    ``float32``, or ``run`` for that of the training.
    """

    weight: float
    function: Callable[..., Tensor]
    trained: list[nn.Module]
    mean_over: str
    computes_in: str


def attach_losses(
    chosen: Sequence[Choice], teacher: PreTrainedModel | None, model: PreTrainedModel
) -> list[WeightedLoss]:
    """Return losses as functions; their modules become a submodule of ``model`` until :func:`detach_loss_modules`."""
    losses: list[WeightedLoss] = []
    modules = nn.ModuleDict()
    for number, choice in enumerate(chosen):
        plugin = plugins.find("losses", choice.name)
        module, trained = plugin.load(), list[nn.Module]()
        if learned := getattr(module, "learned", None):
            taken = choice.options.keys() & inspect.signature(learned).parameters
            trained.append(learned(model, teacher, **{name: choice.options[name] for name in taken}))
            modules[f"{number}_{choice.name.replace('-', '_')}"] = trained[0]
        losses.append(
            WeightedLoss(
                choice.weight,
                partial(plugin.function, **choice.options),
                trained,
                mean_over=getattr(module, "MEAN_OVER", "answers"),
                computes_in=getattr(module, "COMPUTES_IN", "float32"),
            )
        )
    if modules:
        model.add_module(LOSS_MODULES, modules.to(model.device))
    return losses


def detach_loss_modules(model: PreTrainedModel) -> nn.Module | None:
    """Remove from the model and return the modules that losses trained with it; None when there are none."""
    return model._modules.pop(LOSS_MODULES, None)


class RowAdamW(torch.optim.AdamW):
    """AdamW for models that are mostly tables: of a table it updates the rows that a batch has read.

    Loshchilov and Hutter 2019, arXiv:1711.05101, which also takes sparse gradients, of ``nn.Embedding``. A parameter
    with a sparse gradient has no momentum (beta 1 is 0) and no decay of its weights: rows without a gradient then stay
    where they are, so that updating the others alone is Adam itself. Their second moments decay with every step; a
    row's is brought up to date when it is read.

    With dense gradients ``compress distill`` of an ``ngram`` takes 1.4 and 1.6 times as long for 400 steps (CPU seconds
    of two turns on one core), its training alone 1.8 and 2.2 times; that of a ``cnn`` 1.07 times.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        found = closure and torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    self._update_rows(parameter, parameter.grad.coalesce(), group)
                    parameter.grad = None  # the others are AdamW's
        super().step()  # type: ignore[no-untyped-call, unused-ignore]
        return found

    def _update_rows(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (_, decay) = self.state[parameter], group["betas"]
        if "read_at" not in state:
            state["step"] = torch.zeros(())
            state["second_moment"] = torch.zeros_like(parameter)
            state["read_at"] = torch.zeros(len(parameter), device=parameter.device)
        state["step"] += 1
        step = int(state["step"])
        rows, values = gradient.indices()[0], gradient.values()
        kept = decay ** (step - state["read_at"][rows])
        moment = state["second_moment"][rows] * kept[:, None] + (1 - decay) * values.square()
        state["second_moment"][rows], state["read_at"][rows] = moment, step
        scale = (moment / (1 - decay**step)).sqrt_().add_(group["eps"])
        parameter.index_add_(0, rows, values / scale, alpha=-float(group["lr"]))


def sparse_gradients(model: nn.Module, on: bool) -> None:
    """Choose whether embeddings get sparse gradients, which :class:`RowAdamW` takes."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = on


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale all gradients, sparse ones too, so that their norm is at most ``limit``; return what it was."""
    values: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            values.append(parameter.grad.values())
        elif parameter.grad is not None:
            values.append(parameter.grad)
    norm = nn.utils.get_total_norm(values)
    torch._foreach_mul_(values, torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm


def evaluations_for(steps: int, training: Training, rows: int) -> int:
    """Return how often so many rows are evaluated in so many steps.

    ``evaluations`` times, or as often as takes a quarter of the work of the steps, but three times at least.
    """
    affordable = EVALUATION_SHARE * steps * training.batch_size * PASSES_A_STEP / max(rows, 1)
    return min(training.evaluations, steps, max(EVALUATED_AT_LEAST, int(affordable)))


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
        collate: Collator,
        selection: Selection | None = None,
    ) -> None:
        training, labels = run.training, labels_of(model.config.to_dict())
        evaluations = evaluations_for(steps, training, len(selection.rows) if selection else 0)
        interval = math.ceil(steps / evaluations)  # the last step is evaluated too
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
            eval_strategy="steps" if selection else "no",
            eval_steps=interval if selection else None,
            load_best_model_at_end=bool(selection),
            metric_for_best_model="score" if selection else None,
        )
        # One process trains on one GPU: torchrun starts more. DataParallel would multiply the batch by their number.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        self.objective: Objective = objective
        self.folder, self.task, self.balance = run.folder, run.task, run.balance
        evaluate = partial(_score, task=run.task, labels=labels, selection=selection) if selection else None
        # Before the optimiser, which trains their modules too.
        self.losses = attach_losses(objective.losses, objective.teacher, model)
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=rows,
            eval_dataset=selection.rows if selection else None,
            data_collator=collate,
            compute_metrics=evaluate,
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
        has_modifier = objective.modifier is not None
        self.student = ActivationRecorder(model, needs_of_student(objective.losses), whole=has_modifier)
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        refuse((not learning, "frozen names all parts of the student, so that nothing learns; leave a part out"))
        self.anchor = min(learning, key=lambda parameter: parameter.numel())
        self.model_accepts_loss_kwargs = self.has_ended = False

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
        batch = batch_of(inputs, task=self.task, balance=self.balance)
        batch = self.objective.masker(batch) if self.objective.masker else batch
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
            rotate_checkpoints(
                str(self.folder), save_total_limit=2, best_model_checkpoint=self.state.best_model_checkpoint
            )

    def _load_best_model(self) -> None:
        """Load it from the folder as it is called now: the state has its name of the start that wrote it."""
        self.state.best_model_checkpoint = str(self.folder / f"checkpoint-{self.state.best_global_step}")
        super()._load_best_model()

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        batch = batch_of(self._prepare_inputs(inputs))
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
        loader: Any = DataLoader(
            rows,
            batch_sampler=ProcessBatches(order, self.args.train_batch_size, drop_last=False),
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )
        loader = prepare_data_loader(  # into one part, as it is already
            loader, self.args.device, num_processes=1, process_index=0, put_on_device=True, non_blocking=True
        )
        return cast(DataLoader[Any], loader)


def last_whole_checkpoint(directory: Path) -> Path | None:
    """Return the newest checkpoint from which a training can go on; None without one.

    The best one so far must be there too: the training ends with the better of it and what follows. Those that are cut
    short or damaged are deleted, by :func:`is_whole`.
    """
    states = {path: _state(path) for path in directory.glob("checkpoint-*") if is_whole(path)}
    steps = {state.global_step for state in states.values()}
    usable = [path for path, state in states.items() if state.best_global_step in {None, *steps}]
    return max(usable, key=lambda path: int(states[path].global_step), default=None)


def _state(checkpoint: Path) -> Any:
    return TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))


def train(
    model: PreTrainedModel,
    rows: Dataset,
    objective: Objective,
    run: TrainingRun,
    *,
    steps: int,
    collate: Collator,
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
    state, best = trainer.state, trainer.state.best_metric
    finite = all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    refuse(
        (
            not finite or selection and (best is None or not math.isfinite(best)),
            f"training diverged: the validation score is {best}; lower training.learning_rate in the recipe",
        )
    )
    if selection and best is not None:
        gold = run.task.column(selection.rows["labels"][:])  # type: ignore[call-overload]
        least = run.task.constant_score(gold, labels_of(model.config.to_dict()), selection.metric)
        if best <= least:
            rare = next(metric.name for metric in run.task.metrics if metric.name.endswith("macro-f1"))
            logger.warning(
                "%s: the best validation score, %.4f, is no better than that of one answer for all rows, %.4f; lower "
                "training.learning_rate in the recipe, or train for more steps%s",
                run.title,
                best,
                least,
                "" if selection.metric == rare else f"; where some classes are rare, select by --metric {rare}",
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


class Monitor(TrainerCallback):
    """Sums loss terms, rows and seconds, writes them as lines, and shows how far the training is.

    The lines are the Trainer's own history, which its checkpoints hold, and are written anew with each: a resumed
    training replaces what was written of steps that are done again.

    Args:
        path: file to write.
        losses: of the training, in their order.
        title: of the training, for :meth:`on_save`.
    """

    def __init__(self, path: Path, losses: Sequence[Choice], title: str = "") -> None:
        self.path, self.title = path, title
        self.advance: Callable[[int], None] = lambda steps: None
        self.choose_threads: Callable[[], None] = lambda: None
        self.names = [loss.name for loss in losses]
        if len({*self.names}) < len(self.names):
            self.names = [f"{number}-{name}" for number, name in enumerate(self.names, 1)]
        self.terms: Tensor | None = None
        self.steps, self.rows, self.seconds = 0, 0, 0.0

    def add(self, terms: Sequence[Tensor], rows: int) -> None:
        """Add a step's weighted terms, which stay on their device until a line is due, and its rows in this process."""
        self.rows += rows
        values = torch.stack([term.detach().float() for term in terms])
        self.terms = values if self.terms is None else self.terms + values

    def on_step_begin(self, *given: Any, **named: Any) -> None:
        self.begin = time.monotonic()

    def on_step_end(self, *given: Any, **named: Any) -> None:
        self.steps += 1
        self.seconds += time.monotonic() - self.begin
        self.advance(1)
        self.choose_threads()

    def since_last(self) -> dict[str, Any]:
        """Return the mean terms, and the rows a second of steps alone, without evaluations and checkpoints."""
        if self.terms is None:
            return {}
        rows = processes.total(self.terms.new_tensor(self.rows, dtype=torch.float64)).item()
        means = (processes.total(self.terms) / processes.active() / max(self.steps, 1)).tolist()
        terms = {f"{_TERM}{name}": mean for name, mean in zip(self.names, means, strict=True)}
        found = {"rows_per_second": rows / max(self.seconds, 1e-9), **terms}
        self.terms, self.steps, self.rows, self.seconds = None, 0, 0, 0.0
        return found

    def on_log(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.is_world_process_zero:
            write_json_lines(self.path, filter(None, map(_line, state.log_history)))

    def on_save(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Say how far it is, after the evaluation: ``step 400 of 2,000: validation 0.8812 (best)``."""
        known: dict[str, float] = {key: value for entry in state.log_history for key, value in entry.items()}
        said = f": loss {known['loss']:.4f}" if "loss" in known else ""
        if "eval_score" in known:
            best = " (best)" if state.best_global_step == state.global_step else ""
            said = f": validation {known['eval_score']:.4f}{best}"
        if state.is_world_process_zero:
            logger.info("%s: step %s of %s%s", self.title, f"{state.global_step:,}", f"{state.max_steps:,}", said)


def _line(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a line says of an entry of the Trainer's history; None for its summary at the end."""
    said = {_KEPT.get(key, key): value for key, value in entry.items() if key in _KEPT or _TERM in key}
    # JSON has no NaN.
    rounded = {key: float(f"{value:.6g}") if math.isfinite(value) else None for key, value in said.items()}
    return {"step": entry["step"], **rounded} if said else None


def join_logs(folders: Mapping[str, Path], output: Path) -> None:
    """Join the lines of a training's parts, each with the name of its part where there are several.

    A damaged log is said and left out: it is no reason to train again.
    """
    lines: list[dict[str, Any]] = []
    for name, folder in folders.items():
        part = {"phase": name} if len(folders) > 1 else {}
        try:
            lines += [{**part, **line} for line in read_training(folder).lines]
        except CompressError as error:
            logger.warning("%s", error)
    write_json_lines(output / METRICS_NAME, lines)


@contextmanager
def reporting(trainer: Trainer, tracker: str | None, begun: int) -> Iterator[None]:
    """Report what the block trains as a run named after the output and the phase; None reports nothing.

    Args:
        begun: steps that a resumed training has behind it; TensorBoard shows what is done again once.
    """
    if tracker is None:
        yield
        return
    trainer.args.run_name = work_title(Path(trainer.args.output_dir or ""))
    trainer.args.project = "compress"  # of trackio alone; others have a variable for it
    callback: Any = INTEGRATION_TO_CALLBACK[tracker]()
    if tracker == "tensorboard" and trainer.is_world_process_zero():
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(os.environ.get("TENSORBOARD_LOGGING_DIR", TENSORBOARD_FOLDER)).expanduser()
        callback.tb_writer = SummaryWriter(str(folder / trainer.args.run_name), purge_step=begun + 1)
    if tracker == "mlflow":  # its file store cannot keep loss as a file and as the folder of its terms
        log = callback.on_log
        callback.on_log = lambda *given, logs, **named: log(
            *given, logs={key.replace("/", "_"): value for key, value in logs.items()}, **named
        )
    ours = tracker != "wandb" or callback._wandb.run is None
    trainer.add_callback(callback)
    try:
        yield
    finally:
        # Also after an error, else the next training of a study would report to this one's run.
        if tracker != "wandb":
            callback.on_train_end(trainer.args, trainer.state, trainer.control)
        elif ours:  # the integration leaves its run open
            callback._wandb.finish()
