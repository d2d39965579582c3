"""Train a student phase by phase, with the losses, text, teacher and frozen parameters of each; resumable.

Training steps are divided among phases and, where a phase trains layer by layer, among the student's layers.
"""

import copy
import itertools
import math
import shutil
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.nn import Parameter
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress import plugins
from compress.data.sources import is_spread
from compress.data.tokenization import encode, maximum_length
from compress.data.truncation import count_stream
from compress.data.windows import windows_of
from compress.errors import CompressError, first_line, interruptions, refuse, system_fault
from compress.host import few_kernels
from compress.inference import processes
from compress.inference.compute import autocast, fast_float32
from compress.models.batch import Balance
from compress.models.components import embeddings_projection
from compress.models.integer_rounding import forget_quantization
from compress.models.manifest import cached_json, is_whole, keep, kept, seal
from compress.models.modeling.families import layers_of
from compress.models.output_dir import PREPARED, WORK_FOLDER
from compress.progress import logger, silent
from compress.recipes import Phase, Training, replace_training
from compress.surgery.unit_masks import masked_positions
from compress.tasks import Task, labels_of
from compress.training.teacher_signal import (
    FIRST_STATES_LIMIT_BYTES,
    LIVE,
    ActivationRecorder,
    LiveTeacher,
    TeacherSignal,
    cached_first_states,
    cached_teacher,
    write_first_states,
)
from compress.training.trainer import Objective, Outcome, TrainingRun, join_logs, train
from compress.training.training_data import (
    Collator,
    Masker,
    Mixing,
    Selection,
    TrainingData,
    batch_of,
    collator,
    column,
    tokenized,
)

TRIED_ROWS = 4  # by which the precision is settled
DONE_NAME, WEIGHTS_NAME, FIRST_STATES_NAME = "outcome.json", "student.safetensors", "teacher-first.npy"
PRECISION_NAME = "precision.json"
# The order of rows follows from seed and epoch: step ranges with the seed of the first one would all read its first
# rows and mask the same tokens, and a recipe of many would see little of the text.
SEEDS_APART = 10_000
LENGTH_ROWS = 2000  # of the training rows, spread evenly, whose tokens are counted
LEAST_LENGTH, LENGTH_STEP = 128, 32
LENGTH_PERCENTILE, LENGTH_COST = 99, 4
MOST_WINDOWS = 16  # of a document that are trained on, spread over it: none is read a thousand times as often
MOST_STEPS = 2**31 - 1


@dataclass(frozen=True)
class StepRange:
    """Consecutive training steps with the same losses and the same frozen parameters.

    ``trained_layers`` are the layers, counted from 1, that losses read (None: all). The lowest ``frozen_layers`` layers
    are frozen, and the embeddings with the first of them.
    """

    name: str
    phase: Phase
    steps: int
    trained_layers: tuple[int, ...] | None = None
    frozen_layers: int = 0


def steps_for(rows: int, training: Training) -> int:
    """Return the number of optimiser steps for so many rows.

    ``epochs`` passes, or for few rows ``min_steps`` steps in at most ``max_epochs`` passes; at most ``max_steps``.
    """
    few = min(training.min_steps, _steps(training.max_epochs, rows, training))
    steps = max(1, _steps(training.epochs, rows, training), few)
    steps = min(steps, training.max_steps or steps)
    refuse(
        (
            steps > MOST_STEPS,
            f"epochs = {training.epochs:g} with {rows:,} rows are {steps:.3g} steps, and at most {MOST_STEPS:,} can be "
            "counted: set fewer, or max_steps",
        )
    )
    return steps


def _steps(epochs: float, rows: int, training: Training) -> int:
    return math.ceil(epochs * max(1.0, rows / training.batch_size))  # fewer rows than a batch are a step all the same


