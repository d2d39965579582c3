"""AdamW for models that are mostly tables: of a table it updates the rows that a batch has read.

With dense gradients ``compress distill`` of an ``ngram`` takes 1.4 and 1.6 times as long for 400 steps (CPU seconds of
two turns on one core), its training alone 1.8 and 2.2 times; that of a ``cnn`` 1.07 times.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class RowAdamW(torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) that also takes sparse gradients, of ``nn.Embedding``.

    A parameter with a sparse gradient has no momentum (beta 1 is 0) and no decay of its weights: rows without a
    gradient then stay where they are, so that updating the others alone is Adam itself. Their second moments decay
    with every step; a row's is brought up to date when it is read.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        found = closure and torch.enable_grad()(closure)()
        sparse = [
            (parameter, parameter.grad.coalesce(), group)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and parameter.grad.is_sparse
        ]
        for parameter, gradient, group in sparse:
            self._update_rows(parameter, gradient, group)
            parameter.grad = None  # the others are AdamW's
        super().step()  # type: ignore[no-untyped-call, unused-ignore]
        return found

    def _update_rows(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (_, decay) = self.state[parameter], group["betas"]
        if "read_at" not in state:
            state["step"] = torch.zeros(())
            state["second_moment"] = torch.zeros_like(parameter)
            state["read_at"] = torch.zeros(len(parameter), device=parameter.device)
        state["step"] += 1
        step = int(state["step"])
        rows, values = gradient.indices()[0], gradient.values()
        kept = decay ** (step - state["read_at"][rows])
        moment = state["second_moment"][rows] * kept[:, None] + (1 - decay) * values.square()
        state["second_moment"][rows] = moment
        state["read_at"][rows] = step
        scale = (moment / (1 - decay**step)).sqrt_().add_(group["eps"])
        parameter.index_add_(0, rows, values / scale, alpha=-float(group["lr"]))


def sparse_gradients(model: nn.Module, on: bool) -> None:
    """Choose whether embeddings get sparse gradients, which :class:`RowAdamW` takes."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = on


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale all gradients, sparse ones too, so that their norm is at most ``limit``; return what it was."""
    values: list[Tensor] = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            gradient = parameter.grad = gradient.coalesce()
            values.append(gradient.values())
        elif gradient is not None:
            values.append(gradient)
    norm = nn.utils.get_total_norm(values)
    torch._foreach_mul_(values, torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm
