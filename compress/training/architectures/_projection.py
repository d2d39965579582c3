"""Initialize a narrower transformer from a wider one: each weight is a projection or selection of the teacher's.

The residual stream of width D is written in an orthonormal basis ``[D, d]`` of the directions in which the teacher's
hidden states vary most (a truncated SVD of sampled states). What reads the stream is multiplied by the basis, what
writes to it by its transpose. A head's query-key and value-output products are replaced by their best approximation of
the smaller rank (Eckart and Young 1936). Units of inner layers are selected by the size of their weights. At the full
width all of this is an exact copy.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.models.components import head_of
from compress.models.modeling import is_tagger
from compress.models.modeling.families import FAMILIES, layers_of, linear_of, stock_type
from compress.models.prunable_units import attention_layers
from compress.training.architectures._factorisation import Directions, leading_directions

PASS_ROWS = 32  # the states of all layers of so many rows are in memory at a time


@torch.no_grad()
def directions_of_hidden_states(teacher: PreTrainedModel, batch: dict[str, Tensor], width: int) -> Directions:
    """Return the leading ``width`` directions of all hidden states of a batch, padding left out."""
    teacher.train(False)
    return leading_directions(_hidden_states(teacher, batch), width)


def _hidden_states(model: PreTrainedModel, batch: dict[str, Tensor]) -> Iterator[Tensor]:
    """Yield ``[N, D]`` of a layer of some rows at a time, padding left out."""
    for start in range(0, len(batch["input_ids"]), PASS_ROWS):
        part = {name: values[start : start + PASS_ROWS] for name, values in batch.items()}
        mask = part["attention_mask"].bool()
        yield from (hidden[mask] for hidden in model(**part, output_hidden_states=True).hidden_states)


@torch.no_grad()
def project_model(
    teacher: PreTrainedModel, student: PreTrainedModel, layers: Sequence[int], directions: Directions | None
) -> None:
    """Fill every weight of ``student`` from ``teacher``, in place; student layer i starts from ``layers[i]``."""
    width = teacher.config.hidden_size
    directions = directions or Directions(torch.eye(width), 0.0)
    down = directions.basis
    # A layer norm over d directions that hold a share f of the energy sees sqrt(f D / d) times the deviation.
    norm_scale = ((1 - directions.error) * width / down.shape[1]) ** 0.5
    names = FAMILIES[stock_type(teacher.config)]
    for index, source in enumerate(layers):
        _project_attention(teacher, student, index, source, down)
        old, new = layers_of(teacher)[source], layers_of(student)[index]
        _project_ffn(old, new, names.widened, names.narrowed, down)
    units = _project_head(teacher, student, down)
    done = {id(m) for layer in attention_layers(student) for m in (layer.query, layer.key, layer.value, layer.output)}
    done |= {id(layer.get_submodule(n)) for layer in layers_of(student) for n in (names.widened, names.narrowed)}
    done |= units
    sources: dict[str, Any] = dict(teacher.named_modules())
    stack = f"{names.layers}."
    for name, module in student.named_modules():
        if id(module) in done or next(module.parameters(recurse=False), None) is None:
            continue
        old_module = sources[_source_name(name, stack, layers)]
        if isinstance(module, nn.LayerNorm):
            _project_norm(old_module, module, down, norm_scale)
        elif isinstance(module, nn.Embedding):
            weight = old_module.weight
            module.weight.copy_(weight if weight.shape == module.weight.shape else weight @ down)
        elif isinstance(module, nn.Linear):  # ALBERT's and ELECTRA's projection of their embeddings into the stream
            module.weight.copy_(down.T @ old_module.weight)
            module.bias.copy_(down.T @ old_module.bias)
        else:
            raise TypeError(f"{name} is a {type(module).__name__}, which has no projection")


@torch.no_grad()
def copy_model(teacher: PreTrainedModel, student: PreTrainedModel, layers: Sequence[int]) -> None:
    """Copy the teacher's weights into a student of the same widths; student layer i is a copy of ``layers[i]``."""
    stack = f"{FAMILIES[stock_type(teacher.config)].layers}."
    weights = teacher.state_dict()
    student.load_state_dict({name: weights[_source_name(name, stack, layers)] for name in student.state_dict()})


