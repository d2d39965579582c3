"""Map student layers to teacher layers. Layers are counted from 1; 0 is the embeddings."""

import math
from collections.abc import Sequence

from compress.errors import CompressError, refuse
from compress.models.batch import Outputs

MAPS = ("uniform", "skip", "last", "final")


def layer_map(student_layers: int, teacher_layers: int, layers: str = "uniform") -> list[tuple[int, int]]:
    """Return pairs (student's layer, teacher's layer).

    ``uniform`` is TinyBERT's ``g(m) = m * L_T / L_S`` (Jiao et al. 2020, arXiv:1909.10351, section 3.1); ``skip`` the
    same without the last layer, which the soft labels teach, and ``last`` the layers just below the teacher's last,
    both of Patient Knowledge Distillation (Sun et al. 2019, arXiv:1908.09355, section 3.2); ``final`` the last layer
    only (MiniLM, Wang et al. 2020, arXiv:2002.10957). A student of one layer has no layer for ``skip`` and ``last``.
    Numbers such as ``1,2,5,6`` are the teacher's layers of the student's layers from the first to the last.

    Raises:
        CompressError: an unknown map, layers that are not there, or a student deeper than its teacher.
    """
    if layers[:1].isdigit():
        numbers = [int(number) if number.strip().isdigit() else -1 for number in layers.split(",")]
        if len(numbers) != student_layers or not all(0 <= number <= teacher_layers for number in numbers):
            raise CompressError(
                f"layers = {layers!r} must be {student_layers} numbers from 0 to {teacher_layers}, a teacher's layer "
                "for each of the student's"
            )
        return list(enumerate(numbers, start=1))
    refuse(
        (
            layers not in MAPS,
            f"layers = {layers!r} is not known; use {', '.join(MAPS)}, or a teacher's layer for each of the student's, "
            "such as '1,2,5,6'",
        ),
        (
            layers != "final" and student_layers > teacher_layers,
            f"the layer map {layers!r} is for students that are not deeper than their teacher; this one has "
            f"{student_layers} layers and the teacher {teacher_layers}: use layers = 'final', or fewer layers",
        ),
    )
    if layers == "final":
        return [(student_layers, teacher_layers)]
    if layers == "last":
        return [(m, teacher_layers - student_layers + m) for m in range(1, student_layers)]
    # Where the depths do not divide, a half always goes up; round() would take the even layer.
    pairs = [(m, math.floor(m * teacher_layers / student_layers + 0.5)) for m in range(1, student_layers + 1)]
    return pairs if layers == "uniform" else pairs[:-1]


def kept_layer_map(before: Sequence[int], after: Sequence[int]) -> str:
    """Return the map of a student that is its teacher without some layers, each named by its number.

    A student layer learns the input that its next layer had in the teacher, and the last one the teacher's last output.
    """
    return ",".join(map(str, (*map(before.index, after[1:]), len(before))))


def trained_pairs(student: Outputs, teacher: Outputs, layers: str) -> list[tuple[int, int]]:
    """Return the pairs of :func:`layer_map` whose student layer is trained now, which may be none."""
    return [
        pair
        for pair in layer_map(student.layers, teacher.layers, layers)
        if student.trained_layers is None or pair[0] in student.trained_layers
    ]
