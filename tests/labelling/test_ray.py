"""Labels by workers of Ray: the bytes of one process, whoever is killed; and how shards are handed out, without Ray.

The tests that need Ray start it with two workers; they run after pip install 'compress[ray]'.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from compress.cli import execute
from compress.data import Example
from compress.errors import CompressError, MissingPackage
from compress.inference.compute import Compute
from compress.inference.cores import available_cores
from compress.labelling import label as label_module
from compress.labelling import ray_engine
from compress.labelling.label import Engine, LabelOptions, choose_runtime, label
from compress.labelling.ray_engine import (
    LOSSES,
    UNDER_WAY,
    Crew,
    LabelWorker,
    RayEngine,
    pack_directory,
    unpack_directory,
)
from compress.models.model_dir import ModelDir
from tests.labelling.test_label import pool, text_file, tree
from tests.support.tiny import classifier, onnx_directory, write

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'compress[ray]'"
)
ONE = Compute(threads=1)
ROWS = 100  # 13 shards


MARK = f"COMPRESS_TEST_OF_RAY={os.getpid()}-{time.time_ns()}"  # in the environment of what these tests start


@pytest.fixture(autouse=True)
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*MARK.split("="))


def workers() -> list[int]:
    """The processes of workers that these tests started, and no others of this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            titled = folder.joinpath("cmdline").read_bytes().startswith(b"ray::LabelWorker")
            if titled and MARK.encode() in folder.joinpath("environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has just ended
            continue
    return found


def until(holds: Callable[[], object], seconds: float = 90) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.1)
    return False


# Without Ray


class Fake:
    """Ray in this process. A worker ends what it was given last first; ``dies`` says which of its calls kill it."""

    class RayError(Exception): ...

    class RayTaskError(RayError): ...

    class RayActorError(RayError): ...

    def __init__(self, dies: Callable[[int, int | None], bool] = lambda worker, shard: False) -> None:
        self.exceptions = SimpleNamespace(RayError=self.RayError, RayTaskError=self.RayTaskError)
        self.dies = dies
        self.hired = 0
        self.most = 0
        self.open: list[Call] = []
        self.dead: set[int] = set()
        self.never: set[int] = set()

    def hire(self) -> Any:
        self.hired += 1
        number = self.hired
        actor = SimpleNamespace(number=number)
        actor.start = SimpleNamespace(remote=lambda: self._call(number, None))
        actor.answers = SimpleNamespace(remote=lambda rows: self._call(number, int(rows[0].text)))
        return actor

    def _call(self, worker: int, shard: int | None) -> Call:
        call = Call(worker, shard)
        self.open.append(call)
        self.most = max(self.most, sum(one.worker == worker and one.shard is not None for one in self.open))
        return call

    def wait(self, calls: list[Call], timeout: float) -> tuple[list[Call], list[Call]]:
        ends = [call for call in reversed(calls) if call.worker not in self.never]
        return ends[:1], calls

    def get(self, call: Call) -> Any:
        self.open.remove(call)
        if call.worker in self.dead or self.dies(call.worker, call.shard):
            self.dead.add(call.worker)
            raise self.RayActorError("the actor died\nfor a reason")
        return None if call.shard is None else (np.full((1, 2), call.shard), 0)

    def kill(self, actor: Any) -> None:
        self.dead.add(actor.number)


class Call:
    def __init__(self, worker: int, shard: int | None) -> None:
        self.worker, self.shard = worker, shard


def hand_out(ray: Fake, count: int, shards: int = 20) -> dict[int, np.ndarray]:
    stream = ((number, [Example(str(number))]) for number in range(shards))
    advanced: list[int] = []
    answers = list(Crew(ray, ray.hire, count).label(stream, advanced.append))
    assert len(answers) == sum(advanced) == shards
    return {number: logits for number, _, logits, _ in answers}


def test_every_shard_is_labelled_once_and_few_are_under_way() -> None:
    ray = Fake()
    assert {number: logits[0, 0] for number, logits in hand_out(ray, 3).items()} == {n: n for n in range(20)}
    assert ray.most == UNDER_WAY and ray.hired == 3


