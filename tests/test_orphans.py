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

WORKER = """
from pathlib import Path
from compress.benchmarking.worker import Worker
from compress.benchmarking.worker_main import write_rows
from compress.data.examples import Example

worker = Worker("slow", threads=1, scratch=Path.cwd())
write_rows(Path(), [Example("a good film")])
worker.ask("load", folder="runtimes", plugin="onnxruntime", directory={model!r}, device="cpu", threads=1, cores=[],
           rows=".", task="classification", head={{"id2label": {{0: "no", 1: "yes"}}}}, handicap=1e12)
print(worker._process.pid, flush=True)
worker.ask("warm_up", probe=[0], shape={{}})
"""


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_a_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = WORKER.format(model=str(tiny.onnx_directory("cnn").path))
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    try:
        time.sleep(0.5)
        assert _is_running(worker)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 10
        while _is_running(worker) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _is_running(worker)
    finally:
        if _is_running(worker):
            os.kill(worker, signal.SIGKILL)
        parent.stdout.close()


def test_no_other_module_starts_processes_that_compute() -> None:
    threads = r"\.pool import (ThreadPool|AsyncResult)$"
    starts = re.compile(
        rf"\bPopen\(|^(from|import) multiprocessing(?!{threads})|ProcessPoolExecutor|\bfork\(", re.MULTILINE
    )
    package = REPOSITORY / "compress"
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if starts.search(path.read_text("utf-8"))}
    assert found == {"benchmarking/worker.py"}
