"""The GPU script, as far as it runs without one."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import platform
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from compress import __version__, host
from compress.benchmarking import hardware
from compress.benchmarking.results.files import Results
from compress.errors import CompressError
from compress.inference.runtimes import torch_bfloat16
from compress.recipes import BenchmarkSettings
from tests.support import REPOSITORY, module_from
from tests.support.results import line
from tests.support.tiny import bilstm, classifier, examples, onnx_directory, write
from tests.support.training_data import labelled_file

SCRIPT = REPOSITORY / "benchmarks" / "speed" / "gpu.py"


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    return module_from(SCRIPT)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What is typed, but for the output."""
    folder = tmp_path_factory.mktemp("gpu")
    teacher, student = write(folder / "big", classifier("bert")), write(folder / "small", bilstm())
    data = labelled_file(folder / "test.csv", examples(30))
    return [
        "--teacher",
        str(teacher),
        "--model",
        str(student),
        "--data",
        str(data),
        "--threads",
        "1",
        "--batch-size",
        "1",
        "--batch-size",
        "4",
        "--rounds",
        "3",
        "--device",
        "cpu",
    ]


def test_this_package_has_a_version_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(host.importlib.metadata, "version", none)
    assert host.library_versions.__wrapped__() == {"python": platform.python_version(), "compress": __version__}


def some(*runtimes: str) -> list[str]:
    return [word for name in runtimes for word in ("--runtime", name)]


def test_a_dry_run_measures_what_this_machine_can(
    gpu: ModuleType,
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "PEAK_SIZES", {"cpu": (64, 128)})
    output = tmp_path / "results" / "gpu.jsonl"
    assert gpu.main([*words, *some("torch-bfloat16", "torch-float16"), "-o", str(output)]) == 0
    lines = Results.open(output)
    expected = itertools.product(("big", "small"), ("torch", "torch-bfloat16"), (1, 4))
    assert {(x.model, x.runtime, x.batch_size) for x in lines} == set(expected)
    assert all(x.left_out == [{"name": "torch-float16", "reason": "it does not run on cpu"}] for x in lines)
    assert lines[0].rounds == 3 and lines[0].study == "gpu" and lines[0].data == "test.csv"
    checks = json.loads((output.parent / "gpu.checks.json").read_text())
    assert checks["peaks_tflops"]["float32"] > 0 and len(checks["checks"]) == 4
    assert all(not check["problem"] and set(check["latency_ms"]) == {"1", "4"} for check in checks["checks"])
    shown = capsys.readouterr().out
    for station in ("== set-up", "== matrix products", "== benchmark", "== results"):
        assert station in shown
    assert "left out: torch-float16: it does not run on cpu" in shown


class Measured:
    """Takes the place of the benchmark: remembers what it was asked for, and fails in the runtimes named."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.asked: list[dict[str, Any]] = []

    def __call__(
        self, teacher: Path, models: list[Path], rows: list[Any], settings: BenchmarkSettings, **named: Any
    ) -> list[dict[str, Any]]:
        self.asked.append({"runtimes": list(settings.runtimes)})
        for name in self.failing:
            if name in settings.runtimes:
                raise CompressError(f"big in {name}: its process ended")
        return [line("big", kind="teacher"), line("small")]


@pytest.fixture
def quick(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script without its slow parts."""
    monkeypatch.setattr(gpu, "check_setup", lambda device: 0.1)
    monkeypatch.setattr(gpu, "measure_peaks", lambda device, threads: {"float32": 1.0})
    return gpu


def test_a_wrong_runtime_is_left_out_with_the_reason(
    quick: ModuleType, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Measured()
    monkeypatch.setattr(quick, "benchmark", measured)
    monkeypatch.setattr(torch_bfloat16, "TOLERANCE", 1e-7)
    output = tmp_path / "gpu.jsonl"
    assert quick.main([*words, *some("torch-bfloat16"), "-o", str(output)]) == 0
    assert [asked["runtimes"] for asked in measured.asked] == [["torch"]]
    left_out = Results.open(output)[0].left_out
    assert [entry["name"] for entry in left_out] == ["big in torch-bfloat16", "small in torch-bfloat16"]
    assert "differ from float32" in left_out[0]["reason"] and "1e-07" in left_out[0]["reason"]


def test_a_runtime_that_fails_in_the_benchmark_is_skipped(
    quick: ModuleType, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Measured("torch-bfloat16")
    monkeypatch.setattr(quick, "benchmark", measured)
    output = tmp_path / "gpu.jsonl"
    assert quick.main([*words, *some("torch-bfloat16"), "-o", str(output)]) == 0
    assert [asked["runtimes"] for asked in measured.asked] == [["torch", "torch-bfloat16"], ["torch"]]
    assert Results.open(output)[0].left_out == [
        {"name": "torch-bfloat16", "reason": "big in torch-bfloat16: its process ended"}
    ]


def test_without_the_baseline_there_is_nothing_to_measure(
    quick: ModuleType, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(quick, "benchmark", Measured("torch"))
    assert quick.main([*words, *some("torch"), "-o", str(tmp_path / "gpu.jsonl")]) == 2
    assert "big in torch: its process ended" in capsys.readouterr().out
    assert (tmp_path / "gpu.checks.json").is_file()


def test_when_time_is_short_checks_and_rounds_are_fewer(
    quick: ModuleType, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(quick, "benchmark", Measured())
    output = tmp_path / "gpu.jsonl"
    assert quick.main([*words, *some("torch"), "--seconds", "0.001", "-o", str(output)]) == 2
    assert "no time was left" in capsys.readouterr().out


def test_rounds_have_the_time_that_starting_leaves(gpu: ModuleType) -> None:
    check = gpu.Check("big", "torch", start_s=10.0, latency_ms={1: 10.0, 32: 100.0})
    # Before: 5 s and 5 + 10 s of processes, 320 rows in ten batches of 0.1 s, 20 warm-ups of 0.11 s: 23.2 s.
    assert gpu.seconds_to_measure([check], 320, 100.0, 5.0) == pytest.approx(100 * gpu.RESERVE - 23.2)
    with pytest.raises(CompressError, match="too few.*fewer --model"):
        gpu.seconds_to_measure([check], 320, 23 / gpu.RESERVE, 5.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
def test_without_a_card_it_says_so(gpu: ModuleType, words: list[str], tmp_path: Path, capsys: Any) -> None:
    assert gpu.main([*words, "--device", "cuda", "-o", str(tmp_path / "gpu.jsonl")]) == 2
    assert "finds no CUDA device" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_an_onnx_model_is_refused(quick: ModuleType, words: list[str], tmp_path: Path, capsys: Any) -> None:
    onnx = str(onnx_directory("bert").path)
    assert quick.main([*words, *some("torch"), "--model", onnx, "-o", str(tmp_path / "gpu.jsonl")]) == 2
    assert "ONNX model; give the torch directory" in capsys.readouterr().out


def test_a_gpu_is_named_by_nvidia_smi_without_driver_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$1" = --query-gpu=name ] && echo "NVIDIA H200"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert host._gpu_names_by_tool() == ["NVIDIA H200"]
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert host._gpu_names_by_tool() == []