def test_text_is_read_no_faster_than_it_is_labelled() -> None:
    ray, read = Fake(), []

    def stream() -> Iterator[tuple[int, list[Example]]]:
        for number in range(50):
            read.append(number)
            yield number, [Example(str(number))]

    answers = Crew(ray, ray.hire, 2).label(stream(), lambda rows: None)
    for done, _ in enumerate(answers, 1):
        assert len(read) <= done + 2 * UNDER_WAY


@pytest.mark.parametrize("killed", [{1: 3}, {1: 0, 2: 1}, {1: 5, 2: 7, 3: 9, 4: 11}])
def test_shards_of_a_worker_that_died_are_given_to_another(killed: dict[int, int]) -> None:
    ray = Fake(lambda worker, shard: shard is not None and shard >= killed.get(worker, 1000))
    assert len(hand_out(ray, 2)) == 20
    assert ray.hired == 2 + len(ray.dead) and ray.dead <= set(killed)


def test_a_worker_that_never_starts_keeps_nobody_waiting() -> None:
    ray = Fake()
    ray.never = {2, 3}
    assert len(hand_out(ray, 3)) == 20


def test_a_shard_that_kills_its_workers_ends_the_command() -> None:
    ray = Fake(lambda worker, shard: shard == 7)
    with pytest.raises(CompressError, match=r"4 workers died with shard 7, .* \(Ray says: the actor died\)"):
        hand_out(ray, 2)
    assert ray.hired <= 2 + LOSSES


def test_a_teacher_that_kills_its_workers_ends_the_command() -> None:
    with pytest.raises(CompressError, match="4 workers died with the teacher in place 1"):
        hand_out(Fake(lambda worker, shard: shard is None), 1)


def test_a_teacher_travels_whole(tmp_path: Path) -> None:
    for directory in (onnx_directory("bert"), ModelDir.open(write(tmp_path / "foreign", classifier("bert")))):
        there = unpack_directory(pack_directory(directory.path), tmp_path / "there" / directory.name)
        assert ModelDir.open(there).sha256 == directory.sha256


def test_a_worker_refuses_another_teacher_than_was_read(teacher: Path) -> None:
    with pytest.raises(CompressError, match="is not the teacher that the command read"):
        LabelWorker(str(teacher), "0" * 64, label_module.Plan("torch", "cpu", 1, 64), None).start()


def test_a_gpu_need_not_be_here_where_the_teacher_runs_elsewhere() -> None:
    model = onnx_directory("bert")
    assert choose_runtime(model, "cuda", elsewhere=True) == ("onnxruntime", "cuda")
    if not torch.cuda.is_available():
        with pytest.raises(CompressError, match="no usable GPU"):
            choose_runtime(model, "cuda")


def test_a_missing_package_is_one_sentence_in_another_process() -> None:
    said = pickle.loads(pickle.dumps(MissingPackage(ModuleNotFoundError(name="onnx"))))
    assert isinstance(said, CompressError) and "needs the Python package onnx" in str(said)


class Elsewhere(Engine):
    @property
    def elsewhere(self) -> bool:
        return True


def test_precisions_are_not_compared_here_for_other_machines() -> None:
    with pytest.raises(CompressError, match="precision auto compares on this machine"):
        LabelOptions(precision="auto", engine=Elsewhere())


def test_ray_that_is_not_installed_is_one_sentence_before_any_work(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_engine, "is_installed", lambda name: False)
    given = ["--teacher", str(teacher), "--unlabeled", str(text_file(tmp_path / "pool.txt", 9)), "--engine", "ray"]
    assert execute(["label", *given, "-q", "-o", str(tmp_path / "labels")]) == 2
    said = capsys.readouterr().err
    assert said == "Error: --engine ray needs the package ray; install it with pip install 'compress[ray]'\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pool.txt"]


@pytest.mark.parametrize("given", [["--workers", "2"], ["--ray-address", "auto"]])
def test_options_of_ray_without_ray_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["label", "--teacher", "t", "--unlabeled", "u", "-o", "o", *given]) == 2
    said = capsys.readouterr().err
    assert said == f"Error: {given[0]} changes nothing without --engine ray; add it, or leave {given[0]} out\n"


