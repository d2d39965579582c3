"""Python processes that are forked from one which has imported torch, transformers, sklearn and the stages.

Importing them takes seconds of every process, hundreds of times in a run of all tests. A forked process does what
``python -m MODULE ...``, ``python -c CODE ...`` or ``python FILE ...`` does. Tests of imports, of closed streams and of
interpreters start real ones, and ``tests/benchmarking/test_benchmark.py`` real workers.

The server has imported and done nothing else: threads of libraries that a process has used, such as those of
tokenizers, would be missing in a fork of it.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.reduction import DupFd
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn

import compress
from tests.support import keep_collector_off_what_stays
from tests.support.exports import exporting_once

PACKAGE = Path(compress.__file__).parent
PRELOAD = "tests.support.forked_preload"  # what the fork server imports
_PRELOADED = (
    "torch",
    "transformers.models.bert.modeling_bert",
    "transformers.models.auto.tokenization_auto",
    "onnxruntime",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "sklearn.model_selection",
    "transformers.trainer",
    "torch.profiler",
    "torch.utils.flop_counter",
    "compress.benchmarking.worker_main",
    "compress.models.modeling.registration",
    "compress.inference.predict",
    "compress.training.distill",
    "compress.training.finetune",
)


def preload() -> None:
    """Import what most processes import; the fork server does so once."""
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch
    from click import Context
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    from compress.cli import COMMANDS, cli

    for name in COMMANDS:
        cli.get_command(Context(cli), name)
    get_checkpoint_conversion_mapping("bert")  # the first call compiles a thousand expressions
    torch.onnx.export = exporting_once(torch.onnx.export)
    train_in_few_steps()
    measure_in_few_rounds()
    keep_collector_off_what_stays()


def train_in_few_steps() -> list[tuple[int, int]]:
    """Let a fine-tuning and a recovery of few rows, which say nothing else, take ten steps and not hundreds.

    Returns the least steps of both as they are shipped, and those a class.
    """
    from compress.pruning import prune
    from compress.training import finetune

    trainings = (finetune.TRAINING, prune.RECOVERY)
    shipped = [(training.min_steps, training.min_steps_per_class) for training in trainings]
    for training in trainings:
        vars(training).update(min_steps=10, min_steps_per_class=0)
    return shipped


def measure_in_few_rounds() -> None:
    """Let a benchmark end after as few rounds as may be: how fast tiny models are decides nothing."""
    from compress.benchmarking import benchmark, rounds

    def take_turns(runs: Any, workloads: Any, settings: Any, **options: Any) -> None:
        rounds.take_turns(
            runs, workloads, replace(settings, rounds=min(settings.rounds, rounds.LEAST_ROUNDS)), **options
        )

    benchmark.take_turns = take_turns


class Forked:
    """Stands in for ``subprocess.Popen([sys.executable, *command])``, of text.

    Args:
        command: what follows the interpreter.
        stdin: as of Popen, and so are ``stdout`` and ``stderr``: PIPE, a file, or None for that of this process.
        method: ``forkserver``, or ``fork`` where this very process has imported what is needed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: Any = subprocess.DEVNULL,
        stdout: Any = None,
        stderr: Any = None,
        method: str = "forkserver",
    ) -> None:
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload([PRELOAD])
        self.args, self.returncode = [sys.executable, *command], None
        ours: list[Any] = []
        with contextlib.ExitStack() as theirs:
            descriptors = []
            for number, stream in enumerate((stdin, stdout, stderr)):
                opened = None
                if stream == subprocess.PIPE:
                    ends = os.pipe()
                    opened = os.fdopen(ends[number == 0], "r" if number else "w", encoding="utf-8")
                    stream = theirs.enter_context(os.fdopen(ends[number != 0], "rb" if number == 0 else "wb"))
                elif stream == subprocess.DEVNULL:
                    stream = theirs.enter_context(open(os.devnull, "r+b"))
                descriptors.append(number if stream is None else stream.fileno())
                ours.append(opened)
            child = _Child(
                list(command), dict(os.environ if env is None else env), str(cwd or os.getcwd()), descriptors
            )
            self._process = context.Process(target=child, daemon=True)
            self._process.start()
        self.stdin, self.stdout, self.stderr = ours

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    @property
    def sentinel(self) -> int:
        return int(self._process.sentinel)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return int(self._process.exitcode)

    def poll(self) -> int | None:
        self.returncode = self._process.exitcode
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        with ThreadPoolExecutor(2) as readers:
            said = [readers.submit(stream.read) if stream else None for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        out, error = (one.result() if one else "" for one in said)
        return out, error

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()


class _Child:
    """What a forked process does; where it is pickled, for the fork server, DupFd hands its descriptors over."""

    def __init__(self, command: list[str], env: dict[str, str], folder: str, descriptors: Sequence[Any]) -> None:
        self.command, self.env, self.folder, self.descriptors = command, env, folder, descriptors

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "descriptors": [DupFd(one) for one in self.descriptors]}

    def __call__(self) -> NoReturn:
        code = 70
        try:
            os.setsid()
            os.chdir(self.folder)
            os.environ.clear()
            os.environ.update(self.env)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            multiprocessing.current_process()._config["daemon"] = False  # it may have children, too
            kept = [one if isinstance(one, int) else one.detach() for one in self.descriptors]
            kept = [os.dup(one) for one in kept]  # above 2, where they are not overwritten
            for place, descriptor in enumerate(kept):
                os.dup2(descriptor, place)
            # The parent's ends of the pipes: a worker ends when its parent does.
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            sys.stdin, sys.stdout, sys.stderr = (
                open(number, mode, encoding="utf-8", closefd=False)
                for number, mode in enumerate("rww")  # noqa: SIM115
            )
            _run(self.command)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)


