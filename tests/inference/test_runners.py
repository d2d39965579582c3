"""Rows of fixed lengths, padding to a width, and a runtime as a runner of texts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress import tasks
from compress.benchmarking import worker_main
from compress.data.examples import Example
from compress.errors import CompressError, Unavailable
from compress.inference.runners import LoadedModel, resize, widen
from tests.support.tiny import POSITIONS, tokenizer, torch_directory

ROWS = [Example("the film is good"), Example("bad " * 40), Example("!")]


@pytest.mark.parametrize(
    ("tokens", "ends", "length", "expected"),
    [
        ([2, 7, 8, 3], (1, 1), 8, [2, 7, 8, 7, 8, 7, 8, 3]),
        ([2, 7, 8, 3], (1, 1), 3, [2, 7, 3]),
        ([2, 7, 3, 8, 3], (1, 1), 8, [2, 7, 3, 8, 7, 3, 8, 3]),  # the mark within a pair is repeated too
        ([7, 8], (0, 0), 5, [7, 8, 7, 8, 7]),
        ([2, 3], (1, 1), 4, [2, 9, 9, 3]),  # a text without tokens
        ([2, 7, 3], (1, 1), 1, [2]),
    ],
)
def test_a_row_is_stretched_between_its_special_tokens(
    tokens: list[int], ends: tuple[int, int], length: int, expected: list[int]
) -> None:
    assert resize(tokens, ends, length, 9) == expected


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("length", [1, 2, 5, 30])
def test_every_row_gets_exactly_that_many_tokens(family: str, length: int) -> None:
    tokens = tokenizer(family)
    pairs = [Example(row.text, "warm and funny") for row in ROWS]
    for rows in (ROWS, pairs):
        arrays = LoadedModel(tokens, POSITIONS).prepare(rows, length=length)
        assert {values.shape for values in arrays.values()} == {(3, length)}
        assert arrays["attention_mask"].all()
        if length > 1:
            natural = LoadedModel(tokens, POSITIONS).prepare(rows)["input_ids"]
            assert (arrays["input_ids"][:, 0] == natural[:, 0]).all()  # the mark at the start stays where it is


def test_padding_to_a_width() -> None:
    runner = LoadedModel(tokenizer(), POSITIONS)
    plain, padded = runner.prepare(ROWS[:1]), runner.prepare(ROWS[:1], width=20)
    width = plain["input_ids"].shape[1]
    assert padded["input_ids"].shape == (1, 20) and padded["attention_mask"].sum() == width
    assert (padded["input_ids"][:, width:] == tokenizer().pad_token_id).all()
    arrays = {"input_ids": np.ones((2, 5)), "attention_mask": np.ones((2, 5))}
    assert widen(arrays, 3, 0)["input_ids"].shape == (2, 5)


def test_what_a_model_can_read_is_the_limit() -> None:
    place = torch_directory("bert")
    assert LoadedModel.open(place, 0, (POSITIONS,)).max_length == POSITIONS
    assert LoadedModel.open(place, 10, ()).lengths(ROWS)[1] == 10
    with pytest.raises(CompressError, match=f"--length 65 is more than the {POSITIONS} tokens"):
        LoadedModel.open(place, 0, (8, 65))


def test_a_runtime_may_prepare_for_shapes_and_take_its_own_time() -> None:
    class Run:
        device_ms = 1.5
        shapes: list[tuple[int, int]] = []

        def __call__(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
            return np.zeros((len(arrays["input_ids"]), 2))

        def prepare_shapes(self, rows: int, length: int) -> None:
            self.shapes.append((rows, length))

    run = Run()
    runner = LoadedModel(tokenizer(), POSITIONS, run)
    child = worker_main.RequestHandler()
    child.runner, child.examples, child.sizes = runner, ROWS, runner.lengths(ROWS)
    child.task, child.labels = tasks.default(), ("no", "yes")
    assert child.warm_up(probe=[0, 1], shape={})["stable"] is True
    child.warm_up(probe=[0], shape={"length": 12})
    child.warm_up(probe=[0], shape={"width": 50})
    assert run.shapes == [(2, 42), (1, 12), (1, 50)]
    turn = child.measure(batches=[[0, 1], [1, 2]], shape={})
    assert [*turn["device_ms"]] == [1.5, 1.5] and len(turn["latency_ms"]) == 2 and len(turn["cold_ms"]) == 1
    del Run.device_ms
    alone = child.measure(batches=[[0]], shape={})
    assert [*alone["device_ms"]] == [None] and len(alone["cold_ms"]) == len(alone["latency_ms"]) == 1


class Clock:
    """Time that passes only where it is said to, and a little with every look at it; half of it is CPU time."""

    now_ns = 0

    def perf_counter_ns(self) -> int:
        self.now_ns += 1000
        return self.now_ns

    def process_time_ns(self) -> int:
        return self.perf_counter_ns() // 2


class Timed:
    """A runner that takes so long for a batch, 0.4 ms to prepare it, and remembers what it did."""

    parameters, tokenizer_inside, labels_inside, max_length = 0, True, True, 0

    def __init__(self, clock: Clock, cost_ns: int) -> None:
        self.clock, self.cost_ns = clock, cost_ns
        self.done: list[tuple[str, str]] = []

    def prepare(self, examples: list[Example], *, width: int = 0) -> str:
        self.clock.now_ns += 400_000
        self.done.append(("prepare", examples[0].text))
        return examples[0].text

    def run(self, inputs: str) -> None:
        self.clock.now_ns += self.cost_ns
        self.done.append(("run", inputs))


def handler_of(runner: Timed) -> worker_main.RequestHandler:
    child = worker_main.RequestHandler()
    child.runner, child.examples, child.sizes = runner, ROWS, [1, 2, 3]  # type: ignore[assignment]
    return child


@pytest.mark.parametrize(("cost_ns", "runs"), [(1_100_000, 4), (5_000_000, 1)])
def test_tokenizer_and_model_are_warm_by_rows_of_earlier_turns_before_they_are_timed(
    cost_ns: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(worker_main, "time", clock)
    runner = Timed(clock, cost_ns)
    child = handler_of(runner)
    one, two, three = (row.text for row in ROWS[:3])
    child.measure(batches=[[0], [1]], shape={})
    child.measure(batches=[[2, 2]], shape={})
    child.measure(batches=[[2]], shape={"width": 8})
    runner.done.clear()
    turn = child.measure(batches=[[2]], shape={})
    tokenizer = [("prepare", text) for text in (one, two, one)]  # of turns of this batch size and shape
    model = [("run", text) for text in (one, two, one, one)[:runs]]
    assert runner.done == [*tokenizer, ("prepare", three), *model, ("run", three)]
    assert len(turn["cold_ms"]) == len(turn["latency_ms"]) == 1
    assert turn["cold_ms"] == pytest.approx([cost_ns / 1e6], rel=0.01)
    runner.done.clear()
    child.measure(batches=[[1]], shape={}, warm_up=False)
    assert runner.done == [("prepare", two), ("run", two)]


def test_whatever_answers_by_logits_pays_for_making_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(worker_main, "time", clock)

    def described(rows: list[Example], logits: Any, labels: Any) -> list[dict[str, Any]]:
        assert len(rows) == 1 and labels == ("no", "yes")
        clock.now_ns += 300_000
        return []

    child = handler_of(Timed(clock, 4_000_000))
    child.task, child.labels = SimpleNamespace(described=described), ("no", "yes")
    runner: Any = child.runner
    for inside, labels_inside, expected_ms in ((False, False, 0.7), (True, False, 0.3), (True, True, 0.0)):
        runner.tokenizer_inside, runner.labels_inside = inside, labels_inside
        turn = child.measure(batches=[[0]], shape={}, warm_up=False)
        assert turn["tokenize_ms"] == pytest.approx([expected_ms], abs=0.01)
        assert turn["latency_ms"] == pytest.approx([4.0], rel=0.01)


def test_a_handicap_makes_every_run_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(worker_main, "time", clock)
    child = handler_of(Timed(clock, 4_000_000))
    plain = child.measure(batches=[[0]] * 5, shape={})
    child.handicap = 0.5
    slower = child.measure(batches=[[0]] * 5, shape={})
    for clock_name in ("latency_ms", "latency_cpu_ms"):
        assert slower[clock_name] == pytest.approx([1.5 * one for one in plain[clock_name]], rel=0.01)
    assert plain["latency_cpu_ms"] == pytest.approx([2.0] * 5, rel=0.01)  # of 4 ms


def test_what_a_plug_in_requires_is_imported_first() -> None:
    class Module:
        REQUIRES = {"json": "nothing", "no_such_library": "no-such-library>=2"}

    with pytest.raises(Unavailable, match="no_such_library cannot be imported.*pip install 'no-such-library>=2'"):
        worker_main.import_required(Module)
    assert worker_main.import_required(object()) == {}


def test_a_competitor_that_reads_whole_texts_has_no_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker_main.write_rows(tmp_path, ROWS)
    runner: Any = Timed(Clock(), 0)
    module = SimpleNamespace(start=lambda place, **_: runner)
    monkeypatch.setattr(worker_main, "import_plugin", lambda folder, plugin: (module, {}))
    place = {"directory": str(tmp_path), "folder": "competitors", "plugin": "other"}
    settings: dict[str, Any] = {
        **place,
        "device": "cpu",
        "threads": 1,
        "cores": (),
        "rows": str(tmp_path),
        "task": "classification",
        "head": {"id2label": {"0": "no", "1": "yes"}},
        "max_length": 16,
    }
    with pytest.raises(Unavailable, match="leave out --max-length"):
        worker_main.RequestHandler().load(**settings)
    runner.max_length = 64
    assert worker_main.RequestHandler().load(**settings)["max_length"] == 16
