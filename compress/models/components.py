"""Embeddings, layers and head of a sequence classifier by function, whatever its family calls them.

A student of its teacher's own family is copied or projected name by name
(:mod:`compress.training.architectures._initialization`); one of another family starts from these parts. Shapes: V
subword tokens, P positions, S segments, E width of the embeddings, D width of the hidden states.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.data.tokenization import OFFSET_POSITIONS
from compress.errors import CompressError, refuse
from compress.models.modeling.families import stock_type

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
