"""The benchmark through its real worker processes, on tiny random models."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compress
from compress import tasks
from compress.benchmarking import benchmark as benchmark_module
from compress.benchmarking.benchmark import BenchmarkOutput, _to_onnx, benchmark
from compress.benchmarking.candidates import open_candidates, plan_entries
from compress.benchmarking.lockfile import lock_path, read_lock
from compress.benchmarking.result_fields import quality_fields, quantizer_of, training_fields
from compress.benchmarking.results.files import Results, results_of
from compress.benchmarking.results.schema import Measurement
from compress.benchmarking.worker import Worker, groups_of
from compress.benchmarking.worker_main import RequestHandler
from compress.cli import execute
from compress.data import Example, content_sha256, describe_rows
from compress.errors import CompressError
from compress.inference import threads
from compress.inference.compute import Compute
from compress.inference.runners import Runner
from compress.models.manifest import MANIFEST_NAME, METRICS_NAME, NATIVE_NAME, ONNX_NAME, Manifest, describe_files
from compress.models.model_dir import Model
from compress.models.output_dir import alone, finish
from compress.recipes import BenchmarkSettings
from compress.requests.compression import export
from tests.support.results import line as result_line
from tests.support.tiny import bilstm, classifier, examples, onnx_directory, tokenizer, torch_directory, write
from tests.support.training_data import labelled_file

LINES = [result_line("big", kind="teacher")]  # of a benchmark that does not run
QUICK = BenchmarkSettings(rounds=3, batch_sizes=(1, 8))
ROWS = [*examples(38), Example("good", None, "positive"), Example("bad " * 90, None, "negative")]


def with_manifest(directory: Path, **fields: Any) -> Path:
    """Give a directory a manifest of ours."""
    files = {k: v for k, v in describe_files(directory).items() if k != MANIFEST_NAME}
    manifest = replace(Manifest(stage="distill", name=directory.name), **{"files": files, **fields})
    (directory / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Measurement]]:
    """A teacher in torch and ONNX Runtime, its own export and a control."""
    folder = tmp_path_factory.mktemp("models")
    control = with_manifest(
        write(folder / "control", bilstm()), recipe={"name": "bilstm"}, notes={"control": True}, seeds={"seed": 7}
    )
    output = folder / "results.jsonl"
    lines = benchmark(
        torch_directory("bert"),
        [onnx_directory("bert"), control],
        ROWS,
        QUICK,
        output=BenchmarkOutput(output, study="tiny", command="compress benchmark ..."),
    )
    return output, lines


def find(lines: list[Measurement], runtime: str, batch_size: int = 1, **fields: Any) -> Measurement:
    fields = {"padding": "longest", **fields}
    (line,) = [
        x
        for x in lines
        if x.runtime == runtime and x.batch_size == batch_size and all(getattr(x, k) == v for k, v in fields.items())
    ]
    return line


def test_models_may_be_measured_in_groups(tmp_path: Path) -> None:
    models = [write(tmp_path / name, bilstm(seed=number)) for number, name in enumerate(("a", "b", "c"))]
    output = tmp_path / "r.jsonl"
    lines = benchmark(
        torch_directory("bert"), models, ROWS, replace(QUICK, together=2, batch_sizes=(1,)), output=output
    )
    told = [(line.model, line.padding) for line in lines]
    assert told == [("bert", "longest"), ("bert", "max_length"), ("a", "longest"), ("b", "longest"), ("c", "longest")]
    assert len({line.created for line in lines}) == 1 and all(x.predictions for x in lines if x.model == "c")
    assert all(line.speedups.low <= line.speedups.value <= line.speedups.high for line in lines)
    assert read_lock(lock_path(output)).settings.together == 2


def test_slices_by_column_and_by_length(tmp_path: Path) -> None:
    columns = [("bright" in row.text and "day" or "night", row.text, row.label) for row in ROWS]
    data = tmp_path / "test.csv"
    data.write_text("time,text,label\n" + "".join(",".join(map(str, row)) + "\n" for row in columns), "utf-8")
    asked: dict[str, Any] = {"rounds": 3, "batch_sizes": (1,), "padded_teacher": False, "baselines": False}
    given = {"slice_columns": ("time",), "slice_lengths": (40, 8)}
    model = onnx_directory("bert")
    lines = compress.benchmark(torch_directory("bert"), [model], data, tmp_path / "r.jsonl", **asked, **given)
    found = {one["slice"]: one for one in lines[-1].slices}
    assert [*found] == ["time=day", "time=night", "1 to 8 tokens", "9 to 40 tokens", "more than 40 tokens"]
    rows = {name: one["rows"] for name, one in found.items()}
    assert rows["time=day"] == sum(time == "day" for time, *_ in columns) > 1
    assert rows["time=day"] + rows["time=night"] == 40 and rows["more than 40 tokens"] == 1
    right = np.array(lines[-1].predictions) == np.array(lines[0].gold)
    day = np.array([time == "day" for time, *_ in columns])
    assert found["time=day"]["metric"] == pytest.approx(right[day].mean())
    assert found["more than 40 tokens"]["metric_low"] is None and found["time=night"]["low"] is not None
    assert read_lock(tmp_path / "r.lock.json").settings.slice_columns == ("time",)
    roots = (model.path.parent, torch_directory("bert").path.parent)
    again = compress.replay(tmp_path / "r.lock.json", data=data, output=tmp_path / "again.jsonl", roots=roots)
    assert again.lines[-1].slices == lines[-1].slices


def test_rows_that_are_all_alike_have_no_resampled_interval() -> None:
    gold = np.array([0, 1] * 20 + [1] * 3)
    logits = np.eye(2)[gold]
    logits[:9] = logits[:9, ::-1]
    held = {"last": np.arange(43) >= 40, "all": np.ones(43, bool)}
    about: dict[str, Any] = {"baseline": "big", "task": tasks.find_task("classification"), "labels": ("a", "b")}
    metric = tasks.metrics_by_name()["macro-f1"]
    found = quality_fields({"big": np.eye(2)[gold], "small": logits}, gold, metric=metric, slices=held, **about)
    last, every = found["small"]["slices"]
    assert last["metric_low"] is last["metric_high"] is last["low"] is None and last["metric"] is not None
    assert every["metric_low"] < every["metric_high"] and every["low"] < every["high"]


def test_columns_that_make_no_slices_are_refused(tmp_path: Path) -> None:
    rows = [replace(row, values=(str(number),)) for number, row in enumerate(examples(102))]
    for given, message in ((rows, "has 102 values there, and at most 100"), (examples(9), "without this column")):
        with pytest.raises(CompressError, match=f"--slice-column time: .*{message}"):
            benchmark(torch_directory("bert"), [], given, replace(QUICK, slice_columns=("time",)))


def test_a_group_has_the_teacher_and_all_runtimes_of_its_models(tmp_path: Path) -> None:
    models = [write(tmp_path / name, bilstm()) for name in ("a", "b", "c")]
    candidates = open_candidates(torch_directory("bert"), models, [])
    entries = plan_entries(candidates, ["torch", "onnxruntime"], lambda model: model)
    titles = [[entry.title for entry in group] for group in groups_of(entries, 2)]
    both = ("torch", "onnxruntime")
    assert titles == [
        [f"{name} in {runtime}" for name in names for runtime in both] for names in (("bert", "a", "b"), ("bert", "c"))
    ]
    assert groups_of(entries, 0) == [entries] and groups_of(entries[:2], 1) == [entries[:2]]


def test_one_line_for_each_configuration(measured: tuple[Path, list[Measurement]]) -> None:
    output, lines = measured
    assert Results.open(output) == lines
    # The teacher also runs in its export's runtime, and in torch with all rows padded.
    assert len(lines) == 2 * (2 + 1 + 1 + 1)
    assert {(x.kind, x.runtime) for x in lines} == {
        ("teacher", "torch"),
        ("teacher", "onnxruntime"),
        ("model", "onnxruntime"),
        ("control", "torch"),
    }
    assert [(x.batch_size, x.padding) for x in lines if x.kind == "teacher" and x.runtime == "torch"] == [
        (1, "longest"),
        (8, "longest"),
        (1, "max_length"),
        (8, "max_length"),
    ]
    assert len(results_of(lines)) == 5 and sum(x.is_reference for x in lines) == 2


def test_answers_that_depend_on_the_batch_are_counted(measured: tuple[Path, list[Measurement]], tmp_path: Path) -> None:
    assert {line.batch_dependent_share for line in measured[1]} == {0.0}
    handler = RequestHandler()
    handler.examples, handler.sizes, handler.task = examples(40), [1] * 40, tasks.default()

    def run(rows: list[Example]) -> np.ndarray:
        """Answer 0, but where a batch has several rows, 1 for every fourth text."""
        return np.eye(2)[[int(len(rows) > 1 and handler.examples.index(row) % 4 == 0) for row in rows]]

    handler.runner = Runner(list, run, parameters=0)
    assert handler.predict(logits=str(tmp_path / "logits.npy"))["batch_dependent_share"] == 0.25
    handler.task = tasks.find_task("regression")
    scores = handler.predict(logits=str(tmp_path / "scores.npy"))
    assert scores["batch_dependent_share"] == 0.25


def test_a_lock_lies_beside_the_results(measured: tuple[Path, list[Measurement]]) -> None:
    lock = read_lock(lock_path(measured[0]))
    assert [m.kind for m in lock.models] == ["teacher", "model", "control"]
    assert lock.settings.batch_sizes == (1, 8) and lock.settings.padded_teacher is True
    assert len(lock.figures) == len(measured[1])


def test_padding_costs_operations_and_changes_no_answer(measured: tuple[Path, list[Measurement]]) -> None:
    line = find(measured[1], "torch", 8, kind="teacher", padding="max_length")
    dynamic = find(measured[1], "torch", 8, kind="teacher")
    assert line.max_length == 64  # 128 is more than this model reads
    assert line.flops_per_row > 1.5 * dynamic.flops_per_row
    assert line.speedups.low <= line.speedup <= line.speedups.high
    assert dynamic.speedups[:2] == (1.0, 1.0)
    assert line.metric == dynamic.metric and not line.predictions


def test_a_line_says_where_a_model_comes_from(measured: tuple[Path, list[Measurement]]) -> None:
    teacher, export = find(measured[1], "torch", kind="teacher"), find(measured[1], "onnxruntime", kind="model")
    assert teacher.parents == [] and export.parents == [teacher.model_sha256]
    assert export.stage == "export" and export.model_sha256 != teacher.model_sha256
    assert len(teacher.tokenizer_sha256) == 64 and teacher.training_seed is None
    control = find(measured[1], "torch", kind="control")
    assert control.training_seed == 7 and control.tokenizer_sha256 == teacher.tokenizer_sha256


def test_operations_are_counted_where_torch_can(measured: tuple[Path, list[Measurement]]) -> None:
    small, large = (find(measured[1], "torch", size, kind="teacher").flops_per_row for size in (1, 8))
    assert 0 < small < large  # a batch pads its rows
    # The teacher's graph does what the teacher does; of a graph that came as one nobody knows.
    assert find(measured[1], "onnxruntime", kind="teacher").flops_per_row == small
    assert find(measured[1], "onnxruntime", kind="model").flops_per_row is None
    assert find(measured[1], "torch", kind="control").flops_per_row > 0
    assert {x.matmul_peak_tflops for x in measured[1]} == {None}  # measured on a card only
    assert {x.device_p50_ms for x in measured[1]} == {None}


def test_a_line_holds_samples_sizes_and_origin(measured: tuple[Path, list[Measurement]]) -> None:
    line = find(measured[1], "torch", kind="teacher")
    assert [len(samples) for samples in line.latency_ms] == [20] * 3
    assert 0 < line.latency_p50_ms <= line.latency_p90_ms <= line.latency_p95_ms <= line.latency_p99_ms
    p95 = line.figure("latency_p95_ms")
    assert p95.low <= line.latency_p95_ms == p95.value <= p95.high
    assert line.throughput_tokens_per_second > 3 * line.throughput_rows_per_second
    assert line.tokenizer_inside is False and line.labels == ["negative", "positive"] and line.left_out == []
    assert line.throughput_rows_per_second > line.throughput_with_tokenizer_rows_per_second > 0
    assert line.speedups == (1.0, 1.0, 1.0)
    teacher = torch_directory("bert")
    assert line.parameters == teacher.parameters and line.size_bytes == teacher.size_bytes
    assert line.directory_bytes > line.size_bytes
    # Some 500 MB of libraries are no part of a model of 0.1 MB.
    assert line.peak_memory_bytes > 10 * line.model_memory_bytes > 0
    assert line.data_rows == 40 and line.data_sha256 == content_sha256(ROWS)
    assert line.host["cores"] == os.cpu_count() and line.versions["torch"] and len(line.host_id) == 12
    assert line.study == "tiny" and line.threads == 1 and line.tokens_max >= line.tokens_median > 0
    assert not any(example.text in json.dumps([line.to_json() for line in measured[1]]) for example in ROWS)


def test_an_export_agrees_with_its_teacher(measured: tuple[Path, list[Measurement]]) -> None:
    line = find(measured[1], "onnxruntime", kind="model")
    teacher = find(measured[1], "torch", kind="teacher")
    assert line.agreement == 1.0 and line.predictions == teacher.predictions
    assert line.metric == teacher.metric and line.metric_kept_percent == 100.0
    assert (
        line.difference_points == 0 and line.figure("difference_points").low < 0 < line.figure("difference_points").high
    )
    assert line.mcnemar_p == 1.0
    # One is against the graph of the teacher, the other against torch: two measurements.
    assert line.speedup_same_runtime != line.speedup
    assert line.figure("speedup_same_runtime").low < line.figure("speedup_same_runtime").high


def test_the_metric_is_that_of_the_model(measured: tuple[Path, list[Measurement]]) -> None:
    gold = np.array([("negative", "positive").index(example.label or "") for example in ROWS])
    teacher = find(measured[1], "torch", kind="teacher")
    assert teacher.gold == gold.tolist()
    for line in measured[1]:
        if line.predictions:
            assert line.metric == pytest.approx((np.array(line.predictions) == gold).mean())
            metric = line.figure("metric")
            assert metric.low <= line.metric <= metric.high and line.metric_rows == 40


def test_a_line_says_what_was_trained_and_how(measured: tuple[Path, list[Measurement]], tmp_path: Path) -> None:
    teacher = find(measured[1], "torch", kind="teacher")
    assert teacher.shape == {"type": "bert", "layers": 2, "hidden_size": 32, "vocabulary_size": len(tokenizer())}
    assert teacher.training_steps is None and not teacher.budget
    recipe = {"training": {"batch_size": 64}, "phases": [{"training": {}}, {"training": {"learning_rate": 1e-4}}]}
    trained = with_manifest(write(tmp_path / "s", bilstm()), recipe=recipe, notes={"steps": 500})
    found = {"training_steps": 500, "training_batch_size": 64, "unlabeled_rows": None}
    assert training_fields(Model.open(trained)) == found
    roles = (("train", 9), ("unlabeled", 70), ("unlabeled", 30))
    data = [{"role": role, "name": "rows", "rows": rows} for role, rows in roles]
    taught = with_manifest(trained, recipe=recipe, notes={"steps": 500}, data=data)
    assert training_fields(Model.open(taught))["unlabeled_rows"] == 100
    control = with_manifest(trained, recipe=recipe, notes={"steps": 500, "control": True}, data=data)
    assert training_fields(Model.open(control))["unlabeled_rows"] is None
    sampled = with_manifest(trained, recipe=recipe, notes={"steps": 500, "pool_rows": 20}, data=data)
    assert training_fields(Model.open(sampled))["unlabeled_rows"] == 20
    recipe["phases"][1]["training"] = {"batch_size": 32}  # type: ignore[index]
    uneven = with_manifest(trained, recipe=recipe, notes={"steps": 500})
    assert training_fields(Model.open(uneven)) == found | {"training_batch_size": None}


def test_a_line_has_the_validation_scores_of_the_phase_that_chose_the_weights(tmp_path: Path) -> None:
    model = write(tmp_path / "s", bilstm())
    lines = [
        {"phase": "first", "step": 8, "validation": 0.1},
        {"phase": "second", "step": 4, "loss": 0.5},
        {"phase": "second", "step": 5, "validation": 0.75},
        {"phase": "second", "step": 10, "validation": 0.5},
    ]
    (model / METRICS_NAME).write_text("".join(json.dumps(one) + "\n" for one in lines))
    metrics = [{"name": "f1", "value": 0.75, "split": "validation", "rows": 9}]
    trained = with_manifest(model, notes={"steps": 18, "score_name": "validation"}, metrics=metrics)
    found = training_fields(Model.open(trained))
    assert found["validation_curve"] == [[5, 0.75], [10, 0.5]] and found["validation_metric"] == "f1"
    agreeing = with_manifest(model, notes={"steps": 18, "score_name": "held-out pool"}, metrics=metrics)
    assert "validation_curve" not in training_fields(Model.open(agreeing))


def test_a_control_is_known_by_its_manifest(measured: tuple[Path, list[Measurement]], tmp_path: Path) -> None:
    line = find(measured[1], "torch", kind="control")
    assert line.model == "control" and line.recipe == "bilstm"
    student = with_manifest(write(tmp_path / "student", bilstm()), recipe={"name": "bilstm"})
    control = with_manifest(write(tmp_path / "c", bilstm()), recipe={"name": "bilstm"}, notes={"control": True})
    found = open_candidates(torch_directory("bert"), [control, student], [])
    assert [(c.kind, c.control_of) for c in found] == [("teacher", ""), ("control", "student"), ("model", "")]


def test_a_control_belongs_to_the_student_of_its_seed(tmp_path: Path) -> None:
    made = {
        name: with_manifest(
            write(tmp_path / name, bilstm()),
            recipe={"name": "bilstm"},
            notes={"control": "control" in name},
            seeds={"seed": int(name[-1])},
        )
        for name in ("bilstm-0", "bilstm-1", "control-1", "control-0", "control-2")
    }
    found = open_candidates(torch_directory("bert"), list(made.values()), [])
    assert {c.name: c.control_of for c in found if c.kind == "control"} == {
        "control-0": "bilstm-0",
        "control-1": "bilstm-1",
        "control-2": "bilstm-0",
    }


def test_students_that_are_trained_alike_have_one_control(tmp_path: Path) -> None:
    def made(name: str, recipe: str, hidden: int = 8, **notes: bool) -> Path:
        architecture = {"name": "bilstm", "options": {"hidden_size": hidden}}
        return with_manifest(
            write(tmp_path / name, bilstm(seed=len(list(tmp_path.iterdir())))),
            notes=notes,
            seeds={"seed": 3},
            recipe={"name": recipe, "architecture": architecture, "training": {"max_steps": 5}, "phases": [recipe]},
        )

    one, two = made("one", "one"), made("two", "two")
    control, other = made("one-control", "one", control=True), made("wide", "wide", hidden=9)
    shutil.copytree(onnx_directory("bert").path, tmp_path / "two-int8")
    parent = {"role": "model", "name": "two", "sha256": Model.open(two).sha256}
    int8 = with_manifest(tmp_path / "two-int8", stage="quantize", parents=(parent,))
    found = open_candidates(torch_directory("bert"), [one, control, two, other, int8], [])
    assert {c.name: c.control for c in found} == {
        "bert": "",
        "one": "one-control",
        "one-control": "",
        "two": "one-control",
        "wide": "",
        "two-int8": "one-control",
    }
    assert {c.name: c.control_of for c in found if c.kind == "control"} == {"one-control": "one"}
    (alone,) = (c for c in open_candidates(torch_directory("bert"), [two, control], []) if c.kind == "control")
    assert alone.control_of == "two"


@pytest.mark.parametrize(
    ("stage", "precision", "found"),
    [("quantize", "int8", "onnx-dynamic"), ("quantize", "fp32", "float32"), ("export", "fp32", "")],
)
def test_a_quantizer_that_was_refused_is_not_named(stage: str, precision: str, found: str, tmp_path: Path) -> None:
    shutil.copytree(onnx_directory("bert").path, tmp_path / "q")
    made = with_manifest(tmp_path / "q", stage=stage, recipe={"method": "onnx-dynamic"}, notes={"precision": precision})
    assert quantizer_of(Model.open(made).manifest) == found


@pytest.mark.parametrize("control", [False, True])
def test_what_was_made_from_a_student_bears_its_recipe(control: bool, tmp_path: Path) -> None:
    student = with_manifest(write(tmp_path / "s", bilstm()), recipe={"name": "bilstm"}, notes={"control": control})
    shutil.copytree(onnx_directory("bert").path, tmp_path / "int8")
    parent = {"role": "model", "name": "s", "sha256": Model.open(student).sha256}
    int8 = with_manifest(tmp_path / "int8", stage="quantize", parents=(parent,))
    shutil.copytree(onnx_directory("bert").path, tmp_path / "again")
    (tmp_path / "again" / "notes.txt").touch()
    parent = {"role": "model", "name": "int8", "sha256": Model.open(int8).sha256}
    again = with_manifest(tmp_path / "again", stage="calibrate", parents=(parent,))
    found = open_candidates(torch_directory("bert"), [again, int8, student], [])
    kind = "control" if control else "model"
    assert [(c.recipe, c.kind) for c in found[1:]] == [("bilstm", kind)] * 3
    without_source = open_candidates(torch_directory("bert"), [again, int8], [])
    assert [c.recipe for c in without_source[1:]] == ["", ""]


def test_rows_come_back_in_order_whatever_their_length(measured: tuple[Path, list[Measurement]]) -> None:
    model, tokenizer = torch_directory("bert").load(), torch_directory("bert").tokenizer
    expected = [int(model(**tokenizer(row.text, return_tensors="pt", truncation=True)).logits.argmax()) for row in ROWS]
    assert find(measured[1], "torch", kind="teacher").predictions == expected


def test_torch_models_are_exported_for_a_runtime_that_needs_it(tmp_path: Path) -> None:
    candidates = open_candidates(torch_directory("bert"), [write(tmp_path / "student", bilstm())], [])
    entries = plan_entries(candidates, ["torch", "onnxruntime"], lambda model: _to_onnx(model, tmp_path))
    assert [entry.title for entry in entries] == [
        "bert in torch",
        "bert in onnxruntime",
        "student in torch",
        "student in onnxruntime",
    ]
    assert [entry.directory.is_onnx for entry in entries] == [False, True, False, True]
    assert [entry.is_reference for entry in entries] == [True, False, False, False]


def test_models_are_measured_where_they_answer(tmp_path: Path) -> None:
    pytest.importorskip("compress.inference.native._core")
    teacher, models = torch_directory("bert"), [onnx_directory("cnn")]
    lines = benchmark(teacher, models, ROWS, replace(QUICK, lengths=(16,)))
    native = [line for line in lines if line.model != "bert"]
    assert {(line.model, line.runtime) for line in lines} == {("bert", "torch"), ("cnn-onnx", "native")}
    assert [(line.batch_size, line.length, line.tokenizer_inside) for line in native] == [
        (1, None, True),
        (8, None, True),
    ]
    assert all(line.speedups == line.figure("speedup_with_tokenizer") for line in native)
    assert native[0].truncated_rows == 1 and native[0].speedup_same_runtime is None
    both = replace(QUICK, batch_sizes=(1,), runtimes=("native", "onnxruntime"))
    lines = benchmark(teacher, [*models, onnx_directory("bilstm")], ROWS, both)
    assert [line.title for line in lines if line.padding == "longest"] == [
        *(
            "bert in torch",
            "bert in onnxruntime",
            "cnn-onnx in native",
            "cnn-onnx in onnxruntime",
            "bilstm-onnx in native",
            "bilstm-onnx in onnxruntime",
        )
    ]
    assert [one["name"] for one in lines[0].left_out] == ["bert in native"]
    assert all("use --runtime onnxruntime" in one["reason"] for one in lines[0].left_out)
    native, graph = (next(line for line in lines if line.title == f"cnn-onnx in {name}") for name in both.runtimes)
    assert native.predictions == graph.predictions
    files = [onnx_directory("cnn").path / name for name in (NATIVE_NAME, ONNX_NAME)]
    assert [native.size_bytes, graph.size_bytes] == [file.stat().st_size for file in files]


def test_a_native_directory_is_measured_and_is_no_teacher(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("compress.inference.native._core")
    native = export(torch_directory("cnn"), tmp_path / "cnn-native", format="native")
    lines = benchmark(torch_directory("bert"), [native], ROWS, replace(QUICK, batch_sizes=(1,), padded_teacher=False))
    assert [line.title for line in lines] == ["bert in torch", "cnn-native in native"]
    assert lines[0].flops_per_row and lines[1].flops_per_row is None and "are not counted" not in caplog.text
    with pytest.raises(CompressError, match="teacher .* is a native model, but speed-ups are against"):
        open_candidates(native.path, [], [])


def test_texts_cut_otherwise_than_by_the_native_library_are_not_measured_in_it() -> None:
    pytest.importorskip("compress.inference.native._core")
    lines = benchmark(torch_directory("bert"), [onnx_directory("cnn")], ROWS, replace(QUICK, max_length=8))
    assert "leave out --max-length" in lines[0].left_out[0]["reason"]


def test_pairs_and_regression(tmp_path: Path) -> None:
    teacher = write(tmp_path / "teacher", classifier(labels=("score",)))
    pairs = zip(examples(12), examples(24)[12:], strict=True)
    rows = [Example(x.text, y.text, str(i / 4)) for i, (x, y) in enumerate(pairs)]
    lines = benchmark(teacher, [], rows, replace(QUICK, batch_sizes=(2,), metric="spearman"))
    assert lines[0].metric_name == "spearman" and -1 <= lines[0].metric <= 1
    assert len(set(lines[0].predictions)) > 2 and lines[0].mcnemar_p is None


@pytest.mark.parametrize("free", [1, 2])
def test_two_threads_are_compared_with_two_threads(
    free: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    monkeypatch.setattr(benchmark_module, "free_cores", lambda: free)
    lines = benchmark(
        torch_directory("bert"), [], examples(), replace(QUICK, batch_sizes=(1,), threads=(1, 2), padded_teacher=False)
    )
    assert [(line.threads, line.speedup) for line in lines] == [(1, 1.0), (2, 1.0)]
    assert ("other work keeps cores busy" in caplog.text) == (free == 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 2}, "rounds = 2 must be at least 3"),
        ({"max_length": 7}, "max_length = 7 must be at least 8, or 0 for no limit"),
        ({"threads": 999}, "--threads 999 is not possible here"),
        ({"batch_sizes": (0,)}, "batch_sizes = 0 must be at least 1"),
        ({"metric": "pearson"}, "does not fit classification"),
        ({"runtimes": ("torhc",)}, "Did you mean 'torch'"),
        ({"lengths": (0,)}, "lengths = 0 must be at least 1"),
        ({"reference_models": ("bert-bass",)}, "Did you mean 'bert-base'"),
        ({"competitors": ("torch-dynamic-int4",)}, "Did you mean 'torch-dynamic-int8'"),
        (
            {"competitors": ("torch-dynamic-int8",), "competitor_models": ("bort",)},
            "--competitor-model bort.*Did you mean 'bert'",
        ),
        ({"baselines": ("tfidf",)}, "the baselines tfidf are fitted on training rows; give them with --train"),
        ({"baselines": ("mayority",)}, "Did you mean 'majority'"),
        ({"max_length": -1}, "max_length = -1 must be at least 0"),
        ({"threads": ()}, "needs one or more threads and batch_sizes"),
        ({"competitor_models": ("x" * 201,)}, "text of at most 200 characters"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match=message):
        benchmark(torch_directory("bert"), [], examples(), replace(QUICK, **options), output=tmp_path / "r.jsonl")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compute": Compute("tpu")}, "--device tpu"),
        ({"train": [Example("new", None, "neither")] * 2}, "'neither'.*with --no-baselines"),
        ({"train": examples()}, "also occur in test"),
    ],
)
def test_wrong_inputs_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match=message):
        benchmark(torch_directory("bert"), [], examples(), QUICK, output=tmp_path / "r.jsonl", **options)
    assert not list(tmp_path.iterdir())


def test_one_row_is_no_comparison() -> None:
    with pytest.raises(
        CompressError, match="test has only one class, .*, in its 1 rows: give rows of two or more classes"
    ):
        benchmark(torch_directory("bert"), [], examples(1), QUICK)


def test_an_output_that_exists_is_kept(tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    output.write_text("precious")
    with pytest.raises(CompressError, match="results.jsonl already exists; choose another -o or replace it with"):
        benchmark(torch_directory("bert"), [], examples(), QUICK, output=output)
    assert output.read_text() == "precious"


def test_an_unwritable_output_is_refused_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "results.lock.json").write_text("precious")
    with pytest.raises(CompressError, match="results.lock.json already exists"):
        benchmark(torch_directory("bert"), [], examples(), QUICK, output=tmp_path / "results.jsonl")
    with pytest.raises(CompressError, match="is a directory; give a file in it"):
        benchmark(torch_directory("bert"), [], examples(), QUICK, output=BenchmarkOutput(tmp_path, force=True))
    with pytest.raises(CompressError, match="cannot be written"):
        benchmark(
            torch_directory("bert"), [], examples(), QUICK, output=tmp_path / "results.lock.json" / "new" / "r.jsonl"
        )
    assert (tmp_path / "results.lock.json").read_text() == "precious" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("role", ["train", "validation", "unlabeled"])
def test_rows_that_a_model_has_seen_are_refused(role: str, tmp_path: Path) -> None:
    rows = [Example(x.text) for x in examples()] if role == "unlabeled" else examples()
    entry = {"role": role, "name": "reviews", "rows": 40, "sha256": content_sha256(rows)}
    student = with_manifest(write(tmp_path / "student", bilstm()), data=(entry,))
    with pytest.raises(CompressError, match=f"the test rows are the {role} rows of .*student, .* with --data"):
        benchmark(torch_directory("bert"), [student], list(reversed(examples())), QUICK)


def test_models_must_have_the_teachers_labels(tmp_path: Path) -> None:
    other = write(tmp_path / "other", classifier(labels=("positive", "negative")))
    with pytest.raises(CompressError, match="positive, negative, the teacher .* has negative, positive"):
        benchmark(torch_directory("bert"), [other], examples(), QUICK)


def test_the_teacher_must_be_a_torch_model() -> None:
    with pytest.raises(CompressError, match="is an ONNX model"):
        benchmark(onnx_directory("bert"), [], examples(), QUICK)


def test_an_onnx_model_does_not_run_in_torch() -> None:
    candidates = open_candidates(torch_directory("bert"), [onnx_directory("bert")], [])
    with pytest.raises(CompressError, match="add --runtime onnxruntime"):
        plan_entries(candidates, ["torch"], lambda model: model)


def test_models_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(tmp_path / folder / "student", bilstm())
    models = [tmp_path / "a" / "student", tmp_path / "b" / "student"]
    names = [candidate.name for candidate in open_candidates(torch_directory("bert"), models, [])]
    assert names == ["bert", "a/student", "b/student"]
    deep = [tmp_path / one / "runs" / "students" / "x" / "int8" for one in ("c", "d")]
    for path in deep:
        write(path, bilstm())
    names = [candidate.name for candidate in open_candidates(torch_directory("bert"), deep, [])]
    assert names == ["bert", "c/runs/students/x/int8", "d/runs/students/x/int8"]
    with pytest.raises(CompressError, match="is given twice"):
        open_candidates(torch_directory("bert"), [models[0], models[0]], [])


def test_a_crashing_worker_says_its_last_words(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(onnx_directory("bert").path, broken)
    worker = Worker("broken in onnxruntime", threads=1, scratch=tmp_path)
    try:
        with pytest.raises(CompressError, match="its process ended with exit code 1.*AttributeError"):
            worker.ask("no_such_request")
    finally:
        worker.close()


def test_a_killed_worker_is_reported_and_does_not_hang(tmp_path: Path) -> None:
    worker = Worker("student", threads=1, scratch=tmp_path)
    worker._process.kill()
    with pytest.raises(CompressError, match="student: its process was killed by signal 9"):
        worker.ask("memory")
    worker.close()


def test_a_damaged_graph_is_one_sentence(tmp_path: Path, real_workers: None) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(onnx_directory("bert").path, broken)
    (broken / "model.onnx").write_bytes(b"no graph")
    (tmp_path / "texts.json").write_text('[["good", null]]')
    worker = Worker("broken in onnxruntime", threads=1, scratch=tmp_path)
    try:
        with pytest.raises(CompressError, match="broken in onnxruntime: .*cannot be read as an ONNX graph"):
            worker.ask(
                "load",
                folder="runtimes",
                plugin="onnxruntime",
                directory=str(broken),
                device="cpu",
                threads=1,
                cores=[],
                rows=str(tmp_path),
                task="classification",
                head={"id2label": {0: "no", 1: "yes"}},
            )
    finally:
        worker.close()


@pytest.mark.parametrize("stage", ["load", "warm_up"])
def test_no_process_outlives_an_interrupt(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_workers: None
) -> None:
    started = []
    original = Worker.ask

    def interrupted(self: Worker, request: str, **arguments: Any) -> dict[str, Any]:
        started.append(self)
        if request == stage:
            raise KeyboardInterrupt
        return original(self, request, **arguments)

    monkeypatch.setattr(Worker, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        benchmark(torch_directory("bert"), [], examples(), QUICK, output=tmp_path / "r.jsonl")
    assert started and all(worker._process.poll() is not None for worker in started)
    assert not list(tmp_path.iterdir())


def test_the_directory_that_is_opened_again_is_the_one_given() -> None:
    teacher = Model.open(torch_directory("bert").path)
    (candidate,) = open_candidates(teacher, [teacher.path], [])
    assert candidate.kind == "teacher"


def test_the_command_hands_on_what_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[BenchmarkSettings, BenchmarkOutput]] = []
    monkeypatch.setattr(
        benchmark_module, "benchmark", lambda *given, **named: asked.append((given[3], named["output"])) or LINES
    )
    monkeypatch.setattr(threads, "available_cores", lambda: [3, 5])
    monkeypatch.setenv("HOME", "/home/ann")
    data = tmp_path / "test.csv"
    data.write_text("text,label\nfine,good\npoor,bad\n")
    words = ["benchmark", "--teacher", "/home/ann/big", "--model", "small", "--data", str(data), "-o", "x.jsonl", "-q"]
    monkeypatch.setattr("sys.argv", ["compress", *words])
    assert execute([*words, "--threads", "0"]) == 0 and execute([*words, "--threads", "1,2"]) == 0
    assert [settings.threads for settings, _ in asked] == [(2,), (1, 2)]
    assert asked[0][1].command.startswith("compress benchmark --teacher ~/big --model small")


def test_training_rows_that_are_test_rows_are_refused_before_the_measuring_or_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(torch_directory("bert").path, teacher)
    opened = Model.open(teacher)
    test = [Example(f"fine {number}", label=opened.labels[number % 2]) for number in range(9)]
    train = [Example("Fine 2", label=opened.labels[0]), *(replace(row, text=f"long {row.text}") for row in test)]
    labelled_file(tmp_path / "test.csv", test)
    labelled_file(tmp_path / "train.csv", train)
    finish(teacher, replace(opened.manifest, stage="finetune", data=tuple(describe_rows({"train": train}))))
    words = ["benchmark", "--teacher", str(teacher), "--data", str(tmp_path / "test.csv"), "-o", str(tmp_path / "out")]
    words += ["--train", str(tmp_path / "train.csv"), "--model", str(write(tmp_path / "small", bilstm()))]
    for without in ([], ["--no-baselines"]):
        assert execute([*words, *without]) == 2
        said = capsys.readouterr().err
        assert "1 of the 10 rows of train also occur in test (there 1 of 9), the first as row 1 of train" in said
        assert "Measuring" not in said
    rows = benchmark_module._read_rows(test, "test.csv", "test", opened)
    models = [Model.open(teacher)]
    fitted = benchmark_module._read_fitted(train, rows, "drop", models)
    assert fitted is not None and fitted.examples == train[1:] and len(fitted.gold) == 9
    assert "1 of the 9 rows of test (row 3) are in the train rows that teacher was made with" in capsys.readouterr().err


def test_a_second_benchmark_of_one_output_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "new" / "results.jsonl"
    with alone(output), pytest.raises(CompressError, match="another command is writing .*results"):
        benchmark(torch_directory("bert"), [], examples(), QUICK, output=output)
    assert not any(tmp_path.iterdir())
    (tmp_path / ".results.jsonl.lock").write_text("a file of somebody's")
    with alone(tmp_path / "results.jsonl"):
        pass
    assert (tmp_path / ".results.jsonl.lock").read_text() == "a file of somebody's"


def test_results_do_not_lie_in_a_model_that_is_measured(tmp_path: Path) -> None:
    model = write(tmp_path / "model", classifier())
    with pytest.raises(CompressError, match="lies in .*model, which this command reads"):
        benchmark(model, [], examples(), QUICK, output=model / "results.jsonl")
    assert not (model / "results.jsonl").exists()
