"""Gradual pruning: heads and neurons of feed-forward networks are closed step by step while the student learns.

Zhu and Gupta 2017, "To prune, or not to prune: exploring the efficacy of pruning for model compression"
(arXiv:1710.01878), equation 1: after update k of n the share ``1 - (1 - k/n)**3`` of what goes in the end is closed,
much at first and little at last. Which units go is decided by their importance of Michel et al. 2019
(arXiv:1905.10650, equation 3), the mean over examples of ``|dL/dxi|``, for the loss of the phase and on the training
batches themselves since the update before: each example's gate gets its gradient in the backward that trains. A closed
unit stays closed, and takes no part in evaluations either. The loss of a tagger is a mean over the words of a batch, so
that a batch of short sentences counts as much as one of long ones.

Shapes: B batch, L layers, U units (heads or neurons) of a layer.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from compress.errors import CompressError
from compress.models.prunable_units import Part, units_of
from compress.surgery.unit_masks import Gates, gated
from compress.surgery.unit_selection import close_lowest, normalised

if TYPE_CHECKING:
    from transformers import PreTrainedModel


STATE = "gradual_pruning"  # a submodule of the student meanwhile, so that checkpoints hold what was decided


class Closing(nn.Module):
    """The units of one part: which are ``open``, and their gradients' ``totals`` since the last update.

    Both are buffers ``[L, U]``; a layer of fewer units than another ends in closed ones.
    """

    open: Tensor
    totals: Tensor

    def __init__(self, gates: Gates, *, count: int, keep: int, multiple: int, normalise: bool) -> None:
        super().__init__()
        self.gates, self.count, self.normalise = gates, count, normalise
        self.keep, self.multiple = keep, multiple
        present = [torch.ones(units, device=gates.device) for units in gates.counts]
        self.register_buffer("open", nn.utils.rnn.pad_sequence(present, batch_first=True))
        self.register_buffer("totals", torch.zeros_like(self.open))

    @property
    def masks(self) -> list[Tensor]:
        """``[U]`` a layer, 1 for open."""
        return [row[:units] for row, units in zip(self.open, self.gates.counts, strict=True)]

    def watch(self, rows: int) -> None:
        """Give the units gates for a forward pass of so many examples; none in an evaluation, which has 0."""
        self.gates.masks = self.masks
        self.gates.examples = []
        for layer, gate in enumerate(self.gates.per_example(rows) if rows else ()):
            gate.register_hook(partial(self._add, layer))

    def _add(self, layer: int, gradient: Tensor) -> None:
        """Add the gradients ``[B, U]`` of a batch: a loss is a mean over the B examples, which is undone here."""
        self.totals[layer, : gradient.shape[1]] += len(gradient) * gradient.abs().sum(dim=0)

    def close(self, share: float) -> None:
        """Close units until this share of ``count`` is gone, as nearly as widths allow, and begin to count anew."""
        closed = sum(self.gates.counts) - int(self.open.sum())
        scores, masks = self.totals.cpu(), list(self.open.cpu())
        masks = close_lowest(
            normalised(scores) if self.normalise else scores,
            masks,
            max(0, round(share * self.count) - closed),
            keep=self.keep,
            multiple=self.multiple,
        )
        self.open.copy_(torch.stack(masks))
        self.totals.zero_()


class GradualPruning:
    """A student that loses heads and neurons while it learns."""

    def __init__(
        self, student: PreTrainedModel, closings: dict[Part, Closing], stack: ExitStack, until: float, updates: int
    ) -> None:
        self._closings, self._stack = closings, stack
        self._until, self._updates = until, updates
        self._state = nn.ModuleDict({str(part): closing for part, closing in closings.items()})
        self._state.register_buffer("taken", torch.zeros((), dtype=torch.long, device=student.device))
        student.add_module(STATE, self._state)
        stack.callback(delattr, student, STATE)
        stack.callback(student.register_forward_pre_hook(self._before, with_kwargs=True).remove)

    @property
    def masks(self) -> dict[Part, list[Tensor]]:
        """Of each part that is pruned a tensor ``[U]`` a layer: 1 for open, 0 for closed."""
        return {part: [mask.cpu().clone() for mask in closing.masks] for part, closing in self._closings.items()}

    def step(self, done: float) -> None:
        """Close what is to be closed at this share of the phase."""
        # A hair more, for a share of steps that is a hair below what it stands for.
        self._take(min(self._updates, int(done / self._until * self._updates + 1e-9)))

    def detach(self) -> None:
        """Remove gates and buffers; in a phase too short for all updates the rest of the units is closed now."""
        if any(bool(closing.totals.any()) for closing in self._closings.values()):
            self._take(self._updates)
        self._stack.close()

    def _take(self, update: int) -> None:
        taken = self._state.get_buffer("taken")
        if update > int(taken):
            for closing in self._closings.values():
                closing.close(closed_share(update / self._updates))
            taken.fill_(update)

    def _before(self, student: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Give every example of a training batch gates of its own."""
        batch = next(value for value in (*inputs, *named.values()) if isinstance(value, Tensor))
        learns = student.training and torch.is_grad_enabled()
        for closing in self._closings.values():
            closing.watch(len(batch) if learns else 0)


