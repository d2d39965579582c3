"""Quantization-aware training: linear layers and embeddings that compute as their quantized versions would."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from compress.errors import refuse
from compress.inference import processes
from compress.models.integer_rounding import fake_symmetric

RANGE_BUFFER = "input_range"
# Rounds rows of a weight ``[..., I]``; the second argument says which rows, and is None for all of them.
Rounding = Callable[[Tensor, Tensor | None], Tensor]


class FakeLayers:
    """Linear layers and embeddings of a model, with rounded weights and inputs until :meth:`detach`.

    The stored weights are not rounded, and the optimiser updates them. Each linear layer gets a buffer
    ``input_range``: the exponential moving average of the largest magnitude of its inputs, observed in training mode
    from the first batch on, whether or not rounding is ``active`` yet. Being buffers, the ranges are part of the state
    dict and survive a restart. Outputs of an embedding are rows of its table: they are rounded instead of the table.
    With ``evaluates_rounded`` the evaluation mode rounds even before training does, so that a checkpoint is selected by
    the predictions of the quantized model.

    Args:
        modules: those layers by their names, as :func:`quantized_modules` gives them.
        rounding: returns how the rows of a module are rounded, given its name and weight.
        activation_bits: 0 leaves the inputs of linear layers as they are.
        decay: of the moving average, from 0 to below 1. The first batch starts it, so that a decay of .9999 hardly
            leaves that batch within a few hundred steps.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        rounding: Callable[[str, Tensor], Rounding],
        *,
        activation_bits: int,
        decay: float,
    ) -> None:
        self.active = False
        self.evaluates_rounded = False
        self._rounding = rounding
        self._bits = activation_bits
        self._decay = decay
        self._linears = {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}
        for name, linear in self._linears.items():
            if activation_bits:
                linear.register_buffer(RANGE_BUFFER, torch.zeros((), device=linear.weight.device))
            linear.forward = partial(self._forward, name, linear)  # type: ignore[method-assign]
        self._hooks = [
            module.register_forward_hook(partial(self._round_rows, name))
            for name, module in modules.items()
            if isinstance(module, nn.Embedding)
        ]

    def ranges(self) -> dict[str, float]:
        """Return the largest magnitude of the inputs of each linear layer that has seen a batch."""
        linears = self._linears if self._bits else {}
        found = {name: float(linear.get_buffer(RANGE_BUFFER)) for name, linear in linears.items()}
        return {name: value for name, value in found.items() if value > 0}

    def gather(self) -> None:
        """Take over the widest ranges that the processes of a training have: those of the whole batch."""
        if self._bits and self._linears and processes.active() > 1:
            ranges = [linear.get_buffer(RANGE_BUFFER) for linear in self._linears.values()]
            for own, widest in zip(ranges, processes.largest(torch.stack(ranges)), strict=True):
                own.copy_(widest)

    def detach(self) -> None:
        """Restore the forward passes of the modules and remove the buffers."""
        for linear in self._linears.values():
            del linear.forward
            if self._bits:
                del linear.input_range
        for hook in self._hooks:
            hook.remove()

    def _forward(self, name: str, linear: nn.Linear, inputs: Tensor) -> Tensor:
        if self._bits and linear.training:
            self._observe(linear.get_buffer(RANGE_BUFFER), inputs)
        if not self._rounds(linear):
            return functional.linear(inputs, linear.weight, linear.bias)
        if self._bits:
            largest = linear.get_buffer(RANGE_BUFFER)
            inputs = torch.where(largest > 0, fake_symmetric(inputs, largest, self._bits), inputs)
        return functional.linear(inputs, self._rounding(name, linear.weight)(linear.weight, None), linear.bias)

    def _rounds(self, module: nn.Module) -> bool:
        return self.active or (self.evaluates_rounded and not module.training)

    @torch.no_grad()
    def _observe(self, average: Tensor, inputs: Tensor) -> None:
        largest = inputs.detach().abs().amax().to(average.dtype)
        average.copy_(torch.where(average > 0, self._decay * average + (1 - self._decay) * largest, largest))

    def _round_rows(self, name: str, table: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        return self._rounding(name, table.get_parameter("weight"))(output, inputs[0]) if self._rounds(table) else None


def check_shares(*, bits: Mapping[str, int], decay: float, start: float) -> None:
    """Check the options that both ways of quantization-aware training have.

    Raises:
        CompressError: bits outside 2 to 8, or a decay or start outside 0 to 1.
    """
    refuse(
        *((not 2 <= value <= 8, f"{name} = {value} is not possible; use 2 to 8") for name, value in bits.items()),
        *(
            (not 0 <= share < 1, f"{name} = {share} must be at least 0 and below 1")
            for name, share in (("decay", decay), ("start", start))
        ),
    )


def quantized_modules(model: PreTrainedModel) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Embedding)}
