"""int8: smaller, close to fp32, and replaced by fp32 with the reason where it is not good enough."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from transformers import PreTrainedModel

from compress import plugins
from compress.data.examples import Example, describe_rows
from compress.errors import CompressError
from compress.evaluation.metrics import ACCURACY
from compress.exporting.export import padded_example
from compress.exporting.onnx_graph import operator_counts
from compress.inference.batching import logits_of
from compress.inference.speedup_intervals import Interval
from compress.models.manifest import Manifest, file_sha256
from compress.models.model_dir import Model
from compress.models.output_dir import finish
from compress.quantization.quantize import Judge, observed_ranges
from compress.requests.compression import Quantize, quantize
from compress.tasks import find_task
from tests.support.cpu import exact_runtime, saturates
from tests.support.tagging import bilstm_tagger
from tests.support.tiny import (
    LABELS,
    PRUNABLE,
    SMALL,
    bilstm,
    classifier,
    examples,
    family_of,
    onnx_directory,
    tokenizer,
    torch_directory,
    write,
)

KINDS = [
    *("albert", "bert", "deberta-v2", "distilbert", "mobilebert", "modernbert", "mpnet", *SMALL),
    *(f"pruned-{family}" for family in PRUNABLE),
]
SHAPES = [(1, 5), (3, 17), (8, 32), (2, 64)]
FASTER, SLOWER = Interval(2.0, 1.9, 2.1), Interval(0.8, 0.7, 0.9)


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the stopwatch away: what these models take is noise."""
    monkeypatch.setattr(Judge, "time", lambda self, rows, size: FASTER)


def opened(directory: Path) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    run: Callable[[dict[str, np.ndarray]], np.ndarray]
    run = plugins.find("runtimes", "onnxruntime").function(directory, threads=1, device="cpu")
    return run


def logits(directory: Path, family: str = "bert") -> np.ndarray:
    return logits_of(examples(), opened(directory), tokenizer(family), max_length=64, batch_rows=8)


def weight_bytes(path: Path) -> int:
    """Return the bytes of all weights but those of a small student's last layers, which stay in float32."""
    weights = [tensor for tensor in onnx.load(str(path)).graph.initializer if tensor.name != "dense.weight"]
    return sum(onnx.numpy_helper.to_array(tensor).nbytes for tensor in weights)


