"""Train a student phase after phase: what it reads, what is frozen, who teaches, and going on after a stop."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress import plugins
from compress.data.tokenization import maximum_length
from compress.errors import CompressError
from compress.inference.compute import resolve_precision
from compress.models.components import embeddings_projection
from compress.models.modeling.families import layers_of
from compress.models.output_dir import WORK_FOLDER, write_atomically
from compress.models.quantization_config import forget_quantization
from compress.recipes import Phase, Training, replace_training
from compress.training.modifier import MaskingModifier
from compress.training.schedule import SEEDS_APART, Stretch, stretches
from compress.training.teacher_signal import (
    CachedFirstStates,
    TeacherSignal,
    first_states_fit,
    signal_for,
    write_first_states,
)
from compress.training.token_masking import Masker
from compress.training.tokenized_dataset import collator, write_rows
from compress.training.trainer import Outcome, Target, Teaching, steps_for, train
from compress.training.training_data import Selection, TrainingData

if TYPE_CHECKING:
    from datasets import Dataset
    from torch.nn import Parameter
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from compress.training.learned_vocabulary import Mixer


logger = logging.getLogger("compress")

SELECTION_FILE = "selection.arrow"
DONE_NAME, WEIGHTS_NAME, FIRST_STATES_NAME = "outcome.json", "student.safetensors", "teacher-first.npy"


@dataclass(frozen=True)
class Teachers:
    """Who teaches: the fine-tuned model, and the encoder it was fine-tuned from where general distillation needs it."""

    task: PreTrainedModel | None = None
    encoder: PreTrainedModel | None = None

    def of(self, phase: Phase) -> PreTrainedModel | None:
        return self.encoder if phase.teacher == "encoder" else self.task


def fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    training_data: TrainingData,
    selection: Selection | None,
    *,
    phases: Sequence[Phase],
    teachers: Teachers,
    training: Training,
    task: str,
    working: Path,
    steps: int = 0,
    mixer: Mixer | None = None,
    keep_learned: bool = False,
    seed: int,
    device: str,
    threads: int,
    quiet: bool,
) -> list[Outcome]:
    """Train a model in place and return how each stretch went; in the last one the best weights are selected.

    Without a selection the last weights stay.

    Rows are tokenised into the working directory. A run that was stopped goes on in the stretch that it was in.

    Args:
        steps: for all phases together; 0 follows from rows and epochs.
        mixer: writes texts in two vocabularies, for losses that read such.
        keep_learned: what the losses of the last stretch trained beside the model stays on it, for
            :func:`compress.training.trainer.take_learned`.
    """
    work = working / WORK_FOLDER
    length = min(training.max_length, maximum_length(tokenizer, model.config.to_dict()))
    target = None
    if selection:
        selecting = write_rows(work / SELECTION_FILE, iter(selection.rows), tokenizer, max_length=length, task=task)
        target = Target(selecting, selection.metric, selection.split, task)
    if not steps:
        steps = steps_for(sum(1 for _ in training_data.rows("all")), training)
    planned = stretches(phases, getattr(model.config, "num_hidden_layers", 0), steps)
    outcomes: list[Outcome] = []
    for number, stretch in enumerate(planned):
        last = number == len(planned) - 1
        if known := recall(work / stretch.name, model):
            outcomes.append(known)
            continue
        forget_quantization(model.config)  # of a teacher, or of a phase after which the weights go on changing
        rows = write_rows(
            work / f"teaching-{stretch.phase.text}.arrow",
            training_data.rows(stretch.phase.text),
            tokenizer,
            max_length=length,
            task=task,
            mixer=mixer,
        )
        settings = replace_training(training, stretch.phase.training, source=stretch.name)
        room = SignalFactory(model, tokenizer, rows, collator(tokenizer.pad_token_id or 0, task), settings, device)
        teacher = teachers.of(stretch.phase)
        with (
            frozen(model, stretch.phase.frozen, stretch.resting),
            modifying(model, teacher, stretch.phase) as modifier,
        ):
            if last and selection and isinstance(modifier, MaskingModifier):
                raise CompressError(
                    f"{stretch.name} masks units until it ends, so that none of its weights can be selected; "
                    "let a phase without it follow"
                )
            outcome = train(
                model,
                rows,
                teaching=Teaching(
                    stretch.phase.losses,
                    room.signal(stretch, teacher, work),
                    teacher,
                    Masker(tokenizer, stretch.phase.masking) if stretch.phase.masking else None,
                    modifier,
                    stretch.taught,
                    keep_learned and last,
                ),
                target=target if last else None,
                training=settings,
                steps=stretch.steps,
                collate=room.collate,
                checkpoints=work / stretch.name,
                seed=seed + SEEDS_APART * number,
                device=device,
                threads=threads,
                quiet=quiet,
            )
        if isinstance(modifier, MaskingModifier):  # detached, it has masked all that it will
            outcome = replace(outcome, masked=masked_units(modifier))
        if not last:
            remember(work / stretch.name, model, outcome)
            logger.info("%s: %d steps in %.0f s", stretch.name, outcome.steps, outcome.seconds)
        outcomes.append(outcome)
    return outcomes


@dataclass(frozen=True)
class SignalFactory:
    """What the signal of a stretch is made from."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    rows: Dataset
    collate: Any
    training: Training
    device: str

    def signal(self, stretch: Stretch, teacher: PreTrainedModel | None, work: Path) -> TeacherSignal:
        """Return cached logits, cached first states or the teacher itself: the cheapest that serves the phase.

        First states are cached where the rows are read more than once: before that the teacher is run as often live.
        """
        phase = stretch.phase
        precision = resolve_precision(self.training.precision, self.device)
        repeated = stretch.steps * self.training.batch_size >= 2 * len(self.rows)
        only_first = not phase.needs & {"hidden", "attention"} and "first" in phase.needs
        labelled = "teacher_logits" in self.rows.column_names
        if teacher is not None:
            teacher.to(self.device)  # type: ignore[arg-type]
            if only_first and repeated and labelled and not phase.masking and first_states_fit(len(self.rows), teacher):
                path = work / f"{phase.teacher}-{phase.text}-{FIRST_STATES_NAME}"
                write_first_states(path, self.rows, teacher, self.collate, device=self.device, precision=precision)
                return CachedFirstStates(path)
        return signal_for(phase.losses, teacher, masked=bool(phase.masking), precision=precision)


