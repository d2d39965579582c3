"""Initialize students from the layers, head and labels of a teacher of any family, at its width or a smaller one.

For a smaller width each weight is a projection or selection of the teacher's.
Directions are found by a truncated singular value decomposition (Eckart and Young 1936). For embeddings each vector
counts as often as its token occurs in a corpus: a rank spread evenly over a vocabulary is spent mostly on tokens that
no text has. (MiniLM on SST-2, 128 of 384 directions: 96% of the predictions stay the same, against 80% when every
token counts the same.)

For a whole transformer the residual stream of width D is written in an orthonormal basis ``[D, d]`` of the directions
in which the teacher's hidden states vary most. What reads the stream is multiplied by the basis, what writes to it by
its transpose. A head's query-key and value-output products are replaced by their best approximation of the smaller
rank. Units of inner layers are selected by the size of their weights. At the full width all of this is an exact copy.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress.data.examples import Example, batched
from compress.data.tokenization import encode
from compress.errors import refuse
from compress.models.components import Embeddings, attention_layers, has_heads, head_of
from compress.models.modeling.families import FAMILIES, PREFIX, layers_of, linear_of, stock_type
from compress.models.modeling.pruned import has_stock_shapes
from compress.progress import logger
from compress.tasks import head_fields, of_network
from compress.training.losses._common import layer_map

COUNTED_EXAMPLES = 10_000
CHUNK = 500
PASS_ROWS = 32  # the states of all layers of so many rows are in memory at a time


def require_layers(teacher: PreTrainedModel, student: str, *, plain: bool = True) -> None:
    """Refuse a teacher whose layers a student of this kind cannot start from: pruned, or no transformer known here.

    Args:
        plain: also refuse taggers, and MobileBERT, whose layers have bottlenecks.
    """
    family, what = teacher.config.model_type, f"a {student} student"
    refuse(
        (
            not has_heads(teacher) or (family.startswith(PREFIX) and not has_stock_shapes(teacher)),
            f"{what} cannot start from a {family!r} teacher; use the model it was pruned from, or the student bilstm",
        ),
        (
            plain and of_network(teacher).by_word,
            f"{what} classifies whole texts, and this teacher tags words; use the student minibert-3 or bilstm-tagger",
        ),
        (
            plain and family == "mobilebert",
            f"{what} cannot start from a 'mobilebert' teacher, whose layers have bottlenecks and no layer norms; use "
            "the student transformer (fewer of its own layers) or bilstm",
        ),
    )


def own_layers(model: PreTrainedModel, uses: Sequence[int]) -> list[int]:
    """Return which layers there are weights of among those used, counted from 0: the one that ALBERT shares, or all."""
    return [0] if len(layers_of(model)) == 1 else list(uses)


@torch.no_grad()
def fill_layer(teacher: PreTrainedModel, layer: int, student: PreTrainedModel, index: int) -> None:
    """Give layer ``index`` of a student, of any family, the weights of one of the teacher's."""
    theirs, ours = FAMILIES[stock_type(teacher.config)], FAMILIES[stock_type(student.config)]
    source, target = layers_of(teacher)[layer], layers_of(student)[index]
    for old, new in zip(theirs.parts, ours.parts, strict=True):
        state = source.get_submodule(old).state_dict()
        for name, parameter in target.get_submodule(new).named_parameters():
            parameter.copy_(state[name])


@torch.no_grad()
def fill_head(teacher: PreTrainedModel, student: PreTrainedModel) -> None:
    for old, new in zip(head_of(teacher), head_of(student), strict=True):
        new.load_state_dict(old.state_dict())


def label_settings(teacher: PreTrainedModel) -> dict[str, Any]:
    return {**head_fields(teacher.config), "pad_token_id": teacher.config.pad_token_id}


def choose_layers(there: int, depth: int | float, start: str) -> list[int]:
    """Return the teacher layers, counted from 0, that a student of this depth starts from.

    DistilBERT's 6 of 12 are 0, 2, 4, 7, 9, 11; TinyBERT's 4 of 12 are 2, 5, 8, 11 (its g(m) = m * L_T / L_S).
    """
    wanted = depth if isinstance(depth, int) else round(depth * there)
    refuse(
        (
            not 1 <= wanted <= there,
            f"depth = {depth} is not possible: the teacher has {there} layers; use 1 to {there}, or a share such as "
            "0.5",
        )
    )
    starts = {
        "spread": [round(i * (there - 1) / max(wanted - 1, 1)) for i in range(wanted)],
        "blocks": [layer - 1 for _, layer in layer_map(wanted, there)],  # the map that teaches them counts from 1
        "first": list(range(wanted)),
    }
    refuse((start not in starts, f"start = {start!r} is not known; use 'spread', 'blocks' or 'first'"))
    return starts[start]


