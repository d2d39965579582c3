"""How long configurations are measured, on workers that answer at once with times whose truth is known."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.benchmarking import rounds
from compress.benchmarking.candidates import Candidate, Entry
from compress.benchmarking.rounds import LEAST_ROUNDS, speedup_of, take_turns
from compress.benchmarking.worker import WorkerRun, Workload
from compress.models.model_dir import Model
from compress.progress import silent
from compress.recipes import BenchmarkSettings

ROWS = 200
SETTINGS = BenchmarkSettings(rounds=100)


class FakeWorker:
    """Takes ``cost_ms`` of CPU time a batch with a relative ``spread``, and ``wall`` times as long by the clock."""

    def __init__(self, cost_ms: float, spread: float = 0.01, wall: float = 1.0) -> None:
        self.cost_ms, self.spread, self.wall = cost_ms, spread, wall
        self.chance = random.Random(cost_ms)
        self.asked: list[list[list[int]]] = []

    def ask(self, request: str, *, shape: dict[str, int], **arguments: Any) -> dict[str, Any]:
        if request == "warm_up":
            return {"stable": True}
        self.asked.append(arguments["batches"])
        cpu_ms = [self.cost_ms * self.chance.lognormvariate(0, self.spread) for _ in arguments["batches"]]
        wall_ms = [self.wall * one for one in cpu_ms]
        return {
            "latency_ms": wall_ms,
            "latency_cpu_ms": cpu_ms,
            "tokenize_ms": [1.0] * len(cpu_ms),
            "tokenize_cpu_ms": [1.0] * len(cpu_ms),
            "device_ms": [None] * len(cpu_ms),
            "cold_ms": [9.0],
        }


def run_of(kind: str, worker: FakeWorker, *, threads: int = 1, device: str = "cpu") -> WorkerRun:
    model = Model(Path(kind))
    entry = Entry(Candidate(model, kind, kind), "torch", model, "torch", device)
    loaded = {"lengths": list(range(1, ROWS + 1)), "tokenizer_inside": False}
    return WorkerRun(entry, threads, worker, loaded)  # type: ignore[arg-type]


def measured(runs: Sequence[WorkerRun], settings: BenchmarkSettings = SETTINGS, batch_size: int = 1) -> list[int]:
    """Let runs take turns and return the rounds that each was given."""
    workload = Workload(batch_size)
    take_turns(runs, [[workload]] * len(runs), settings, seed=0, progress=silent)
    return [len(run.rounds[workload]) for run in runs]


def test_what_is_precise_drops_out_and_the_teacher_stays_for_the_rest() -> None:
    runs = [
        run_of("teacher", FakeWorker(10, 0.05)),
        run_of("model", FakeWorker(5, 0.05)),
        run_of("model", FakeWorker(1, 0.6)),
    ]
    teacher, steady, restless = measured(runs)
    assert steady == 5  # where it is first looked at
    assert 5 < restless == teacher < 100
    ratio = speedup_of(runs[2], Workload(1), runs[0], Workload(1))
    assert ratio.half_width <= SETTINGS.half_width and ratio.low < 10 < ratio.high


def test_baselines_are_measured_less_precisely() -> None:
    model, baseline = (
        measured([run_of("teacher", FakeWorker(10, 0.02)), run_of(kind, FakeWorker(1, 0.6))])[1]
        for kind in ("model", "baseline")
    )
    assert LEAST_ROUNDS < baseline < model / 2


def test_rounds_and_time_are_limits(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    runs = [run_of("teacher", FakeWorker(10)), run_of("model", FakeWorker(1, 3.0))]
    assert measured(runs, replace(SETTINGS, rounds=8)) == [8, 8]
    clock = iter(range(0, 10_000, 7))
    monkeypatch.setattr(rounds, "time", SimpleNamespace(**{**vars(rounds.time), "monotonic": lambda: next(clock)}))
    with caplog.at_level(logging.INFO, logger="compress"):
        assert measured(runs, replace(SETTINGS, time_limit=30)) == [5, 5]
    assert "1 speed-up less precise than asked, after 35 s and 5 rounds" in caplog.text
    assert measured(runs, replace(SETTINGS, time_limit=1)) == [LEAST_ROUNDS] * 2  # an interval needs some


def test_small_batches_get_as_much_time_as_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both models a round of 20 single rows takes 0.48 s with its first calls, one of two batches of 32 1.92 s."""
    now = [0.0]
    monkeypatch.setattr(rounds, "time", SimpleNamespace(**{**vars(rounds.time), "monotonic": lambda: now[0]}))

    class Slow(FakeWorker):
        def ask(self, request: str, *, shape: dict[str, int], **arguments: Any) -> dict[str, Any]:
            if request == "measure":
                batches = arguments["batches"]
                now[0] += 0.01 * sum(map(len, (batches[0], *batches)))
            return super().ask(request, shape=shape, **arguments)

    runs = [run_of("teacher", Slow(10)), run_of("model", Slow(1, 3.0))]
    workloads = [Workload(1), Workload(32)]
    take_turns(runs, [workloads] * 2, replace(SETTINGS, time_limit=30), seed=0, progress=silent)
    small, large = (len(runs[1].rounds[workload]) for workload in workloads)
    assert small == pytest.approx(15 / 0.48, abs=2) and large == pytest.approx(15 / 1.92, abs=2)