def _run(command: list[str]) -> None:
    """Do what the interpreter does with these words."""
    if command[0] == "-m":
        sys.argv[:] = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    elif command[0] == "-c":
        sys.argv[:] = ["-c", *command[2:]]
        main = sys.modules["__main__"] = type(sys)("__main__")
        exec(compile(command[1], "<string>", "exec"), vars(main))
    else:
        sys.argv[:] = command
        runpy.run_path(command[0], run_name="__main__")


def run(
    command: Sequence[str], *, check: bool = False, input: str = "", timeout: float = 600.0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as ``subprocess.run([sys.executable, *command], capture_output=True, text=True)``."""
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as error:
        given.write(input.encode())
        given.seek(0)
        process = Forked(command, stdin=given, stdout=out, stderr=error, **options)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        for stream in (out, error):
            stream.seek(0)
        done = subprocess.CompletedProcess(process.args, code, out.read().decode(), error.read().decode())
    if check:
        done.check_returncode()
    return done


def start_worker(
    arguments: Sequence[str], *, env: dict[str, str], stderr: IO[bytes], method: str = "forkserver", **options: Any
) -> Any:
    """Start a worker of a benchmark: forked, or of its own where it shall see this package alone."""
    if not env["PYTHONPATH"].endswith(str(PACKAGE.parent)):
        return subprocess.Popen(arguments, env=env, stderr=stderr, **options)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return Forked(arguments[-2:], env=env, stderr=stderr, method=method, **pipes)


def run_in_two(module: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run ``module`` as torchrun does: the first process that fails, whose exit code is returned, ends the other.

    Raises:
        subprocess.TimeoutExpired: they wait for each other.
    """
    from torch.distributed import TCPStore

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # outlives both, as torchrun's does
    names = {"WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": store.port}
    common = os.environ | {name: str(value) for name, value in names.items()} | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    with TemporaryFile("a+b") as out, TemporaryFile("a+b") as error:
        begin = partial(Forked, ["-m", module, *arguments], stdout=out, stderr=error)
        running = [begin(env=common | {"RANK": rank, "LOCAL_RANK": rank}) for rank in "01"]
        code = 0
        while running:
            ended = wait([process.sentinel for process in running], 600.0)
            for process in [process for process in running if process.sentinel in ended]:
                running.remove(process)
                code = code or process.wait()
            if code or not ended:
                for process in running:
                    process.kill()
            if not ended:
                raise subprocess.TimeoutExpired(begin.args[0], 600.0)
        for stream in (out, error):
            stream.seek(0)
        return subprocess.CompletedProcess(begin.args[0], code, out.read().decode(), error.read().decode())