def free_depth(teacher: PreTrainedModel, depth: int | float) -> int:
    """Return the number of layers of a student that may be deeper than its teacher: a count, or a share of those."""
    wanted = depth if isinstance(depth, int) else round(depth * int(teacher.config.num_hidden_layers))
    refuse((wanted < 1, f"depth = {depth} is not possible; give 1 layer or more, or a share such as 0.5"))
    return wanted


@dataclass(frozen=True)
class Directions:
    """Orthonormal ``basis`` ``[E, r]``, and ``error``, the share of the vectors' energy that it leaves out."""

    basis: Tensor
    error: float


def leading_directions(vectors: Iterable[Tensor], rank: int) -> Directions:
    """Return the ``rank`` directions that hold most of vectors ``[N, E]``, which come in any number of parts."""
    squares = (part.double().T @ part.double() for part in vectors)
    moment = sum(squares, start=torch.zeros(()))  # one after the other: all of a corpus together fill any memory
    values, basis = torch.linalg.eigh(moment)
    lost, total = values[: len(values) - rank].clamp(min=0).sum(), values.sum()
    return Directions(basis.flip(1)[:, :rank].float(), float(lost / total) if total > 0 else 0.0)


def token_vectors(
    embeddings: Embeddings, tokenizer: PreTrainedTokenizerFast, examples: Iterable[Example], *, words_only: bool = False
) -> Iterator[Tensor]:
    """Yield ``[N, E]`` of the tokens of some texts at a time: word, position and segment summed, or the words alone."""
    limit = min(len(embeddings.positions), int(tokenizer.model_max_length))
    for chunk in batched(itertools.islice(examples, COUNTED_EXAMPLES), CHUNK):
        tokens = encode(tokenizer, chunk, limit, counted=False)
        rows = tokens["input_ids"]
        vectors = embeddings.words[np.concatenate(rows)]
        if not words_only:
            vectors = vectors + torch.cat([embeddings.positions[: len(row)] for row in rows])
            kinds = tokens.get("token_type_ids") or [np.zeros_like(row) for row in rows]
            segments = torch.from_numpy(np.concatenate(kinds))
            vectors = vectors + embeddings.segments[segments.clamp(max=len(embeddings.segments) - 1)]
        yield vectors


@torch.no_grad()
def hidden_states(teacher: PreTrainedModel, batch: dict[str, Tensor]) -> Iterator[Tensor]:
    """Yield ``[N, D]`` of one layer of some rows of a batch at a time, padding left out."""
    teacher.train(False)
    for start in range(0, len(batch["input_ids"]), PASS_ROWS):
        part = {name: values[start : start + PASS_ROWS] for name, values in batch.items()}
        mask = part["attention_mask"].bool()
        yield from (hidden[mask] for hidden in teacher(**part, output_hidden_states=True).hidden_states)


def centred_basis(width: int) -> Tensor:
    """Return an orthonormal basis ``[E, E - 1]`` of the vectors whose mean is zero, float64: what a layer norm sees."""
    basis: Tensor = torch.linalg.qr(torch.cat((torch.ones(width, 1), torch.eye(width)[:, :-1]), dim=1).double()).Q
    return basis[:, 1:]  # the first vector has equal numbers


def say_lost(what: str, size: int, embeddings: Embeddings, error: float) -> None:
    shown = what, size, embeddings.words.shape[1], 100 * error
    logger.info("%s of width %d in place of %d leave out %.1f%% of their energy", *shown)


