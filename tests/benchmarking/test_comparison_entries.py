"""Baselines, competitors and reference models: planned, built in processes of their own, and measured beside the
models.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.benchmarking import candidates as entries_module
from compress.benchmarking import worker as worker_module
from compress.benchmarking.benchmark import benchmark
from compress.benchmarking.candidates import Entry, open_candidates
from compress.benchmarking.results.schema import Measurement
from compress.benchmarking.rounds import REFERENCE_BATCHES, workloads_of
from compress.benchmarking.worker import Worker, WorkerRun, Workload
from compress.benchmarking.worker_main import write_rows
from compress.data import Example
from compress.errors import CompressError, Unavailable
from compress.host import without_home
from compress.models.model_dir import Model
from compress.progress import silent
from compress.recipes import BenchmarkSettings
from tests.support import REPOSITORY, module_from
from tests.support.tiny import bilstm, classifier, examples, onnx_directory, torch_directory, write

TRAIN = [Example(f"{row.text} zebra", None, row.label) for row in examples(60)]
TINY_REFERENCE_MODEL = (
    "bert",
    {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64},
)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[Measurement]:
    """One benchmark with everything beside the teacher: a baseline, a reference model, a competitor, and one that is
    not installed.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(entries_module.REFERENCE_MODELS, "tiny-reference-model", TINY_REFERENCE_MODEL)  # type: ignore[arg-type]
        patch.setenv("COMPRESS_COMPETITORS", str(tmp_path_factory.mktemp("competitors")))
        return benchmark(
            torch_directory("bert"),
            [],
            examples(40),
            BenchmarkSettings(
                baselines=("majority",),
                reference_models=("tiny_reference_model",),
                competitors=("torch-dynamic-int8", "optimum-int8"),
                lengths=(12,),
                batch_sizes=(2, 4),
                rounds=3,
                padded_teacher=False,
            ),
            train=TRAIN,
        )


def of(lines: list[Measurement], kind: str) -> list[Measurement]:
    return [line for line in lines if line.kind == kind]


def test_every_kind_is_measured_at_its_settings(lines: list[Measurement]) -> None:
    settings = {kind: [(x.batch_size, x.length) for x in of(lines, kind)] for kind in ("teacher", "reference-model")}
    assert settings == {
        "teacher": [(2, None), (4, None), (2, 12), (4, 12)],
        "reference-model": [(2, None), (2, 12)],  # latency only
    }
    for kind in ("baseline", "competitor"):  # they read texts, which have the length they have
        assert [(x.batch_size, x.length) for x in of(lines, kind)] == [(2, None), (4, None)]


def test_fixed_lengths_are_compared_with_fixed_lengths(lines: list[Measurement]) -> None:
    line = of(lines, "teacher")[2]
    assert (line.speedup, line.tokens_median, line.tokens_max) == (1.0, 12.0, 12)
    assert line.throughput_tokens_per_second == pytest.approx(12 * line.throughput_rows_per_second)


def test_a_baseline_has_quality_and_no_tokens(lines: list[Measurement]) -> None:
    for line in of(lines, "baseline"):
        assert (line.model, line.runtime) == ("majority", "numpy") and line.metric == 0.5
        assert line.throughput_tokens_per_second is None and line.tokenizer_sha256 == ""
        assert line.max_length == 0 and line.speedup_same_runtime is None and line.parameters == 2
        assert len(line.model_sha256) == 64 and line.size_bytes > 0
    assert len(set(of(lines, "baseline")[0].predictions)) == 1


def test_a_baseline_needs_no_torch(real_workers: None) -> None:
    settings = BenchmarkSettings(baselines=("majority",), batch_sizes=(1,), rounds=3, padded_teacher=False)
    teacher, baseline = benchmark(torch_directory("bert"), [], examples(40), settings, train=TRAIN)
    assert (teacher.kind, baseline.kind) == ("teacher", "baseline")
    assert baseline.peak_memory_bytes < 0.5 * teacher.peak_memory_bytes


def test_a_competitor_runs_the_model_in_another_tool(lines: list[Measurement]) -> None:
    competitor, teacher = of(lines, "competitor")[0], of(lines, "teacher")[0]
    assert (competitor.model, competitor.runtime) == ("bert", "torch-dynamic-int8")
    assert competitor.model_sha256 == teacher.model_sha256 and competitor.agreement > 0.5
    assert competitor.tokens_median == teacher.tokens_median and competitor.versions["torch"]
    assert competitor.figure("speedup_same_runtime")[:2] == (
        1.0,
        1.0,
    )  # it is the teacher


def test_a_reference_model_has_speed_and_no_quality(lines: list[Measurement]) -> None:
    for line in of(lines, "reference-model"):
        assert (line.model, line.runtime, line.recipe) == ("tiny-reference-model", "torch", "")
        assert line.metric is line.agreement is line.metric_name is None
        assert line.speedup > 0 and line.flops_per_row > 0 and line.parameters > 0
        assert not line.predictions
        assert {len(batches) for batches in line.latency_ms} == {REFERENCE_BATCHES}


