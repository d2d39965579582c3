"""Protocols of modifiers: changes of a student while a training phase lasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


class Modifier(Protocol):
    """A change of a student's forward pass for the length of a phase."""

    def step(self, done: float) -> None:
        """Called before every optimiser step with the share of the phase that is done, from 0 up to below 1."""

    def detach(self) -> None:
        """Leave the student's forward pass as it was found."""


@runtime_checkable
class MaskingModifier(Modifier, Protocol):
    """An modifier that closes units for good.

    What the student is worth before the last of them is closed says nothing of the end, so that a later phase selects.
    """

    @property
    def masks(self) -> Mapping[Any, Sequence[Tensor]]:
        """Of each part, ``heads`` or ``neurons``, a tensor ``[U]`` a layer: 1 for open, 0 for closed."""
