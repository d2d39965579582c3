"""Acceptance test of a quantized model: predictions and speed against fp32 on the same rows, in one process.

The rules by which int8 is refused are in :mod:`compress.quantization.quantize`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from compress.data.examples import Example
from compress.data.tokenization import encode, maximum_length
from compress.errors import CompressError
from compress.evaluation.metrics import Metric, agreement, predictions, score
from compress.inference.batching import logits_of
from compress.inference.label_check import check_label_meaning
from compress.inference.open_runtime import open_runtime, runtime_for
from compress.inference.side_by_side import ROWS, time_in_turns
from compress.inference.speedup_intervals import Interval, speedup
from compress.inference.threads import default_threads
from compress.models.model_dir import ModelDir
from compress.models.model_files import read_config
from compress.progress import Advance


@dataclass(frozen=True)
class Check:
    """The comparison of int8 with fp32; ``reasons`` says why int8 is refused, and is empty where it is accepted."""

    metric: str
    fp32: float
    int8: float
    rows: int
    agreement: float
    largest_logit_difference: float
    speedups: Mapping[int, Interval] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    @property
    def mean_speedup(self) -> float:
        """The geometric mean over batch sizes; 1 where nothing was timed."""
        return float(np.exp(np.mean([np.log(ratio.value) for ratio in self.speedups.values()] or [0.0])))


class Judge:
    """Compares the fp32 and the int8 directory of a model in the same runtime.

    Speed counts for ONNX graphs only: packed weights are unpacked before they run in ``torch``.
    """

    def __init__(self, source: ModelDir, fp32: Path, int8: Path, threads: int) -> None:
        runtime = runtime_for(int8)
        self.threads = threads or default_threads()  # the same for both, whatever else begins to run
        config = read_config(fp32)  # of the graph: a cross-encoder's activation is in it, and not in this config
        self.runs = {
            name: open_runtime(path, runtime, threads=self.threads, config=config)
            for name, path in (("fp32", fp32), ("int8", int8))
        }
        self.timed = runtime == "onnxruntime"
        self.task, self.labels = source.task, source.labels
        self.tokenizer = source.load_tokenizer()
        self.max_length = maximum_length(self.tokenizer, source.config)

    def check(
        self,
        rows: Sequence[Example],
        gold: np.ndarray,
        metric: Metric,
        *,
        max_accuracy_drop: float,
        min_agreement: float,
        batch_sizes: Sequence[int] = (1, 32),
        advance: Advance = lambda rows: None,
    ) -> Check:
        """Compare both on rows with gold labels ``[N]``; a model refused for its predictions is not timed.

        ``advance`` counts the rows that either has read.
        """
        reference = self.logits("fp32", rows, advance)
        classes = reference.shape[1]
        fp32 = predictions(reference, self.task)
        check_label_meaning(fp32, gold, self.labels, "validation")
        expected = score(fp32, gold, metric=metric, classes=classes)
        try:
            logits = self.logits("int8", rows, advance)
        except CompressError:  # fp32 read the same rows, so that only the numbers can be at fault
            return Check(metric.name, expected, 0.0, len(rows), 0.0, 0.0, {}, ("its logits are not finite numbers",))
        int8 = predictions(logits, self.task)
        found = score(int8, gold, metric=metric, classes=classes)
        same = agreement(int8, fp32)
        reasons = []
        answered = np.isfinite(reference).all(axis=1)  # a word that was cut off has no logits
        if len(np.unique(int8[answered])) == 1 < len(np.unique(fp32[answered])):
            one = int8[answered][0]
            shown = one if self.task == "regression" else self.labels[one]
            reasons.append(f"it predicts {shown} for all {answered.sum():,} rows")
        drop = round(100 * (expected - found), 6)  # three of 300 rows are one point, and not a little more
        if drop > max_accuracy_drop:
            reasons.append(f"{metric.name} drops by {drop:.2f} points, more than the {max_accuracy_drop:g} allowed")
        if same < min_agreement:
            reasons.append(f"it agrees with fp32 on {same:.1%} of the rows, fewer than {min_agreement:.1%}")
        speedups = {} if reasons or not self.timed else {size: self.time(rows, size) for size in batch_sizes}
        difference = float(np.nanmax(np.abs(logits - reference)))
        check = Check(metric.name, expected, found, len(rows), same, difference, speedups, tuple(reasons))
        if speedups and check.mean_speedup <= 1:
            shown = ", ".join(f"x{ratio.value:.2f} at batch size {size}" for size, ratio in speedups.items())
            return replace(check, reasons=(f"it is not faster on this host ({shown})",))
        return check

    def logits(self, name: str, rows: Sequence[Example], advance: Advance) -> np.ndarray:
        return logits_of(
            rows,
            self.runs[name],
            self.tokenizer,
            max_length=self.max_length,
            batch_rows=32,
            task=self.task,
            advance=advance,
        )

    def time(self, rows: Sequence[Example], batch_size: int) -> Interval:
        """Return the speed-up of int8 over fp32, on batches of the rows' own lengths."""
        tokens = encode(self.tokenizer, rows[:ROWS], self.max_length)
        padding_ids = dict.fromkeys(self.runs, self.tokenizer.pad_token_id or 0)
        samples = time_in_turns(self.runs, dict.fromkeys(self.runs, tokens), padding_ids, batch_size, self.threads)
        return speedup(samples["fp32"], samples["int8"])
