"""Train a student phase by phase, with the losses, text, teacher and frozen parameters of each; resumable.

Training steps are divided among phases and, where a phase trains layer by layer, among the student's layers.
"""

import copy
import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_model, save_model
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress import plugins
from compress.data.sources import is_spread
from compress.data.tokenization import encode, maximum_length
from compress.data.truncation import count_stream
from compress.errors import CompressError, first_line, interruptions, refuse, system_fault
from compress.host import few_kernels
from compress.inference import processes
from compress.inference.compute import autocast, fast_float32
from compress.models.components import embeddings_projection
from compress.models.integer_rounding import forget_quantization
from compress.models.manifest import cached_json, is_whole, keep, kept, seal
from compress.models.modeling.families import layers_of
from compress.models.output_dir import PREPARED, WORK_FOLDER
from compress.progress import logger, silent
from compress.recipes import Phase, Training, replace_training
from compress.surgery.unit_masks import masked_positions
from compress.training.batches import Masker, batch_of, collator, column, shortest_first
from compress.training.learned_vocabulary import Mixer
from compress.training.monitoring import join_logs
from compress.training.step_plan import LENGTH_ROWS, StepRange, described, length_for, step_ranges, steps_for
from compress.training.teacher_signal import (
    FIRST_STATES_LIMIT_BYTES,
    LIVE,
    ActivationRecorder,
    CachedFirstStates,
    CachedTeacher,
    LiveTeacher,
    TeacherSignal,
    write_first_states,
)
from compress.training.trainer import Objective, Outcome, TrainingRun, train
from compress.training.training_data import Selection, TrainingData, tokenized

TRIED_ROWS = 4  # by which the precision is settled
DONE_NAME, WEIGHTS_NAME, FIRST_STATES_NAME = "outcome.json", "student.safetensors", "teacher-first.npy"
PRECISION_NAME = "precision.json"
# The order of rows follows from seed and epoch: step ranges with the seed of the first one would all read its first
# rows and mask the same tokens, and a recipe of many would see little of the text.
SEEDS_APART = 10_000


def fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    data: TrainingData,
    run: TrainingRun,
    *,
    phases: Sequence[Phase],
    teachers: Mapping[str, PreTrainedModel | None],
    mixer: Mixer | None = None,
    keep_loss_modules: bool = False,
) -> list[Outcome]:
    """Train a model in place and return the outcome of each step range; the last one selects the best checkpoint.

    Without a selection the last weights stay. Rows are tokenised into the working directory, which gets
    ``metrics.jsonl`` at the end. A run that was stopped resumes in its unfinished step range.

    Args:
        teachers: by the names in :class:`compress.recipes.Phase`: ``task`` is the fine-tuned teacher, ``encoder`` the
            pretrained encoder, which is the teacher in general distillation.
        mixer: writes texts in two vocabularies, for losses that read such.
        keep_loss_modules: the modules of the last losses stay on the model, for
            :func:`compress.training.loss_modules.detach_loss_modules`.
    """
    work, selection = run.folder / WORK_FOLDER, data.selection
    training = run.training.for_classes(model.config.num_labels or 0)
    check_batch_sizes(training, phases)
    rows_planned = data.planned_rows or sum(1 for _ in data.rows("all"))
    limit = maximum_length(tokenizer, model.config.to_dict())
    length = min(training.max_length, limit) or chosen_length(tokenizer, data, rows_planned, limit, run)
    if training.max_length > limit:
        logger.info(
            "max_length = %d is more than the model reads: texts are cut to %d tokens", training.max_length, limit
        )
    tokenizing: dict[str, Any] = {"max_length": length, "task": run.task}
    prepared = work / PREPARED
    prepared.mkdir(parents=True, exist_ok=True)
    if selection:
        held = tokenized(prepared / "selection.arrow", selection.rows, tokenizer, **tokenizing)
        selection = replace(selection, rows=shortest_first(held))
    steps = steps_for(rows_planned, training)
    as_student = "as the student's, " if data.planned_rows and data.pool is None else ""
    logger.info("%s: %s%s", run.title, as_student, described(steps, rows_planned, training))
    planned = step_ranges(phases, getattr(model.config, "num_hidden_layers", 0), steps)
    texts = {part.phase.text for part in planned if not _is_finished(work / part.name)} or {planned[-1].phase.text}
    rows = {
        text: tokenized(prepared / f"training-{text}.arrow", data.rows(text), tokenizer, mixer=mixer, **tokenizing)
        for text in sorted(texts)
    }
    read = max(rows.values(), key=len)
    cut = int(column(read, "truncated").sum())
    count_stream(length, len(read), cut)
    live = dict.fromkeys(teachers.get(part.phase.teacher) for part in planned if part.phase.needs & LIVE)
    first = [row for row, _ in zip(rows[min(texts)], range(TRIED_ROWS), strict=False)]
    few = collator(tokenizer.pad_token_id or 0)(first)
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
    return [replace(outcome, max_length=length, truncated_rows=cut) for outcome in outcomes]


