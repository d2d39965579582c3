"""Build the untrained student of a recipe, with the tokenizer that it reads."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress import plugins
from compress.data import Example
from compress.progress import Progress, silent
from compress.recipes import StudentRecipe
from compress.training.learned_vocabulary import Mixer, learn_vocabulary, re_embed


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
            mixer = Mixer(tokenizer, learned, started.get_input_embeddings().num_embeddings, seed)
        started, tokenizer = re_embed(started, tokenizer, learned), learned
    build = plugins.find("architectures", recipe.architecture.name).function
    return BuiltStudent(build(started, tokenizer, texts(), **recipe.architecture.options), tokenizer, mixer)
