"""Divergence between how tokens relate to each other in student and teacher, in the last layer.

Wang et al. 2021, "MiniLMv2" (arXiv:2012.15828), equations 5 to 8: the queries of all heads are joined and cut again
into ``relation_heads``, and ``softmax(Q Q' / sqrt(d))`` is compared by ``KL(teacher || student)``; likewise keys and
values. Widths and numbers of heads may differ. The mean over relation heads and real tokens of an example, then over
examples; the sum over relations and layers. ``relations = ["attention", "value"]`` with ``relation_heads = 0`` (the
models' own heads, as many in both) is the first MiniLM (Wang et al. 2020, arXiv:2002.10957, equations 6 to 10).
"""

from torch import Tensor

from compress.errors import refuse
from compress.models.batch import Batch, Outputs
from compress.training.losses._common import (
    relation_divergence,
    require_equal_heads,
    require_outputs,
    scaled_products,
    split_heads,
    trained_pairs,
    zero,
)

NEEDS = frozenset({"attention"})
MEAN_OVER = "texts"
# Relation -> the two kinds of vectors whose products it is.
RELATIONS = {
    "query": ("queries", "queries"),
    "key": ("keys", "keys"),
    "value": ("values", "values"),
    "attention": ("queries", "keys"),
}


def loss(
    student: Outputs,
    teacher: Outputs,
    batch: Batch,
    *,
    relations: tuple[str, ...] = ("query", "key", "value"),
    relation_heads: int = 0,
    layers: str = "final",
    teacher_layer: int = 0,
) -> Tensor:
    """Return the sum over relations and layers of the mean divergence.

    Args:
        relation_heads: into how many heads both sides are cut; 0 keeps their own. The papers use 48 of a width of 768.
        teacher_layer: which layer of the teacher, counted from 1, the student's last layer learns from; 0 is the
            last. MiniLMv2 takes the 21st of BERT-large's 24.

    Raises:
        CompressError: a side without attention heads, other numbers of them, or an option that cannot be.
    """
    require_outputs("queries", loss="relations", student=student, teacher=teacher)
    depth = len(teacher.queries)
    refuse(
        (
            not relations or set(relations) - set(RELATIONS),
            f"relations = {list(relations)} is not allowed; use some of {', '.join(RELATIONS)}",
        ),
        (
            teacher_layer and (layers != "final" or not 0 < teacher_layer <= depth),
            f"teacher_layer = {teacher_layer} is not possible with layers = {layers!r}: it goes with layers = 'final' "
            f"and is one of the teacher's layers 1 to {depth}, or 0 for the last",
        ),
    )

    def vectors(outputs: Outputs, kind: str, layer: int) -> Tensor:
        own: Tensor = getattr(outputs, kind)[layer - 1]
        return split_heads(own, relation_heads) if relation_heads else own

    total = zero(student)
    for layer, mapped in trained_pairs(student, teacher, layers):
        for left, right in (RELATIONS[name] for name in relations):
            ours, theirs = (
                scaled_products(vectors(side, left, number), vectors(side, right, number))
                for side, number in ((student, layer), (teacher, teacher_layer or mapped))
            )
            require_equal_heads(ours, theirs, loss="relations")
            total = total + relation_divergence(ours, theirs, batch)
    return total