def chosen_length(
    tokenizer: PreTrainedTokenizerFast, data: TrainingData, rows: int, limit: int, run: TrainingRun
) -> int:
    """Return the length that :func:`compress.training.step_plan.length_for` gives for rows spread over all of them.

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
        with prepared(model, teacher, part, selects=last and selection is not None) as modifier:
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
        tensors: a few rows, as :func:`compress.training.batches.collator` joins them.

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
        wanted = run.precision
        reason = "" if wanted == "float32" else fault_in(wanted)
        asked = run.compute.precision != "auto"
        refuse((reason and asked, f"--precision {wanted}: {reason}; give float32, or leave the option out"))
        if wanted != "float32" and not reason:
            return {"precision": wanted, "reason": ""}
        fault = fault_in("float32")
        refuse((fault, f"{fault}; correct its config.json, or use a model of another type"))
        if reason:
            logger.warning("computing in float32: %s", reason)
        return {"precision": "float32", "reason": reason}

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
    collate: Callable[..., dict[str, Tensor]],
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
        return CachedTeacher()
    if teacher is None:
        raise ValueError("a loss compares activations of two models, so the teacher is needed")
    repeated = part.steps * run.training.batch_size >= 2 * len(rows)
    can_cache = live == {"first"} and not phase.masking and "teacher_logits" in rows.column_names
    cache_bytes = 2 * len(rows) * (teacher.config.num_hidden_layers + 1) * teacher.config.hidden_size
    if can_cache and repeated and cache_bytes <= FIRST_STATES_LIMIT_BYTES:
        path = work / f"{phase.teacher}-{phase.text}-{FIRST_STATES_NAME}"
        with processes.main_first(), run.progress("Teacher's first states", len(rows)) as advance:
            write_first_states(path, rows, teacher, collate, device=device, precision=run.precision, advance=advance)
        return CachedFirstStates(path)
    return LiveTeacher(teacher, live, run.precision)


def parameters_by_part(model: PreTrainedModel) -> dict[str, list[Parameter]]:
    """Return a student's parameters by part: ``embeddings``, ``layers``, and ``head`` (with the pooler)."""
    base: Any = model.base_model
    part_of = {id(parameter): "layers" for parameter in base.parameters()}
    for module, part in (
        (getattr(base, "pooler", None), "head"),
        (getattr(base, "embeddings", None) or model.get_input_embeddings(), "embeddings"),
        (embeddings_projection(model), "embeddings"),
    ):
        if module is not None:
            part_of |= {id(parameter): part for parameter in module.parameters()}
    found: dict[str, list[Parameter]] = {"embeddings": [], "layers": [], "head": []}
    for parameter in model.parameters():
        found[part_of.get(id(parameter), "head")].append(parameter)
    return found


@contextmanager
def prepared(
    model: PreTrainedModel, teacher: PreTrainedModel | None, part: StepRange, *, selects: bool
) -> Iterator[Any]:
    """Freeze what a step range does not train, and attach its modifier, if any, to the student, within the block.

    After an error the modifier stays attached: the student is discarded then, and detaching may take minutes.

    Args:
        selects: the best weights of the step range are kept, not its last.

    Raises:
        CompressError: the student has not what is to be frozen, or the modifier does not fit.
    """
    modifier: Any = None
    with frozen(model, part.phase.frozen, part.frozen_layers):
        if chosen := part.phase.modifier:
            modifier = plugins.find("modifiers", chosen.name).function(model, teacher, **chosen.options)
        if selects and hasattr(modifier, "masks"):
            raise CompressError(
                f"{part.name} masks units until it ends, so that none of its weights can be selected; "
                "let a phase without it follow"
            )
        yield modifier
        if modifier is not None:
            modifier.detach()


@contextmanager
def frozen(model: PreTrainedModel, names: Sequence[str], lowest_layers: int = 0) -> Iterator[None]:
    """Freeze some parts, and the lowest layers with the embeddings, within the block.

    Raises:
        CompressError: a part that the student does not have.
    """
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
        yield
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


def _is_finished(folder: Path) -> bool:
    return kept(folder / DONE_NAME) is not None and is_whole(folder / WEIGHTS_NAME)


def load_finished(folder: Path, model: PreTrainedModel) -> Outcome | None:
    """Load the weights of a finished step range and return its outcome; None when it is not finished."""
    if not _is_finished(folder):
        return None
    load_model(model, str(folder / WEIGHTS_NAME))
    return Outcome(**kept(folder / DONE_NAME))
