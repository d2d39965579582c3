"""Whether a teacher may label in bfloat16: it must be faster on this host and change next to nothing."""

from collections.abc import Mapping, Sequence

import numpy as np

from compress.data.examples import Example
from compress.data.stored_tokenizer import AnyTokenizer
from compress.data.tokenization import encode
from compress.inference.batching import BATCH_ROWS, Run, logits_of
from compress.inference.side_by_side import time_in_turns
from compress.inference.speedup_intervals import speedup

COMPARED_ROWS = 512
LEAST_AGREEMENT = 0.99  # share of rows with the same label
MOST_DIFFERENCE = 0.02  # root mean square of the logits' difference, as a share of the logits' standard deviation


def compare_precisions(
    runs: Mapping[str, Run],
    rows: Sequence[Example],
    tokenizer: AnyTokenizer,
    *,
    max_length: int,
    threads: int,
    task: str,
) -> tuple[bool, str]:
    """Return whether the second run is to be used instead of the first, and why.

    Args:
        runs: two, by the names of their precisions.
        rows: at most ``COMPARED_ROWS`` are used.
        max_length: tokens a text is cut to.
    """
    rows = rows[:COMPARED_ROWS]
    exact, rounded = (logits_of(rows, run, tokenizer, max_length=max_length, task=task) for run in runs.values())
    close, found = is_close(exact, rounded)
    other = list(runs)[1]
    if not close:
        return False, f"{other} {found}"
    tokens = encode(tokenizer, rows, max_length, task=task)
    padding = dict.fromkeys(runs, tokenizer.pad_token_id or 0)
    samples = time_in_turns(runs, dict.fromkeys(runs, tokens), padding, min(BATCH_ROWS, len(rows)), threads)
    ratio = speedup(*samples.values())
    return ratio.low > 1, f"{other} is x{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) as fast and {found}"


def is_close(exact: np.ndarray, rounded: np.ndarray) -> tuple[bool, str]:
    """Return whether logits ``[N, C]`` are near enough to exact ones, and how near they are, for a sentence."""
    answered = np.isfinite(exact).all(axis=1)  # words that were cut off have no logits
    exact, rounded = exact[answered], rounded[answered]
    same = float((exact.argmax(axis=1) == rounded.argmax(axis=1)).mean())
    difference = float(np.sqrt(np.square(exact - rounded).mean()) / exact.std())
    found = f"gives the same label in {same:.1%} of {len(exact):,}, with logits that differ by {difference:.2%}"
    return same >= LEAST_AGREEMENT and difference <= MOST_DIFFERENCE, found