# With Ray


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return text_file(tmp_path / "pool.txt", ROWS)


@pytest.fixture
def whole(teacher: Path, text: Path, small_shards: None) -> dict[str, bytes]:
    """What one process writes."""
    return tree(label(teacher, pool(text), text.parent / "whole" / "labels", compute=ONE).path)


def with_ray(teacher: Path, text: Path, **options: Any) -> dict[str, bytes]:
    options = {"workers": 2, **options}
    made = label(teacher, pool(text), text.parent / "labels", options=LabelOptions(engine=RayEngine(**options)))
    return tree(made.path)


@needs_ray
def test_two_workers_write_the_bytes_of_one_process_though_workers_are_killed(
    teacher: Path,
    text: Path,
    whole: dict[str, bytes],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_engine.logger, "handlers", [])
    killed: list[int] = []
    crews: list[Crew] = []
    written: list[int] = []
    hire, write_shard = Crew._fill, label_module.write_shard

    def watched(crew: Crew, number: int) -> None:
        crews.append(crew)
        hire(crew, number)

    def killing(directory: Path, number: int, *rest: Any) -> None:
        write_shard(directory, number, *rest)
        written.append(number)
        if len(written) == 2:
            until(lambda: killed.extend(workers()[:1]) or killed)
            os.kill(killed[0], signal.SIGKILL)
            time.sleep(2)  # so that it is noticed while shards are left
        if len(written) == 6:
            crews[0].ray.kill(crews[0].places[1].actor)
            time.sleep(2)

    monkeypatch.setattr(Crew, "_fill", watched)
    monkeypatch.setattr(label_module, "write_shard", killing)
    assert with_ray(teacher, text) == whole
    assert sorted(written) == list(range(13))
    assert killed and len(crews) > 2  # another one for each that was killed before its last shard
    assert capfd.readouterr().out == ""
    assert until(lambda: not workers())