def labelled_by(directory: Path, family: str = "bert") -> list[Example]:
    """Give the examples the labels that a model predicts, so that its accuracy is 1."""
    best = logits(directory, family).argmax(axis=1)
    return [replace(row, label=LABELS[index]) for row, index in zip(examples(), best, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["onnx-dynamic", "onnx-qdq"])
def test_every_method_is_smaller_and_close(method: str, kind: str, tmp_path: Path) -> None:
    if method == "onnx-qdq" and kind in SMALL:
        pytest.skip("its graph, written node by node, has no names of modules")
    fp32 = onnx_directory(kind)
    family = family_of(kind)
    shutil.copytree(fp32.path, tmp_path / "int8")
    target = tmp_path / "int8" / "model.onnx"
    options = {}
    if method == "onnx-qdq":
        options = {"ranges": observed_ranges(torch_directory(kind), examples()), "per_channel": True}
    plugins.find("quantizers", method).function(fp32.path / "model.onnx", target, **options)
    # Of models as tiny as these, the nodes are a good part of the file: for pruned ALBERT two thirds of the int8 one.
    assert weight_bytes(target) < 0.4 * weight_bytes(fp32.path / "model.onnx")
    assert target.stat().st_size < 0.8 * (fp32.path / "model.onnx").stat().st_size
    # What was fused stays fused, and the same number of heads stays with each layer.
    counts, fused = operator_counts(target), operator_counts(fp32.path / "model.onnx")
    assert counts.get("MultiHeadAttention", 0) == fused.get("MultiHeadAttention", 0)
    assert counts.get("DynamicQuantizeLSTM", 0) == fused.get("LSTM", 0)
    if family == "albert" and saturates():
        pytest.skip("ONNX Runtime cannot prepare shared int8 weights for exact products on a CPU without VNNI")
    exact, rounded = (exact_runtime(directory) for directory in (fp32.path, tmp_path / "int8"))
    before, after = (
        logits_of(examples(), run, tokenizer(family), max_length=64, batch_rows=8) for run in (exact, rounded)
    )
    assert np.sqrt(((after - before) ** 2).mean()) < 0.2 * before.std()
    model = torch_directory(kind).load()
    for rows, length in SHAPES:
        inputs = {name: value.numpy() for name, value in padded_example(model, rows, length).items()}
        assert np.sqrt(((rounded(inputs) - exact(inputs)) ** 2).mean()) < 0.3 * before.std()
    assert len(np.unique(after.argmax(axis=1))) >= len(np.unique(before.argmax(axis=1)))


@pytest.mark.parametrize("kind", KINDS)
def test_int8_logits_of_a_row_do_not_depend_on_its_batch(kind: str, tmp_path: Path) -> None:
    """Neither on other rows, nor on their order, nor on padding."""
    made = quantize(onnx_directory(kind), tmp_path / "int8")
    assert_rows_are_independent(exact_runtime(made.path), torch_directory(kind).load())


def test_int8_tags_of_a_sentence_do_not_depend_on_its_batch(tmp_path: Path) -> None:
    model = bilstm_tagger()
    made = quantize(write(tmp_path / "tagger", model), tmp_path / "int8")
    assert "DynamicQuantizeLSTM" in operator_counts(made.path / "model.onnx")
    assert_rows_are_independent(exact_runtime(made.path), model)


def assert_rows_are_independent(run: Callable[[dict[str, np.ndarray]], np.ndarray], model: PreTrainedModel) -> None:
    padding = {"input_ids": getattr(model.config, "pad_token_id", None) or 0}
    inputs = {name: value.numpy() for name, value in padded_example(model, 12, 24).items()}
    together, order = run(inputs), np.random.default_rng(0).permutation(12)
    shuffled = run({name: value[order] for name, value in inputs.items()})
    np.testing.assert_allclose(shuffled, together[order], atol=1e-4)
    pad = {name: padding.get(name, 0) for name in inputs}
    wider = run({name: np.pad(rows, ((0, 0), (0, 9)), constant_values=pad[name]) for name, rows in inputs.items()})
    for row, length in enumerate(inputs["attention_mask"].sum(axis=1)):
        alone = run({name: value[row : row + 1, :length] for name, value in inputs.items()})[0]
        for batch in (together, wider):
            answer = batch[row, :length] if batch.ndim == 3 else batch[row]
            np.testing.assert_allclose(answer, alone, atol=1e-4)


def test_embeddings_are_int8_by_row_and_the_last_layer_is_fp32(tmp_path: Path) -> None:
    source, target = onnx_directory("bert").path / "model.onnx", tmp_path / "model.onnx"
    plugins.find("quantizers", "onnx-dynamic").function(source, target)
    graph = onnx.load(str(target)).graph
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    (name,) = [name for name in weights if name.endswith("word_embeddings.weight.int8")]
    original = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(str(source)).graph.initializer}
    table, scales = original[name.removesuffix(".int8")], weights[name.replace(".int8", ".scales")]
    assert weights[name].dtype == np.int8 and scales.shape == (len(table), 1)
    assert (np.abs(weights[name] * scales - table) <= scales / 2 + 1e-7).all()
    assert [n.op_type for n in graph.node if n.op_type in {"MatMul", "Gemm"}] == ["Gemm"]
    smaller = tmp_path / "all.onnx"
    plugins.find("quantizers", "onnx-dynamic").function(source, smaller, last_layer=True)
    assert not {"MatMul", "Gemm"} & set(operator_counts(smaller))
    plugins.find("quantizers", "onnx-dynamic").function(source, tmp_path / "plain.onnx", embeddings="float32")
    assert (tmp_path / "plain.onnx").stat().st_size > target.stat().st_size


