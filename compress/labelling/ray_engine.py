"""Label with worker processes of Ray, on this machine or on a cluster (https://docs.ray.io).

This process reads the text and writes the shards; the workers hold the teacher and return logits. A shard whose worker
was killed is given to another one, so that only a command that ends early leaves shards to label.
"""

import io
import itertools
import os
import secrets
import signal
import socket
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compress.data import Example
from compress.errors import CompressError, first_line
from compress.host import is_installed
from compress.inference.cores import available_cores
from compress.inference.threads import free_cores
from compress.labelling.label import Engine, Job, Labelled, Plan, Shard, runtime_directory, start_runtime
from compress.models.manifest import MANIFEST_NAME, named_files
from compress.models.model_dir import ModelDir
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


@dataclass(frozen=True)
class RayEngine(Engine):
    """Label with workers of Ray.

    Args:
        address: of a cluster that runs, ``auto`` for that of this node; by default Ray is started here and stopped.
        workers: 0 for as many as there are GPUs, or CPU cores for their threads: free ones here, all of a cluster.

    Raises:
        CompressError: Ray is not installed.
    """

    address: str = ""
    workers: int = 0

    def __post_init__(self) -> None:
        if not is_installed("ray"):
            raise CompressError("--engine ray needs the package ray; install it with pip install 'compress[ray]'")

    @property
    def elsewhere(self) -> bool:
        return bool(self.address)

    @property
    def threads(self) -> int:
        return 1  # more workers of one thread label faster than fewer of several

    def run(self, job: Job, shards: Iterator[Shard], advance: Advance) -> Labelled:
        threads, gpus = job.plan.threads, int(job.plan.device == "cuda")
        with connected(self, threads, gpus) as ray:
            held = ray.cluster_resources()
            room = int(held.get("GPU", 0) if gpus else held.get("CPU", 0) // threads) or 1
            each = "a GPU" if gpus else f"{threads} CPU threads"
            where = f"in the cluster at {self.address}" if self.address else "on this machine"
            if self.workers > room:
                raise CompressError(
                    f"--workers {self.workers}, each with {each}, are more than there is room for {where}; use at most "
                    f"{room:,}"
                )
            count = self.workers or room
            logger.info("Ray: %d workers, each with %s", count, each)
            model = ModelDir.open(runtime_directory(job.plan, job.model, job.scratch), verify=False)
            teacher = ray.put(pack_directory(model.path)) if self.elsewhere else str(model.path.resolve())
            actor = ray.remote(num_cpus=threads, num_gpus=gpus)(LabelWorker)
            crew = Crew(ray, lambda: actor.remote(teacher, model.sha256, job.plan, job.tokenizer), count)
            yield from crew.label(shards, advance)


class LabelWorker:
    """What runs in a worker process.

    Args:
        teacher: the directory that the runtime opens, or what :func:`pack_directory` made of it.
        sha256: fingerprint of that directory.
    """

    def __init__(self, teacher: str | np.ndarray, sha256: str, plan: Plan, tokenizer: Any) -> None:
        self.teacher, self.sha256, self.plan, self.tokenizer = teacher, sha256, plan, tokenizer

    def start(self) -> None:
        """Load the teacher; not in the constructor, where Ray takes every error for a death."""
        os.environ.setdefault("RAYON_NUM_THREADS", str(self.plan.threads))  # of tokenizers
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "teacher"
            model = ModelDir.open(
                self.teacher if isinstance(self.teacher, str) else unpack_directory(self.teacher, folder)
            )
            if model.sha256 != self.sha256:
                raise CompressError(f"{model.path} is not the teacher that the command read; start the command again")
            self.job = Job(self.plan, model, self.tokenizer, Path(scratch))
            self.loaded = start_runtime(self.plan, model, Path(scratch))

    def answers(self, examples: list[Example]) -> tuple[np.ndarray, int]:
        """Return the logits of the rows of a shard, and how many were cut."""
        return self.job.answers(examples, self.loaded)


def pack_directory(directory: Path) -> np.ndarray:
    """Return the files of a model directory in an archive, for machines that do not see it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", dereference=True) as archive:  # the hub's files are links
        for name in (*named_files(directory), MANIFEST_NAME):
            if (directory / name).is_file():
                archive.add(directory / name, name)
    return np.frombuffer(stream.getbuffer(), np.uint8)


def unpack_directory(packed: np.ndarray, folder: Path) -> Path:
    """Write the files of an archive into a folder, and return that."""
    with tarfile.open(fileobj=io.BytesIO(packed.tobytes())) as archive:
        archive.extractall(folder, filter="data")
    return folder


@dataclass(eq=False)
class Place:
    """A worker of the crew; where its process dies, another one takes its place."""

    number: int
    actor: Any
    ready: bool = False
    under_way: int = 0


class Crew:
    """Workers, and the shards that they have under way."""

    def __init__(self, ray: Any, hire: Callable[[], Any], count: int) -> None:
        self.ray, self.hire = ray, hire
        self.places: dict[int, Place] = {}
        self.answers: dict[Any, tuple[Place, Shard | None]] = {}  # None: it loads the teacher
        self.waiting: list[Shard] = []
        self.losses = Counter[str]()
        for number in range(count):
            self._fill(number)

    def label(self, shards: Iterator[Shard], advance: Advance) -> Labelled:
        """Yield every shard with its logits, as they come."""
        while self._hand_out(shards) or any(shard for _, shard in self.answers.values()):
            done, _ = self.ray.wait(list(self.answers), timeout=PATIENCE_S)
            if not done and not any(place.ready for place in self.places.values()):
                logger.warning("no worker has started yet; 'ray status' shows what the cluster waits for")
            for answer in done:
                place, shard = self.answers.pop(answer)
                try:
                    answers = self.ray.get(answer)
                except self.ray.exceptions.RayTaskError as error:
                    raise (error.cause if isinstance(error.cause, Exception) else error) from error
                except self.ray.exceptions.RayError as error:
                    self._replace(place, shard, error)
                    continue
                place.ready = True
                if shard is not None:
                    place.under_way -= 1
                    advance(len(shard[1]))
                    yield *shard, *answers

    def _hand_out(self, shards: Iterator[Shard]) -> bool:
        """Give the workers that are ready the next shards; tell whether there are more."""
        for most in range(1, UNDER_WAY + 1):
            for place in self.places.values():
                if place.ready and place.under_way < most and self._top_up(shards):
                    shard = self.waiting.pop()
                    place.under_way += 1
                    self.answers[place.actor.answers.remote(shard[1])] = (place, shard)
        return self._top_up(shards)

    def _top_up(self, shards: Iterator[Shard]) -> bool:
        if not self.waiting:
            self.waiting += itertools.islice(shards, 1)
        return bool(self.waiting)

    def _fill(self, number: int) -> None:
        place = self.places[number] = Place(number, self.hire())
        self.answers[place.actor.start.remote()] = (place, None)

    def _replace(self, place: Place, shard: Shard | None, error: Exception) -> None:
        """Give the place of a worker that died to another one, and its shard back.

        Raises:
            CompressError: the workers die again and again.
        """
        what = f"shard {shard[0]}" if shard else f"the teacher in place {place.number + 1}"
        self.losses[what] += 1
        if self.losses[what] > LOSSES:
            raise CompressError(
                f"{self.losses[what]} workers died with {what}, perhaps for lack of memory; with fewer --workers the "
                f"same command goes on (Ray says: {first_line(error)})"
            )
        if shard:
            self.waiting.append(shard)
        if self.places[place.number] is place:
            with suppress(self.ray.exceptions.RayError):
                self.ray.kill(place.actor)
            self._fill(place.number)


@contextmanager
def connected(engine: RayEngine, threads: int, gpus: int) -> Iterator[Any]:
    """Give the package ray, connected. What was started here ends with the block, and says nothing."""
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
            stack.enter_context(_messages_to_log(ray))
            with suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGTERM, terminated)  # Ray has put its own there
            yield ray
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _messages_to_log(ray: Any) -> Iterator[None]:
    """Show what Ray says of its processes, such as one that was killed, with -v; it has no setting for that.

    It prints on standard output, which is for results.
    """
    module, name = getattr(getattr(ray, "_private", None), "worker", None), "print_to_stdstream"
    if (before := getattr(module, name, None)) is None:
        yield
        return
    setattr(module, name, lambda data, **_: logger.debug("Ray: %s", " ".join(data["lines"])))
    try:
        yield
    finally:
        setattr(module, name, before)
