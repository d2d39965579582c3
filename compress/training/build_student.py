"""Build the untrained student of a recipe, with the tokenizer that it reads.

It may have a small vocabulary that is learned from the corpus: Zhao et al. 2019, "Extreme Language Model Compression
with Optimal Subwords and Shared Projections" (arXiv:1909.11687), and its later form "Extremely Small BERT Models from
Mixed-Vocabulary Training" (EACL 2021).
"""

import copy
import functools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from tokenizers import Tokenizer, models, trainers
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import BertTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from compress import plugins
from compress.data import Example, row_key
from compress.data.examples import texts_of
from compress.data.tokenization import check_length, maximum_length
from compress.errors import refuse
from compress.models.components import input_embeddings
from compress.models.model_dir import Model
from compress.models.modeling import ENDINGS
from compress.models.modeling.registration import is_known
from compress.models.networks.small import SmallModel
from compress.progress import Progress, silent
from compress.recipes import StudentRecipe, needs_of
from compress.tasks import Task, of_network
from compress.training.phases import prepared, step_ranges
from compress.training.teacher_signal import LIVE, ActivationRecorder, LiveTeacher, needs_of_student
from compress.training.trainer import attach_losses, detach_loss_modules
from compress.training.training_data import Masker, Mixing, TrainingRow, batch_of, collator, tokenized

TRIED_ROWS, TRIED_LENGTH = 8, 32
SPECIALS = ("pad", "unk", "cls", "sep", "mask")
PLAIN = {"add_special_tokens": False}
ALPHABET = 1000  # letters at least, and a fifth of a larger vocabulary; rarer ones are unknown


def build_student(
    recipe: StudentRecipe,
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    texts: Callable[[], Iterable[Example]],
    *,
    seed: int,
    learns_vocabulary: bool = True,
    start: Model | None = None,
    progress: Progress = silent,
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, Mixing | None]:
    """Return the student as its training begins, its tokenizer, and what writes texts in two vocabularies.

    The last is there where a loss reads such texts.

    Args:
        tokenizer: the teacher's.
        texts: gives the texts that it will be trained on, from the first one at each call.
        seed: of the mixer; what the architecture draws follows from torch's own generator.
        learns_vocabulary: whether the recipe's ``[vocabulary]`` is learned; else the student reads the teacher's.
        start: a pre-trained body of the student.

    Raises:
        CompressError: the teacher or the texts do not fit the recipe, or the start has another vocabulary or shape.
    """
    started: Any = teacher
    mixed_ids, kind = None, tokenizer_kind(tokenizer)
    refuse(
        (
            "mixed" in recipe.needs and kind != "WordPiece",
            "the loss mixed-vocabulary reads words in two WordPiece vocabularies, and the tokenizer of this teacher is "
            f"of the kind {kind}; use a BERT-like teacher, or a student without that loss",
        )
    )
    if recipe.vocabulary and learns_vocabulary and recipe.learns_vocabulary(kind):
        with progress("Learning the vocabulary", None):
            learned = learn_vocabulary(tokenizer, texts(), recipe.vocabulary.size)
        if any("mixed" in phase.needs for phase in recipe.phases):
            mixed_ids = mixer(tokenizer, learned, input_embeddings(started).num_embeddings, seed)
        started, tokenizer = re_embed(started, tokenizer, learned), learned
    plugin = plugins.find("architectures", recipe.architecture.name)
    built = plugin.function(started, tokenizer, texts(), **recipe.architecture.options)
    _check_opens(built, plugin.called)
    if start:
        start.check_vocabulary(tokenizer)
        start.give_body(built)
    return built, read_longer(built, teacher, tokenizer, recipe), mixed_ids


def read_longer(
    student: PreTrainedModel, teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, recipe: StudentRecipe
) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a student without positions, which may read more tokens than its teacher.

    Raises:
        CompressError: the teacher would have to read them too.
    """
    longest, readable = recipe.training.max_length, maximum_length(tokenizer, teacher.config.to_dict())
    if not isinstance(student, SmallModel) or longest <= maximum_length(tokenizer, student.config.to_dict()):
        return tokenizer
    runs_teacher = any(phase.needs & LIVE or phase.masking and "logits" in phase.needs for phase in recipe.phases)
    refuse(
        (
            runs_teacher and longest > readable,
            f"the student {recipe.name!r} learns from more than logits that are kept, and its teacher reads {readable} "
            f"tokens: give --max-length {readable} or less",
        )
    )
    student.config.max_position_embeddings = longest
    longer = copy.deepcopy(tokenizer)
    longer.model_max_length = longest
    return longer


def try_student(
    recipe: StudentRecipe,
    teachers: Mapping[str, PreTrainedModel | None],
    tokenizer: PreTrainedTokenizerFast,
    texts: Callable[[], Iterable[Example]],
    task: Task,
    *,
    start: Model | None = None,
    max_length: int | None = None,
) -> PreTrainedModel:
    """Return a student that was built from a few texts, once the losses of its phases were computed on them.

    What does not fit the teacher is known then before it labels text. The vocabulary is not learned, and losses that
    read two are left out.

    Args:
        teachers: by the names in :class:`compress.recipes.Phase`; modifiers may change them.
        start: as for :func:`build_student`.
        max_length: the tokens that the user asks it to read.

    Raises:
        CompressError: options of the architecture, a phase, a modifier or a loss do not fit the teacher, or the student
            reads fewer tokens.
    """
    few, first = [*islice(texts(), TRIED_ROWS)], next(filter(None, teachers.values()))
    student, own, _ = build_student(recipe, first, tokenizer, lambda: few, seed=0, learns_vocabulary=False, start=start)
    check_length(max_length, own, student.config.to_dict(), f"the student {recipe.name!r}")
    student.train(False)
    length = min(TRIED_LENGTH, maximum_length(tokenizer, student.config.to_dict()))
    with TemporaryDirectory() as folder:
        taught = tokenized(Path(folder) / "few.arrow", map(TrainingRow, few), tokenizer, max_length=length, task=task)
        rows = collator(tokenizer.pad_token_id or 0)([*taught])
    for part in step_ranges(recipe.phases, getattr(student.config, "num_hidden_layers", 0), len(recipe.phases)):
        phase = part.phase
        losses = [choice for choice in phase.losses if "mixed" not in needs_of([choice])]
        batch = batch_of(rows, task=task)
        batch = Masker(tokenizer, phase.masking)(batch) if phase.masking else batch
        teacher = teachers.get(phase.teacher)
        with torch.no_grad(), prepared(student, teacher, part):
            _, ours = ActivationRecorder(student, needs_of_student(losses))(batch)
            ours = replace(ours, trained_layers=part.trained_layers)
            theirs = LiveTeacher(teacher, needs_of(losses))(batch, None) if teacher else ours
            for choice, loss in zip(losses, attach_losses(losses, teacher, student), strict=True):
                value, options = loss.function(ours, theirs, batch, *loss.trained), dict(choice.options)
                odd = not torch.isfinite(value)
                refuse((odd, f"the loss {choice.name} is {float(value)} with its options {options}; change them"))
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


def tokenizer_kind(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return the algorithm of a tokenizer: ``WordPiece``, ``BPE``, ``Unigram`` or ``WordLevel``."""
    return str(json.loads(tokenizer.backend_tokenizer.to_str())["model"]["type"])