@pytest.mark.parametrize("kind", ["pruned-bert", "bilstm"])
def test_without_validation_int8_is_marked_unchecked(kind: str, tmp_path: Path) -> None:
    made = quantize(torch_directory(kind).path, tmp_path / "int8")
    assert made.is_onnx and made.manifest.stage
    assert made.manifest.notes["precision"] == "int8" and made.manifest.notes["checked"] is False
    assert "--validation" in made.manifest.notes["warning"]
    assert made.manifest.metrics == ()
    assert made.size_bytes < onnx_directory(kind).size_bytes
    assert made.parameters == onnx_directory(kind).parameters
    if kind == "pruned-bert":
        assert made.manifest.architecture["heads_per_layer"] == [2, 3]
    assert not [path for path in made.path.iterdir() if path.is_dir()]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["int8"]


def test_int8_that_passes_is_kept(tmp_path: Path, faster: None) -> None:
    source = onnx_directory("bert")
    rows = labelled_by(source.path)
    made = quantize(
        source,
        tmp_path / "int8",
        max_accuracy_drop=10,
        min_agreement=0.8,
        validation=rows,
    )
    notes = made.manifest.notes
    assert notes["precision"] == "int8" and notes["checked"] is True and "reason" not in notes
    assert notes["check"]["fp32"] == 1.0 and notes["check"]["agreement"] >= 0.8
    assert notes["check"]["speedup"]["1"]["value"] == 2.0
    (metric,) = made.manifest.metrics
    assert metric == {"name": "accuracy", "value": notes["check"]["int8"], "split": "validation", "rows": 40}
    assert made.manifest.data == tuple(describe_rows({"validation": rows}))


def classifier_times(factor: float) -> Callable[..., None]:
    """Return a quantizer that multiplies the weights of the last layer; by 0 it says the same of every text."""

    def write(source: Path, target: Path, **_: Any) -> None:
        model = onnx.load(str(source))
        for tensor in model.graph.initializer:
            if tensor.name.endswith("classifier.weight"):
                array = np.float32(factor) * onnx.numpy_helper.to_array(tensor)
                tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        onnx.save(model, str(target))

    return write


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (classifier_times(0.0), "it predicts (negative|positive) for all 40 rows; accuracy drops by"),
        (classifier_times(math.nan), "not finite numbers"),
    ],
)
def test_int8_that_fails_becomes_fp32(
    broken: Callable[..., None], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins.find("quantizers", "onnx-dynamic").load(), "quantize", broken)
    source = torch_directory("bert")
    made = quantize(source, tmp_path / "made", validation=labelled_by(onnx_directory("bert").path))
    notes = made.manifest.notes
    assert notes["precision"] == "fp32"
    assert re.search(reason, notes["reason"])
    assert made.manifest.metrics[0]["value"] == 1.0
    np.testing.assert_allclose(logits(made.path), logits(onnx_directory("bert").path), atol=1e-6)


def test_int8_that_agrees_too_little_becomes_fp32(
    tmp_path: Path, faster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins.find("quantizers", "onnx-dynamic").load(), "quantize", classifier_times(-1.0))
    rows = labelled_by(onnx_directory("bert").path)
    made = quantize(
        onnx_directory("bert"),
        tmp_path / "made",
        max_accuracy_drop=100,
        min_agreement=0.9,
        validation=rows,
    )
    assert made.manifest.notes["check"]["agreement"] < 0.9
    assert "it agrees with fp32 on" in made.manifest.notes["reason"]
    assert made.manifest.notes["precision"] == "fp32"


def test_int8_that_is_not_faster_becomes_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "time", lambda self, rows, size: SLOWER if size == 1 else Interval(1.1, 1.0, 1.2))
    source = onnx_directory("pruned-bert")
    rows = labelled_by(source.path)
    made = quantize(
        source,
        tmp_path / "made",
        max_accuracy_drop=50,
        min_agreement=0,
        validation=rows,
    )
    assert made.manifest.notes["precision"] == "fp32"
    assert "not faster on this host (x0.80 at batch size 1, x1.10 at batch size 32)" in made.manifest.notes["reason"]
    assert file_sha256(made.path / "model.onnx") == file_sha256(source.path / "model.onnx")


def test_the_stopwatch_compares_both(tmp_path: Path) -> None:
    fp32 = onnx_directory("bilstm")
    judge = Judge(fp32, fp32.path, fp32.path, threads=1)
    ratio = judge.time(examples(), 1)
    assert 0.2 < ratio.value < 5 and ratio.low <= ratio.value <= ratio.high


def test_regression_is_checked_by_correlation(tmp_path: Path, faster: None) -> None:
    model = write(tmp_path / "model", classifier("bert", labels=("score",)))
    rows = [replace(row, label=str(index % 5 / 2)) for index, row in enumerate(examples())]
    made = quantize(
        model,
        tmp_path / "made",
        max_accuracy_drop=100,
        min_agreement=0.5,
        validation=rows,
    )
    assert made.manifest.task == "regression" and made.manifest.metrics[0]["name"] == "pearson"
    assert made.manifest.notes["precision"] == "int8"


def test_what_does_not_fit_is_refused(tmp_path: Path, faster: None) -> None:
    source, rows = onnx_directory("bert"), examples()
    target = tmp_path / "made"
    for options, message in [
        (
            {"method": "onnx-dynamik"},
            "unknown quantizer 'onnx-dynamik'; there is auto, .*Did you mean 'onnx-dynamic'",
        ),
        (
            {"options": {"per_chanel": True}},
            "no option 'per_chanel'.*Did you mean 'per_channel'",
        ),
        ({"device": "cuda"}, "--device cuda.*--device cpu"),
        ({"max_accuracy_drop": -1.0, "validation": rows}, "max_accuracy_drop = -1.0 must be at least 0"),
        ({"min_agreement": 95.0}, "min_agreement = 95.0 must be at most 1"),
        ({"validation": rows, "metric": "pearson"}, "metric 'pearson' does not fit classification"),
        ({"validation": [replace(rows[0], label="neutral")]}, "'neutral'"),
    ]:
        with pytest.raises(CompressError, match=message):
            quantize(source, target, **options)  # type: ignore[arg-type]
    int8 = quantize(source, tmp_path / "int8")
    with pytest.raises(CompressError, match="is int8 already"):
        quantize(int8, target)
    with pytest.raises(CompressError, match="already exists"):
        quantize(source, tmp_path / "int8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["int8"]


@pytest.mark.parametrize("kind", ["bilstm", "cnn", "ngram"])
def test_a_small_int8_graph_is_not_quantized_again(kind: str, tmp_path: Path) -> None:
    int8 = quantize(torch_directory(kind), tmp_path / "int8")
    with pytest.raises(CompressError, match="is int8 already"):
        quantize(int8, tmp_path / "again")


def test_training_rows_are_no_validation_rows(tmp_path: Path) -> None:
    rows = examples()
    directory = write(tmp_path / "model", bilstm())
    train = describe_rows({"train": rows})
    finish(directory, Manifest(stage="distill", labels=LABELS, data=tuple(train)))
    with pytest.raises(CompressError, match="the validation rows are the train rows of"):
        quantize(Model.open(directory), tmp_path / "made", validation=rows)


def test_a_drop_of_just_what_is_allowed_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of 300 rows are 1.0000000000000009 points in floating point."""
    judge = object.__new__(Judge)
    judge.task, judge.labels, judge.timed = find_task("classification"), LABELS, False  # as for packed weights
    right = {"fp32": 255, "int8": 252}
    monkeypatch.setattr(judge, "logits", lambda name, *_: np.eye(2)[1 * (np.arange(300) >= right[name])], raising=False)
    rows = examples(300)
    limits = Quantize("model", validation=rows, min_agreement=0.9)
    check = judge.check(rows, np.zeros(300, int), ACCURACY, limits)
    assert check.reasons == ()
    check = judge.check(
        rows, np.zeros(300, int), ACCURACY, Quantize("model", validation=rows, max_accuracy_drop=0.9, min_agreement=0.9)
    )
    assert check.reasons == ("accuracy drops by 1.00 points, more than the 0.9 allowed",)