def parts(model: PreTrainedModel) -> dict[str, list[Parameter]]:
    """Return the weights of a student by part: its embeddings, its head with the pooler, and the layers between."""
    base: Any = model.base_model
    embeddings: Any = getattr(base, "embeddings", None) or model.get_input_embeddings()
    projection = embeddings_projection(model)
    modules = [embeddings, *([projection] if projection is not None else [])]
    first = {id(parameter) for module in modules for parameter in module.parameters()}
    pooler = getattr(base, "pooler", None)
    pooling = {id(parameter) for parameter in pooler.parameters()} if pooler is not None else set()
    inside = {id(parameter) for parameter in base.parameters()} - pooling
    found: dict[str, list[Parameter]] = {"embeddings": [], "layers": [], "head": []}
    for parameter in model.parameters():
        part = "embeddings" if id(parameter) in first else "layers" if id(parameter) in inside else "head"
        found[part].append(parameter)
    return found


@contextmanager
def frozen(model: PreTrainedModel, names: Sequence[str], resting: int = 0) -> Iterator[None]:
    """Let some parts, and the lowest ``resting`` layers with the embeddings, keep their weights within the block.

    Raises:
        CompressError: a part that the student does not have.
    """
    by_part = parts(model)
    chosen = []
    for name in names:
        if not by_part[name]:
            raise CompressError(f"frozen names {name!r}, which this student does not have apart; leave it out")
        chosen += by_part[name]
    if resting:
        layers = list(layers_of(model))
        if resting >= len(layers):
            raise CompressError(
                "by_layer = 'progressive' lets the layers below rest, and this student's layers share their weights; "
                "use by_layer = 'stacked'"
            )
        chosen += by_part["embeddings"]
        chosen += [parameter for layer in layers[:resting] for parameter in layer.parameters()]
    chosen = [parameter for parameter in chosen if parameter.requires_grad]
    for parameter in chosen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in chosen:
            parameter.requires_grad_(True)


@contextmanager
def modifying(model: PreTrainedModel, teacher: PreTrainedModel | None, phase: Phase) -> Iterator[Any]:
    """Attach a phase's modifier to the student within the block, if it has one.

    After a fault it stays: the student is lost then, and what a detaching modifier still decides may take minutes.
    """
    if phase.modifier is None:
        yield None
        return
    plugin = plugins.find("modifiers", phase.modifier.name)
    modifier = plugin.function(model, teacher, **phase.modifier.options)
    yield modifier
    modifier.detach()


def masked_units(modifier: MaskingModifier) -> dict[str, list[list[int]]]:
    """Return which units are masked, by part and layer, as what is remembered in a file."""
    return {
        part: [(mask == 0).nonzero().flatten().tolist() for mask in masks] for part, masks in modifier.masks.items()
    }


def remember(folder: Path, model: PreTrainedModel, outcome: Outcome) -> None:
    """Keep a stretch that is done, so that a run that is stopped later does not train it again."""
    from safetensors.torch import save_model

    folder.mkdir(parents=True, exist_ok=True)
    save_model(model, str(folder / WEIGHTS_NAME))
    write_atomically(folder / DONE_NAME, json.dumps(asdict(outcome)))
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)


def recall(folder: Path, model: PreTrainedModel) -> Outcome | None:
    """Load the weights of a stretch that is done and return its outcome; None when it is not."""
    from safetensors.torch import load_model

    if not (folder / DONE_NAME).is_file():
        return None
    load_model(model, str(folder / WEIGHTS_NAME))
    known: dict[str, Any] = json.loads((folder / DONE_NAME).read_text(encoding="utf-8"))
    return Outcome(**known)