def test_what_could_not_be_measured_is_in_every_line(lines: list[Measurement]) -> None:
    for line in lines:
        ((name, reason),) = ((x["name"], x["reason"]) for x in line.left_out)
        assert name == "optimum-int8" and "competitor_environments.py" in reason


def test_a_reference_model_is_deterministic_and_reads_the_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(entries_module.REFERENCE_MODELS, "tiny-reference-model", TINY_REFERENCE_MODEL)  # type: ignore[arg-type]
    teacher = torch_directory("bert")
    for folder in ("a", "b"):
        entries_module.build_reference_model("tiny-reference-model", tmp_path / folder, teacher)
    one, other = Model.open(tmp_path / "a"), Model.open(tmp_path / "b")
    assert one.sha256 == other.sha256
    assert one.labels == teacher.labels and one.task == "classification"
    assert one.config["max_position_embeddings"] == 512
    assert one.config["vocab_size"] == teacher.config["vocab_size"]


@pytest.mark.parametrize(
    ("name", "millions"),
    [("albert-base", 11.7), ("albert-xxlarge", 223), ("bert-base", 109), ("bert-large", 335), ("distilbert", 67)],
)
def test_reference_models_have_the_published_sizes(name: str, millions: int) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    model_type, shape = entries_module.REFERENCE_MODELS[name]
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(model_type, **shape))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)


def test_a_reference_model_named_as_a_model_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(entries_module.REFERENCE_MODELS, "bert-base", TINY_REFERENCE_MODEL)  # type: ignore[arg-type]
    candidates = open_candidates(write(tmp_path / "bert-base", classifier("bert")), [], [])
    (made,) = entries_module.build_reference_models(["bert_base", "bert-base"], candidates, tmp_path)
    entry = Entry(made, "torch", made.model, "torch", "cpu")
    assert (
        entry.title == "bert-base (reference-model) in torch"
        and entry.kind == "reference-model"
        and not entry.is_reference
    )


def test_baselines_run_on_the_cpu(tmp_path: Path) -> None:
    candidates = open_candidates(torch_directory("bert"), [], [])
    entries = entries_module.plan_baselines(True, candidates, tmp_path, has_train=True)
    assert {"majority", "tfidf"} <= {entry.candidate.name for entry in entries}
    assert {(entry.kind, entry.device, entry.folder) for entry in entries} == {("baseline", "cpu", "baselines")}
    with pytest.raises(CompressError, match="Did you mean 'majority'"):
        entries_module.plan_baselines(["mayority"], candidates, tmp_path, has_train=True)


