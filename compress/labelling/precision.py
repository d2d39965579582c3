"""Whether a teacher may label in bfloat16: it must be faster on this host and change next to nothing."""

import time
from collections.abc import Mapping, Sequence

import numpy as np

from compress.data.examples import Example
from compress.data.stored_tokenizer import AnyTokenizer
from compress.errors import CompressError
from compress.inference.batching import Run, logits_of
from compress.inference.speedup_intervals import speedup

COMPARED_ROWS = 512
ROUNDS = 3
LEAST_AGREEMENT = 0.99  # share of rows with the same label
MOST_DIFFERENCE = 0.02  # root mean square of the logits' difference, as a share of the logits' standard deviation


def compare_precisions(
    runs: Mapping[str, Run], rows: Sequence[Example], tokenizer: AnyTokenizer, *, max_length: int, task: str
) -> tuple[bool, str]:
    """Return whether the second run is to be used instead of the first, and why.

    Args:
        runs: two, by the names of their precisions.
        rows: labelled in turns by both, once to compare and to warm up and ``ROUNDS`` times to compare their speed.
        max_length: tokens a text is cut to.
    """

    def label(name: str) -> np.ndarray:
        return logits_of(rows, runs[name], tokenizer, max_length=max_length, task=task)

    exact, rounded = runs
    reference = label(exact)
    try:
        close, found = is_close(reference, label(rounded))
    except CompressError as error:
        return False, f"{rounded} fails: {error}"
    if not close:
        return False, f"{rounded} {found}"
    samples: dict[str, list[list[float]]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name in runs:
            started = time.perf_counter()
            label(name)
            samples[name].append([1000 * (time.perf_counter() - started)])
    ratio = speedup(samples[exact], samples[rounded])
    return ratio.low > 1, f"{rounded} is x{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) as fast and {found}"


def is_close(exact: np.ndarray, rounded: np.ndarray) -> tuple[bool, str]:
    """Return whether logits ``[N, C]`` are near enough to exact ones, and how near they are, for a sentence."""
    answered = np.isfinite(exact).all(axis=1)  # words that were cut off have no logits
    exact, rounded = exact[answered], rounded[answered]
    spread = max(float(exact.std()), float(np.finfo(np.float32).tiny))
    difference = float(np.sqrt(np.square(exact - rounded).mean())) / spread
    found = f"logits that differ by {difference:.2%}"
    if exact.shape[1] == 1:
        return difference <= MOST_DIFFERENCE, f"gives {found}"
    same = float((exact.argmax(axis=1) == rounded.argmax(axis=1)).mean())
    found = f"gives the same label in {same:.1%} of {len(exact):,}, with {found}"
    return same >= LEAST_AGREEMENT and difference <= MOST_DIFFERENCE, found