def length_for(tokens: Sequence[int], limit: int) -> int:
    """Return the number of tokens that texts are cut to in training, by the tokens of some rows.

    The 99th percentile, rounded up to a multiple of 32: what is cut of one row in a hundred is lost, and padding to the
    longest row is not paid for. It is 128 at least, which costs nothing where rows are shorter, and at most what the
    model reads. The rows have at most four times the tokens that they would have if they were cut to 128: a step on
    documents may take four times as long.

    Args:
        tokens: of each row, special tokens included.
        limit: how many the model reads.
    """
    counts = np.asarray(tokens)
    affordable = LENGTH_COST * np.minimum(counts, LEAST_LENGTH).sum()
    length = max(LEAST_LENGTH, LENGTH_STEP * math.ceil(np.percentile(counts, LENGTH_PERCENTILE) / LENGTH_STEP))
    while length > LEAST_LENGTH and np.minimum(counts, length).sum() > affordable:
        length -= LENGTH_STEP
    return int(min(length, limit))


def described(steps: int, rows: int, training: Training) -> str:
    passes = steps / max(1, math.ceil(rows / training.batch_size))  # the last batch of a pass has what rows are left
    said = (
        f"{steps:,} step{'s' * (steps != 1)} of {min(training.batch_size, max(rows, 1))} rows, "
        f"{passes:.3g} pass{'es' * (f'{passes:.3g}' != '1')} over {rows:,}"
    )
    if steps == training.max_steps:
        return f"{said} (max_steps = {training.max_steps})"
    if steps == _steps(training.epochs, rows, training):
        return f"{said} (epochs = {training.epochs:g})"
    capped = "" if steps == training.min_steps else f", max_epochs = {training.max_epochs:g}"
    return f"{said} (few rows: min_steps = {training.min_steps}{capped})"


def step_ranges(phases: Sequence[Phase], layers: int, steps: int) -> list[StepRange]:
    """Divide the steps among phases by their shares, and a phase with ``by_layer`` among the student's layers.

    Every range gets at least one step, so that very few steps may become a few more.

    Raises:
        CompressError: a phase trains by layer and the student has none.
    """
    planned = []
    for number, (phase, part) in enumerate(zip(phases, divide(steps, [p.share for p in phases]), strict=True), 1):
        name = f"phase-{number}" + (f"-{phase.name}" if phase.name else "")
        if not phase.by_layer:
            planned.append(StepRange(name, phase, part))
            continue
        refuse((not layers, f"{name} trains layer after layer, and this student has no layers that compress knows"))
        for layer, steps_here in enumerate(divide(part, [1.0] * layers), 1):
            first, frozen = (layer, layer - 1) if phase.by_layer == "progressive" else (1, 0)
            planned.append(
                StepRange(f"{name}-layer-{layer}", phase, steps_here, tuple(range(first, layer + 1)), frozen)
            )
    return planned


def divide(steps: int, shares: Sequence[float]) -> list[int]:
    """Return whole parts of at least 1 that add up to ``steps`` (or to one each) in proportion to the shares."""
    ends = [round(steps * sum(shares[: i + 1]) / sum(shares)) for i in range(len(shares))]
    return [max(1, end - start) for start, end in zip([0, *ends], ends, strict=False)]


def fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    data: TrainingData,
    run: TrainingRun,
    *,
    phases: Sequence[Phase],
    teachers: Mapping[str, PreTrainedModel | None],
    mixed_ids: Mixing | None = None,
    keep_loss_modules: bool = False,
) -> list[Outcome]:
    """Train a model in place and return the outcome of each step range; the last one selects the best checkpoint.

    Without a selection the last weights stay. Rows are tokenised into the working directory, which gets
    ``metrics.jsonl`` at the end. A run that was stopped resumes in its unfinished step range.

    Args:
        teachers: by the names in :class:`compress.recipes.Phase`: ``task`` is the fine-tuned teacher, ``encoder`` the
            pretrained encoder, which is the teacher in general distillation.
        mixed_ids: writes texts in two vocabularies, for losses that read such.
        keep_loss_modules: the modules of the last losses stay on the model, for
            :func:`compress.training.trainer.detach_loss_modules`.
    """
    work, selection = run.folder / WORK_FOLDER, data.selection
    training, labels = run.training.for_classes(model.config.num_labels or 0), labels_of(model.config.to_dict())
    run = replace(run, balance=balance_of(training, run.task, data.gold.labels, labels))
    balance = {name: dict(zip(labels, one, strict=True)) for name, one in asdict(run.balance).items() if one}
    check_batch_sizes(training, phases)
    rows_planned = data.planned_rows or sum(1 for _ in data.rows("all"))
    limit = maximum_length(tokenizer, model.config.to_dict())
    windows = windows_of(model.config.to_dict(), run.folder)
    length = windows.size if windows else min(training.max_length, limit)
    length = length or chosen_length(tokenizer, data, rows_planned, limit, run)
    if training.max_length > limit and not windows:
        logger.info(
            "max_length = %d is more than the model reads: texts are cut to %d tokens", training.max_length, limit
        )
    tokenizing: dict[str, Any] = {"max_length": length, "task": run.task, "windows": windows}
    refuse((windows and mixed_ids, "this student reads texts in two vocabularies, and not by windows; leave them out"))
    prepared = work / PREPARED
    prepared.mkdir(parents=True, exist_ok=True)
    if selection:
        held = tokenized(prepared / "selection.arrow", selection.rows, tokenizer, **tokenizing)
        selection = selection.tokenized(held, run.task, windows)
    rows = {
        text: tokenized(
            prepared / f"training-{text}.arrow",
            data.rows(text),
            tokenizer,
            mixed_ids=mixed_ids,
            most_windows=MOST_WINDOWS,
            **tokenizing,
        )
        for text in sorted({phase.text for phase in phases})
    }
    read = max(rows.values(), key=len)
    if windows:  # a pass reads all of them
        rows_planned = round(rows_planned * len(read) / (1 + int(column(read, "document")[-1])))
    steps = steps_for(rows_planned, training)
    as_student = "as the student's, " if data.planned_rows and data.pool is None else ""
    logger.info("%s: %s%s", run.title, as_student, described(steps, rows_planned, training))
    planned = step_ranges(phases, getattr(model.config, "num_hidden_layers", 0), steps)
    cut = int(column(read, "truncated").sum())
    count_stream(length, len(read), cut)
    live = dict.fromkeys(teachers.get(part.phase.teacher) for part in planned if part.phase.needs & LIVE)
    few = collator(tokenizer.pad_token_id or 0)([*itertools.islice(rows[min(rows)], TRIED_ROWS)])
    run = settle_precision(run, model, [*filter(None, live)], few)
    if processes.world_size() > 1:
        for network in filter(None, (model, *teachers.values())):
            prepare_to_send(network)
    outcomes = processes.together(
        _fit_step_ranges,
        run.compute.device,
        model,
        tokenizer,
        rows,
        selection,
        run,
        planned,
        teachers,
        keep_loss_modules,
    )
    join_logs({part.name: work / part.name for part in planned}, run.folder)
    return [replace(outcome, max_length=length, truncated_rows=cut, balance=balance) for outcome in outcomes]


def balance_of(training: Training, task: Task, gold: Sequence[Any], labels: Sequence[str]) -> Balance:
    """Return what a training asks for of gold labels, as :meth:`compress.tasks.Task.gold` gives them; nothing without.

    Raises:
        CompressError: the task has no classes, or a name is none of them.
    """
    asked, tau = training.class_weights, training.logit_adjustment
    balanced = "class_weights and logit_adjustment are of classes"
    refuse(((asked or tau) and not task.has_classes, f"{balanced}, and a {task} has none; leave them out"))
    column = task.column(gold) if len(gold) else np.zeros(0)
    weights = task.class_weights(asked, column, labels) if asked and len(column) else np.zeros(0)
    shift = tau * task.prior(column, len(labels)) if tau and len(column) else np.zeros(0)
    return Balance(*(tuple(np.round(one, 6).tolist()) for one in (weights, shift)))


