"""Label with worker processes of Ray, on this machine or on a cluster (https://docs.ray.io).

This process reads the text and writes the shards; the workers hold the teacher and return logits. Ray starts a worker
that was killed again and gives it its shards, so that only a command that ends early leaves shards to label.
"""

import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from compress.data import Example
from compress.errors import CompressError, first_line, refuse
from compress.host import is_installed
from compress.inference.batching import Run
from compress.inference.threads import available_cores, free_cores
from compress.labelling.label import Engine, Job, Labelled, Plan, Shard, runtime_directory, start_runtime
from compress.models.manifest import MANIFEST_NAME, named_files
from compress.models.model_dir import Model
from compress.progress import Advance, logger

UNDER_WAY = 2  # shards a worker: the next one is there when one is done
LOSSES = 3  # of workers on the same shard; where another one dies too, the shard kills them
PATIENCE_S = 60
_OBJECTS_BYTES = 128 * 1024**2  # of a local start, where only text and logits pass
_LONGEST_FOLDER = 107 - len("/compress-ray-01234567/session_2026-11-29_09-59-20_958849_1234567/sockets/plasma_store")
# Ray of a local start sends no statistics and lets nobody else in; the token would otherwise be kept in the home.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


class RayEngine(Engine):
    """Label with workers of Ray.

    Args:
        address: of a cluster that runs, ``auto`` for that of this node; by default Ray is started here and stopped.
        workers: 0 for as many as there are GPUs, or CPU cores for their threads: free ones here, all of a cluster.

    Raises:
        CompressError: Ray is not installed.
    """

    threads = 1  # more workers of one thread label faster than fewer of several

    def __init__(self, address: str = "", workers: int = 0) -> None:
        refuse(
            (not is_installed("ray"), "--engine ray needs the package ray; install it with pip install 'compress[ray]'")
        )
        self.address, self.workers, self.elsewhere = address, workers, bool(address)

    def run(self, job: Job, shards: Iterator[Shard], advance: Advance) -> Labelled:
        threads, gpus = job.plan.threads, int(job.plan.device == "cuda")
        with connected(self, threads, gpus) as ray:
            from ray.util import ActorPool

            held = ray.cluster_resources()
            room = int(held.get("GPU", 0) if gpus else held.get("CPU", 0) // threads) or 1
            each = "a GPU" if gpus else f"{threads} CPU threads"
            where = f"in the cluster at {self.address}" if self.address else "on this machine"
            refuse(
                (
                    self.workers > room,
                    f"--workers {self.workers}, each with {each}, are more than there is room for {where}; use at most "
                    f"{room:,}",
                )
            )
            count = self.workers or room
            logger.info("Ray: %d workers, each with %s", count, each)
            model = Model.open(runtime_directory(job.plan, job.model, job.scratch), verify=False)
            teacher = ray.put(pack_directory(model.path)) if self.elsewhere else str(model.path.resolve())
            kept = {"max_restarts": -1, "max_task_retries": LOSSES}
            worker = ray.remote(num_cpus=threads, num_gpus=gpus, **kept)(LabelWorker)
            workers = [worker.remote(teacher, model.sha256, job.plan, job.tokenizer) for _ in range(count)]
            yield from hand_out(ActorPool(workers * UNDER_WAY), shards, advance)


def hand_out(pool: Any, shards: Iterator[Shard], advance: Advance) -> Labelled:
    """Yield every shard with its logits, as a pool of workers returns them.

    Raises:
        CompressError: workers die again and again with the same shard.
    """
    under_way: dict[int, list[Example]] = {}
    for number, examples in shards:
        while not pool.has_free():
            yield _next_answer(pool, under_way, advance)
        under_way[number] = examples
        pool.submit(lambda worker, shard: worker.answers.remote(*shard), (number, examples))
    while pool.has_next():
        yield _next_answer(pool, under_way, advance)


def _next_answer(
    pool: Any, under_way: dict[int, list[Example]], advance: Advance
) -> tuple[int, list[Example], np.ndarray, dict[str, Any]]:
    while True:
        try:
            number, logits, cut = pool.get_next_unordered(timeout=PATIENCE_S)
            break
        except TimeoutError:
            logger.warning("no worker has answered yet; 'ray status' shows what the cluster waits for")
        except Exception as error:
            from ray.exceptions import RayError, RayTaskError

            if isinstance(error, RayTaskError):
                raise (error.cause if isinstance(error.cause, Exception) else error) from error
            if not isinstance(error, RayError):
                raise
            raise CompressError(
                f"{LOSSES + 1} workers died with the same shard, perhaps for lack of memory; with fewer --workers the "
                f"same command goes on (Ray says: {first_line(error)})"
            ) from error
    examples = under_way.pop(number)
    advance(len(examples))
    return number, examples, logits, {"truncated": cut}


class LabelWorker:
    """What runs in a worker process.

    Args:
        teacher: the directory that the runtime opens, or what :func:`pack_directory` made of it.
        sha256: fingerprint of that directory.
    """

    def __init__(self, teacher: str | Mapping[str, np.ndarray], sha256: str, plan: Plan, tokenizer: Any) -> None:
        self.teacher, self.sha256, self.plan, self.tokenizer = teacher, sha256, plan, tokenizer

    @cached_property
    def loaded(self) -> tuple[Job, Run]:
        """The teacher. It is not loaded in the constructor, where Ray takes every error for a death."""
        os.environ.setdefault("RAYON_NUM_THREADS", str(self.plan.threads))  # of tokenizers
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "teacher"
            model = Model.open(
                self.teacher if isinstance(self.teacher, str) else unpack_directory(self.teacher, folder)
            )
            refuse(
                (
                    model.sha256 != self.sha256,
                    f"{model.path} is not the teacher that the command read; start the command again",
                )
            )
            job = Job(self.plan, model, self.tokenizer, Path(scratch))
            return job, start_runtime(self.plan, model, Path(scratch))

    def answers(self, number: int, examples: list[Example]) -> tuple[int, np.ndarray, int]:
        """Return the number of a shard, the logits of its rows, and how many were cut."""
        job, run = self.loaded
        return number, *job.answers(examples, run)


def pack_directory(directory: Path) -> dict[str, np.ndarray]:
    """Return the files of a model directory by name, for machines that do not see it."""
    names = (*named_files(directory), MANIFEST_NAME)
    return {name: np.fromfile(directory / name, np.uint8) for name in names if (directory / name).is_file()}


def unpack_directory(packed: Mapping[str, np.ndarray], folder: Path) -> Path:
    for name, content in packed.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        content.tofile(folder / name)
    return folder


@contextmanager
def connected(engine: RayEngine, threads: int, gpus: int) -> Iterator[Any]:
    """Give the package ray, connected. What was started here ends with the block; what Ray prints goes to stderr."""
    added = {} if engine.address else {name: value for name, value in _SETTINGS.items() if name not in os.environ}
    os.environ.update(added)
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        with ExitStack() as stack:
            import ray

            options: dict[str, Any] = {"address": engine.address}
            try:
                if not engine.address:
                    base = tempfile.gettempdir()  # the system allows the paths of sockets below it 107 bytes
                    folder = tempfile.TemporaryDirectory(
                        prefix="compress-ray-",
                        dir=base if len(os.fsencode(base)) <= _LONGEST_FOLDER else "/tmp",
                        ignore_cleanup_errors=True,
                    )
                    options = {"address": "local", "include_dashboard": False, "object_store_memory": _OBJECTS_BYTES}
                    options |= {"_temp_dir": stack.enter_context(folder), "_node_ip_address": "127.0.0.1"}
                    if not gpus:
                        cores = len(available_cores()) if engine.workers else free_cores()
                        options |= {"num_cpus": max(threads, cores), "num_gpus": 0}
                if (found := engine.address.rpartition(":"))[2].isdigit() and "/" not in engine.address:
                    socket.create_connection((found[0], int(found[2])), timeout=10).close()  # Ray tries for minutes
                stack.enter_context(redirect_stdout(sys.stderr))  # standard output is for results
                ray.init(**options, log_to_driver=False, logging_level="ERROR")
            except SystemExit as error:  # of the handler that Ray has for SIGTERM
                raise KeyboardInterrupt from error
            except Exception as error:
                to_do = "see 'ray status' on a node of it" if engine.address else "try --engine local"
                raise CompressError(
                    f"Ray cannot be {f'reached at {engine.address}' if engine.address else 'started'} "
                    f"({first_line(error)}); {to_do}"
                ) from error
            stack.callback(ray.shutdown)
            with suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGTERM, terminated)  # Ray has put its own there
            yield ray
    finally:
        for name in added:
            os.environ.pop(name, None)