@torch.no_grad()
def project_model(
    teacher: PreTrainedModel, student: PreTrainedModel, layers: Sequence[int], directions: Directions | None
) -> None:
    """Fill every weight of ``student`` from ``teacher``, in place; student layer i starts from ``layers[i]``."""
    width, names = teacher.config.hidden_size, FAMILIES[stock_type(teacher.config)]
    directions = directions or Directions(torch.eye(width), 0.0)
    down = directions.basis
    # A layer norm over d directions that hold a share f of the energy sees sqrt(f D / d) times the deviation.
    norm_scale = ((1 - directions.error) * width / down.shape[1]) ** 0.5
    done: set[nn.Module] = set()
    for index, source in enumerate(layers):
        _project_attention(teacher, student, index, source, down)
        (old_in, old_out), (new_in, new_out) = (
            [linear_of(layer, name) for name in (names.neurons.rows[0], names.neurons.columns)]
            for layer in (layers_of(teacher)[source], layers_of(student)[index])
        )
        _select_units((old_in, old_out), (new_in, new_out), down, down.T)
        attention = attention_layers(student)[index]
        done |= {*attention.rows, attention.columns, new_in, new_out}
    if not of_network(teacher).by_word:
        # The units of the head are behind a nonlinearity too. The head of a tagger has none: it reads the stream.
        head = head_of(student)
        _select_units(head_of(teacher), head, down, torch.eye(head[1].out_features))
        done |= set(head)
    sources: dict[str, Any] = dict(teacher.named_modules())
    module: Any
    for name, module in student.named_modules():
        if module in done or next(module.parameters(recurse=False), None) is None:
            continue
        old = sources[_source_name(teacher, name, layers)]
        if not isinstance(module, nn.Linear) and old.weight.shape == module.weight.shape:
            module.load_state_dict(old.state_dict())  # also beside the stream, such as over ELECTRA's embeddings
        elif isinstance(module, nn.Embedding):
            module.weight.copy_(old.weight @ down)
        elif name == "classifier":  # a tagger's
            module.weight.copy_(old.weight @ down)
            module.bias.copy_(old.bias)
        else:  # a norm, or the projection of narrow embeddings (ALBERT, ELECTRA) into the stream
            is_norm = isinstance(module, nn.LayerNorm)
            module.weight.copy_(norm_scale * (down**2).T @ old.weight if is_norm else down.T @ old.weight)
            module.bias.copy_(down.T @ old.bias)


@torch.no_grad()
def copy_model(teacher: PreTrainedModel, student: PreTrainedModel, layers: Sequence[int]) -> None:
    weights = teacher.state_dict()
    student.load_state_dict({name: weights[_source_name(teacher, name, layers)] for name in student.state_dict()})


def _source_name(teacher: PreTrainedModel, name: str, layers: Sequence[int]) -> str:
    stack = re.escape(FAMILIES[stock_type(teacher.config)].layers)
    return re.sub(rf"(?<={stack}\.)\d+", lambda number: str(layers[int(number[0])]), name, count=1)


def _project_attention(
    teacher: PreTrainedModel, student: PreTrainedModel, index: int, source: int, down: Tensor
) -> None:
    old, new = attention_layers(teacher)[source], attention_layers(student)[index]
    rank = new.size
    for head in range(old.count):
        rows = slice(head * old.size, (head + 1) * old.size)
        kept = slice(head * rank, (head + 1) * rank)
        query, key, value = (  # [rows, d + 1]: the weights in the basis, and the bias as one more column
            torch.cat((projection.weight[rows] @ down, projection.bias[rows, None]), dim=1) for projection in old.rows
        )
        output = down.T @ old.columns.weight[:, rows]
        if rank < old.size:
            # Scores are divided by the root of the head's width, which changes.
            query, key = (part * (rank / old.size) ** 0.25 for part in _halves(query.T, key, rank))
            query = query.T
            output, value = _halves(output, value, rank)
        for projection, weights in zip(new.rows, (query, key, value), strict=True):
            projection.weight[kept] = weights[:, :-1]
            projection.bias[kept] = weights[:, -1]
        new.columns.weight[:, kept] = output
    new.columns.bias.copy_(down.T @ old.columns.bias)


def _halves(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return ``[m, rank]`` and ``[rank, n]`` whose product is the best one of that rank to ``left @ right``."""
    left_basis, left_rest = torch.linalg.qr(left)
    right_basis, right_rest = torch.linalg.qr(right.T)
    u, s, v = torch.linalg.svd(left_rest @ right_rest.T)
    root = s[:rank].sqrt()
    return left_basis @ (u[:, :rank] * root), (root[:, None] * v[:rank]) @ right_basis.T


def _select_units(old: Sequence[nn.Linear], new: Sequence[nn.Linear], reads: Tensor, writes: Tensor) -> None:
    """Fill two linear layers with a nonlinearity between them: the units there are the largest of the old ones.

    Args:
        reads: the basis ``[D, d]`` of what the first one reads.
        writes: from what the second one gave to what it gives now.
    """
    (old_in, old_out), (new_in, new_out) = old, new
    largest = (old_in.weight.norm(dim=1) * old_out.weight.norm(dim=0)).topk(new_in.out_features)
    units = largest.indices.sort().values
    new_in.weight.copy_(old_in.weight[units] @ reads)
    new_in.bias.copy_(old_in.bias[units])
    new_out.weight.copy_(writes @ old_out.weight[:, units])
    new_out.bias.copy_(writes @ old_out.bias)
