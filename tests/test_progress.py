"""What is said of a phase that takes long, with a clock and a timer of our own."""

from __future__ import annotations

import io
import logging
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress import progress
from compress.data import ExampleSource
from compress.labelling import label as label_module
from compress.progress import Advance, Progress, ProgressLine, each
from compress.requests.compression import quantize
from compress.training.trainer import DistillationTrainer
from tests.support.labelling import label
from tests.support.pruning import pruned
from tests.support.tiny import classifier, write
from tests.support.training_data import TRAINING, finetuned, pool_rows, train_rows, validation_rows


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("total", "done", "seconds", "said"),
    [
        (3000, 1200, 160, "Distilling: 1,200 of 3,000 (40%), about 4 min left"),
        (3000, 0, 61, "Distilling: 61 s so far"),
        (100, 99, 300, "Distilling: 99 of 100 (99%), about 3 s left"),
        (3000, 100, 600, "Distilling: 100 of 3,000 (3%), about 4 h 50 min left"),
        (10, 12, 60, "Distilling: 12 of 10 (100%), about 0 s left"),
        (None, 12000, 60, "Distilling: 12,000 done, 200 a second"),
        (None, 3, 120, "Distilling: 3 done, 2 a minute"),
        (None, 0, 120, "Distilling: 2 min so far"),
    ],
)
def test_a_line_says_how_far_and_how_long(total: int | None, done: int, seconds: float, said: str) -> None:
    clock = Clock()
    line = ProgressLine("Distilling", total, clock)
    line.advance(done)
    clock.now += seconds
    assert str(line) == said


def test_the_time_left_follows_the_speed_of_the_last_lines() -> None:
    clock = Clock()
    line = ProgressLine("Distilling", 1000, clock)
    said = []
    for steps in (100, 100, *[10] * 6, *[0] * 6):  # a step a minute, after a fast start; then none
        line.advance(steps)
        clock.now += 60
        said.append(str(line).rpartition("about ")[2])
    assert said[:2] == ["9 min left", "8 min left"]
    assert said[7] == "74 min left"  # 740 steps, 10 a minute
    assert said[-1] == "40 min left"  # nothing in the last lines: as it went on average


def test_messages_appear_above_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    handler, file = logging.StreamHandler(terminal), logging.StreamHandler(io.StringIO())
    monkeypatch.setattr(progress.logger, "handlers", [handler, file])
    with progress.bar("Distilling", 2) as advance:
        advance(1)
        progress.logger.warning("step 1 of 2: [red]validation[/red] 0.5000")
        assert handler.stream is not terminal
    assert handler.stream is terminal
    assert "step 1 of 2: [red]validation[/red] 0.5000\n" in terminal.getvalue()
    assert file.stream.getvalue() == "step 1 of 2: [red]validation[/red] 0.5000\n"  # elsewhere as before


