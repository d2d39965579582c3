"""Steps of a training on the CPU: memory, matrix products and dropout as they are fastest."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from compress.host import few_kernels, keeping_freed_memory
from compress.inference.compute import fast_float32

LEVELS = 2**16  # of a 16-bit number: the share that dropout removes is a multiple of 1 / 65,536


@contextmanager
def fast_steps(device: str) -> Iterator[AbstractContextManager[Any]]:
    """Let the steps of a training on the CPU use memory and matrix products as they are fastest, within the block.

    What it yields is for each forward pass, to do the same for dropout: it watches every call and every attribute of a
    tensor, and the optimiser reads many.
    """
    if device != "cpu":
        yield nullcontext()
        return
    with keeping_freed_memory(), few_kernels(), fast_float32():
        yield FastDropout()


class FastDropout(TorchFunctionMode):
    """Within the block, dropout costs a quarter: one 64-bit random number decides about four values.

    PyTorch draws a number for each value, one after the other on one core: a tenth to a fifth of a step, and most in
    bfloat16.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is functional.dropout:
            return dropout(*args, **kwargs)
        if function is functional.scaled_dot_product_attention and kwargs.get("dropout_p"):
            if not kwargs.get("is_causal") and not kwargs.get("enable_gqa"):
                chosen = {name: kwargs[name] for name in ("attn_mask", "dropout_p", "scale") if name in kwargs}
                return attention(*args, **chosen)
        return function(*args, **kwargs)


def dropout(values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Return values of which a share of ``p`` is 0, and the others are divided by the share that is kept."""
    dropped = round(p * LEVELS)
    if not training or not dropped:
        return values
    if dropped == LEVELS:
        return values * 0.0
    draws = torch.empty(-(-values.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = draws.view(torch.int16)[: values.numel()].view(values.shape) >= dropped - LEVELS // 2
    return values * kept.to(values.dtype).mul_(LEVELS / (LEVELS - dropped))


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Return what :func:`torch.nn.functional.scaled_dot_product_attention` does, with :func:`dropout`.

    A token that may look at none, which is padding, gets the mean of all values instead of 0.
    """
    scale = queries.shape[-1] ** -0.5 if scale is None else scale
    with torch.autocast("cpu", enabled=False):  # else the softmax of bfloat16 would be one of float32, which is slower
        scores = (queries * scale) @ keys.transpose(-2, -1)
        if attn_mask is not None:
            least = torch.finfo(scores.dtype).min  # with minus infinity a row without any would be no numbers
            scores = scores.masked_fill(~attn_mask, least) if attn_mask.dtype == torch.bool else scores + attn_mask
        # A mask in float32, as T5's position bias, has made the scores so too.
        return dropout(scores.softmax(dim=-1).to(values.dtype), dropout_p) @ values