def learn_vocabulary(
    tokenizer: PreTrainedTokenizerFast, examples: Iterable[Example], size: int
) -> PreTrainedTokenizerFast:
    """Return a WordPiece tokenizer of ``size`` tokens learned from the texts.

    Case and accents are removed where the teacher's tokenizer does, and special tokens have its names.
    """
    theirs: Any = tokenizer.backend_tokenizer
    # In the teacher's order: MPNet's embeddings take the id 1 for padding, whatever their config says.
    named = {f"{name}_token": getattr(tokenizer, f"{name}_token") or f"[{name.upper()}]" for name in SPECIALS}
    specials = sorted({*named.values()}, key=lambda token: (tokenizer.get_vocab().get(token, len(tokenizer)), token))
    flags = {
        "lowercase": _normal(theirs, "A") == "a",
        "strip_accents": _normal(theirs, "é") == "e",
        # Tokenizers of other kinds split Chinese words by their vocabulary.
        "handle_chinese_chars": tokenizer_kind(tokenizer) != "WordPiece" or _normal(theirs, "中") != "中",
    }
    made = Tokenizer(models.WordPiece(unk_token=named["unk_token"]))
    made.normalizer, made.pre_tokenizer = BertNormalizer(**flags), BertPreTokenizer()
    texts = list(texts_of(examples))
    letters, inner = _letters(texts, made, max(ALPHABET, size // 5))
    # The trainer numbers letters inside words as it meets them in a hash table, and equally frequent pairs by these
    # numbers: named beforehand, and in order, they make the same text give the same vocabulary.
    made.train_from_iterator(
        texts,
        trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=[*specials, *inner],
            initial_alphabet=letters,
            limit_alphabet=len(letters),
            show_progress=False,
        ),
    )
    learned: Any = BertTokenizer(
        made.get_vocab(),
        do_lower_case=flags["lowercase"],
        strip_accents=flags["strip_accents"],
        tokenize_chinese_chars=flags["handle_chinese_chars"],
        **named,
    )
    learned.model_max_length = tokenizer.model_max_length
    return cast(PreTrainedTokenizerFast, learned)


def _normal(tokenizer: Any, text: str) -> str:
    return str(tokenizer.normalizer.normalize_str(text)) if tokenizer.normalizer else text


def _letters(texts: Iterable[str], tokenizer: Any, most: int) -> tuple[list[str], list[str]]:
    """Return the most frequent letters of words, and the tokens of one letter that continue a word, both in order."""
    found: Counter[str] = Counter()
    inside: set[str] = set()
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(_normal(tokenizer, text)):
            found.update(word)
            inside.update(word[1:])
    kept = sorted(found, key=lambda letter: (-found[letter], letter))[:most]
    return sorted(kept), [f"##{letter}" for letter in sorted(inside & set(kept))]


@torch.no_grad()
def re_embed(
    teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, learned: PreTrainedTokenizerFast
) -> PreTrainedModel:
    """Return a copy of the teacher that reads the learned vocabulary.

    A token that the teacher has too keeps its vector; another gets the mean of the teacher's tokens for its text, which
    begins a word or is within one.
    """
    copied = copy.deepcopy(teacher)
    vectors = input_embeddings(teacher).weight.detach()
    theirs, rows = tokenizer.get_vocab(), torch.empty(len(learned), vectors.shape[1])
    # In tokenizers of other kinds a word's first token has a mark, and the same letters without it are within a word.
    same = theirs.keys() if tokenizer_kind(tokenizer) == "WordPiece" else {*tokenizer.all_special_tokens}
    for piece, index in learned.get_vocab().items():
        text = piece.removeprefix("##") if piece.startswith("##") else f" {piece}"
        ids = [theirs[piece]] if piece in same else tokenizer(text, **PLAIN)["input_ids"]
        rows[index] = vectors[ids or [tokenizer.unk_token_id]].mean(dim=0)
    embedding = torch.nn.Embedding(len(learned), vectors.shape[1], padding_idx=learned.pad_token_id)
    embedding.weight.copy_(rows)
    copied.set_input_embeddings(embedding)
    copied.config.vocab_size, copied.config.pad_token_id = len(learned), learned.pad_token_id
    return copied


def mixer(tokenizer: PreTrainedTokenizerFast, learned: PreTrainedTokenizerFast, teacher_size: int, seed: int) -> Mixing:
    """Return what writes a text in a mixture of two vocabularies: each word in the learned one with probability 1/2.

    Ids of learned tokens follow after the teacher's: ``teacher_size + id``. The teacher's special tokens are around
    them. The same text always gives the same mixture. It refuses pairs, whose segments a mixture does not carry.
    """
    splitter: Any = tokenizer.backend_tokenizer

    @functools.cache
    def pieces(word: str) -> tuple[list[int], list[int]]:
        theirs, ours = (one(word, **PLAIN)["input_ids"] for one in (tokenizer, learned))
        return theirs, [teacher_size + piece for piece in ours]

    def mixed_ids(example: Example, max_length: int) -> list[int]:
        refuse(
            (
                example.text_pair is not None,
                "the loss mixed-vocabulary reads single texts, and this data has pairs; leave it out",
            )
        )
        generator = random.Random(row_key(example) + seed.to_bytes(8, "big"))
        words = splitter.pre_tokenizer.pre_tokenize_str(_normal(splitter, example.text))
        ids = [index for word, _ in words for index in pieces(word)[generator.random() < 0.5]]
        return [tokenizer.cls_token_id, *ids[: max_length - 2], tokenizer.sep_token_id]

    return mixed_ids
