"""Start a module in two processes: torchrun and what it starts take most of a test to import.

They are forked from the server of :mod:`tests.support.forked_workers`, which has imported and done nothing else:
threads of libraries that this process has used, such as those of tokenizers, would be missing in a fork of it.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed import TCPStore

from tests.support.forked_workers import PRELOAD

SECONDS = 600.0


def run_in_two(module: str, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``module`` as torchrun does: the first process that fails, whose exit code is returned, ends the other.

    Raises:
        subprocess.TimeoutExpired: they wait for each other.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # outlives both, as torchrun's does
    command, said = [module, *arguments], [folder / "stdout", folder / "stderr"]
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOAD])
    running = [context.Process(target=_work, args=(command, rank, store.port, said)) for rank in range(2)]
    for process in running:
        process.start()
    code, deadline = 0, time.monotonic() + SECONDS
    while running:
        ended = wait([process.sentinel for process in running], max(0.0, deadline - time.monotonic()))
        for process in [process for process in running if process.sentinel in ended]:
            process.join()
            running.remove(process)
            code = code or process.exitcode
        if code or not ended:
            for process in running:
                process.kill()
        if not ended:
            raise subprocess.TimeoutExpired(command, SECONDS)
    texts = [path.read_text(encoding="utf-8") for path in said]
    for path in said:
        path.unlink()
    return subprocess.CompletedProcess(command, code, *texts)


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
