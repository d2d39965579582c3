"""As many threads as cores are free, with a clock and a machine of our own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from compress.inference import threads
from compress.inference.threads import (
    RENEWED_AFTER_S,
    FreeCores,
    busy_seconds,
    default_threads,
    quietest_first,
    using_threads,
)


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads._counted.cache_clear()


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


class Machine:
    """Four cores, of which others use ``others`` and this process ``own`` seconds a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, others: float, own: float = 0.0) -> None:
        self.others, self.own, self.now, self.worked = others, own, 1000.0, 0.0
        for module in (threads,):
            monkeypatch.setattr(module, "available_cores", lambda: [0, 1, 2, 3])
        monkeypatch.setattr(threads, "busy_seconds", lambda cores: self.worked + self.process_time())
        monkeypatch.setattr(threads, "time", self)

    def work(self, others: float, seconds: float) -> None:
        self.worked += others * seconds
        self.now += seconds

    def sleep(self, seconds: float) -> None:
        self.work(self.others, seconds)

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.now * self.own


@pytest.mark.parametrize(
    ("others", "own", "expected"),
    [(0.0, 0.0, 4), (0.3, 0.0, 4), (1.0, 0.0, 3), (1.9, 0.0, 2), (4.0, 0.0, 1), (1.0, 1.0, 3), (0.0, 4.0, 4)],
)
def test_as_many_threads_as_cores_are_free_of_others(
    others: float, own: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, others, own)
    assert default_threads() == expected


def test_a_line_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "compress")
    machine = Machine(monkeypatch, others=0.0)
    assert default_threads() == 4 and not caplog.messages
    machine.others = 3.0
    assert default_threads() == 4  # counted a moment ago
    machine.now += RENEWED_AFTER_S
    assert default_threads() == 1
    assert caplog.messages == ["other work keeps cores busy; threads: 1 of 4 (--threads chooses)"]


def test_something_short_does_not_cost_a_stage_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, others=2.0)
    sleep = machine.sleep

    def sleep_once_disturbed(seconds: float) -> None:
        sleep(seconds)
        machine.others = 0.0

    monkeypatch.setattr(machine, "sleep", sleep_once_disturbed)
    assert default_threads() == 4


def test_a_block_within_another_gets_back_the_threads_that_come_free(
    four_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, others=3.0)
    with using_threads(0), using_threads(0) as choose_again:
        assert torch.get_num_threads() == 1
        machine.work(0.0, RENEWED_AFTER_S)
        choose_again()
        assert torch.get_num_threads() == 4
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("given", "expected"), [("3", 3), ("3,2", 3), ("0", 1), ("many", 1)])
def test_a_number_of_the_user_is_obeyed(given: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, others=3.0)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert default_threads() == expected


def test_torch_has_its_threads_back_afterwards(four_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, others=2.0)
    with using_threads(0):
        assert torch.get_num_threads() == 2
    with using_threads(5):
        assert torch.get_num_threads() == 5
        with pytest.raises(ZeroDivisionError), using_threads(0):
            raise ZeroDivisionError
        assert torch.get_num_threads() == 5
    assert torch.get_num_threads() == 4
    torch.set_num_threads(1)  # the caller's own choice
    with using_threads(0):
        assert torch.get_num_threads() == 1


@pytest.mark.parametrize(("asked", "in_environment"), [(0, False), (4, False), (0, True)])
def test_training_chooses_again_when_other_work_begins_and_ends(
    asked: int, in_environment: bool, four_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, others=0.0, own=4.0)
    if in_environment:
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
    with using_threads(asked) as choose_again:
        found = []
        for others, seconds in ((3.0, RENEWED_AFTER_S / 2), (3.0, RENEWED_AFTER_S / 2), (0.0, RENEWED_AFTER_S)):
            machine.work(others, seconds)
            choose_again()
            found.append(torch.get_num_threads())
    assert found == ([4, 4, 4] if asked or in_environment else [4, 1, 4])


def written(path: Path, *rows: str) -> None:
    path.write_text("cpu 9 9 9 9 9 9 9 9 0 0\n" + "".join(f"{row}\n" for row in rows) + "intr 7\n")


@pytest.fixture
def statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "stat"
    monkeypatch.setattr(threads, "STATISTICS", path)
    monkeypatch.setattr(os, "nice", lambda by: 0)
    # user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice
    written(path, "cpu0 100 1000 20 5000 700 3 4 5 0 0", "cpu1 1 0 0 9000 0 0 0 0 0 0", "cpu7 50 0 0 0 0 0 0 0 0 0")
    return path


def test_idle_waiting_and_low_priority_are_not_busy(statistics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert busy_seconds([0, 1]) == pytest.approx((132 + 1) * tick_s)
    monkeypatch.setattr(os, "nice", lambda by: 10)  # of low priority itself, it waits for others of low priority
    assert busy_seconds([0, 1]) == pytest.approx((1132 + 1) * tick_s)


def test_the_core_with_the_least_work_comes_first(statistics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(seconds: float) -> None:
        written(statistics, "cpu0 100 1030 20 0 0 3 4 5 0 0", "cpu1 11 0 0 0 0 0 0 0 0 0", "cpu7 60 0 0 0 0 0 0 0 0 0")

    monkeypatch.setattr(threads.time, "sleep", meanwhile)
    assert quietest_first([0, 1, 7]) == [7, 1, 0]


def test_without_the_file_every_core_is_free(statistics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statistics.unlink()
    free = FreeCores()
    monkeypatch.setattr(threads.time, "monotonic", lambda: free.read[0] + 1)
    assert busy_seconds([0, 1]) == 0 and free.count() == len(free.cores)
