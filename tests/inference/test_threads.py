"""Threads that sleep while they wait, and as many as cores are free; with a clock and a machine of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest
import torch

from compress.benchmarking import worker as worker_module
from compress.errors import CompressError
from compress.inference import threads
from compress.inference.runtimes.onnxruntime import start
from compress.inference.threads import default_threads, let_threads_sleep, users_environment, using_threads


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # so that also one which a test sets is undone
        monkeypatch.delenv(name)
    monkeypatch.setattr(threads, "_set_here", set())


@pytest.mark.parametrize("name", ["", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_threads_sleep_unless_the_user_chose(name: str, unset: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if name:
        monkeypatch.setenv(name, "active")
    before = dict(os.environ)
    let_threads_sleep()
    let_threads_sleep()  # a second time it still knows what the user set
    assert threads.threads_sleep() == (not name)
    assert users_environment() == before


SCRIPT = """
import json, os, sys
{code}
print(json.dumps([os.environ.get("OMP_WAIT_POLICY"), "torch" in sys.modules]))
"""


@pytest.mark.parametrize(
    ("code", "policy"),
    [
        ("import compress", None),
        ("import compress; compress.Compute", "passive"),
        ("from compress.cli import cli; cli.get_command(None, 'distill')", "passive"),
        ("from compress.benchmarking import worker_main", None),
    ],
)
def test_it_is_set_before_torch_is_imported_and_not_in_timed_processes(code: str, policy: str | None) -> None:
    plain = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(code=code)], env=plain, capture_output=True, text=True, check=True
    )
    found, torch_is_there = json.loads(done.stdout)
    assert found == policy
    assert not torch_is_there


def test_timed_processes_wait_as_the_user_lets_them(
    unset: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, str]] = []
    monkeypatch.setattr(worker_module.subprocess, "Popen", lambda *_, env, **__: given.append(env))
    let_threads_sleep()
    worker_module.Worker("a", threads=2, scratch=tmp_path)
    monkeypatch.setattr(threads, "_set_here", set())  # now it is the user's
    worker_module.Worker("b", threads=2, scratch=tmp_path)
    assert [environment.get("OMP_WAIT_POLICY") for environment in given] == [None, "passive"]
    assert {environment["OMP_NUM_THREADS"] for environment in given} == {"2"}


@pytest.mark.parametrize(("policy", "spins"), [("", True), ("ACTIVE", True), ("PASSIVE", False)])
def test_onnx_runtime_waits_alike(policy: str, spins: bool, unset: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[onnxruntime.SessionOptions] = []

    def session(path: str, options: onnxruntime.SessionOptions, **_: object) -> None:
        given.append(options)
        raise ValueError("seen")

    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    with pytest.raises(CompressError, match="seen"):
        start(Path("model"), threads=2, device="cpu")
    entry = "session.intra_op.allow_spinning"
    if spins:
        with pytest.raises(RuntimeError, match=entry):  # not set: the library's own default
            given[0].get_session_config_entry(entry)
    else:
        assert given[0].get_session_config_entry(entry) == "0"


class Machine:
    """Four cores, of which others use ``others`` and this process ``own`` seconds a second, until a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, others: float, own: float = 0.0, until: float = 9e9) -> None:
        self.others, self.own, self.until, self.now = others, own, until, 1000.0
        monkeypatch.setattr(threads, "available_cores", lambda: [0, 1, 2, 3])
        monkeypatch.setattr(threads, "busy_seconds", self.busy_seconds)
        monkeypatch.setattr(threads, "time", self)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.now * self.own

    def busy_seconds(self, cores: list[int]) -> float:
        return self.others * min(self.now, self.until) + self.process_time()


@pytest.mark.parametrize(
    ("others", "own", "expected"),
    [(0.0, 0.0, 4), (0.3, 0.0, 4), (1.0, 0.0, 3), (1.9, 0.0, 2), (4.0, 0.0, 1), (1.0, 1.0, 3), (0.0, 4.0, 4)],
)
def test_as_many_threads_as_cores_are_free_of_others(
    others: float, own: float, expected: int, unset: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, others, own)
    assert default_threads() == expected


def test_what_is_busy_for_a_moment_takes_no_thread(
    unset: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads.logger, "propagate", True)
    caplog.set_level("INFO", "compress")
    machine = Machine(monkeypatch, others=3.0, until=1000.4)
    assert default_threads() == 4 and machine.now == pytest.approx(1001.3) and not caplog.messages
    machine.until = 9e9
    assert default_threads() == 1
    assert caplog.messages == ["other work keeps cores busy: 1 of 4 threads (--threads chooses)"]


@pytest.mark.parametrize(("given", "expected"), [("3", 3), ("3,2", 3), ("0", 1), ("many", 1)])
def test_a_number_of_the_user_is_obeyed(
    given: str, expected: int, unset: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, others=3.0)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert default_threads() == expected


def test_torch_has_its_threads_back_afterwards(unset: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, others=2.0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with using_threads(0):
            assert torch.get_num_threads() == 2
        with using_threads(5):
            assert torch.get_num_threads() == 5
            with pytest.raises(ZeroDivisionError), using_threads(0):
                assert torch.get_num_threads() == 2
                raise ZeroDivisionError
            assert torch.get_num_threads() == 5
        assert torch.get_num_threads() == 3
        torch.set_num_threads(1)  # the caller's own choice
        with using_threads(0):
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
