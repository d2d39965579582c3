"""What a container allows, from control groups of our own, and what follows it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from compress import host
from compress.benchmarking.results.files import host_id
from compress.inference import batching, threads
from compress.inference.batching import logits_of
from tests.support import tiny

GIB = 2**30


@pytest.fixture(autouse=True)
def _uncached() -> Iterator[None]:
    cached = (host.cpu_quota, host.memory_bytes, host.describe_host, threads._counted)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write files below a root of control groups, and the groups that this process is in."""

    def write(own: str, **files: str) -> None:
        (tmp_path / "own").write_text(own)
        for name, content in files.items():
            place = tmp_path / "groups" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)

    monkeypatch.setattr(host, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(host, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(threads, "available_cores", lambda: list(range(16)))
    return write


VERSION_2 = ("0::/\n", {"cpu.max": "250000 100000\n", "memory.max": f"{GIB}\n"})
OF_THE_HOST = ("0::/docker/abc\n", {"cpu.max": "250000 100000\n", "memory.max": f"{GIB}\n"})
OF_A_PARENT = (
    "0::/a/b\n",
    {
        "a/cpu.max": "250000 100000\n",
        "a/memory.max": f"{GIB}\n",
        "a/b/cpu.max": "max 100000\n",
        "a/b/memory.max": "max",
    },
)
VERSION_1 = (
    "4:memory:/x\n1:cpu,cpuacct:/x/y\n0::/\n",
    {
        "cpu,cpuacct/x/cpu.cfs_quota_us": "250000\n",
        "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/x/y/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/x/y/cpu.cfs_period_us": "100000\n",
        "memory/x/memory.limit_in_bytes": f"{GIB}\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    },
)


@pytest.mark.parametrize(("own", "files"), [VERSION_2, OF_THE_HOST, OF_A_PARENT, VERSION_1])
def test_limits_of_a_container_are_read(own: str, files: dict[str, str], groups: Callable[..., None]) -> None:
    groups(own, **files)
    assert host.cpu_quota() == 2.5 and threads.core_count() == 2
    assert host.memory_bytes() == GIB
    described = host.describe_host()
    assert described["cpu_quota"] == 2.5 and described["memory_limit_bytes"] == GIB
    assert host_id(described) != host_id({**described, "cpu_quota": 4.0})


@pytest.mark.parametrize("own", ["0::/\n", "1:cpu:/\n", "0::/../../elsewhere\n"])
def test_without_limits_all_of_the_machine_is_used(own: str, groups: Callable[..., None]) -> None:
    groups(own, **{"cpu.max": "max 100000\n", "memory.max": "max\n", "cpu/cpu.cfs_quota_us": "-1\n"})
    assert host.cpu_quota() is None and threads.core_count() == 16
    assert not {"cpu_quota", "memory_limit_bytes"} & set(host.describe_host())
    assert host.describe_host()["memory_bytes"] == host.memory_bytes()


def test_less_than_a_core_is_one_thread(groups: Callable[..., None]) -> None:
    groups("0::/\n", **{"cpu.max": "20000 100000"})
    assert threads.core_count() == 1


def test_a_stage_has_no_more_threads_than_the_quota(
    groups: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups("0::/\n", **{"cpu.max": "300000 100000"})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "available_cores", lambda: list(range(16)))
    monkeypatch.setattr(threads, "busy_seconds", lambda cores: 0.0)
    monkeypatch.setattr(threads, "WATCHED_SECONDS", 0.01)
    assert threads.default_threads() == 3


def test_batches_fit_into_the_memory_of_a_container(
    groups: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups("0::/\n", **{"memory.max": f"{200_000_000}"})
    rows = tiny.examples(30)
    sizes: list[int] = []

    def run(arrays: dict[str, np.ndarray]) -> np.ndarray:
        sizes.append(len(arrays["input_ids"]))
        return arrays["input_ids"][:, :2].astype(np.float32) + arrays["input_ids"].max(1, keepdims=True)

    whole = logits_of(rows, run, tiny.tokenizer(), max_length=64)
    monkeypatch.setattr(batching, "_HEADS", 500_000)  # rows of some tokens take megabytes
    assert sizes == [30]
    assert np.array_equal(logits_of(rows, run, tiny.tokenizer(), max_length=64), whole)
    assert max(sizes[1:]) < 10 and sum(sizes[1:]) == 30


def test_a_batch_of_long_texts_is_smaller_where_memory_is(groups: Callable[..., None]) -> None:
    groups("0::/\n", **{"memory.max": f"{8 * GIB}"})
    assert batching.rows_in_memory(512) > batching.BATCH_ROWS > batching.rows_in_memory(2048) >= 4
    host.memory_bytes.cache_clear()
    groups("0::/\n", **{"memory.max": f"{GIB // 4}"})
    assert batching.rows_in_memory(512) == 4 and batching.rows_in_memory(100_000) == 1


ACTIVATIONS = """
import os, torch
from compress.host import few_kernels
with few_kernels():
    for length in [*range(1, 101)] * 2:
        torch.nn.functional.gelu(torch.ones(length, 64))
assert os.environ.get("ONEDNN_PRIMITIVE_CACHE_CAPACITY") in (None, "128")
"""


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no oneDNN")
@pytest.mark.parametrize(("capacity", "found_again"), [({}, 0), ({"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}, 100)])
def test_kernels_of_few_shapes_are_kept_and_the_user_decides(capacity: dict[str, str], found_again: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", ACTIVATIONS],
        env={**os.environ, "ONEDNN_VERBOSE": "all", **capacity},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in run.stdout.splitlines() if "eltwise_gelu" in line]
    assert sum("create:cache_hit" in line for line in lines) == found_again
    assert sum("create:cache_miss" in line for line in lines) == 200 - found_again
