"""Build the untrained student of a recipe, with the tokenizer that it reads."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress import plugins
from compress.data import Example
from compress.data.tokenization import maximum_length
from compress.errors import refuse
from compress.models.components import input_embeddings
from compress.models.modeling import ENDINGS
from compress.models.modeling.registration import is_known
from compress.progress import Progress, silent
from compress.recipes import StudentRecipe, needs_of
from compress.tasks import Task, of_network
from compress.training.batches import Masker, batch_of, collator
from compress.training.learned_vocabulary import Mixer, learn_vocabulary, re_embed
from compress.training.loss_modules import attach_losses, detach_loss_modules
from compress.training.phases import prepared
from compress.training.step_plan import step_ranges
from compress.training.teacher_signal import ActivationRecorder, LiveTeacher, needs_of_student
from compress.training.training_data import TrainingRow, tokenized

TRIED_ROWS, TRIED_LENGTH = 8, 32


class BuiltStudent(NamedTuple):
    """An untrained student; ``mixer`` writes texts in two vocabularies where a loss reads such."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    mixer: Mixer | None


def build_student(
    recipe: StudentRecipe,
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    texts: Callable[[], Iterable[Example]],
    *,
    seed: int,
    progress: Progress = silent,
) -> BuiltStudent:
    """Return the student as its training begins.

    Args:
        tokenizer: the teacher's.
        texts: gives the texts that it will be trained on, from the first one at each call.
        seed: of the mixer; what the architecture draws follows from torch's own generator.

    Raises:
        CompressError: the teacher, its tokenizer or the texts do not fit the recipe.
    """
    started: Any = teacher
    mixer = None
    if recipe.vocabulary:
        with progress("Learning the vocabulary", None):
            learned = learn_vocabulary(tokenizer, texts(), recipe.vocabulary.size)
        if any("mixed" in phase.needs for phase in recipe.phases):
            mixer = Mixer(tokenizer, learned, input_embeddings(started).num_embeddings, seed)
        started, tokenizer = re_embed(started, tokenizer, learned), learned
    plugin = plugins.find("architectures", recipe.architecture.name)
    built = plugin.function(started, tokenizer, texts(), **recipe.architecture.options)
    _check_opens(built, plugin.called)
    return BuiltStudent(built, tokenizer, mixer)


def try_student(
    recipe: StudentRecipe,
    teachers: Mapping[str, PreTrainedModel | None],
    tokenizer: PreTrainedTokenizerFast,
    texts: Callable[[], Iterable[Example]],
    task: Task,
    *,
    selects: bool,
) -> PreTrainedModel:
    """Return a student that was built from a few texts, once the losses of its phases were computed on them.

    What does not fit the teacher is known then before it labels text. The vocabulary is not learned, and losses that
    read two are left out.

    Args:
        teachers: by the names in :class:`compress.recipes.Phase`; modifiers may change them.
        selects: of the last phase the best weights are to be kept.

    Raises:
        CompressError: options of the architecture, a phase, a modifier or a loss do not fit the teacher.
    """
    start = next(filter(None, teachers.values()))
    few = [*islice(texts(), TRIED_ROWS)]
    student = build_student(replace(recipe, vocabulary=None), start, tokenizer, lambda: few, seed=0).model
    student.train(False)
    length = min(TRIED_LENGTH, maximum_length(tokenizer, student.config.to_dict()))
    with TemporaryDirectory() as folder:
        taught = tokenized(Path(folder) / "few.arrow", map(TrainingRow, few), tokenizer, max_length=length, task=task)
        rows = collator(tokenizer.pad_token_id or 0)([*taught])
    planned = step_ranges(recipe.phases, getattr(student.config, "num_hidden_layers", 0), len(recipe.phases))
    for part in planned:
        phase, last = part.phase, part is planned[-1]
        losses = [choice for choice in phase.losses if "mixed" not in needs_of([choice])]
        batch = batch_of(rows, task=task)
        batch = Masker(tokenizer, phase.masking)(batch) if phase.masking else batch
        teacher = teachers.get(phase.teacher)
        with torch.no_grad(), prepared(student, teacher, part, selects=selects and last):
            _, ours = ActivationRecorder(student, needs_of_student(losses))(batch)
            ours = replace(ours, trained_layers=part.trained_layers)
            theirs = LiveTeacher(teacher, needs_of(losses))(batch, None) if teacher else ours
            for choice, loss in zip(losses, attach_losses(losses, teacher, student), strict=True):
                value = loss.function(ours, theirs, batch, *loss.trained)
                told = f"the loss {choice.name} is {float(value)} with its options {dict(choice.options)}; change them"
                refuse((not torch.isfinite(value), told))
            detach_loss_modules(student)
    return student


def _check_opens(student: PreTrainedModel, architecture: str) -> None:
    """Refuse a student that could not be opened after its training, as one of another package may be."""
    name, config = type(student).__name__, type(student.config)
    built, embeddings = f"{architecture} builds a {name}", None
    opener = of_network(student).auto_model()
    opened = opener._model_mapping.get(config, None) if is_known(config.model_type) else None
    with suppress(NotImplementedError):
        embeddings = student.get_input_embeddings()
    refuse(
        (not name.endswith(ENDINGS), f"{built}; the name of the class must end with {' or '.join(ENDINGS)}"),
        (
            opened is not type(student),
            f"{built}, which transformers cannot open again: its module must call AutoConfig.register("
            f"{config.model_type!r}, {config.__name__}) and {opener.__name__}.register({config.__name__}, {name})",
        ),
        (
            embeddings is None,
            f"{built} without get_input_embeddings(), which must return the nn.Embedding of its tokens",
        ),
    )
