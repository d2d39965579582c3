"""The script that compares a model with itself; what it finds on a quiet machine is committed, not tested."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import REPOSITORY
from tests.support.tiny import examples, torch_directory
from tests.support.training_data import pool_file

SCRIPT = REPOSITORY / "benchmarks" / "speed" / "self_comparison.py"
SEED = os.getpid()  # of this test's own disturber


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("self_comparison", SCRIPT)
    assert spec and spec.loader
    module = sys.modules["self_comparison"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_shares_of_the_repeats(script: ModuleType) -> None:
    found = [
        script.Comparison(0.91, 0.89, 0.93, 0.02, False),
        script.Comparison(0.97, 0.90, 1.02, 0.08, False),
        script.Comparison(0.80, 0.60, 0.90, 0.20, True),
        script.Comparison(0.92, 0.91, 0.94, 0.04, False),
    ]
    summary = script.summary(found, 1 / 1.1)
    assert (summary["holds_one_share"], summary["holds_truth_share"]) == (0.25, 0.5)
    assert (summary["slower_share"], summary["noisy_share"], summary["noise_median"]) == (0.75, 0.25, 0.08)
    assert len(summary["comparisons"]) == 4


def test_the_disturber_works_and_ends(script: ModuleType) -> None:
    if not Path("/proc/self/stat").is_file():
        pytest.skip("no /proc")
    with script.disturber(SEED):
        assert settled(script.os.cpu_count())
    assert settled(0)


def settled(count: int) -> bool:
    """Wait until so many disturbers run, for as long as a busy machine may take."""
    deadline = time.monotonic() + 60
    while len(disturbers()) != count and time.monotonic() < deadline:
        time.sleep(0.1)
    return len(disturbers()) == count


def disturbers() -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, state = (process / "cmdline").read_text(), (process / "stat").read_text()
        except OSError:
            continue  # it ended just now
        if f"\0{SEED}\0" in command and state.rpartition(")")[2].split()[0] != "Z":
            found.append(int(process.name))
    return found


def test_a_model_beside_itself_made_much_slower(script: ModuleType) -> None:
    """So much that no other work on the machine hides it: how exact the ratio is, is measured and not tested."""
    condition = script.Condition("slower", handicap=9.0)
    found = script.repeat(torch_directory("bert"), "torch", examples(20), condition, batch_size=8, rounds=5, seed=0)
    assert condition.true_ratio == 0.1
    assert found.low <= found.value <= found.high and found.value < 0.5


def test_the_script_writes_a_line_for_each_condition(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool_file(tmp_path / "texts.txt")
    monkeypatch.setattr(script, "repeat", lambda *given, **named: script.Comparison(1.0, 0.98, 1.02, 0.01, False))
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "self_comparison.py",
            "--model",
            str(torch_directory("bert").path),
            "--data",
            str(tmp_path / "texts.txt"),
            "--repeats",
            "2",
            "-o",
            str(tmp_path / "out.jsonl"),
        ],
    )
    script.main()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["quiet", "disturbed", "slower"]
    assert [line["holds_truth_share"] for line in lines] == [1.0, 1.0, 0.0]
    assert all(line["repeats"] == 2 and line["runtime"] == "torch" and line["versions"] for line in lines)