@needs_ray
def test_the_command_says_nothing_of_ray(
    teacher: Path,
    text: Path,
    whole: dict[str, bytes],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(text.parent)
    given = ["--teacher", str(teacher), "--unlabeled", "pool.txt", "--engine", "ray", "--workers", "2"]
    assert execute(["label", *given, "-o", "labels"]) == 0
    said = capfd.readouterr()
    assert said.out == "labels: 100 rows labelled on torch (cpu, 1 thread, float32)\n"
    assert said.err.splitlines() == [
        "unlabeled: pool.txt: plain text",
        "Labelling ...",
        "Ray: 2 workers, each with 1 CPU threads",
    ]
    assert tree(text.parent / "labels") == whole
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert not {"RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"} & os.environ.keys()


@needs_ray
def test_a_fault_of_the_teacher_is_one_sentence(
    text: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine.logger, "handlers", [])
    broken = classifier("bert")
    with torch.no_grad():
        broken.classifier.weight[0, 0] = float("nan")
    path = write(text.parent / "broken", broken)
    with pytest.raises(CompressError, match="weights that are not finite numbers .classifier.weight"):
        with_ray(path, text)
    assert capfd.readouterr() == ("", "")


@needs_ray
def test_more_workers_than_there_is_room_for_are_refused(teacher: Path, text: Path) -> None:
    said = r"--workers 1000000000, each with 1 CPU threads, are more than there is room for on this machine; use at "
    with pytest.raises(CompressError, match=said + rf"most {len(available_cores())}"):
        with_ray(teacher, text, workers=10**9)
    assert until(lambda: not workers()) and not (text.parent / "labels").exists()


@needs_ray
@pytest.mark.parametrize("length", [20, 21, 22, 29])
def test_a_folder_for_temporary_files_may_have_any_length(
    length: int, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray puts sockets below it, whose paths have 107 bytes at most."""
    base = Path(f"/tmp/{os.getpid()}-".ljust(length, "x"))
    base.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    try:
        with ray_engine.connected(RayEngine(workers=1), 1, 0) as ray:
            folder = Path(ray._private.worker._global_node.get_session_dir_path())
            assert folder.is_relative_to(base) == (length <= 21)
    finally:
        shutil.rmtree(base)


class Dying(LabelWorker):
    def start(self) -> None:
        pass

    def answers(self, examples: list[Example]) -> tuple[np.ndarray, int]:
        os._exit(1)


@needs_ray
def test_workers_that_always_die_end_the_command(
    teacher: Path, text: Path, small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "LabelWorker", Dying)
    with pytest.raises(CompressError, match=r"4 workers died with shard \d+, perhaps for lack of memory"):
        with_ray(teacher, text)


COMMAND = """
import sys
from dataclasses import replace
from compress.cli import main
from compress.labelling import label as label_module
plan = label_module.plan_for
label_module.plan_for = lambda *given, **named: replace(plan(*given, **named), shard_rows=8)
label_module.choose_runtime = lambda *_, **__: ("torch", "cpu")
main(sys.argv[1:])
"""


def start(teacher: Path, text: Path) -> subprocess.Popen[str]:
    given = ["label", "--teacher", str(teacher), "--unlabeled", str(text), "--engine", "ray", "--workers", "2", "-q"]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *given, "-o", str(text.parent / "labels")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": "/tmp"},
        start_new_session=True,
    )


@needs_ray
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "Ctrl-C"])
def test_a_command_that_ends_early_leaves_no_worker_and_the_same_command_goes_on(
    how: str, teacher: Path, text: Path, whole: dict[str, bytes]
) -> None:
    text_file(text, 20 * ROWS)  # long enough to be killed within
    before = set(Path("/tmp").glob("compress-ray-*"))
    run = start(teacher, text)
    partial = text.parent / ".labels.partial"
    assert until(lambda: len(list(partial.glob("*.parquet"))) > 2 or run.poll() is not None) and run.poll() is None
    if how == "Ctrl-C":
        os.killpg(run.pid, signal.SIGINT)  # the terminal sends it to Ray's processes too
    else:
        run.send_signal(getattr(signal, how))
    said = run.communicate(timeout=60)
    if how == "SIGKILL":
        assert run.returncode == -signal.SIGKILL
    else:
        assert run.returncode == 130
        assert said == ("", f"\nInterrupted. The same command goes on from what is finished of {text.parent}/labels.\n")
    assert until(lambda: not workers())
    left = set(Path("/tmp").glob("compress-ray-*")) - before
    assert len(left) == (how == "SIGKILL")  # which nothing can clean up after
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    done = len(list(partial.glob("*.json")))
    assert 2 <= done < 250
    text_file(text, ROWS)
    again = start(teacher, text)
    assert again.communicate(timeout=120) == ("", "") and again.returncode == 0
    assert tree(text.parent / "labels") == whole


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster of this machine, that another command started."""
    for name, value in ray_engine._SETTINGS.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    given = ["start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=2"]
    folder = Path("/tmp") / f"compress-test-{os.getpid()}"
    given += ["--include-dashboard=false", "--object-store-memory=100000000", f"--temp-dir={folder}"]
    with open(tmp_path / "ray.log", "w") as log:
        head = subprocess.Popen([sys.executable, "-m", "ray.scripts.scripts", *given], stdout=log, stderr=log)
    try:
        assert until(lambda: "--block" in (tmp_path / "ray.log").read_text() or head.poll() is not None)
        yield address
    finally:
        head.terminate()
        head.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


@needs_ray
def test_a_cluster_that_runs_gets_the_teacher_and_stays(
    cluster: str, teacher: Path, text: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[Path] = []
    monkeypatch.setattr(ray_engine, "pack_directory", lambda path: packed.append(path) or pack_directory(path))
    for _ in range(2):
        made = label(
            teacher,
            pool(text),
            text.parent / "labels",
            options=LabelOptions(engine=RayEngine(cluster)),
            force=True,
        )
        assert tree(made.path) == whole
    assert packed == [teacher, teacher]


@needs_ray
def test_a_cluster_that_is_not_there_is_one_sentence(teacher: Path, text: Path) -> None:
    with pytest.raises(
        CompressError, match=r"Ray cannot be reached at 127.0.0.1:1 \(\[Errno 111\] Connection refused\)"
    ):
        with_ray(teacher, text, address="127.0.0.1:1")
