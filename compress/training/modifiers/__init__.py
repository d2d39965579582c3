"""Modifiers of a student's forward pass during a phase: ``attach(student, teacher, *, options)``, one a file, returns a
:class:`Modifier`."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


class Modifier(Protocol):
    """A change of a student's forward pass for the length of a phase."""

    def step(self, done: float) -> None:
        """Called before every optimiser step with the share of the phase that is done, from 0 up to below 1."""

    def detach(self) -> None:
        """Leave the student's forward pass as it was found."""


@runtime_checkable
class ObservingModifier(Modifier, Protocol):
    """A modifier with a state that follows from the batches."""

    def gather(self) -> None:
        """Called after every backward: bring what this process has observed together with that of the others.

        It is called as often in all of them, which the forward passes of a step are not.
        """


@runtime_checkable
class MaskingModifier(Modifier, Protocol):
    """A modifier that masks heads or neurons permanently.

    Scores from before the last unit is masked are those of another model, so that a later phase must select.
    """

    @property
    def masks(self) -> Mapping[Any, Sequence[Tensor]]:
        """Of each part, ``heads`` or ``neurons``, a tensor ``[U]`` a layer: 1 for kept, 0 for masked."""