def test_all_get_the_same_batches_in_short_turns() -> None:
    costs = {"teacher": 10, "model": 5, "reference-model": 50}
    runs = [run_of(kind, FakeWorker(cost_ms)) for kind, cost_ms in costs.items()]
    counts = measured(runs, replace(SETTINGS, rounds=3))
    teacher, model, reference = (run.worker.asked for run in runs)  # type: ignore[attr-defined]
    assert counts == [3, 3, 3] and teacher == model
    assert [len(batches) for batches in teacher] == [5] * 12
    for start in (0, 4, 8):  # in every round a row of each twentieth of the lengths
        drawn = sorted(row for batches in teacher[start : start + 4] for (row,) in batches)
        assert [row // 10 for row in drawn] == list(range(20))
    assert reference == [teacher[start][:4] for start in (0, 4, 8)]  # for scale only
    assert len(runs[0].rounds[Workload(1)][0].times["cold_ms"]) == 4


@pytest.mark.parametrize(
    ("threads", "device", "expected"), [(1, "cpu", 2.0), (2, "cpu", 1.0), (1, "cuda", 1.0)], ids=["one", "two", "gpu"]
)
def test_one_thread_is_compared_by_cpu_time(threads: int, device: str, expected: float) -> None:
    """Twice the work, and half as often interrupted."""
    runs = [
        run_of("teacher", FakeWorker(10, wall=1.0), threads=threads, device=device),
        run_of("model", FakeWorker(5, wall=2.0), threads=threads, device=device),
    ]
    measured(runs, replace(SETTINGS, rounds=3))
    workload = Workload(1)
    assert speedup_of(runs[1], workload, runs[0], workload).value == pytest.approx(expected, rel=0.02)
    with_tokenizer = speedup_of(runs[1], workload, runs[0], workload, with_tokenizer=True).value
    assert with_tokenizer == pytest.approx(11 / 6 if expected == 2 else 1.0, rel=0.02)


def test_a_tokenizer_inside_is_compared_with_both() -> None:
    runs = [run_of("teacher", FakeWorker(10)), run_of("competitor", FakeWorker(5))]
    runs[1].loaded["tokenizer_inside"] = True
    measured(runs, replace(SETTINGS, rounds=3))
    found = speedup_of(runs[1], Workload(1), runs[0], Workload(1)).value
    assert found == pytest.approx(11 / 6, rel=0.02)


def test_the_teacher_of_the_same_runtime_stays_too() -> None:
    """Its ratio to a model is shown as well."""
    runs = [run_of("teacher", FakeWorker(10)), run_of("teacher", FakeWorker(7)), run_of("model", FakeWorker(1, 0.6))]
    for run in runs[1:]:
        run.entry = replace(run.entry, runtime="onnxruntime")
    counts = measured(runs)
    assert counts[0] == counts[1] == counts[2] > 5
