"""Initialize students from the layers, head and labels of a teacher of any family."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from compress.errors import CompressError
from compress.models.components import head_of
from compress.models.modeling.families import FAMILIES, PREFIX, layers_of, stock_type
from compress.models.prunable_units import has_heads
from compress.tasks import of_network
from compress.training.layer_mapping import layer_map

# What a layer is made of, as LayerNames calls it.
ROLES = ("query", "key", "value", "output", "attended_norm", "widened", "narrowed", "norm")


def require_whole(teacher: PreTrainedModel, student: str) -> None:
    """Refuse a teacher whose layers a student of this kind cannot start from: pruned, or no transformer known here."""
    if not has_heads(teacher) or teacher.config.model_type.startswith(PREFIX):
        raise CompressError(
            f"a {student} student cannot start from a {teacher.config.model_type!r} teacher; "
            "use the model it was pruned from, or the student bilstm"
        )


def require_plain_layers(teacher: PreTrainedModel, student: str) -> None:
    """Refuse, beside what :func:`require_whole` does, taggers, and MobileBERT, whose layers have bottlenecks."""
    require_whole(teacher, student)
    if of_network(teacher).by_word:
        raise CompressError(
            f"a {student} student classifies whole texts, and this teacher tags words; use the student minibert-3 or "
            "bilstm-tagger"
        )
    if stock_type(teacher.config) == "mobilebert":
        raise CompressError(
            f"a {student} student cannot start from a 'mobilebert' teacher, whose layers have bottlenecks and no layer "
            "norms; use the student transformer (fewer of its own layers) or bilstm"
        )


def own_layers(model: PreTrainedModel, uses: Sequence[int]) -> list[int]:
    """Return which layers there are weights of among those used, counted from 0: the one that ALBERT shares, or all."""
    return [0] if len(layers_of(model)) == 1 else list(uses)


@torch.no_grad()
def fill_layer(teacher: PreTrainedModel, layer: int, student: PreTrainedModel, index: int) -> None:
    """Give layer ``index`` of a student, of any family, the weights of one of the teacher's."""
    theirs, ours = FAMILIES[stock_type(teacher.config)], FAMILIES[stock_type(student.config)]
    source, target = layers_of(teacher)[layer], layers_of(student)[index]
    for role in ROLES:
        state = source.get_submodule(getattr(theirs, role)).state_dict()
        for name, parameter in target.get_submodule(getattr(ours, role)).named_parameters():
            parameter.copy_(state[name])


@torch.no_grad()
def fill_head(teacher: PreTrainedModel, student: PreTrainedModel) -> None:
    """Copy the classification head of a teacher of the same width."""
    for old, new in zip(head_of(teacher), head_of(student), strict=True):
        new.load_state_dict(old.state_dict())


def label_settings(teacher: PreTrainedModel) -> dict[str, Any]:
    """Return the fields that a student's config takes from its teacher's: labels, problem type, padding."""
    return {name: getattr(teacher.config, name) for name in ("id2label", "label2id", "problem_type", "pad_token_id")}


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
        return [layer - 1 for _, layer in layer_map(wanted, there)]  # the map that teaches them counts from 1
    if start == "first":
        return list(range(wanted))
    raise CompressError(f"start = {start!r} is not known; use 'spread', 'blocks' or 'first'")


def free_depth(teacher: PreTrainedModel, depth: int | float) -> int:
    """Return the number of layers of a student that may be deeper than its teacher: a count, or a share of those."""
    wanted = depth if isinstance(depth, int) else round(depth * int(teacher.config.num_hidden_layers))
    if wanted < 1:
        raise CompressError(f"depth = {depth} is not possible; give 1 layer or more, or a share such as 0.5")
    return wanted