def closed_share(progress: float) -> float:
    """Return how much of what goes in the end is closed at a progress from 0 to 1: equation 1, from nothing to all."""
    return 1 - (1 - progress) ** 3


def attach(
    student: PreTrainedModel,
    teacher: PreTrainedModel | None,
    *,
    heads: int = 0,
    neurons: int = 0,
    until: float = 0.7,
    updates: int = 10,
    keep_heads: int = 1,
    multiple: int = 32,
    normalise: bool = True,
) -> GradualPruning:
    """Let a student lose heads and neurons while it learns.

    Args:
        heads: how many are closed in the end.
        neurons: of feed-forward networks, likewise.
        until: the share of the phase after which that many are closed.
        updates: in how many steps, at equal distances from the beginning.
        keep_heads: how many every layer keeps at least.
        multiple: what a layer keeps of its neurons is a multiple of this, where it loses any; the total is the nearest
            that such widths allow.
        normalise: divide each layer's scores by their L2 norm before layers are compared.

    Raises:
        CompressError: a student without such units or with too few, or an option out of its range.
    """
    if not 0 < until <= 1:
        raise CompressError(f"gradual-pruning: until = {until} must be above 0 and at most 1")
    for name, value in (("updates", updates), ("keep_heads", keep_heads), ("multiple", multiple)):
        if value < 1:
            raise CompressError(f"gradual-pruning: {name} = {value} must be at least 1")
    if min(heads, neurons) < 0 or not heads + neurons:
        raise CompressError(
            f"gradual-pruning: heads = {heads} and neurons = {neurons} say how many go; "
            "neither may be below 0, and one must be above"
        )
    counts: dict[Part, int] = {"heads": heads, "neurons": neurons}
    widths: dict[Part, dict[str, int]] = {
        "heads": {"keep": keep_heads, "multiple": 1},
        "neurons": {"keep": multiple, "multiple": multiple},
    }
    asked = {part: count for part, count in counts.items() if count}
    for part, count in asked.items():
        present, keep = [units.count for units in units_of(student, part)], widths[part]["keep"]
        most = sum(max(0, units - keep) for units in present)
        if count > most:
            raise CompressError(
                f"gradual-pruning: {part} = {count} of {sum(present)} is more than {len(present)} layers can give that "
                f"keep at least {keep} each; give at most {most}"
            )
    stack = ExitStack()
    closings = {
        part: Closing(stack.enter_context(gated(student, part)), count=count, normalise=normalise, **widths[part])
        for part, count in asked.items()
    }
    return GradualPruning(student, closings, stack, until, updates)