def test_a_training_says_its_scores_and_else_its_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start = write(tmp_path / "encoder", classifier("bert"), "bert")
    caplog.set_level(logging.INFO, "compress")
    rows: dict[str, Any] = {"train": train_rows(), "validation": validation_rows(), "training": TRAINING}
    made = finetuned(start, tmp_path / "made", **rows)
    said = [message for message in caplog.messages if ": step " in message]
    assert [message.partition(": validation ")[0] for message in said] == [
        f"Fine-tuning: step {step} of 5" for step in (3, 5)
    ]
    best = f"{made.manifest.metrics[0]['value']:.4f} (best)"
    assert best in said[made.manifest.notes["best_step"] // 2 - 1]
    caplog.clear()
    pruned(start, tmp_path / "small", schedule="cubic", recover=2.0, training=TRAINING)
    assert [m for m in caplog.messages if re.fullmatch(r"Masking: step \d of 3: loss \d+\.\d{4}", m)]


def test_a_line_a_minute_is_logged_while_a_phase_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waited: list[float] = []

    class Event:
        def wait(self, seconds: float) -> bool:
            waited.append(seconds)
            return len(waited) > 2  # two minutes pass at once, and the phase ends in the third

        def set(self) -> None:
            waited.append(0)

    class Thread:
        def __init__(self, target: Any, daemon: bool) -> None:
            assert daemon  # else it would keep a command alive that failed
            self.start = target

    monkeypatch.setattr(progress, "threading", SimpleNamespace(Event=Event, Thread=Thread))
    caplog.set_level(logging.INFO, "compress")
    with progress.line("Measuring", 4) as advance:
        assert waited == [60, 60, 60]
        assert [*each("ab", advance)] == ["a", "b"]
    assert waited == [60, 60, 60, 0]
    assert caplog.messages == ["Measuring ...", *2 * ["Measuring: 0 s so far"]]


Seen = dict[str, list[int | None]]  # phase -> its total, and the steps that were counted


@pytest.fixture
def seen() -> Seen:
    return {}


@pytest.fixture
def noting(seen: Seen) -> Progress:
    @contextmanager
    def note(title: str, total: int | None) -> Iterator[Advance]:
        line = ProgressLine(title, total)
        yield line.advance
        seen[title] = [total, line.done]

    return note


def test_training_counts_its_steps_and_those_of_a_resumed_run(
    seen: Seen, noting: Progress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = write(tmp_path / "encoder", classifier("bert"), "bert")
    rows: dict[str, Any] = {"train": train_rows(), "validation": validation_rows(), "training": TRAINING}
    finetuned(start, tmp_path / "whole", progress=noting, **rows)
    assert seen == {"Fine-tuning": [5, 5]}  # 2 epochs of 40 rows in batches of 16, an evaluation every second step
    released = DistillationTrainer.release
    monkeypatch.setattr(DistillationTrainer, "release", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        finetuned(start, tmp_path / "stopped", **rows)
    *_, kept, last = sorted((tmp_path / ".stopped.partial").rglob("checkpoint-*"))
    shutil.rmtree(last)
    left = 5 - int(kept.name.removeprefix("checkpoint-"))
    monkeypatch.setattr(DistillationTrainer, "release", released)
    finetuned(start, tmp_path / "stopped", progress=noting, **rows)
    assert left > 0 and seen == {"Fine-tuning": [left, left]}


def test_labelling_counts_the_rows_that_are_left(
    seen: Seen, noting: Progress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = write(tmp_path / "teacher", classifier("bert"), "bert")
    plan = label_module.plan_for
    monkeypatch.setattr(label_module, "plan_for", lambda *given, **named: replace(plan(*given, **named), shard_rows=32))
    source = ExampleSource(pool_rows(70), "pool")
    written = label_module.write_shard

    def stopping(directory: Path, number: int, *rest: Any) -> None:
        written(directory, number, *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(label_module, "write_shard", stopping)
    with pytest.raises(KeyboardInterrupt):
        label(teacher, source, tmp_path / "labels")
    monkeypatch.setattr(label_module, "write_shard", written)
    label(teacher, source, tmp_path / "labels", progress=noting)
    assert seen == {"Labelling": [38, 38]}


def test_pruning_and_its_recovery_count(seen: Seen, noting: Progress, tmp_path: Path) -> None:
    model = write(tmp_path / "model", classifier("bert", layers=3), "bert")
    pruned(model, tmp_path / "small", layers="1", hidden="4", recover=1.0, training=TRAINING, progress=noting)
    steps = seen.pop("Recovering")
    assert steps[0] == steps[1] == 3
    assert seen.pop("Removing heads and neurons") == [3, 3]
    assert seen == {"Removing layers": [1, 1], "Scoring hidden width": [2, 2], "Labelling": [40, 40]}


def test_quantization_counts_the_rows_of_its_check(seen: Seen, noting: Progress, tmp_path: Path) -> None:
    model = write(tmp_path / "model", classifier("bert"), "bert")
    quantize(model, tmp_path / "int8", validation=validation_rows(), progress=noting)
    assert seen["Checking int8"] == [32, 32]
