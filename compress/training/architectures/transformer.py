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
from compress.errors import CompressError
from compress.models.components import ffn_width
from compress.models.modeling.families import PRUNED_FIELDS, stock_type
from compress.tasks import of_network
from compress.training.architectures._initialization import choose_layers, free_depth, own_layers, require_whole
from compress.training.architectures._projection import copy_model, hidden_states, leading_directions, project_model

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
    require_whole(teacher, "transformer")
    width = int(teacher.config.hidden_size)
    hidden_size = width if hidden_size is None else hidden_size
    inner = ffn_width(teacher) * hidden_size // width if ffn_size is None else ffn_size
    if start == "random":
        return _random_student(teacher, depth, hidden_size, inner, heads)
    if heads is not None:
        raise CompressError(
            f"heads = {heads} is for start = 'random'; a student that starts from its teacher has the teacher's "
            f"{teacher.config.num_attention_heads}"
        )
    chosen = choose_layers(int(teacher.config.num_hidden_layers), depth, start)
    _check_widths(teacher, hidden_size, inner)
    student = _empty_student(teacher, len(chosen), hidden_size, inner)
    sources = own_layers(teacher, chosen)
    if stock_type(teacher.config) == "mobilebert":
        copy_model(teacher, student, sources)
        return student
    directions = None
    if hidden_size < width:
        sample = list(itertools.islice(examples, BASIS_EXAMPLES))
        tokens = encode(tokenizer, sample, BASIS_LENGTH, counted=False)
        rows = [{key: values[i] for key, values in tokens.items()} for i in range(len(sample))]
        batch = {key: torch.from_numpy(v) for key, v in pad(rows, tokenizer.pad_token_id or 0).items()}
        directions = leading_directions(hidden_states(teacher, batch), hidden_size)
    project_model(teacher, student, sources, directions)
    return student


def _check_widths(teacher: PreTrainedModel, hidden_size: int, ffn_size: int) -> None:
    """Refuse widths that cannot be projected from the teacher's."""
    config = teacher.config
    width, heads, inner, family = config.hidden_size, config.num_attention_heads, ffn_width(teacher), stock_type(config)
    if not 0 < hidden_size <= width or hidden_size % heads:
        raise CompressError(
            f"hidden_size = {hidden_size} is not possible: it must be a multiple of the teacher's {heads} heads and at "
            f"most its width {width}"
        )
    if family == "electra" and hidden_size == config.embedding_size != width:
        raise CompressError(
            f"hidden_size = {hidden_size} is not possible: it is the width of this teacher's embeddings, where its "
            "family has no projection to start from; choose another"
        )
    if not 0 < ffn_size <= inner:
        raise CompressError(f"ffn_size = {ffn_size} is not possible: the teacher's is {inner}")
    if family == "mobilebert" and (hidden_size, ffn_size) != (width, inner):
        raise CompressError(
            f"hidden_size = {hidden_size} with ffn_size = {ffn_size} is not possible: a MobileBERT teacher, whose "
            f"width lies in its bottlenecks, gives its own {width} and {inner} only; choose fewer layers with depth"
        )


def _random_student(
    teacher: PreTrainedModel,
    depth: int | float,
    hidden_size: int,
    ffn_size: int,
    heads: int | None,
) -> PreTrainedModel:
    heads = int(teacher.config.num_attention_heads) if heads is None else heads
    bottleneck = getattr(teacher.config, "intra_bottleneck_size", heads)  # where MobileBERT attends
    if heads < 1 or hidden_size < 1 or hidden_size % heads or bottleneck % heads:
        raise CompressError(f"hidden_size = {hidden_size} is not a multiple of {heads} heads; change one of them")
    if ffn_size < 1:
        raise CompressError(f"ffn_size = {ffn_size} is not possible; give 1 or more")
    return _empty_student(teacher, free_depth(teacher, depth), hidden_size, ffn_size, heads)


def _empty_student(
    teacher: PreTrainedModel, depth: int, hidden_size: int, ffn_size: int, heads: int | None = None
) -> PreTrainedModel:
    config: Any = type(teacher.config).from_dict(
        {name: value for name, value in teacher.config.to_dict().items() if name not in PRUNED_FIELDS}
    )
    if config.model_type == "electra" and config.embedding_size == config.hidden_size:
        config.embedding_size = hidden_size  # ELECTRA has a projection only where the two differ
    config.num_hidden_layers = depth
    config.hidden_size = hidden_size
    if heads is not None:
        config.num_attention_heads = heads
    # DistilBERT calls the same width hidden_dim.
    setattr(config, "hidden_dim" if hasattr(config, "hidden_dim") else "intermediate_size", ffn_size)
    student = of_network(teacher).auto_model().from_config(config)
    return cast(PreTrainedModel, student.float())
