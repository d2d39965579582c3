"""Start a module in two processes, forked from this one: torchrun and what it starts take most of a test to import."""

from __future__ import annotations

import os
import runpy
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from torch.distributed import TCPStore

SECONDS = 600.0


def run_in_two(module: str, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``module`` as torchrun does: the first process that fails, whose exit code is returned, ends the other.

    Raises:
        subprocess.TimeoutExpired: they wait for each other.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # outlives both, as torchrun's does
    command, said = [module, *arguments], [folder / "stdout", folder / "stderr"]
    running: dict[int, int] = {}
    code, deadline = 0, time.monotonic() + SECONDS
    for rank in range(2):
        process = os.fork()
        if process == 0:
            _work(command, rank, store.port, said)
        running[os.pidfd_open(process)] = process
    while running:
        if not (ended := select.select([*running], [], [], max(0.0, deadline - time.monotonic()))[0]):
            _kill(running)
            raise subprocess.TimeoutExpired(command, SECONDS)
        for descriptor in ended:
            status = os.waitstatus_to_exitcode(os.waitpid(running.pop(descriptor), 0)[1])
            os.close(descriptor)
            if status and not code:
                code = status
                _kill(running)
    texts = [path.read_text(encoding="utf-8") for path in said]
    for path in said:
        path.unlink()
    return subprocess.CompletedProcess(command, code, *texts)


def _kill(running: dict[int, int]) -> None:
    for process in running.values():
        os.kill(process, signal.SIGKILL)


def _work(command: list[str], rank: int, port: int, said: list[Path]) -> NoReturn:
    code = 70
    try:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in names.items()}, TORCHELASTIC_USE_AGENT_STORE="True")
        for descriptor, path in enumerate(said, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        sys.argv[1:] = command[1:]
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
