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
from compress.inference.threads import available_cores
from compress.labelling import label as label_module
from compress.labelling import ray_engine
from compress.labelling.label import Engine, choose_runtime
from compress.labelling.ray_engine import (
    UNDER_WAY,
    LabelWorker,
    RayEngine,
    hand_out,
    pack_directory,
    unpack_directory,
)
from compress.models.model_dir import Model
from tests.labelling.test_label import pool, text_file, tree
from tests.support.labelling import LabelOptions, label
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


class FakePool:
    """Workers in this process; each ends what it was given last first."""

    def __init__(self, workers: int) -> None:
        self.free, self.open, self.most = workers * UNDER_WAY, list[tuple[int, list[Example]]](), 0

    def has_free(self) -> bool:
        return len(self.open) < self.free

    def has_next(self) -> bool:
        return bool(self.open)

    def submit(self, call: Callable[[Any, Any], Any], shard: tuple[int, list[Example]]) -> None:
        call(SimpleNamespace(answers=SimpleNamespace(remote=lambda *given: self.open.append(given))), shard)
        self.most = max(self.most, len(self.open))

    def get_next_unordered(self, timeout: float) -> tuple[int, np.ndarray, int]:
        number, rows = self.open.pop()
        return number, np.full((len(rows), 2), number), 0


def shards_of(count: int, read: list[int] | None = None) -> Iterator[tuple[int, list[Example]]]:
    for number in range(count):
        if read is not None:
            read.append(number)
        yield number, [Example(str(number))]


@pytest.mark.parametrize("count", [0, 3, 20])
def test_every_shard_is_labelled_once_and_few_are_under_way(count: int) -> None:
    pool, advanced = FakePool(3), list[int]()
    answers = list(hand_out(pool, shards_of(count), advanced.append))
    assert {number: (rows, logits[0, 0]) for number, rows, logits, _ in answers} == {
        number: ([Example(str(number))], number) for number in range(count)
    }
    assert len(answers) == sum(advanced) == count and pool.most == min(count, 3 * UNDER_WAY)


def test_text_is_read_no_faster_than_it_is_labelled() -> None:
    read: list[int] = []
    for done, _ in enumerate(hand_out(FakePool(2), shards_of(50, read), lambda rows: None), 1):
        assert len(read) <= done + 2 * UNDER_WAY


def test_a_teacher_travels_whole(tmp_path: Path) -> None:
    for directory in (onnx_directory("bert"), Model.open(write(tmp_path / "foreign", classifier("bert")))):
        there = unpack_directory(pack_directory(directory.path), tmp_path / "there" / directory.name)
        assert Model.open(there).sha256 == directory.sha256


def test_a_worker_refuses_another_teacher_than_was_read(teacher: Path) -> None:
    with pytest.raises(CompressError, match="is not the teacher that the command read"):
        LabelWorker(str(teacher), "0" * 64, label_module.Plan("torch", "cpu", 1, 64), None).answers(0, [])


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
    elsewhere = True


def test_precisions_are_not_compared_here_for_other_machines() -> None:
    with pytest.raises(CompressError, match="precision auto compares on this machine"):
        label("teacher", "pool.txt", "labels", options=LabelOptions(precision="auto", engine=Elsewhere()))


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
    written: list[int] = []
    write_shard = label_module.write_shard

    def killing(directory: Path, number: int, *rest: Any) -> None:
        write_shard(directory, number, *rest)
        written.append(number)
        if len(written) in {2, 6}:
            until(lambda: workers())
            killed.append(workers()[0])
            os.kill(killed[-1], signal.SIGKILL)
            time.sleep(2)  # so that it is noticed while shards are left

    monkeypatch.setattr(label_module, "write_shard", killing)
    assert with_ray(teacher, text) == whole
    assert sorted(written) == list(range(13)) and len(killed) == 2
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
        "read: pool.txt: plain text",
    ]
    assert tree(text.parent / "labels") == whole
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert "RAY_AUTH_TOKEN" not in os.environ


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
    def answers(self, number: int, examples: list[Example]) -> tuple[int, np.ndarray, int]:
        os._exit(1)


@needs_ray
def test_workers_that_always_die_end_the_command(
    teacher: Path, text: Path, small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "LabelWorker", Dying)
    with pytest.raises(CompressError, match="4 workers died with the same shard, perhaps for lack of memory"):
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
