"""A transformer of the teacher's own family with fewer layers, and if asked a narrower width, started from its weights.

Layers are copied as DistilBERT does (Sanh et al. 2019, arXiv:1910.01108) or as TinyBERT maps them (Jiao et al. 2020,
arXiv:1909.10351). A narrower width is a projection onto the directions in which the teacher's hidden states vary most;
nothing is left at random.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForSequenceClassification

from compress.attention import has_heads
from compress.errors import CompressError
from compress.modeling.pruned import PREFIX, layers_of
from compress.projection import basis_of_hidden_states, project_model
from compress.tokens import encode, pad

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from compress.data import Example

BASIS_EXAMPLES = 512
BASIS_LENGTH = 64


def build(
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Iterable[Example],
    *,
    depth: int | float = 0.5,
    layers: list[int] | None = None,
    start: str = "spread",
    hidden_size: int | None = None,
    ffn_size: int | None = None,
) -> PreTrainedModel:
    """Return an untrained student that starts from the teacher's weights.

    Args:
        examples: texts on which the directions of a narrower width are found.
        depth: number of layers, or with a decimal point a share of the teacher's.
        layers: which teacher layers to start from, counted from 0; by default ``start`` chooses.
        start: ``spread`` from the first to the last layer (DistilBERT), ``blocks`` the last of equal blocks
            (TinyBERT), ``first`` the lowest (Patient KD).
        hidden_size: width; by default the teacher's. A multiple of the teacher's number of heads.
        ffn_size: inner width of the feed-forward networks; by default in proportion to ``hidden_size``.

    Raises:
        CompressError: a shape that this teacher cannot give.
    """
    if not has_heads(teacher) or teacher.config.model_type.startswith(PREFIX):
        raise CompressError(
            f"a transformer student cannot start from a {teacher.config.model_type!r} teacher; "
            "use the model it was pruned from, or the student bilstm"
        )
    there = len(layers_of(teacher))
    chosen = layers if layers is not None else choose_layers(there, depth, start)
    if not chosen or any(not 0 <= layer < there for layer in chosen):
        raise CompressError(f"layers = {chosen} is not possible: the teacher has layers 0 to {there - 1}")
    width, heads = teacher.config.hidden_size, teacher.config.num_attention_heads
    hidden_size = width if hidden_size is None else hidden_size
    if not 0 < hidden_size <= width or hidden_size % heads:
        raise CompressError(
            f"hidden_size = {hidden_size} is not possible: it must be a multiple of the teacher's {heads} heads and at "
            f"most its width {width}"
        )
    if hidden_size == getattr(teacher.config, "embedding_size", width) != width:
        raise CompressError(
            f"hidden_size = {hidden_size} is not possible: it is the width of this teacher's embeddings, where its "
            "family has no projection to start from; choose another"
        )
    inner = _ffn_width(teacher)
    ffn_size = inner * hidden_size // width if ffn_size is None else ffn_size
    if not 0 < ffn_size <= inner:
        raise CompressError(f"ffn_size = {ffn_size} is not possible: the teacher's is {inner}")
    student = _empty_student(teacher, len(chosen), hidden_size, ffn_size)
    basis = None
    if hidden_size < width:
        sample = list(itertools.islice(examples, BASIS_EXAMPLES))
        tokens = encode(tokenizer, sample, BASIS_LENGTH)
        rows = [{key: values[i] for key, values in tokens.items()} for i in range(len(sample))]
        batch = {key: torch.from_numpy(v) for key, v in pad(rows, tokenizer.pad_token_id or 0).items()}
        basis = basis_of_hidden_states(teacher, batch, hidden_size)
    project_model(teacher, student, chosen, basis)
    return student


def choose_layers(there: int, depth: int | float, start: str) -> list[int]:
    """Return the teacher layers, counted from 0, that a student of this depth starts from.

    DistilBERT's 6 of 12 are 0, 2, 4, 7, 9, 11; TinyBERT's 4 of 12 are 2, 5, 8, 11 (its g(m) = m * L_T / L_S).
    """
    wanted = depth if isinstance(depth, int) else round(depth * there)
    if not 1 <= wanted <= there:
        raise CompressError(
            f"depth = {depth} is not possible: the teacher has {there} layers; use 1 to {there}, or a share such as 0.5"
        )
    if start == "spread":
        return [round(i * (there - 1) / max(wanted - 1, 1)) for i in range(wanted)]
    if start == "blocks":
        return [round((i + 1) * there / wanted) - 1 for i in range(wanted)]
    if start == "first":
        return list(range(wanted))
    raise CompressError(f"start = {start!r} is not known; use 'spread', 'blocks' or 'first'")


def _empty_student(teacher: PreTrainedModel, depth: int, hidden_size: int, ffn_size: int) -> PreTrainedModel:
    config = type(teacher.config).from_dict(teacher.config.to_dict())
    if hasattr(config, "embedding_size") and config.embedding_size == config.hidden_size:
        config.embedding_size = hidden_size  # ELECTRA has a projection only where the two differ
    config.num_hidden_layers = depth
    config.hidden_size = hidden_size
    # DistilBERT calls the same width hidden_dim.
    setattr(config, "hidden_dim" if hasattr(config, "hidden_dim") else "intermediate_size", ffn_size)
    student: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)
    return student.float()


def _ffn_width(teacher: PreTrainedModel) -> int:
    config = teacher.config
    return int(config.hidden_dim if hasattr(config, "hidden_dim") else config.intermediate_size)