def chosen_length(
    tokenizer: PreTrainedTokenizerFast, data: TrainingData, rows: int, limit: int, run: TrainingRun
) -> int:
    """Return the length that :func:`length_for` gives for rows spread over all of them.

    Args:
        rows: how many there are.
        limit: tokens that the model reads.
    """
    texts = (row.example for row in data.rows("all")) if data.texts is None else data.texts
    some = [text for number, text in enumerate(texts) if rows <= LENGTH_ROWS or is_spread(number, LENGTH_ROWS, rows)]
    encoded = encode(tokenizer, some, limit, by_word=run.task.by_word, counted=False)
    tokens = [len(ids) for ids in encoded["input_ids"]]
    length = length_for(tokens, limit)
    longer = sum(count > length for count in tokens)
    logger.info("%s: texts cut to %d tokens (%d of %d rows are longer)", run.title, length, longer, len(tokens))
    return length


def with_length(tokenizer: PreTrainedTokenizerFast, outcome: Outcome) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a model that reads no more of a text, in any client, than where training cut texts."""
    if not outcome.truncated_rows:
        return tokenizer
    shorter = copy.deepcopy(tokenizer)
    shorter.model_max_length = outcome.max_length
    return shorter


def _fit_step_ranges(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    rows: Mapping[str, Dataset],
    selection: Selection | None,
    run: TrainingRun,
    planned: Sequence[StepRange],
    teachers: Mapping[str, PreTrainedModel | None],
    keep_loss_modules: bool,
) -> list[Outcome]:
    """Train through the step ranges, in all processes; ``rows`` are tokenised, by the text of a phase."""
    work, is_main = run.folder / WORK_FOLDER, not processes.rank()
    if not is_main:
        run = replace(run, progress=silent, compute=replace(run.compute, report_to=None))
        for network in filter(None, (model, *teachers.values())):
            prepare_received(network)
    collate = collator(tokenizer.pad_token_id or 0)
    outcomes: list[Outcome] = []
    for number, part in enumerate(planned):
        phase, folder, last = part.phase, work / part.name, number == len(planned) - 1
        if known := load_finished(folder, model):
            outcomes.append(known)
            continue
        forget_quantization(model.config)  # of a teacher, or of an earlier phase: the weights change again
        part_run = replace(
            run,
            folder=folder,
            training=replace_training(run.training, phase.training, source=part.name),
            compute=replace(run.compute, seed=run.compute.seed + SEEDS_APART * number),
            title=run.title if len(planned) == 1 else f"{run.title}, {part.name}",
        )
        teacher = teachers.get(phase.teacher)
        with prepared(model, teacher, part) as modifier:
            refuse(
                (
                    last and selection and hasattr(modifier, "masks"),
                    f"{part.name} masks units until it ends, so that none of its weights can be selected; let a phase "
                    "without it follow",
                )
            )
            objective = Objective(
                phase.losses,
                phase_signal(part, teacher, rows[phase.text], collate, part_run, work),
                teacher,
                Masker(tokenizer, phase.masking) if phase.masking else None,
                modifier,
                part.trained_layers,
                keep_loss_modules and last,
            )
            outcome = train(
                model,
                rows[phase.text],
                objective,
                part_run,
                steps=part.steps,
                collate=collate,
                selection=selection if last else None,
            )
        if hasattr(modifier, "masks"):  # detached, it masks no more units
            masked = {which: list(masked_positions(masks).values()) for which, masks in modifier.masks.items()}
            outcome = replace(outcome, masked=masked)
        if not last and is_main:
            save_finished(folder, model, outcome)
            logger.info("%s: %d steps in %.0f s", part.name, outcome.steps, outcome.seconds)
        outcomes.append(outcome)
    return outcomes


def settle_precision(
    run: TrainingRun, student: PreTrainedModel, teachers: Sequence[PreTrainedModel], tensors: Mapping[str, Tensor]
) -> TrainingRun:
    """Return a run in the precision in which it was begun, for a trial of speed may say another one at another time.

    At the first start, networks that fail in bfloat16 on a few rows are trained in float32, and a warning says so. Some
    families mask with numbers that it does not hold (DeBERTa), or mix it with float32 (XMOD).

    Args:
        teachers: those that run in every step.
        tensors: a few rows, as :func:`compress.training.training_data.collator` joins them.

    Raises:
        CompressError: bfloat16 was asked for and fails, or the code of a network fails in float32 too.
    """

    def fault_in(precision: str) -> str:
        """Say which network cannot compute a step; in float32 only where the code of transformers raises an error."""
        for network in (student, *teachers):
            try:
                _step(network, tensors, run.compute.device, precision, learns=network is student)
            except CompressError:
                raise
            except Exception as error:
                if interruptions or system_fault(error) or precision == "float32" and not _is_theirs(error):
                    raise
                return f"{type(network).__name__} fails in {precision} ({type(error).__name__}: {first_line(error)})"
        return ""

    def choose() -> dict[str, str]:
        wanted, reason, asked = run.precision, "", run.compute.precision != "auto"
        fault = fault_in(wanted)
        if fault and wanted != "float32":
            refuse((asked, f"--precision {wanted}: {fault}; give float32, or leave the option out"))
            wanted, reason, fault = "float32", fault, fault_in("float32")
        refuse((fault, f"{fault}; correct its config.json, or use a model of another type"))
        if reason:
            logger.warning("computing in float32: %s", reason)
        return {"precision": wanted, "reason": reason}

    settled = cached_json(run.folder / WORK_FOLDER / PREPARED / PRECISION_NAME, choose)
    reason = settled["reason"]
    return replace(
        run,
        training=replace(run.training, precision=settled["precision"]),
        compute=replace(run.compute, precision="float32") if reason else run.compute,
        precision_reason=reason,
    )


def _step(
    network: PreTrainedModel, tensors: Mapping[str, Tensor], device: str, precision: str, *, learns: bool
) -> None:
    """Compute what a step of training computes; weights and random numbers stay as they are."""
    network.to(device)  # type: ignore[arg-type]
    network.train(learns)
    rows = batch_of({name: tensor.to(device) for name, tensor in tensors.items()})
    with (
        few_kernels(),
        fast_float32(),
        torch.random.fork_rng(devices=[]),
        torch.set_grad_enabled(learns),
        autocast(device, precision),
    ):
        total = ActivationRecorder(network, frozenset())(rows)[0].float().sum()
    if total.requires_grad:
        total.backward()
    network.zero_grad()
    network.train(False)


def _is_theirs(error: Exception) -> bool:
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = any(name.startswith("compress.models.modeling.") for name in modules)
    return not ours and any(name.startswith("transformers.models.") for name in modules)


def prepare_to_send(model: PreTrainedModel) -> None:
    """Move a model to the CPU and remove transformers' hooks: they cannot be sent, and come back when it is used."""
    model.cpu()  # type: ignore[no-untyped-call, unused-ignore]
    for module in model.modules():
        vars(module).pop("_output_capturing_hooks_installed", None)
        for key, hook in [*module._forward_hooks.items()]:
            if getattr(hook, "__module__", "") == "transformers.utils.output_capturing":
                del module._forward_hooks[key]