def _source_name(name: str, stack: str, layers: Sequence[int]) -> str:
    before, found, after = name.partition(stack)
    if not found:
        return name
    index, _, rest = after.partition(".")
    return f"{before}{stack}{layers[int(index)]}.{rest}"


def _project_norm(old: nn.LayerNorm, new: nn.LayerNorm, down: Tensor, scale: float) -> None:
    if old.weight.shape == new.weight.shape:
        new.load_state_dict(old.state_dict())  # a norm beside the stream, such as over ELECTRA's embeddings
        return
    new.weight.copy_(scale * (down**2).T @ old.weight)
    new.bias.copy_(down.T @ old.bias)


def _project_attention(
    teacher: PreTrainedModel, student: PreTrainedModel, index: int, source: int, down: Tensor
) -> None:
    old, new = attention_layers(teacher)[source], attention_layers(student)[index]
    rank = new.head_size
    for head in range(old.heads):
        rows = slice(head * old.head_size, (head + 1) * old.head_size)
        kept = slice(head * rank, (head + 1) * rank)
        query, key, value = (_with_bias(p, rows, down) for p in (old.query, old.key, old.value))
        output = down.T @ old.output.weight[:, rows]
        if rank < old.head_size:
            # Scores are divided by the root of the head's width, which changes.
            query, key = (part * (rank / old.head_size) ** 0.25 for part in _halves(query.T, key, rank))
            query = query.T
            output, value = _halves(output, value, rank)
        for projection, weights in ((new.query, query), (new.key, key), (new.value, value)):
            projection.weight[kept] = weights[:, :-1]
            projection.bias[kept] = weights[:, -1]
        new.output.weight[:, kept] = output
    new.output.bias.copy_(down.T @ old.output.bias)


def _with_bias(projection: nn.Linear, rows: slice, down: Tensor) -> Tensor:
    """Return ``[rows, d + 1]``: the weights in the basis, and the bias as one more column."""
    return torch.cat((projection.weight[rows] @ down, projection.bias[rows, None]), dim=1)


def _halves(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return ``[m, rank]`` and ``[rank, n]`` whose product is the best one of that rank to ``left @ right``."""
    left_basis, left_rest = torch.linalg.qr(left)
    right_basis, right_rest = torch.linalg.qr(right.T)
    u, s, v = torch.linalg.svd(left_rest @ right_rest.T)
    root = s[:rank].sqrt()
    return left_basis @ (u[:, :rank] * root), (root[:, None] * v[:rank]) @ right_basis.T


def _project_ffn(old: nn.Module, new: nn.Module, widened: str, narrowed: str, down: Tensor) -> None:
    old_in, old_out = linear_of(old, widened), linear_of(old, narrowed)
    new_in, new_out = linear_of(new, widened), linear_of(new, narrowed)
    units = _largest(old_in.weight.norm(dim=1) * old_out.weight.norm(dim=0), new_in.out_features)
    new_in.weight.copy_(old_in.weight[units] @ down)
    new_in.bias.copy_(old_in.bias[units])
    new_out.weight.copy_(down.T @ old_out.weight[:, units])
    new_out.bias.copy_(down.T @ old_out.bias)


def _project_head(teacher: PreTrainedModel, student: PreTrainedModel, down: Tensor) -> set[int]:
    """Fill the classification head; its hidden units are behind a nonlinearity, so that they are selected.

    The head of a tagger has no hidden units: it reads the stream itself.
    """
    if is_tagger(teacher):
        old: Any = teacher.classifier
        new: Any = student.classifier
        new.weight.copy_(old.weight @ down)
        new.bias.copy_(old.bias)
        return {id(new)}
    (dense, output), (new_dense, new_output) = head_of(teacher), head_of(student)
    units = _largest(dense.weight.norm(dim=1) * output.weight.norm(dim=0), new_dense.out_features)
    new_dense.weight.copy_(dense.weight[units] @ down)
    new_dense.bias.copy_(dense.bias[units])
    new_output.weight.copy_(output.weight[:, units])
    new_output.bias.copy_(output.bias)
    return {id(new_dense), id(new_output)}


def _largest(sizes: Tensor, count: int) -> Tensor:
    """Return the positions of the ``count`` largest values, in rising order."""
    return sizes.topk(count).indices.sort().values
