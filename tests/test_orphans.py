"""Child processes end with the process that started them, also where it is killed while they compute."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import REPOSITORY, tiny

FUNCTIONS = """
import os, time

def say_and_compute(item):
    os.write(2, f"{os.getpid()}\\n".encode())
    while True:
        pass

def wait_for(seconds):
    time.sleep(seconds)
    return seconds
"""
READERS = """
from compress.data.parallel import in_processes
from functions import say_and_compute
list(in_processes(say_and_compute, range(2), processes=2))
"""
WORKER = """
from pathlib import Path
from compress.benchmarking.worker import Worker
from compress.benchmarking.worker_main import write_rows
from compress.data.examples import Example

worker = Worker("slow", threads=1, scratch=Path.cwd())
write_rows(Path(), [Example("a good film")])
worker.ask("load", folder="runtimes", plugin="onnxruntime", directory={model!r}, device="cpu", threads=1, cores=[],
           rows=".", handicap=1e12)
print(worker._process.pid, flush=True)
worker.ask("warm_up", probe=[0], shape={{}})
"""
# The thread that started the processes ends long before they do.
STARTING_THREAD = """
import threading, time
from compress.data.parallel import in_processes
from functions import wait_for

results = in_processes(wait_for, [0.0, 0.0, 1.0, 0.0, 0.0], processes=2)
starting = threading.Thread(target=lambda: print(next(results)))
starting.start()
starting.join()
time.sleep(2)
print(*results)
"""


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a script, with the functions that its processes call."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    return tmp_path


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize(("script", "children"), [(READERS, 2), (WORKER, 1)], ids=["readers", "worker of a benchmark"])
def test_children_end_when_their_parent_is_killed(script: str, children: int, folder: Path) -> None:
    script = script.format(model=str(tiny.onnx_directory("cnn").path))
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert parent.stdout is not None
    found = [int(parent.stdout.readline()) for _ in range(children)]
    try:
        time.sleep(0.5)
        assert all(map(_is_running, found))
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 10
        while any(map(_is_running, found)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(_is_running, found))
    finally:
        for process in filter(_is_running, found):
            os.kill(process, signal.SIGKILL)
        parent.stdout.close()


def test_children_outlive_the_thread_that_started_them(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", STARTING_THREAD], env=environment, cwd=folder, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("0.0\n0.0 1.0 0.0 0.0\n", "")


def test_no_other_module_starts_processes_that_compute() -> None:
    starts = re.compile(r"\bPopen\(|^(from|import) multiprocessing|ProcessPoolExecutor|\bfork\(", re.MULTILINE)
    package = REPOSITORY / "compress"
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if starts.search(path.read_text("utf-8"))}
    assert found == {"benchmarking/worker.py"}