def prepare_received(model: PreTrainedModel) -> None:
    """Let transformers know where the classes of a model have hidden states: it learns it when they are built."""
    with torch.device("meta"):
        for module in model.modules():
            if isinstance(module, PreTrainedModel) and module._can_record_outputs:
                type(module)(module.config)


def check_batch_sizes(training: Training, phases: Sequence[Phase] = ()) -> None:
    """Refuse batches, of a training or of its phases, that do not divide among the processes that were started."""
    started = processes.world_size()
    for name, changes in [(phase.name, phase.training) for phase in phases] or [("training", {})]:
        if (size := replace_training(training, changes, source=name).batch_size) % started:
            fitting = ", ".join(str(number) for number in range(1, size + 1) if not size % number)
            raise CompressError(
                f"a batch of {size} rows does not divide among {started} processes; start as many as one of {fitting} "
                "(torchrun --nproc-per-node), or set training.batch_size in the recipe"
            )


def phase_signal(
    part: StepRange,
    teacher: PreTrainedModel | None,
    rows: Dataset,
    collate: Collator,
    run: TrainingRun,
    work: Path,
) -> TeacherSignal:
    """Return cached logits, cached first states or the teacher itself: the cheapest that the phase's losses can use.

    First states are cached where rows are read more than once: otherwise the cache takes as many teacher passes. Where
    text is masked anew in every step, there are no cached logits of it.
    """
    phase, device, live = part.phase, run.compute.device, part.phase.needs & LIVE
    if teacher is not None:
        teacher.to(device)  # type: ignore[arg-type]
    if not live and not (phase.masking and "logits" in phase.needs):
        return cached_teacher
    assert teacher is not None
    repeated = part.steps * run.training.batch_size >= 2 * len(rows)
    can_cache = live == {"first"} and not phase.masking and "teacher_logits" in rows.column_names
    cache_bytes = 2 * len(rows) * (teacher.config.num_hidden_layers + 1) * teacher.config.hidden_size
    if can_cache and repeated and cache_bytes <= FIRST_STATES_LIMIT_BYTES:
        path = work / f"{phase.teacher}-{phase.text}-{FIRST_STATES_NAME}"
        with processes.main_first(), run.progress("Teacher's first states", len(rows)) as advance:
            write_first_states(path, rows, teacher, collate, device=device, precision=run.precision, advance=advance)
        return partial(cached_first_states, np.load(path, mmap_mode="r"))
    return LiveTeacher(teacher, live, run.precision)


