"""What to remove from a model (amounts such as ``60%``), how it is chosen, and how the model recovers."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Literal

from compress.errors import CompressError, refuse
from compress.fields import fields_of, flag_of, group, option

MOST = "max"
_EXAMPLES = {"--layers": "2", "--hidden": "64"}


def _allowed(option: str) -> str:
    return f"give a share such as 60% or 0.6, or a count such as {_EXAMPLES.get(option, '40')}"


def units_to_remove(option: str, text: str, counts: Sequence[int], unit: str, *, keep: int = 1) -> int:
    """Return how many units an option asks to remove.

    ``60%`` and ``0.6`` (a decimal point) are shares of all units, rounded to the nearest one; ``40`` is a count;
    ``max`` is as many as may be removed.

    Args:
        option: such as ``--heads``, for messages.
        text: what the user typed.
        counts: units of each layer that are there now.
        unit: what they are called, in the plural.
        keep: how many every layer keeps at least.

    Raises:
        CompressError: not an amount, nothing or everything, or more than the layers can give.
    """
    total = sum(counts)
    asked = parse_amount(option, text)
    most = sum(max(0, count - keep) for count in counts)
    if asked == MOST and most:
        return most
    wanted = asked if isinstance(asked, int) else math.floor(float(asked) * total + 0.5) if asked != MOST else 0
    refuse((wanted < 1, f"{option} {text} removes none of the model's {total} {unit}; {_allowed(option)}"))
    refuse(
        (
            not most,
            f"{option} {text}: every layer keeps {keep} {unit}, and none has more; keep fewer, or leave {option} out",
        )
    )
    if wanted > most:
        stays = "one" if keep == 1 else str(keep)
        kept = f"each of its {len(counts)} layers keeps at least {stays}" if len(counts) > 1 else f"{stays} must stay"
        raise CompressError(
            f"{option} {text} removes {wanted} of the model's {total} {unit}, but {kept}; give at most {most} "
            f"({math.floor(100 * most / total)}%)"
        )
    return wanted


def parse_amount(option: str, text: str) -> int | float | str:
    """Return the count, the share between 0 and 1, or ``max``.

    Raises:
        CompressError: none of these, or a share that is out of bounds.
    """
    if text.strip() == MOST:
        return MOST
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*|\s*(\d*\.\d+|\d+\.\d*)\s*|\s*(\d{1,9})\s*", text)
    if match is None:
        raise CompressError(f"{option} {text} is neither a share nor a count; {_allowed(option)}")
    percent, share, count = match.groups()
    if count is not None:
        return int(count)
    part = float(percent) / 100 if percent is not None else float(share)
    refuse((not 0 < part < 1, f"{option} {text} is not between 0% and 100% (both excluded); {_allowed(option)}"))
    return part


AMOUNTS = ("heads", "ffn", "layers", "hidden")
TARGETS = ("max_accuracy_drop", "speedup")
UNITS = ("heads", "ffn", *TARGETS)
# Of the removal in steps, without what the cubic schedule has too.
_OF_STEPS = ("criterion", "step", "recompute", "scope")


@group
class Pruning:
    """What to remove from a model.

    Amounts are what is removed: a share (``60%``) of what is there when its turn comes, a count (``40``),
    or ``max``, as many as may be removed. Layers are removed first, then heads and neurons step by step, then hidden
    size; one recovery by distillation follows. With a target heads and neurons are removed up to their amounts.
    """

    heads: str = option(default="", metavar="N", help="Attention heads to remove: 60%, 0.6, or a count such as 40.")
    ffn: str = option(default="", metavar="N", help="Neurons of feed-forward networks to remove, likewise.")
    layers: str = option(default="", metavar="N", help="Whole layers to remove: a count such as 2, or 50%.")
    hidden: str = option(default="", metavar="N", help="Hidden width to remove: 25%, in whole head widths.")
    max_accuracy_drop: float | None = option(
        default=None,
        gt=0,
        metavar="POINTS",
        help="Remove as many heads and neurons as the interval on --validation allows, before recovery.",
    )
    speedup: float | None = option(
        default=None,
        gt=1,
        metavar="TIMES",
        help="Remove heads and neurons until the model is so many times as fast on this host.",
    )
    speedup_batch_size: int = option(default=1, ge=1, needs=("speedup",), help="Rows a batch for --speedup.")
    criterion: str = option(default="gradient", metavar="NAME", needs=UNITS, help="See 'compress list criteria'.")
    examples: int = option(default=1024, ge=1, help="Rows of --train used for scoring.")
    step: float = option(default=0.1, gt=0, le=1, needs=UNITS, help="Share of units to remove at a time.")
    # Michel et al. 2019, section 4.1.
    recompute: bool = option(default=True, needs=UNITS, help="Score again after each step.")
    normalise: bool = option(default=True, needs=UNITS, help="Divide scores by the norm of their layer.")
    scope: Literal["model", "layer"] = option(
        default="model",
        needs=UNITS,
        help="Rank units over the whole model, or remove equally many from every layer.",
    )
    keep_heads: int = option(default=1, ge=1, needs=("heads", *TARGETS), help="Heads that every layer keeps.")
    multiple: int = option(  # fills the vector registers of a CPU
        default=32, ge=1, needs=("ffn", *TARGETS), help="Round feed-forward widths to multiples of this."
    )
    # Zhu and Gupta 2017, arXiv:1710.01878.
    schedule: Literal["steps", "cubic"] = option(
        default="steps", help="Remove before the recovery, or mask gradually during it."
    )
    recover: float = option(
        default=0.0,
        ge=0,
        metavar="EPOCHS",
        help="Distil from the unpruned model afterwards; for few rows in 400 steps instead, below 1 in that share of "
        "them.",
    )
    recovery: Literal["logits", "hidden", "relations"] = option(
        default="logits",
        needs=("recover",),
        help="Signal of --recover: logits, also hidden states, or also token relations.",
    )

    @property
    def has_target(self) -> bool:
        """Whether something else than amounts says how many heads and neurons go."""
        return bool(self.max_accuracy_drop or self.speedup)

    @property
    def removes_units(self) -> bool:
        """Whether heads or neurons go."""
        return bool(self.heads or self.ffn or self.has_target)

    def kept(self, part: str) -> int:
        """Return how many ``heads``, or ``neurons``, every layer keeps at least."""
        return self.keep_heads if part == "heads" else self.multiple

    def faults(self) -> Iterator[str]:
        for name in AMOUNTS:
            try:
                amount = parse_amount(f"--{name}", getattr(self, name)) if getattr(self, name) else ""
            except CompressError as error:
                yield str(error)
                continue
            if amount == MOST and name in {"layers", "hidden"}:
                yield f"--{name} max has no end; give an amount such as 25%"
            elif amount == MOST and not self.has_target:
                yield f"--{name} max has no end; give an amount, or --max-accuracy-drop or --speedup with it"
        if self.max_accuracy_drop and self.speedup:
            yield "--max-accuracy-drop and --speedup are two ends of one path; give one of them"
        if self.has_target and self.hidden:
            yield "--hidden would change what a target has decided before it; leave it out, or prune twice"
        if self.scope == "layer" and not self.normalise:
            yield "--no-normalise changes nothing without --scope model, which alone compares layers"
        if self.schedule == "cubic":
            known = fields_of(Pruning)
            values = {name: getattr(self, name) for name in _OF_STEPS}
            changed = [
                flag_of(name, known[name], value) for name, value in values.items() if value != known[name].default
            ]
            if self.has_target:
                yield "--schedule cubic removes what amounts say while it trains; give --heads or --ffn, no target"
            if changed:
                options = ", ".join(changed)
                yield f"--schedule cubic decides by the gradients of its training; {options} would change nothing"
            if not (self.heads or self.ffn):
                yield "--schedule cubic masks heads and neurons; give --heads or --ffn"
            if not self.recover:
                yield "--schedule cubic removes while it trains; add --recover EPOCHS"
