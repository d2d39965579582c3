"""Is int8 accurate and faster here? Both graphs answer the same rows, in one process and turn by turn.

The rules by which int8 is refused stand in :mod:`compress.quantization.quantize`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compress import plugins
from compress.data.examples import Example
from compress.data.tokenization import encode, maximum_length
from compress.errors import CompressError
from compress.evaluation.metrics import agreement, find_metric, predictions, score
from compress.inference.batching import Run, logits_of
from compress.inference.side_by_side import ROWS, take_turns
from compress.inference.timing import Ratio, speedup

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


BATCH_SIZES = (1, 32)


@dataclass(frozen=True)
class Check:
    """What comparing int8 with fp32 gave; ``reasons`` says why int8 is not good enough, and is empty when it is."""

    metric: str
    fp32: float
    int8: float
    rows: int
    agreement: float
    largest_logit_difference: float
    speedups: Mapping[int, Ratio] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


def start(directory: Path, threads: int, runtime: str = "onnxruntime") -> Run:
    """Open a directory in a runtime."""
    run: Run = plugins.find("runtimes", runtime).function(directory, threads=threads, device="cpu")
    return run


class Judge:
    """Compares the fp32 and the int8 model on the same rows, in one process, turn by turn.

    Speed counts for ONNX graphs: packed weights that run in ``torch`` after unpacking are not there to be faster.
    """

    def __init__(
        self,
        fp32: Path,
        int8: Path,
        tokenizer: PreTrainedTokenizerFast,
        config: Mapping[str, Any],
        threads: int,
        runtime: str = "onnxruntime",
    ) -> None:
        self.runs = {"fp32": start(fp32, threads, runtime), "int8": start(int8, threads, runtime)}
        self.timed = runtime == "onnxruntime"
        self.tokenizer = tokenizer
        self.max_length = maximum_length(tokenizer, config)

    def check(
        self,
        rows: Sequence[Example],
        gold: np.ndarray,
        task: str,
        metric: str,
        max_accuracy_drop: float,
        min_agreement: float,
    ) -> Check:
        reference = self.logits("fp32", rows, task)
        classes = reference.shape[1]
        chosen = find_metric(metric, task=task, classes=classes)
        fp32 = predictions(reference, task)
        expected = score(fp32, gold, metric=chosen, classes=classes)
        try:
            logits = self.logits("int8", rows, task)
        except CompressError:  # fp32 read the same rows, so that only the numbers can be at fault
            return Check(metric, expected, 0.0, len(rows), 0.0, 0.0, {}, ("its logits are not finite numbers",))
        int8 = predictions(logits, task)
        found = score(int8, gold, metric=chosen, classes=classes)
        same = agreement(int8, fp32)
        reasons = []
        if len(np.unique(int8)) == 1 and len(np.unique(fp32)) > 1:
            reasons.append(f"it predicts {int8[0]} for all {len(rows):,} rows")
        drop = 100 * (expected - found)
        if drop > max_accuracy_drop:
            reasons.append(f"{metric} drops by {drop:.2f} points, more than the {max_accuracy_drop:g} allowed")
        if same < min_agreement:
            reasons.append(f"it agrees with fp32 on {same:.1%} of the rows, fewer than {min_agreement:.1%}")
        # A model that is wrong is not timed: it is not kept, however fast it is.
        speedups = {} if reasons or not self.timed else {size: self.time(rows, size) for size in BATCH_SIZES}
        if speedups:
            mean = float(np.exp(np.mean([np.log(ratio.value) for ratio in speedups.values()])))
            if mean <= 1:
                shown = ", ".join(f"x{ratio.value:.2f} at batch size {size}" for size, ratio in speedups.items())
                reasons.append(f"it is not faster on this host ({shown})")
        difference = float(np.nanmax(np.abs(logits - reference)))  # a word that is not answered has no logits
        return Check(metric, expected, found, len(rows), same, difference, speedups, tuple(reasons))

    def logits(self, name: str, rows: Sequence[Example], task: str) -> np.ndarray:
        return logits_of(rows, self.runs[name], self.tokenizer, max_length=self.max_length, batch_rows=32, task=task)

    def time(self, rows: Sequence[Example], batch_size: int) -> Ratio:
        """Return how many times faster int8 is than fp32, on batches of the rows' own lengths."""
        tokens = encode(self.tokenizer, rows[:ROWS], self.max_length)
        padding_ids = dict.fromkeys(self.runs, self.tokenizer.pad_token_id or 0)
        samples = take_turns(self.runs, dict.fromkeys(self.runs, tokens), padding_ids, batch_size)
        return speedup(samples["fp32"], samples["int8"])
