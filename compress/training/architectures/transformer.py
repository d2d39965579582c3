"""A transformer of the teacher's own family with fewer layers, and if asked a narrower width, started from its weights.

Layers are copied as DistilBERT does (Sanh et al. 2019, arXiv:1910.01108) or as TinyBERT maps them (Jiao et al. 2020,
arXiv:1909.10351). A narrower width is a projection onto the directions in which the teacher's hidden states vary most;
nothing is left at random. With ``start = "random"`` everything is: a compact student of any shape, to be pre-trained
first (Turc et al. 2019, arXiv:1908.08962).
"""

import itertools
from collections.abc import Iterable
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data import Example
from compress.data.tokenization import encode, pad
from compress.errors import refuse
from compress.models.components import ffn_width
from compress.models.modeling.families import PRUNED_FIELDS, stock_type
from compress.tasks import of_network
from compress.training.architectures._initialization import (
    choose_layers,
    copy_model,
    free_depth,
    hidden_states,
    leading_directions,
    own_layers,
    project_model,
    require_layers,
)

BASIS_EXAMPLES = 512
BASIS_LENGTH = 64


def build(
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    examples: Iterable[Example],
    *,
    depth: int | float = 0.5,
    start: str = "spread",
    hidden_size: int | None = None,
    ffn_size: int | None = None,
    heads: int | None = None,
) -> PreTrainedModel:
    """Return an untrained student, which starts from the teacher's weights unless ``start`` is ``random``.

    An ALBERT's layers are one, which a student uses as often as ``depth`` says. A MobileBERT keeps its width.

    Args:
        examples: texts on which the directions of a narrower width are found.
        depth: number of layers, or with a decimal point a share of the teacher's.
        start: ``spread`` from the first to the last layer (DistilBERT), ``blocks`` the last of equal blocks
            (TinyBERT), ``first`` the lowest (Patient KD); ``random`` for a student of any shape, trained from scratch.
        hidden_size: width; by default the teacher's. A multiple of the number of heads.
        ffn_size: inner width of the feed-forward networks; by default in proportion to ``hidden_size``.
        heads: number of attention heads of a random student; by default the teacher's.

    Raises:
        CompressError: a shape that this teacher cannot give.
    """
    require_layers(teacher, "transformer", plain=False)
    width = int(teacher.config.hidden_size)
    hidden_size = width if hidden_size is None else hidden_size
    inner = ffn_width(teacher) * hidden_size // width if ffn_size is None else ffn_size
    if start == "random":
        heads = int(teacher.config.num_attention_heads) if heads is None else heads
        bottleneck = getattr(teacher.config, "intra_bottleneck_size", heads)  # where MobileBERT attends
        refuse(
            (
                heads < 1 or hidden_size < 1 or hidden_size % heads or bottleneck % heads,
                f"hidden_size = {hidden_size} is not a multiple of {heads} heads; change one of them",
            ),
            (inner < 1, f"ffn_size = {inner} is not possible; give 1 or more"),
        )
        return _empty_student(teacher, free_depth(teacher, depth), hidden_size, inner, heads)
    _check_widths(teacher, hidden_size, inner, heads)
    chosen = choose_layers(int(teacher.config.num_hidden_layers), depth, start)
    student = _empty_student(teacher, len(chosen), hidden_size, inner)
    sources = own_layers(teacher, chosen)
    if stock_type(teacher.config) == "mobilebert":
        copy_model(teacher, student, sources)
        return student
    directions = None
    if hidden_size < width:
        sample = list(itertools.islice(examples, BASIS_EXAMPLES))
        tokens = encode(tokenizer, sample, BASIS_LENGTH, counted=False)
        rows = [dict(zip(tokens, row, strict=True)) for row in zip(*tokens.values(), strict=True)]
        batch = {key: torch.from_numpy(v) for key, v in pad(rows, tokenizer.pad_token_id or 0).items()}
        directions = leading_directions(hidden_states(teacher, batch), hidden_size)
    project_model(teacher, student, sources, directions)
    return student


def _check_widths(teacher: PreTrainedModel, hidden_size: int, ffn_size: int, heads: int | None) -> None:
    config: Any = teacher.config
    width, own, inner, family = config.hidden_size, config.num_attention_heads, ffn_width(teacher), stock_type(config)
    refuse(
        (
            heads is not None,
            f"heads = {heads} is for start = 'random'; a student that starts from its teacher has the teacher's {own}",
        ),
        (
            not 0 < hidden_size <= width or hidden_size % own,
            f"hidden_size = {hidden_size} is not possible: it must be a multiple of the teacher's {own} heads and at "
            f"most its width {width}",
        ),
        (
            family == "electra" and hidden_size == config.embedding_size != width,
            f"hidden_size = {hidden_size} is not possible: it is the width of this teacher's embeddings, where its "
            "family has no projection to start from; choose another",
        ),
        (not 0 < ffn_size <= inner, f"ffn_size = {ffn_size} is not possible: the teacher's is {inner}"),
        (
            family == "mobilebert" and (hidden_size, ffn_size) != (width, inner),
            f"hidden_size = {hidden_size} with ffn_size = {ffn_size} is not possible: a MobileBERT teacher, whose "
            f"width lies in its bottlenecks, gives its own {width} and {inner} only; choose fewer layers with depth",
        ),
    )


def _empty_student(
    teacher: PreTrainedModel, depth: int, hidden_size: int, ffn_size: int, heads: int | None = None
) -> PreTrainedModel:
    config: Any = type(teacher.config).from_dict(
        {name: value for name, value in teacher.config.to_dict().items() if name not in PRUNED_FIELDS}
    )
    if config.model_type == "electra" and config.embedding_size == config.hidden_size:
        config.embedding_size = hidden_size  # ELECTRA has a projection only where the two differ
    config.num_hidden_layers, config.hidden_size = depth, hidden_size
    config.num_attention_heads = config.num_attention_heads if heads is None else heads
    # DistilBERT calls the same width hidden_dim.
    setattr(config, "hidden_dim" if hasattr(config, "hidden_dim") else "intermediate_size", ffn_size)
    return cast(PreTrainedModel, of_network(teacher).auto_model().from_config(config).float())
