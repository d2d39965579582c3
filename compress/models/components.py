"""What any network has, whatever its family calls it: embeddings, head, inputs, weights, operations; and its units.

Units are attention heads and feed-forward neurons, a layer's at a time, with the weights that are theirs.
A student of its teacher's own family is copied or projected name by name
(:mod:`compress.training.architectures._initialization`); one of another family starts from these parts. Shapes: V
subword tokens, P positions, S segments, E width of the embeddings, D width of the hidden states.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from compress.data.tokenization import OFFSET_POSITIONS
from compress.errors import CompressError, refuse
from compress.models.modeling.families import (
    FAMILIES,
    PRUNABLE,
    WITHOUT_NEURONS,
    head_size_of,
    layers_of,
    linear_of,
    linears_of,
    stock_type,
)

HEAD_DENSE = ("pooler", "pooler.dense", "pre_classifier", "classifier.dense")
HEAD_OUTPUT = ("classifier", "classifier.out_proj")


@dataclass(frozen=True)
class Embeddings:
    """What the first layer reads: ``norm(word + position + segment)``, through ``projection`` where there is one.

    ``words`` ``[V, E]``; ``positions`` ``[P, E]`` of the first token on; ``segments`` ``[S, E]``, S being 1 where there
    is no use of them (zeros in a family without any); ``projection`` from E to D (ALBERT, ELECTRA).
    """

    words: Tensor
    positions: Tensor
    segments: Tensor
    norm: nn.LayerNorm
    projection: nn.Linear | None


def embeddings_of(model: PreTrainedModel, *, narrow: int | None = None) -> Embeddings:
    """Return the embeddings of a model of one of the families.

    Args:
        narrow: a width that a student is to have of them.

    Raises:
        CompressError: they cannot give that width.
    """
    config: Any = model.config
    tables: Any = model.base_model.embeddings
    words = tables.word_embeddings.weight.detach()
    positions = tables.position_embeddings.weight.detach()
    if stock_type(config) in OFFSET_POSITIONS:
        positions = positions[config.pad_token_id + 1 :]
    segments, width = getattr(tables, "token_type_embeddings", None), words.shape[1]
    refuse(
        (
            narrow is not None and not 2 <= narrow <= width,
            f"embedding_size = {narrow} is not possible; give 2 to {width}, the teacher's own",
        )
    )
    return Embeddings(
        words=words,
        positions=positions,
        segments=words.new_zeros(1, positions.shape[1]) if segments is None else segments.weight.detach(),
        norm=tables.LayerNorm,
        projection=embeddings_projection(model),
    )


def embeddings_projection(model: PreTrainedModel) -> nn.Linear | None:
    """Return the projection of narrow embeddings to the width of the layers; None where the embeddings have none."""
    outside: nn.Linear | None = getattr(model.base_model, "embeddings_project", None)  # ELECTRA's; ALBERT's:
    return outside or getattr(getattr(model.base_model, "encoder", None), "embedding_hidden_mapping_in", None)


def head_of(model: PreTrainedModel) -> tuple[nn.Linear, nn.Linear]:
    """Return the classification head: the linear layer before its nonlinearity, and the one that gives the logits.

    The nonlinearity is tanh (the pooler of BERT, ALBERT and MobileBERT, the heads of MPNet and RoBERTa), GELU (ELECTRA)
    or ReLU (DistilBERT).
    """
    modules = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    dense = next((module for name, module in modules.items() if name.endswith(HEAD_DENSE)), None)
    output = next((modules[name] for name in HEAD_OUTPUT if name in modules), None)
    if dense is None or output is None:
        raise CompressError(
            f"this {model.config.model_type!r} model classifies without a dense layer before its classifier, "
            "so that there is no head that a student could start from"
        )
    return dense, output


def ffn_width(model: PreTrainedModel) -> int:
    return int(getattr(model.config, "hidden_dim", None) or model.config.intermediate_size)


def activation(model: PreTrainedModel) -> str:
    return str(getattr(model.config, "activation", None) or model.config.hidden_act)  # the first is DistilBERT's


def input_embeddings(model: PreTrainedModel) -> nn.Embedding:
    """Return the input embeddings ``[V, E]``.

    Raises:
        CompressError: the model has no table of them, as CANINE, which hashes characters.
    """
    found = None
    with suppress(NotImplementedError):
        found = model.get_input_embeddings()
    if not isinstance(found, nn.Embedding):
        raise CompressError(
            f"{type(model).__name__} has no table of embeddings of its tokens (torch.nn.Embedding), from which this "
            "student starts; use a teacher of another model type"
        )
    return found


def input_names(model: PreTrainedModel) -> tuple[str, ...]:
    """Return the inputs that a model makes use of; a single segment (RoBERTa) is no use of ``token_type_ids``."""
    has_segments = getattr(model.config, "type_vocab_size", 0) > 1
    if has_segments and "token_type_ids" in inspect.signature(model.forward).parameters:
        return ("input_ids", "attention_mask", "token_type_ids")
    return ("input_ids", "attention_mask")


def example_inputs(model: PreTrainedModel, batch_size: int = 2, length: int = 8, seed: int = 0) -> dict[str, Tensor]:
    """Return random token ids and the mask ``[B, T]``; no token is padding."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary: int = getattr(model.config, "tokenizer_size", 128)  # CANINE reads code points: those of ASCII
    with suppress(NotImplementedError):
        vocabulary = getattr(model.config, "tokenizer_size", None) or len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
    lowest = min(5, vocabulary - 1)  # 0 to 4 are padding and the other special tokens of every family
    input_ids = torch.randint(lowest, vocabulary, (batch_size, length), generator=generator)
    if getattr(model.config, "pairs", "") == "siamese":  # two texts, of different lengths
        input_ids[:, length // 3] = model.config.separator_token_id
    if model.config.is_encoder_decoder:  # it answers at the end of the text
        input_ids[:, -1] = model.config.eos_token_id
    device = next(model.parameters()).device
    return {"input_ids": input_ids.to(device), "attention_mask": torch.ones_like(input_ids, device=device)}


@contextmanager
def fixed_weights(model: PreTrainedModel, *, learning: bool = False) -> Iterator[None]:
    """Put a model into eval mode with all its weights frozen, or (``learning``) none; restore both afterwards."""
    was_training = model.training
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    model.eval().requires_grad_(learning)
    try:
        yield
    finally:
        model.train(was_training)
        for parameter, learns in zip(model.parameters(), wanted, strict=True):
            parameter.requires_grad_(learns)


# Names of operators that do the work of a matrix product; one of them that the counter does not know spoils the count.
_HEAVY = re.compile(r"mm|matmul|linear|conv|attention|einsum|lstm|gru|rnn|cdist|\bdot")


def count_flops(model: PreTrainedModel, arrays: dict[str, np.ndarray]) -> float | None:
    """Return the FLOPs of one row of a batch, padding included.

    Args:
        model: a torch model, on the CPU.
        arrays: int64 token arrays ``[B, T]`` by input name, as a runtime takes them.

    Returns:
        Multiplications and additions of a row, on average; an LSTM reads no padding and is counted without. None
        where the model does something that cannot be counted.
    """
    lstms = {name: module for name, module in model.named_modules() if isinstance(module, nn.LSTM)}
    # What a transformer computes for a row depends on the padded length alone, so that one row says it.
    rows = len(arrays["input_ids"]) if lstms else 1
    inputs = {name: torch.from_numpy(arrays[name][:rows]) for name in input_names(model) if name in arrays}
    counter, recorded, recurrent = FlopCounterMode(display=False), _Recorded(), list[int]()
    hooks = [m.register_forward_pre_hook(lambda m, args: recurrent.append(_lstm(m, args[0]))) for m in lstms.values()]
    implementation = model.config._attn_implementation
    try:
        # The processor's fused attention is unknown to the counter; eager attention does the same two products.
        model.config._attn_implementation = "eager"
        with torch.no_grad(), counter, recorded:
            model(**inputs)
    finally:
        model.config._attn_implementation = implementation
        for hook in hooks:
            hook.remove()
    unknown = [str(one) for one in recorded.operators if one not in counter.flop_registry and _HEAVY.search(str(one))]
    if not all(lstms and re.search("lstm|rnn", one) for one in unknown):
        return None
    by_module = counter.get_flop_counts()
    # How much of an LSTM the counter saw depends on the kernel that ran: its formula takes the place of all of it.
    seen = sum(sum(by_module.get(f"{type(model).__name__}.{name}", {}).values()) for name in lstms)
    return float(counter.get_total_flops() - seen + sum(recurrent)) / rows


def _lstm(module: Any, inputs: Any) -> int:
    """Return the FLOPs of an LSTM: of each token and direction, four gates of its input and its last state."""
    tokens = len(inputs.data) if hasattr(inputs, "batch_sizes") else inputs.shape[0] * inputs.shape[1]
    directions, state = 1 + module.bidirectional, module.proj_size or module.hidden_size
    widths = [module.input_size] + (module.num_layers - 1) * [directions * state]
    products = sum(module.hidden_size * (4 * (width + state) + module.proj_size) for width in widths)
    return int(2 * tokens * directions * products)


class _Recorded(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators = set[Any]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.add(function._overloadpacket)
        return function(*args, **(kwargs or {}))


Part = Literal["heads", "neurons"]


@dataclass(frozen=True)
class Units:
    """The heads, or the neurons, of one layer, and the weights that are theirs.

    A unit owns ``size`` rows in each of ``blocks`` equal parts of every linear layer in ``rows``, and ``size`` columns
    of ``columns``, whose input ``[B, T, count * size]`` is what the units give.
    """

    rows: tuple[nn.Linear, ...]
    columns: nn.Linear
    size: int
    blocks: int = 1

    @property
    def count(self) -> int:
        return self.columns.in_features // self.size

    def columns_of(self, chosen: Iterable[int]) -> list[int]:
        return [unit * self.size + offset for unit in chosen for offset in range(self.size)]

    def rows_of(self, chosen: Iterable[int]) -> list[int]:
        within = self.columns_of(chosen)
        return [block * self.columns.in_features + row for block in range(self.blocks) for row in within]

    def sum_over_rows(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``[count]``: sums over the units' rows, weights and biases, of what ``of`` makes of a parameter."""
        parts = (of(parameter) for linear in self.rows for parameter in linear.parameters())
        return torch.stack([part.reshape(self.blocks, self.count, -1).sum(dim=(0, 2)) for part in parts]).sum(dim=0)

    def sum_over_columns(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``[count]``: sums over the units' columns of what ``of`` makes of the weights."""
        return of(self.columns.weight).reshape(-1, self.count, self.size).sum(dim=(0, 2))


def has_units(model: PreTrainedModel, part: Part = "heads") -> bool:
    """Tell whether this project knows where the heads, or neurons, of the model are."""
    return not _fault(model, part)


def units_of(model: PreTrainedModel, part: Part = "heads") -> list[Units]:
    """Return the heads, or neurons, of each layer from the first to the last.

    These are the layers that there are weights of: ALBERT's one layer comes once, however often it is used. What is
    done to its heads acts at every use.

    Raises:
        CompressError: for a model of which this project does not know them.
    """
    fault = _fault(model, part)
    refuse((fault, fault))
    cut = getattr(PRUNABLE[stock_type(model.config)], part)
    size = head_size_of(model.config) if part == "heads" else 1
    return [
        Units(tuple(linears_of(layer, cut.rows).values()), linear_of(layer, cut.columns), size, cut.blocks)
        for layer in layers_of(model)
    ]


def _fault(model: PreTrainedModel, part: Part) -> str:
    family = stock_type(model.config)
    if part not in get_args(Part):
        return f"part = {part!r} is not known; use {' or '.join(map(repr, get_args(Part)))}"
    if family not in PRUNABLE:
        return (
            f"the attention heads of a {model.config.model_type!r} model are not known to compress; "
            f"heads can be removed from {', '.join(sorted(PRUNABLE))}"
        )
    # An ALBERT that shares more than one layer; every published one shares one.
    if (getattr(model.config, "num_hidden_groups", 1), getattr(model.config, "inner_group_num", 1)) != (1, 1):
        return (
            f"this ALBERT shares {model.config.num_hidden_groups} groups of {model.config.inner_group_num} layers; "
            "compress knows the heads of one that shares a single layer (num_hidden_groups = inner_group_num = 1)"
        )
    if part == "neurons" and family in WITHOUT_NEURONS:
        return f"a layer of a {family} has several feed-forward networks, whose neurons compress does not remove"
    return ""


def heads_per_layer(model: PreTrainedModel) -> list[int]:
    """Return the number of heads of each layer; an empty list for a model without heads."""
    return [units.count for units in units_of(model)] if has_units(model) else []


def ffn_widths(model: PreTrainedModel) -> list[int]:
    """Return the inner width of each layer's feed-forward network; an empty list for a model without one."""
    if has_units(model, "neurons"):
        return [units.count for units in units_of(model, "neurons")]
    if stock_type(model.config) in WITHOUT_NEURONS:
        return [linear_of(layer, "intermediate.dense").out_features for layer in layers_of(model)]
    return []


def kept_layers(model: PreTrainedModel) -> list[int]:
    """Return the numbers that the present layers had before any pruning."""
    kept = getattr(model.config, "kept_layers", None)
    return list(range(len(layers_of(model)))) if kept is None else list(kept)


def has_heads(model: PreTrainedModel) -> bool:
    """Tell whether this project knows where the queries, keys and values of the model are."""
    return stock_type(model.config) in FAMILIES and has_units(model)


def attention_layers(model: PreTrainedModel) -> list[Units]:
    """Return the heads of each layer, where ``rows`` are the projections to queries, keys and values.

    Raises:
        CompressError: the heads of the model are not known here, or its attention is built otherwise than BERT's.
    """
    family = stock_type(model.config)
    refuse(
        (
            family in PRUNABLE and family not in FAMILIES,
            f"the attention of a {family!r} is built otherwise than BERT's, and nothing but pruning is made for it; "
            f"use one of {', '.join(sorted(FAMILIES))}",
        )
    )
    return units_of(model)
