"""What Linux counts of busy cores, from a file of our own."""

import os
from pathlib import Path

import pytest

from compress.inference import cores
from compress.inference.cores import busy_seconds, quietest_first
from compress.inference.threads import FreeCores


def written(path: Path, *rows: str) -> None:
    path.write_text("cpu 9 9 9 9 9 9 9 9 0 0\n" + "".join(f"{row}\n" for row in rows) + "intr 7\n")


@pytest.fixture
def statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "stat"
    monkeypatch.setattr(cores, "STATISTICS", path)
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

    monkeypatch.setattr(cores.time, "sleep", meanwhile)
    assert quietest_first([0, 1, 7]) == [7, 1, 0]


def test_without_the_file_every_core_is_free(statistics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statistics.unlink()
    free = FreeCores()
    monkeypatch.setattr(cores.time, "monotonic", lambda: free.read[0] + 1)
    assert busy_seconds([0, 1]) == 0 and free.count() == len(free.cores)
