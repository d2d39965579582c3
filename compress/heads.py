"""How many heads to remove, and which: pure functions on scores ``[L, H]`` and masks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from compress.errors import CompressError

_ALLOWED = "give a share such as 60% or 0.6, or a count such as 40"


def heads_to_remove(text: str, heads: Sequence[int]) -> int:
    """Return how many heads ``--heads`` asks to remove.

    ``60%`` and ``0.6`` (a decimal point) are shares of all heads, rounded to the nearest head; ``40`` is a count.

    Args:
        text: what the user typed.
        heads: present heads of each layer; every layer keeps at least one.

    Raises:
        CompressError: not a share or count, nothing or everything, or more than the layers can give.
    """
    total = sum(heads)
    asked = parse_heads(text)
    wanted = asked if isinstance(asked, int) else math.floor(asked * total + 0.5)
    if wanted < 1:
        raise CompressError(f"--heads {text} removes none of the model's {total} heads; {_ALLOWED}")
    most = total - len(heads)
    if wanted > most:
        raise CompressError(
            f"--heads {text} removes {wanted} of the model's {total} heads, but each of its {len(heads)} layers keeps "
            f"at least one; give at most {most} ({100 * most / total:.0f}%)"
        )
    return wanted


def parse_heads(text: str) -> int | float:
    """Return the count, or the share between 0 and 1, that ``--heads`` names.

    Raises:
        CompressError: neither a share nor a count, or a share that is out of bounds.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*|\s*(\d*\.\d+|\d+\.\d*)\s*|\s*(\d+)\s*", text)
    if match is None:
        raise CompressError(f"--heads {text} is neither a share nor a count; {_ALLOWED}")
    percent, share, count = match.groups()
    if count is not None:
        return int(count)
    part = float(percent) / 100 if percent is not None else float(share)
    if not 0 < part < 1:
        raise CompressError(f"--heads {text} is not between 0% and 100% (both excluded); {_ALLOWED}")
    return part


def normalised(scores: Tensor) -> Tensor:
    """Divide each layer's scores ``[L, H]`` by their L2 norm (Michel et al. 2019, section 4.1)."""
    norms = scores.norm(dim=1, keepdim=True)
    return torch.where(norms > 0, scores / norms, scores)


def close_lowest(scores: Tensor, masks: Sequence[Tensor], count: int) -> list[Tensor]:
    """Return masks with the ``count`` lowest open heads of all layers closed; each layer keeps its best one.

    Ties go by layer and head, so that the same scores always give the same masks.
    """
    closed = [mask.clone() for mask in masks]
    order = sorted(
        (float(scores[layer, head]), layer, head)
        for layer, mask in enumerate(masks)
        for head in range(len(mask))
        if mask[head]
    )
    for _, layer, head in order:
        if count == 0:
            break
        if closed[layer].sum() > 1:
            closed[layer][head] = 0
            count -= 1
    if count:
        raise ValueError("more heads to close than the layers can give")
    return closed


def step_sizes(total: int, step: int) -> list[int]:
    """Cut a number of removals into steps: ``step`` at a time, the rest last."""
    return [step] * (total // step) + ([total % step] if total % step else [])
