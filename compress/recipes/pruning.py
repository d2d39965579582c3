"""What to remove from a model (amounts such as ``60%``), how it is chosen, and how the model recovers."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Literal

from compress.errors import CompressError
from compress.fields import validated

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
    if wanted < 1:
        raise CompressError(f"{option} {text} removes none of the model's {total} {unit}; {_allowed(option)}")
    if not most:
        raise CompressError(
            f"{option} {text}: every layer keeps {keep} {unit}, and none has more; keep fewer, or leave {option} out"
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
    if not 0 < part < 1:
        raise CompressError(f"{option} {text} is not between 0% and 100% (both excluded); {_allowed(option)}")
    return part


AMOUNTS = ("heads", "ffn", "layers", "hidden")
_OF_STEPS = ("criterion", "step", "recompute", "scope")


@validated
class Pruning:
    """What to remove from a model.

    Amounts are what is removed: a share (``60%``) of what is there when its turn comes, a count (``40``),
    or ``max``, as many as may be removed. Layers are removed first, then heads and neurons step by step, then hidden
    size; one recovery by distillation follows.

    Args:
        heads: attention heads of the whole model.
        ffn: neurons of its feed-forward networks.
        layers: whole layers.
        hidden: the width of the states between layers, in multiples of the width of a head.
        max_accuracy_drop: remove heads and neurons, up to their amounts, as long as the whole 95% interval of the
            difference on the validation rows lies above this many points of loss, before any recovery; 0 asks nothing.
        speedup: remove heads and neurons, up to their amounts, until the model is so many times as fast as the unpruned
            one in the same runtime on this host; 0 asks nothing.
        speedup_batch_size: at how many rows a batch.
        criterion: what scores heads and neurons.
        examples: rows of train that it reads.
        step: share of the units that go between two scorings.
        recompute: score again after each step (Michel et al. 2019, section 4.1).
        normalise: divide the scores of a layer by their norm before layers are compared.
        scope: compare the units of the whole ``model``, or let every ``layer`` come down to the same width.
        keep_heads: how many heads every layer keeps at least.
        multiple: widths of feed-forward networks stay multiples of this, which fills the vector registers of a CPU.
        schedule: ``steps`` decides before any training; ``cubic`` masks units during the first part of the recovery
            (Zhu and Gupta 2017, arXiv:1710.01878).
        recover: epochs of distillation from the unpruned model.
        recovery: what is learned from it: its ``logits``, also its ``hidden`` states, or also the ``relations`` of its
            tokens.
    """

    heads: str = ""
    ffn: str = ""
    layers: str = ""
    hidden: str = ""
    max_accuracy_drop: float = 0.0
    speedup: float = 0.0
    speedup_batch_size: int = 1
    criterion: str = "gradient"
    examples: int = 1024
    step: float = 0.1
    recompute: bool = True
    normalise: bool = True
    scope: Literal["model", "layer"] = "model"
    keep_heads: int = 1
    multiple: int = 32
    schedule: Literal["steps", "cubic"] = "steps"
    recover: float = 0.0
    recovery: Literal["logits", "hidden", "relations"] = "logits"

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
        changed = [_option(name) for name in _OF_STEPS if getattr(self, name) != getattr(Pruning, name)]
        is_cubic = self.schedule == "cubic"
        if not 0 <= self.max_accuracy_drop < math.inf:
            yield f"--max-accuracy-drop {self.max_accuracy_drop} must be above 0 points, such as 1.0"
        if self.speedup and not 1 < self.speedup < math.inf:
            yield f"--speedup {self.speedup} must be above 1, such as 1.5"
        if self.max_accuracy_drop and self.speedup:
            yield "--max-accuracy-drop and --speedup are two ends of one path; give one of them"
        if is_cubic and self.has_target:
            yield "--schedule cubic removes what amounts say while it trains; give --heads or --ffn, no target"
        if self.has_target and self.hidden:
            yield "--hidden would change what a target has decided before it; leave it out, or prune twice"
        if is_cubic and changed:
            options = ", ".join(changed)
            yield f"--schedule cubic decides by the gradients of its training; {options} would change nothing"
        yield from self._idle()
        if is_cubic and not (self.heads or self.ffn):
            yield "--schedule cubic masks heads and neurons; give --heads or --ffn"
        if is_cubic and not self.recover:
            yield "--schedule cubic removes while it trains; add --recover EPOCHS"
        yield from self.scoring_faults()
        for name in ("keep_heads", "multiple", "speedup_batch_size"):
            if getattr(self, name) < 1:
                yield f"--{name.replace('_', '-')} {getattr(self, name)} must be 1 or more"
        if not 0 <= self.recover < math.inf:
            yield f"--recover {self.recover} is not a number of epochs; give 0 or more, such as 1"

    def scoring_faults(self) -> Iterator[str]:
        """Return what is wrong with how units are scored and removed."""
        if self.examples < 1:
            yield f"--examples {self.examples} is not a number of rows; give 1 or more, such as 1024"
        if not 0 < self.step <= 1:
            yield f"--step {self.step} is not a share; give one above 0 and at most 1, such as 0.1"

    def _idle(self) -> Iterator[str]:
        """Say which options change nothing for want of others."""
        either = self.has_target and not (self.heads or self.ffn)  # a target alone lets both go
        for name, used, missing in (
            *((name, self.removes_units, "--heads, --ffn or a target") for name in (*_OF_STEPS, "normalise")),
            ("normalise", self.scope == "model", "--scope model, which alone compares layers"),
            ("keep_heads", either or self.heads, "--heads or a target"),
            ("multiple", either or self.ffn, "--ffn or a target"),
            ("speedup_batch_size", self.speedup, "--speedup"),
            ("recovery", self.recover, "--recover EPOCHS"),
        ):
            if not used and getattr(self, name) != getattr(Pruning, name):
                yield f"{_option(name)} changes nothing without {missing}"

    def check(self) -> None:
        """Raise a :class:`CompressError` that says all faults."""
        if faults := [*self.faults()]:
            raise CompressError("; ".join(faults))


def _option(name: str) -> str:
    """Return the option of the command line that changes a field from its default."""
    return f"--{'no-' if getattr(Pruning, name) is True else ''}{name.replace('_', '-')}"
