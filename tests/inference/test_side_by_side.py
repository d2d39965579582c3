"""Runs that take turns within a process, with a clock of our own that only they move."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.data.examples import Example
from compress.inference import runners
from compress.inference.runners import LEAST_ROUNDS, MOST_ROUNDS, LoadedModel, time_in_turns
from compress.inference.speedup_intervals import speedup
from tests.support.tiny import tokenizer

ROWS = [Example("the film is good")] * 40


class Clocks:
    """CPU seconds of this thread, and seconds by the wall clock, which other work makes twice as many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cpu = 0.0
        clocks = {"thread_time": lambda: self.cpu, "perf_counter": lambda: 2 * self.cpu}
        monkeypatch.setattr(runners, "time", SimpleNamespace(**{**vars(runners.time), **clocks}))

    def run(self, seconds: float, spread: float = 0.0) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
        generator = np.random.default_rng(0)

        def run(arrays: dict[str, np.ndarray]) -> np.ndarray:
            self.cpu += seconds * generator.lognormal(0, spread)
            return np.zeros((len(arrays["input_ids"]), 2))

        return run


def turns(runs: dict[str, Any], threads: int = 1) -> dict[str, list[list[float]]]:
    return time_in_turns({name: LoadedModel(tokenizer(), 8, run) for name, run in runs.items()}, ROWS, 1, threads)


def test_what_is_precise_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "SECONDS", 1e9)
    clocks = Clocks(monkeypatch)
    samples = turns({"one": clocks.run(0.004), "other": clocks.run(0.001)})
    assert {len(rounds) for rounds in samples.values()} == {LEAST_ROUNDS}
    assert speedup(samples["one"], samples["other"]).value == pytest.approx(4)
    restless = turns({"one": clocks.run(0.004), "other": clocks.run(0.001, spread=2.0)})
    assert len(restless["other"]) == MOST_ROUNDS


def test_no_round_begins_after_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    monkeypatch.setattr(runners, "SECONDS", 10.0)
    # A round is 20 batches of 2 runs, each twice: 40 calls of 0.01 CPU seconds and 40 of 0.01, twice that by the clock.
    samples = turns({"one": clocks.run(0.01), "other": clocks.run(0.01, spread=2.0)})
    assert LEAST_ROUNDS <= len(samples["other"]) < MOST_ROUNDS


@pytest.mark.parametrize(("threads", "expected_ms"), [(1, 4.0), (2, 8.0)])
def test_one_thread_is_timed_by_its_cpu_time(threads: int, expected_ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    samples = turns({"one": clocks.run(0.004), "other": clocks.run(0.001)}, threads)
    assert np.median(samples["one"]) == pytest.approx(expected_ms)
