"""Start a module in two processes, forked from this one: torchrun and what it starts take most of a test to import."""

from __future__ import annotations

import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import NoReturn


def run_in_two(module: str, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``module`` as torchrun does: the first process that fails, whose exit code is returned, ends the other."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    said = [folder / "stdout", folder / "stderr"]
    running: dict[int, int] = {}
    for rank in range(2):
        process = os.fork()
        if process == 0:
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in names.items()})
            _work(module, arguments, said)
        running[os.pidfd_open(process)] = process
    code = 0
    while running:
        for ended in select.select([*running], [], [])[0]:
            status = os.waitstatus_to_exitcode(os.waitpid(running.pop(ended), 0)[1])
            os.close(ended)
            if status and not code:
                code = status
                for process in running.values():
                    os.kill(process, signal.SIGKILL)
    texts = [path.read_text(encoding="utf-8") for path in said]
    for path in said:
        path.unlink()
    return subprocess.CompletedProcess([module, *arguments], code, *texts)


def _work(module: str, arguments: list[str], said: list[Path]) -> NoReturn:
    code = 70
    try:
        for descriptor, path in enumerate(said, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