def test_competitors_run_torch_models_that_are_no_controls(tmp_path: Path) -> None:
    control, student = write(tmp_path / "control", bilstm()), write(tmp_path / "student", bilstm())
    candidates = open_candidates(torch_directory("bert"), [student, onnx_directory("bert")], [control])
    assert [c.name for c in entries_module.competitor_models(candidates, [])] == ["bert", "student"]
    assert [c.name for c in entries_module.competitor_models(candidates, ["student"])] == ["student"]
    with pytest.raises(CompressError, match="--competitor-model control is no torch model.*bert, student"):
        entries_module.competitor_models(candidates, ["control"])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"DEVICES": ("cuda",)}, "does not run on cpu"),
        ({"NEEDS_TRAIN": True}, "give them with --train"),
        ({"ENVIRONMENT": "elsewhere"}, "competitor_environments.py"),
        ({}, ""),
    ],
)
def test_a_competitor_that_cannot_run_here_is_skipped(
    fields: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRESS_COMPETITORS", str(tmp_path))
    module = ModuleType("compress.benchmarking.competitors.mine")
    vars(module).update({"DEVICES": ("cpu",), "NEEDS_TRAIN": False, "REQUIRES": {"numpy": "numpy"}, **fields})
    found = SimpleNamespace(name="mine", load=lambda: module)
    candidates = open_candidates(torch_directory("bert"), [], [])
    monkeypatch.setattr(entries_module.plugins, "find", lambda folder, name: found)
    entries, left_out = entries_module.plan_competitors(["mine"], candidates, tmp_path, device="cpu", has_train=False)
    if reason:
        assert entries == [] and left_out[0]["name"] == "mine" and reason in left_out[0]["reason"]
    else:
        assert left_out == [] and [entry.title for entry in entries] == ["bert in mine"]
        assert entries[0].kind == "competitor" and entries[0].python is None


@pytest.mark.parametrize(
    ("home", "text", "shared"),
    [
        ("/home/ann", "compress benchmark --data /home/ann/x.csv", "compress benchmark --data ~/x.csv"),
        ("/home/ann/", "--teacher=/home/ann", "--teacher=~"),
        ("/home/ann", "/home/anna/x /data/home/ann.csv", "/home/anna/x /data/home/ann.csv"),
        ("/", "/data/x", "/data/x"),
    ],
)
def test_what_is_shared_has_a_tilde_for_the_home_directory(
    home: str, text: str, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", home)
    assert without_home(text) == shared


def test_a_typed_command_names_files_without_their_folders_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--data", "/mnt/big/train data.tsv", "--model=/mnt/m", "https://me:word@host/x?signature=1"]
    words.append("--texts=https://me:word@host/x?signature=1")
    monkeypatch.setattr("sys.argv", ["benchmarks/x.py", *words, "-o", "results/x.jsonl"])
    said = module_from(REPOSITORY / "benchmarks" / "script.py").typed_command("python")
    assert said.startswith("python benchmarks/x.py --data 'train data.tsv' --model=m ") and "-o results/x.jsonl" in said
    assert "word" not in said and "signature" not in said and "host/x" in said


def test_a_reason_names_no_folder_of_this_host(tmp_path: Path) -> None:
    error = Unavailable(f"student in mine: {tmp_path}/x cannot be opened, nor {Path.home()}/.cache")
    entry = entries_module.left_out_entry("student in mine", error, tmp_path / "x")
    assert entry == {"name": "student in mine", "reason": "student in mine cannot be opened, nor ~/.cache"}


SETTINGS = BenchmarkSettings(rounds=3, batch_sizes=(1, 4))


@pytest.mark.parametrize(
    ("max_length", "readable", "longest", "width"),
    [(0, 512, 40, 128), (0, 64, 40, 64), (0, 512, 300, 300), (200, 200, 40, 200)],
)
def test_the_padded_teacher_pads_as_people_do_and_cuts_no_row(
    max_length: int, readable: int, longest: int, width: int
) -> None:
    (teacher,) = open_candidates(torch_directory("bert"), [], [])
    run = WorkerRun(Entry(teacher, "torch", teacher.model, "torch", "cpu"), 1, None)  # type: ignore[arg-type]
    run.loaded = {"max_length": readable, "lengths": [5, longest], "tokenizer_inside": False}
    found = workloads_of(run, replace(SETTINGS, max_length=max_length))
    assert found == [Workload(1), Workload(4), Workload(1, None, width), Workload(4, None, width)]
    assert [s.padding for s in found] == ["longest", "longest", "max_length", "max_length"]
    assert workloads_of(run, replace(SETTINGS, padded_teacher=False)) == found[:2]


class Broken(Worker):
    """A process that answers nothing but an error."""

    def __init__(self, title: str, *, threads: int, scratch: Path, python: Path | None = None) -> None:
        self.title, self.closed = title, False
        made.append(self)

    def ask(self, request: str, **arguments: Any) -> dict[str, Any]:
        raise CompressError(f"{self.title}: out of luck")

    def close(self) -> None:
        self.closed = True


made: list[Broken] = []


@pytest.mark.parametrize("kind", ["competitor", "teacher"])
def test_a_failing_competitor_is_skipped_a_model_is_an_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.clear()
    monkeypatch.setattr(worker_module, "Worker", Broken)
    (teacher,) = open_candidates(torch_directory("bert"), [], [])
    folder = "competitors" if kind == "competitor" else "runtimes"
    entry = Entry(teacher, "mine", teacher.model, "mine", "cpu", folder)
    left_out: list[dict[str, str]] = []
    if kind == "teacher":
        with pytest.raises(CompressError, match="out of luck"):
            with worker_module.started([entry], SETTINGS, tmp_path, left_out, silent):
                pass
    else:
        with worker_module.started([entry], SETTINGS, tmp_path, left_out, silent) as (runs, logits):
            assert runs == [] and logits == {}
        assert left_out == [{"name": "bert in mine", "reason": "out of luck"}]
    assert made and all(worker.closed for worker in made)


def test_an_interpreter_of_its_own_sees_this_package_alone(tmp_path: Path) -> None:
    write_rows(tmp_path, examples(4), TRAIN, np.array([0, 1] * 30))
    worker = Worker("majority in numpy", threads=1, scratch=tmp_path, python=Path(sys.executable))
    try:
        assert [path.name for path in (tmp_path / "package").iterdir()] == ["compress"]
        worker.ask(
            "build",
            folder="baselines",
            plugin="majority",
            directory=str(tmp_path / "baseline"),
            model=str(torch_directory("bert").path),
            rows=str(tmp_path),
        )
        loaded = worker.ask(
            "load",
            folder="baselines",
            plugin="majority",
            directory=str(tmp_path / "baseline"),
            device="cpu",
            threads=1,
            cores=[],
            rows=str(tmp_path),
            task="classification",
            head={"id2label": {0: "no", 1: "yes"}},
        )
        assert loaded["parameters"] == 2 and loaded["lengths"] is None and loaded["versions"]["numpy"]
    finally:
        worker.close()
