"""Start the worker processes of benchmarks by forking a process that has imported torch, transformers and sklearn.

Importing them takes seconds of every worker, hundreds of times in a run of all tests. The forked process runs the same
module as ``__main__`` and speaks the same protocol; ``tests/benchmarking/test_benchmark.py`` starts real ones.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import runpy
import subprocess
from collections.abc import Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any

import compress

PACKAGE = Path(compress.__file__).parent
PRELOAD = "tests.support.forked_workers_preload"  # what the fork server imports
_PRELOADED = (
    "torch",
    "transformers.models.bert.modeling_bert",
    "transformers.models.auto.tokenization_auto",
    "onnxruntime",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "sklearn.model_selection",
    "compress.models.modeling.registration",
    "compress.inference.runners",
)


def preload() -> None:
    """Import what most workers import; the fork server does so once."""
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


class ForkedProcess:
    """Stands in for :class:`subprocess.Popen` as :class:`compress.benchmarking.worker.Worker` uses it."""

    def __init__(self, environment: dict[str, str], log: IO[bytes], method: str) -> None:
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload([PRELOAD])
        requests, ours = os.pipe()
        answers, theirs = os.pipe()
        descriptors = (requests, theirs, log.fileno())
        self._process = context.Process(target=_Child(environment, os.getcwd(), descriptors), daemon=True)
        self._process.start()
        os.close(requests)
        os.close(theirs)
        self.stdin, self.stdout = os.fdopen(ours, "w", encoding="utf-8"), os.fdopen(answers, encoding="utf-8")

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        self._process.join()
        return int(self._process.exitcode)

    def poll(self) -> int | None:
        code: int | None = self._process.exitcode
        return code


class _Child:
    """What a forked process does; where it is pickled, for the fork server, DupFd hands its descriptors over."""

    def __init__(self, environment: dict[str, str], folder: str, descriptors: Sequence[Any]) -> None:
        self.environment, self.folder, self.descriptors = environment, folder, descriptors

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "descriptors": [DupFd(one) for one in self.descriptors]}

    def __call__(self) -> None:
        os.setsid()
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        for place, descriptor in enumerate(self.descriptors):
            os.dup2(descriptor if isinstance(descriptor, int) else descriptor.detach(), place)
        os.closerange(
            place + 1, os.sysconf("SC_OPEN_MAX")
        )  # the parent's ends of the pipes: the worker ends when the parent does
        runpy.run_module("compress.benchmarking.worker_main", run_name="__main__")


def start(
    arguments: Sequence[str], *, env: dict[str, str], stderr: IO[bytes], method: str = "forkserver", **options: Any
) -> Any:
    """Start a worker: forked, or of its own where it shall see this package alone.

    With method ``fork`` it is forked from this very process, which has imported what it needs.
    """
    if not env["PYTHONPATH"].endswith(str(PACKAGE.parent)):
        return subprocess.Popen(arguments, env=env, stderr=stderr, **options)
    return ForkedProcess(env, stderr, method)
