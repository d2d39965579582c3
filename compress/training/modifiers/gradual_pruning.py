"""Gradual pruning: heads and neurons of feed-forward networks are masked step by step while the student learns.

Zhu and Gupta 2017, "To prune, or not to prune: exploring the efficacy of pruning for model compression"
(arXiv:1710.01878), equation 1: after update k of n the share ``1 - (1 - k/n)**3`` of the units to remove is masked,
most of them early. Which units are removed is decided by their importance of Michel et al. 2019 (arXiv:1905.10650,
equation 3), the mean over examples of ``|dL/dxi|``, for the loss of the phase and on the training batches themselves
since the update before: each example's mask gets its gradient in the backward that trains. A masked unit stays masked,
and takes no part in evaluations either. The loss of a tagger is a mean over the words of a batch, so that a batch of
short sentences counts as much as one of long ones.

Shapes: B batch, L layers, U units (heads or neurons) of a layer.
"""

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress.errors import refuse
from compress.inference import processes
from compress.models.components import Part, units_of
from compress.surgery.unit_masks import MaskHooks, mask_hooks, mask_lowest, normalised

STATE = "gradual_pruning"  # a submodule of the student meanwhile, so that checkpoints hold what was decided


class PartMasks(nn.Module):
    """The units of one part: which are ``kept``, and their gradients' ``totals`` since the last update.

    Both are buffers ``[L, U]``; a layer of fewer units than another ends in masked ones.
    """

    kept: Tensor
    totals: Tensor

    def __init__(self, hooks: MaskHooks, *, count: int, keep: int, multiple: int, normalise: bool) -> None:
        super().__init__()
        self.hooks, self.count, self.normalise = hooks, count, normalise
        self.keep, self.multiple = keep, multiple
        self.rows = 0  # of the batch, which may be read in parts
        present = [torch.ones(units, device=hooks.device) for units in hooks.counts]
        self.register_buffer("kept", nn.utils.rnn.pad_sequence(present, batch_first=True))
        self.register_buffer("totals", torch.zeros_like(self.kept))

    @property
    def masks(self) -> list[Tensor]:
        """``[U]`` a layer, 1 for kept."""
        return [row[:units] for row, units in zip(self.kept, self.hooks.counts, strict=True)]

    def watch(self, rows: int) -> None:
        """Give the units masks for a forward pass of so many examples; none in an evaluation, which has 0."""
        self.hooks.masks = self.masks
        self.hooks.examples = []
        self.rows += rows
        for layer, mask in enumerate(self.hooks.per_example(rows) if rows else ()):
            mask.register_hook(partial(self._add, layer))

    def _add(self, layer: int, gradient: Tensor) -> None:
        """Add the gradients ``[B, U]`` of a batch: a loss is a mean over the B examples, which is undone here."""
        # The mean over processes, which gather takes, is the sum of what they add.
        self.totals[layer, : gradient.shape[1]] += processes.active() * self.rows * gradient.abs().sum(dim=0)

    def gather(self) -> None:
        """Add up what the processes of a training have seen of a batch."""
        processes.total(self.totals).div_(processes.active())
        self.rows = 0

    def mask(self, share: float) -> None:
        """Mask units until this share of ``count`` is gone, as nearly as widths allow, and begin to count anew."""
        masked = sum(self.hooks.counts) - int(self.kept.sum())
        scores, masks = self.totals.cpu(), list(self.kept.cpu())
        masks = mask_lowest(
            normalised(scores) if self.normalise else scores,
            masks,
            max(0, round(share * self.count) - masked),
            keep=self.keep,
            multiple=self.multiple,
        )
        self.kept.copy_(torch.stack(masks))
        self.totals.zero_()


class GradualPruning:
    def __init__(
        self, student: PreTrainedModel, part_masks: dict[Part, PartMasks], stack: ExitStack, until: float, updates: int
    ) -> None:
        self._parts, self._stack = part_masks, stack
        self._until, self._updates = until, updates
        self._state = nn.ModuleDict({str(part): masking for part, masking in part_masks.items()})
        self._state.register_buffer("taken", torch.zeros((), dtype=torch.long, device=student.device))
        student.add_module(STATE, self._state)
        stack.callback(delattr, student, STATE)
        stack.callback(student.register_forward_pre_hook(self._before, with_kwargs=True).remove)

    @property
    def masks(self) -> dict[Part, list[Tensor]]:
        """Of each part that is pruned a tensor ``[U]`` a layer: 1 for kept, 0 for masked."""
        return {part: [mask.cpu().clone() for mask in masking.masks] for part, masking in self._parts.items()}

    def step(self, done: float) -> None:
        # A hair more, for a share of steps that is a hair below what it stands for.
        self._take(min(self._updates, int(done / self._until * self._updates + 1e-9)))

    def gather(self) -> None:
        for masking in self._parts.values():
            masking.gather()

    def detach(self) -> None:
        """Remove masks and buffers; in a phase too short for all updates the rest of the units is masked now."""
        if any(bool(masking.totals.any()) for masking in self._parts.values()):
            self._take(self._updates)
        self._stack.close()

    def _take(self, update: int) -> None:
        taken = self._state.get_buffer("taken")
        if update > int(taken):
            for masking in self._parts.values():
                masking.mask(masked_share(update / self._updates))
            taken.fill_(update)

    def _before(self, student: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Give every example of a training batch masks of its own."""
        batch = next(value for value in (*inputs, *named.values()) if isinstance(value, Tensor))
        for masking in self._parts.values():
            masking.watch(len(batch) if student.training and torch.is_grad_enabled() else 0)


def masked_share(progress: float) -> float:
    """Return the share of the units to remove that is masked at a progress from 0 to 1 (equation 1)."""
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
        heads: how many are masked in the end.
        neurons: of feed-forward networks, likewise.
        until: the share of the phase after which that many are masked.
        updates: in how many steps, at equal distances from the beginning.
        keep_heads: how many every layer keeps at least.
        multiple: what a layer keeps of its neurons is a multiple of this, where it loses any; the total is the nearest
            that such widths allow.
        normalise: divide each layer's scores by their L2 norm before layers are compared.

    Raises:
        CompressError: a student without such units or with too few, or an option out of its range.
    """
    at_least_1 = {"updates": updates, "keep_heads": keep_heads, "multiple": multiple}
    refuse(
        (not 0 < until <= 1, f"gradual-pruning: until = {until} must be above 0 and at most 1"),
        *((value < 1, f"gradual-pruning: {name} = {value} must be at least 1") for name, value in at_least_1.items()),
        (
            min(heads, neurons) < 0 or not heads + neurons,
            f"gradual-pruning: heads = {heads} and neurons = {neurons} say how many go; neither may be below 0, and "
            "one must be above",
        ),
    )
    parts: dict[Part, tuple[int, int, int]] = {
        "heads": (heads, keep_heads, 1),
        "neurons": (neurons, multiple, multiple),
    }
    asked = {part: numbers for part, numbers in parts.items() if numbers[0]}
    for part, (count, keep, _) in asked.items():
        present = [units.count for units in units_of(student, part)]
        most = sum(max(0, units - keep) for units in present)
        refuse(
            (
                count > most,
                f"gradual-pruning: {part} = {count} of {sum(present)} is more than {len(present)} layers can give that "
                f"keep at least {keep} each; give at most {most}",
            )
        )
    stack = ExitStack()
    part_masks = {
        part: PartMasks(
            stack.enter_context(mask_hooks(student, part)), count=count, keep=keep, multiple=width, normalise=normalise
        )
        for part, (count, keep, width) in asked.items()
    }
    return GradualPruning(student, part_masks, stack, until, updates)
