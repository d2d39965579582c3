"""Time models in turns within one process: a quick estimate for decisions within a stage.

``compress benchmark`` is more exact: there every model has a process of its own.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compress.data.examples import Example
from compress.inference.open_runtime import open_runtime
from compress.inference.runners import LoadedModel
from compress.inference.speedup_intervals import by_length, draw_batches, percentile, speedup
from compress.models.model_dir import ModelDir

ROWS = 2000
LEAST_ROUNDS, MOST_ROUNDS = 5, 60
SECONDS = 5.0  # after which no further round begins
PRECISION = 0.05  # share of a speed-up that its interval is to be within


def time_in_turns(
    models: Mapping[str, LoadedModel], examples: Sequence[Example], batch_size: int, threads: int
) -> dict[str, list[list[float]]]:
    """Return the milliseconds of every model on the same rows, a list a round, until the speed-ups are precise.

    They are compared with the first model. One thread is timed by its CPU time, which other programs hardly lengthen;
    several wait for each other and are timed by the wall clock. Tokenisation is not timed.

    Args:
        threads: 0 where the work is not done by threads, but by a GPU.
    """
    is_precise = hasattr(time, "CLOCK_THREAD_CPUTIME_ID")
    clock = time.thread_time if threads == 1 and is_precise else time.perf_counter
    generator = random.Random(0)
    rows, reference = examples[:ROWS], next(iter(models))
    ordered = by_length(models[reference].lengths(rows), generator)
    samples: dict[str, list[list[float]]] = {name: [] for name in models}
    started = time.perf_counter()
    for number in range(MOST_ROUNDS + 1):
        took: dict[str, list[float]] = {name: [] for name in models}
        for batch in draw_batches(ordered, batch_size, generator):
            for name in generator.sample(list(models), len(models)):
                model = models[name]
                arrays = model.prepare([rows[row] for row in batch])
                model.function(arrays)  # brings it back into the caches
                before = clock()
                model.function(arrays)
                took[name].append(1000 * (clock() - before))
        if not number:  # the first round warms up
            continue
        for name, values in took.items():
            samples[name].append(values)
        if number >= LEAST_ROUNDS and (
            time.perf_counter() - started > SECONDS
            or all(speedup(samples[reference], own).half_width <= PRECISION for own in samples.values())
        ):
            break
    return samples


@dataclass(frozen=True)
class Speed:
    """How fast a model is in a runtime, and how many times as fast as the first of those it took turns with.

    ``latency_ms`` is the median, by the clock of :func:`time_in_turns`.
    """

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
    device: str = "cpu",
) -> list[Speed]:
    """Return the speeds of model directories that ``runtime`` opens, on rows of text; the first is the reference.

    The threads of this process are as before afterwards.
    """
    import torch

    models = {name: LoadedModel.open(ModelDir.open(path, verify=False)) for name, path in directories.items()}
    before = torch.get_num_threads()
    try:
        for model in models.values():
            model.start(lambda source: open_runtime(source.path, runtime, threads=threads, device=device))
        samples = {
            size: time_in_turns(models, examples, size, threads if device == "cpu" else 0) for size in batch_sizes
        }
    finally:
        torch.set_num_threads(before)
    return [
        Speed(name, runtime, threads, size, percentile(own, 50).value, *speedup(next(iter(by_name.values())), own))
        for size, by_name in samples.items()
        for name, own in by_name.items()
    ]