def parameters_by_part(model: PreTrainedModel) -> dict[str, set[Parameter]]:
    """Return a student's parameters by part: ``embeddings``, ``layers``, and ``head`` (with the pooler)."""
    base: Any = model.base_model

    def of(*modules: nn.Module | None) -> set[Parameter]:
        return {parameter for module in modules if module is not None for parameter in module.parameters()}

    embeddings = of(getattr(base, "embeddings", None) or model.get_input_embeddings(), embeddings_projection(model))
    layers = of(base) - of(getattr(base, "pooler", None)) - embeddings
    return {"embeddings": embeddings, "layers": layers, "head": of(model) - layers - embeddings}


@contextmanager
def prepared(model: PreTrainedModel, teacher: PreTrainedModel | None, part: StepRange) -> Iterator[Any]:
    """Freeze what a step range does not train, and attach its modifier, if any, to the student, within the block.

    After an error the modifier stays attached: the student is discarded then, and detaching may take minutes.

    Raises:
        CompressError: the student has not what is to be frozen, or the modifier does not fit.
    """
    names, lowest_layers, modifier = part.phase.frozen, part.frozen_layers, part.phase.modifier
    by_part = parameters_by_part(model) if names or lowest_layers else {}
    layers = list(layers_of(model)) if lowest_layers else []
    lacking = [name for name in names if not by_part[name]]
    refuse(
        (
            lacking,
            f"frozen names {', '.join(map(repr, lacking))}, which this student does not have apart; leave it out",
        ),
        (
            layers and lowest_layers >= len(layers),
            "by_layer = 'progressive' freezes the layers below, and this student's layers share their weights; use "
            "by_layer = 'stacked'",
        ),
    )
    below = {*names, "embeddings"} if lowest_layers else names
    chosen = [parameter for name in below for parameter in by_part[name]]
    chosen += [parameter for layer in layers[:lowest_layers] for parameter in layer.parameters()]
    learning = [parameter for parameter in chosen if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        attached: Any = None
        if modifier:
            attached = plugins.find("modifiers", modifier.name).function(model, teacher, **modifier.options)
        yield attached
        if modifier:
            attached.detach()
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def save_finished(folder: Path, model: PreTrainedModel, outcome: Outcome) -> None:
    """Save the weights and outcome of a finished step range, so that a later start does not repeat it."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, str(folder / WEIGHTS_NAME))
    seal(folder / WEIGHTS_NAME)
    keep(folder / DONE_NAME, asdict(outcome))
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)


def load_finished(folder: Path, model: PreTrainedModel) -> Outcome | None:
    """Load the weights of a finished step range and return its outcome; None when it is not finished."""
    if kept(folder / DONE_NAME) is None or not is_whole(folder / WEIGHTS_NAME):
        return None
    load_model(model, str(folder / WEIGHTS_NAME))
    return Outcome(**kept(folder / DONE_NAME))
