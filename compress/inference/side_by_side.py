"""Time models in turns within one process: a quick estimate for decisions within a stage.

``compress benchmark`` is more exact: there every model has a process of its own.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compress.data.examples import Example
from compress.data.tokenization import TokenLists, encode, maximum_length, pad
from compress.inference.batching import Run
from compress.inference.open_runtime import open_runtime
from compress.inference.speedup_intervals import draw_batches, latency_percentiles, speedup
from compress.models.model_dir import ModelDir

ROUNDS = 10
ROWS = 2000
ROWS_PER_ROUND = 10  # of single rows, so that small and large batches take a like share of the time


def time_in_turns(
    runs: Mapping[str, Run], tokens: Mapping[str, TokenLists], padding_ids: Mapping[str, int], batch_size: int
) -> dict[str, list[list[float]]]:
    """Return the latencies of every run in milliseconds, a list a round, on the same random rows in a random order.

    Args:
        tokens: the same rows as the tokens that each run reads.
    """
    generator = random.Random(0)
    samples: dict[str, list[list[float]]] = {name: [] for name in runs}
    rows = len(next(iter(tokens.values()))["input_ids"])
    for turn in range(ROUNDS + 1):
        drawn = draw_batches(generator, rows, batch_size, max(1, ROWS_PER_ROUND // batch_size))
        order = list(runs)
        generator.shuffle(order)
        for name in order:
            latency_ms = []
            for batch in drawn:
                read = [{key: values[row] for key, values in tokens[name].items()} for row in batch]
                arrays = pad(read, padding_ids[name])
                start = time.perf_counter()
                runs[name](arrays)
                latency_ms.append(1000 * (time.perf_counter() - start))
            if turn:  # the first round warms up
                samples[name].append(latency_ms)
    return samples


@dataclass(frozen=True)
class Speed:
    """How fast a model is in a runtime, and how many times as fast as the first of those it took turns with."""

    name: str
    runtime: str
    threads: int
    batch_size: int
    latency_ms: float
    speedup: float
    low: float
    high: float


def time_side_by_side(
    directories: Mapping[str, Path],
    examples: Sequence[Example],
    *,
    runtime: str,
    threads: int,
    batch_sizes: Sequence[int],
) -> list[Speed]:
    """Return the speeds of model directories that ``runtime`` opens, on rows of text; the first is the reference.

    The threads of this process are as before afterwards.
    """
    import torch

    runs: dict[str, Run] = {}
    tokens: dict[str, TokenLists] = {}
    padding_ids: dict[str, int] = {}
    before = torch.get_num_threads()
    try:
        for name, directory in directories.items():
            model = ModelDir.open(directory, verify=False)
            tokenizer = model.load_tokenizer()
            padding_ids[name] = tokenizer.pad_token_id or 0
            tokens[name] = encode(tokenizer, examples[:ROWS], maximum_length(tokenizer, model.config))
            runs[name] = open_runtime(directory, runtime, threads=threads)
        samples = {size: time_in_turns(runs, tokens, padding_ids, size) for size in batch_sizes}
    finally:
        torch.set_num_threads(before)
    return [
        Speed(name, runtime, threads, size, latency_percentiles(own)[50], *speedup(next(iter(by_name.values())), own))
        for size, by_name in samples.items()
        for name, own in by_name.items()
    ]
