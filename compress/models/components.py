"""Embeddings, layers and head of a sequence classifier by function, whatever its family calls them.

A student of its teacher's own family is copied or projected name by name
(:mod:`compress.training.architectures._projection`); one of another family starts from these parts. Shapes: V
subword tokens, P positions, S segments, E width of the embeddings, D width of the hidden states.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.data.tokenization import OFFSET_POSITIONS
from compress.errors import CompressError
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


def embeddings_of(model: PreTrainedModel) -> Embeddings:
    """Return the embeddings of a model of one of the families."""
    base: Any = model.base_model
    tables: Any = base.embeddings
    config: Any = model.config
    words = tables.word_embeddings.weight.detach()
    positions = tables.position_embeddings.weight.detach()
    if stock_type(config) in OFFSET_POSITIONS:
        positions = positions[config.pad_token_id + 1 :]
    segments = getattr(tables, "token_type_embeddings", None)
    return Embeddings(
        words=words,
        positions=positions,
        segments=words.new_zeros(1, positions.shape[1]) if segments is None else segments.weight.detach(),
        norm=tables.LayerNorm,
        projection=embeddings_projection(model),
    )


def embeddings_projection(model: PreTrainedModel) -> nn.Linear | None:
    """Return the projection of narrow embeddings to the width of the layers; None where the embeddings have none."""
    base: Any = model.base_model
    outside: nn.Linear | None = getattr(base, "embeddings_project", None)  # ELECTRA; ALBERT has it in its encoder
    return outside or getattr(getattr(base, "encoder", None), "embedding_hidden_mapping_in", None)


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
    """Return the inner width of the feed-forward networks, as the model's config has it."""
    config: Any = model.config
    return int(config.hidden_dim if hasattr(config, "hidden_dim") else config.intermediate_size)


def activation(model: PreTrainedModel) -> str:
    """Return the name of the nonlinearity of the feed-forward networks."""
    config: Any = model.config
    return str(config.activation if stock_type(config) == "distilbert" else config.hidden_act)
