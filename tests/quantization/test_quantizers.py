"""Static int8 with learned or observed ranges, packed weights, and layers that stay in fp32."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from compress import plugins
from compress.errors import CompressError
from compress.exporting.export import padded_example
from compress.exporting.onnx_graph import layer_of, module_of, operator_counts
from compress.inference.batching import logits_of, open_runtime
from compress.inference.speedup_intervals import Interval
from compress.models.integer_rounding import grid_of
from compress.models.model_dir import Model
from compress.models.networks.small_graph import SCALED_TABLE, ZERO_OR_ONE
from compress.quantization.quantize import Judge, default_method, needs_training_rows, observed_ranges
from compress.quantization.quantizers import onnx_product
from compress.requests.compression import export, quantize
from compress.training.modifiers import fake_quantization, groupwise_quantization
from tests.support.cpu import exact_runtime, saturates
from tests.support.tagging import sentences, tagger
from tests.support.tiny import (
    LABELS,
    SMALL,
    classifier,
    cnn,
    examples,
    load,
    ngram,
    onnx_directory,
    pruned,
    tokenizer,
    torch_directory,
    write,
)
from tests.support.training_data import train_rows, validation_rows


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the stopwatch away: what these models take is noise."""
    monkeypatch.setattr(Judge, "time", lambda self, rows, size: Interval(2.0, 1.9, 2.1))


def made_for_int8(family: str = "bert", prune: bool = False) -> tuple[PreTrainedModel, Any]:
    """Return a model under quantization-aware training that has seen the examples, and its modifier."""
    model = pruned(family) if prune else classifier(family)
    attached = fake_quantization.attach(model, model, decay=0.5)
    encoded = tokenizer(family)([row.text for row in examples()], padding=True, return_tensors="pt")
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.train()
    with torch.no_grad():
        model(**encoded)
    return model.eval(), attached


def made_for_few_bits(bits: list[int]) -> tuple[PreTrainedModel, torch.Tensor]:
    """Return a model that was trained for few bits and the logits it gave then for :func:`padded_example`."""
    model = classifier("bert")
    attached = groupwise_quantization.attach(model, classifier("bert"), bits=bits, groups=8, activation_bits=0)
    with torch.no_grad():
        model.train()
        for seed in range(4):
            torch.manual_seed(seed)
            model(**padded_example(model, 4, 9))
        attached.step(0.5)
        model.eval()
        logits = model(**padded_example(model, 3, 11)).logits
    attached.detach()
    return model, logits


def optimised(path: Path, folder: Path) -> Counter[str]:
    """Return the operators that ONNX Runtime really runs."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.optimized_model_filepath = str(folder / "optimised.onnx")
    onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(str(folder / "optimised.onnx")).graph.node)


def text_logits(directory: Path, family: str = "bert") -> np.ndarray:
    return logits_of(examples(), open_runtime(directory, threads=1), tokenizer(family), max_length=64, batch_rows=40)


def precise_logits(directory: Path, family: str = "bert") -> np.ndarray:
    """Return the logits of an int8 graph with exact products."""
    if family == "albert" and saturates():
        pytest.skip("ONNX Runtime cannot prepare shared int8 weights for exact products on a CPU without VNNI")
    return logits_of(examples(), exact_runtime(directory), tokenizer(family), max_length=64, batch_rows=40)


# Static int8


@pytest.mark.parametrize(
    "kind", ["albert", "bert", "distilbert", "mobilebert", "mpnet", "pruned-electra", "pruned-xlm-roberta"]
)
def test_learned_ranges_run_as_int8_and_give_what_training_saw(kind: str, tmp_path: Path) -> None:
    family = kind.removeprefix("pruned-")
    model, attached = made_for_int8(family, prune=kind != family)
    encoded = tokenizer(family)([row.text for row in examples()], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(**encoded).logits.numpy()
        attached.detach()
        exact = model(**encoded).logits.numpy()
    exported = export(write(tmp_path / "model", model, family), tmp_path / "onnx")
    made = quantize(exported, tmp_path / "int8")
    assert made.manifest.recipe["method"] == "onnx-qdq"
    assert made.manifest.notes["method"] == "onnx-qdq, because the model was trained with ranges of activations"
    assert made.manifest.notes["ranges"] == "learned in training"
    counts = optimised(made.path / "model.onnx", tmp_path)
    plain = operator_counts(exported.path / "model.onnx")
    assert counts["MatMulIntegerToFloat"] == plain["MatMul"] + plain["Gemm"]
    assert counts["MatMul"] == counts["Gemm"] == 0 and counts["MultiHeadAttention"] == 2
    tables = {t.name: t for t in onnx.load(str(made.path / "model.onnx")).graph.initializer}
    (words,) = [name for name in tables if name.endswith("word_embeddings.weight.int8")]
    assert tables[words].data_type == onnx.TensorProto.INT8 and words.removesuffix(".int8") not in tables
    # Numbers that lie between two steps may be rounded otherwise; what is left is far below what int8 costs.
    found = precise_logits(made.path, family)
    assert np.sqrt(((found - expected) ** 2).mean()) < 0.25 * np.sqrt(((exact - expected) ** 2).mean())


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_openvino_opens_a_graph_with_learned_ranges(family: str, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    model, attached = made_for_int8(family, prune=False)
    attached.detach()
    made = quantize(export(write(tmp_path / "model", model, family), tmp_path / "onnx"), tmp_path / "int8")
    inputs = {name: tensor.numpy() for name, tensor in padded_example(model, 3, 9).items()}
    compiled = openvino.Core().compile_model(str(made.path / "model.onnx"), "CPU")
    inputs["token_type_ids"] = np.zeros_like(inputs["input_ids"])
    found = next(iter(compiled({value.any_name: inputs[value.any_name] for value in compiled.inputs}).values()))
    np.testing.assert_allclose(found, open_runtime(made.path, threads=1)(inputs), atol=0.1)


def test_weights_are_symmetric_by_matrix_or_channel(tmp_path: Path) -> None:
    model, attached = made_for_int8()
    attached.detach()
    exported = export(Model.open(write(tmp_path / "model", model)), tmp_path / "onnx")
    ranges = exported.config["activation_ranges"]
    weight = model.bert.encoder.layer[0].intermediate.dense.weight.detach().numpy().T
    for per_channel in (False, True):
        target = tmp_path / f"{per_channel}.onnx"
        quantizer = plugins.find("quantizers", "onnx-qdq").function
        quantizer(exported.path / "model.onnx", target, ranges=ranges, per_channel=per_channel)
        graph = onnx.load(str(target)).graph
        constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
        (node,) = [n for n in graph.node if n.op_type == "MatMulIntegerToFloat" and "0.intermediate" in n.name]
        integers, scale = constants[node.input[1]], constants[node.input[3]]
        assert scale.shape == ((64,) if per_channel else ())
        assert np.allclose(scale, np.abs(weight).max(axis=0 if per_channel else None) / 127)
        assert np.abs(integers).max() == 127 and np.abs(integers * scale - weight).max() <= scale.max() / 2 + 1e-7
        # Query, key and value read one rounded input; in the last layer queries are of first tokens only.
        inputs = [n.input[0] for n in graph.node if n.op_type == "QuantizeLinear"]
        assert len(inputs) == len(set(inputs)) == 2 * 4 + 1 + 2


def test_a_model_without_ranges_is_calibrated_on_training_rows(tmp_path: Path, faster: None) -> None:
    source = torch_directory("bert")
    assert default_method(source) == "onnx-dynamic"
    assert needs_training_rows(source, "onnx-qdq") and not needs_training_rows(source, None)
    made = quantize(source, tmp_path / "int8", method="onnx-qdq", train=train_rows())
    assert made.manifest.notes["ranges"] == "observed on training rows"
    assert [entry["role"] for entry in made.manifest.data] == ["train"]
    exact = text_logits(onnx_directory("bert").path)
    assert np.sqrt(((precise_logits(made.path) - exact) ** 2).mean()) < 0.2 * exact.std()


def test_observed_ranges_are_those_of_evaluation() -> None:
    source = torch_directory("bert")
    rows, model = train_rows()[:20], source.load()
    seen: list[float] = []
    model.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].abs().max().item()))
    with torch.no_grad():
        model(**tokenizer()([row.text for row in rows], padding=True, return_tensors="pt"))
    assert observed_ranges(source, rows)["classifier"] == pytest.approx(seen[0], rel=1e-5)


def test_ranges_that_do_not_fit_the_graph(tmp_path: Path) -> None:
    source = onnx_directory("bert").path / "model.onnx"
    with pytest.raises(CompressError, match="there is none for 'bert.encoder.layer.0.attention.self.query'"):
        plugins.find("quantizers", "onnx-qdq").function(source, tmp_path / "x.onnx", ranges={"classifier": 1.0})
    bilstm = onnx_directory("bilstm").path / "model.onnx"
    with pytest.raises(CompressError, match="this one is of a small student.*--method onnx-dynamic"):
        plugins.find("quantizers", "onnx-qdq").function(bilstm, tmp_path / "x.onnx", ranges={"classifier": 1.0})


# Layers in fp32


def test_nodes_are_named_after_modules() -> None:
    nodes = onnx.load(str(onnx_directory("distilbert").path / "model.onnx")).graph.node
    products = [(module_of(node), layer_of(node)) for node in nodes if node.op_type in {"MatMul", "Gemm"}]
    assert products[0] == ("distilbert.transformer.layer.0.attention.q_lin", 0)
    assert products[-1] == ("classifier", None)
    nodes = onnx.load(str(onnx_directory("modernbert").path / "model.onnx")).graph.node
    products = [(module_of(node), layer_of(node)) for node in nodes if node.op_type in {"MatMul", "Gemm"}]
    assert products[0] == ("model.layers.0.attn.Wqkv", 0) and products[-1] == ("classifier", None)
    assert module_of(onnx.helper.make_node("MatMul", ["a", "b"], ["c"], name="plain")) == ""


@pytest.mark.parametrize("method", ["onnx-dynamic", "onnx-qdq"])
def test_the_most_sensitive_layer_stays_in_fp32(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.quantization.quantize.most_sensitive", lambda found: [1, 0])
    source = torch_directory("bert")
    made = quantize(
        source,
        tmp_path / "int8",
        method=method,
        keep_fp32=1,
        train=train_rows(),
    )
    assert made.manifest.notes["layers in fp32"] == [1]
    assert len(made.manifest.notes["sensitivity by layer"]) == 2
    nodes = onnx.load(str(made.path / "model.onnx")).graph.node
    assert [layer_of(node) for node in nodes if node.op_type == "MatMul" and layer_of(node) == 1] == [1] * 6
    integer = [layer_of(node) for node in nodes if node.op_type == "MatMulIntegerToFloat"]
    assert 0 in integer and 1 not in integer


def test_layers_that_share_weights_stay_in_fp32_together(tmp_path: Path) -> None:
    made = quantize(torch_directory("albert"), tmp_path / "int8", options={"keep_fp32": [0]})
    nodes = onnx.load(str(made.path / "model.onnx")).graph.node
    assert not any(layer_of(node) == 0 and node.op_type == "MatMulIntegerToFloat" for node in nodes)
    assert any(layer_of(node) == 0 and node.op_type == "MatMul" for node in nodes)


@pytest.mark.parametrize("kind", [kind for kind in SMALL if kind.startswith(("cnn", "ngram"))])
def test_rows_of_a_scaled_table_are_added_up_as_integers(kind: str, tmp_path: Path) -> None:
    exported = onnx_directory(kind)
    for name in ("int8", "rounded"):
        shutil.copytree(exported.path, tmp_path / name)
    model = onnx.load(str(exported.path / "model.onnx"))
    (table,) = [tensor for tensor in model.graph.initializer if tensor.name.startswith(SCALED_TABLE)]
    table.CopyFrom(onnx.numpy_helper.from_array(np.rint(onnx.numpy_helper.to_array(table)), table.name))
    onnx.save(model, str(tmp_path / "rounded" / "model.onnx"))
    plugins.find("quantizers", "onnx-dynamic").function(exported.path / "model.onnx", tmp_path / "int8" / "model.onnx")
    graph = onnx.load(str(tmp_path / "int8" / "model.onnx")).graph
    by_output = {node.output[0]: node for node in graph.node}
    read = {name for node in graph.node if node.op_type == "Gather" for name in node.output}
    read |= {node.output[0] for node in graph.node if node.op_type == "Reshape" and node.input[0] in read}
    (product,) = [node for node in graph.node if node.op_type == "MatMulInteger" and node.input[1] in read]
    assert product.input[0].startswith(ZERO_OR_ONE)
    assert by_output[product.input[0]].attribute[0].i == onnx.TensorProto.UINT8
    highest = [node for node in graph.node if node.op_type == "ReduceMax"]
    if kind == "cnn":  # with one layer and maximum pooling alone, floating point begins behind that
        assert len(highest) == 1 and by_output[highest[0].input[0]].op_type == "Reshape"
        assert [n.op_type for n in graph.node if n.input[:1] == highest[0].output] == ["Cast"]
    inputs = padded_example(load(torch_directory(kind))[0], 4, 9)
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    exact, found = (open_runtime(tmp_path / name, threads=1)(arrays) for name in ("rounded", "int8"))
    if kind != "cnn-deep":  # whose second layer is rounded as well
        np.testing.assert_allclose(found, exact, atol=1e-5, rtol=0)
    assert np.abs(exact - exact[0]).max() > 1e-3


# Packed weights


@pytest.mark.parametrize("bits", [[2], [3], [4], [8], [2, 3], [4, 8]])
def test_packed_weights_give_the_logits_of_training(bits: list[int], tmp_path: Path) -> None:
    model, expected = made_for_few_bits(bits)
    made = quantize(write(tmp_path / "model", model), tmp_path / "packed")
    assert made.manifest.recipe["method"] == "packed"
    assert made.manifest.notes["precision"] == "packed"
    opened, tokens = load(made.path)
    with torch.no_grad():
        assert torch.equal(opened(**padded_example(model, 3, 11)).logits, expected)
    assert opened.config.id2label == dict(enumerate(LABELS)) and len(tokens) == len(tokenizer())
    assert made.parameters == sum(weight.numel() for weight in model.parameters())
    assert "weight_bits" not in made.config and not (made.path / "model.safetensors").exists()
    with pytest.raises(OSError, match="no file named"):
        AutoModelForSequenceClassification.from_pretrained(made.path)


def test_the_file_holds_what_the_bits_say(tmp_path: Path) -> None:
    from safetensors import safe_open

    model, _ = made_for_few_bits([2])
    made = quantize(write(tmp_path / "model", model), tmp_path / "packed")
    with safe_open(made.path / "packed.safetensors", framework="pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
        layout = json.loads(file.metadata()["layout"])
    name = "bert.encoder.layer.1.intermediate.dense.weight"
    assert layout[name] == {"bits": 2, "shape": [64, 32], "rows_per_group": 8}
    assert shapes[f"{name}.codes"] == [64 * 32 * 2 // 8] and shapes[f"{name}.low"] == [8, 1]
    assert shapes["classifier.weight"] == [2, 32]
    assert made.size_bytes == (made.path / "packed.safetensors").stat().st_size


def test_bits_for_a_model_that_was_trained_for_none(tmp_path: Path) -> None:
    source = torch_directory("pruned-bert")
    made = quantize(source, tmp_path / "packed", method="packed", options={"bits": 4, "groups": 16})
    opened, original = made.load(), source.load()
    weight = original.bert.encoder.layer[0].attention.self.query.weight
    assert torch.equal(
        opened.bert.encoder.layer[0].attention.self.query.weight, grid_of(weight, 4, 16).fake(weight).detach()
    )
    assert torch.equal(opened.classifier.weight, original.classifier.weight)


def test_packed_weights_are_kept_and_the_check_is_told(tmp_path: Path) -> None:
    model, _ = made_for_few_bits([2])
    source = write(tmp_path / "model", model)
    made = quantize(
        source,
        tmp_path / "packed",
        max_accuracy_drop=0,
        min_agreement=1,
        validation=validation_rows(),
    )
    notes = made.manifest.notes
    assert notes["precision"] == "packed" and made.is_packed and notes["check"]["speedup"] == {}
    assert "packed, it is not as good as what it was made from" in notes["warning"]
    assert made.manifest.metrics[0]["value"] == notes["check"]["packed"]


def test_a_damaged_packed_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model, _ = made_for_few_bits([3])
    made = quantize(write(tmp_path / "model", model), tmp_path / "packed")
    path = made.path / "packed.safetensors"
    tensors = load_file(path)
    save_file(tensors, path)
    with pytest.raises(CompressError, match="does not say how its weights are packed"):
        Model.open(made.path, verify=False).load()


# Errors


def test_requests_that_do_not_fit(tmp_path: Path) -> None:
    trained, _ = made_for_few_bits([2])
    few_bits = write(tmp_path / "few-bits", trained)
    packed = quantize(few_bits, tmp_path / "packed")
    bert, graph, bilstm = torch_directory("bert"), onnx_directory("bert"), torch_directory("bilstm")
    rows = train_rows()
    requests: list[tuple[Model | Path, dict[str, Any], str]] = [
        (bert, {"method": "onnx-qdq"}, "was not trained with ranges.*--train FILE"),
        (
            graph,
            {"method": "onnx-qdq", "train": rows},
            "is an ONNX model, for which nothing is measured.*torch directory",
        ),
        (bert, {"keep_fp32": 1}, "which layers are sensitive.*--train FILE"),
        (bert, {"keep_fp32": -1}, "keep_fp32 = -1 must be at least 0"),
        (bert, {"keep_fp32": 2, "train": rows}, "--keep-fp32 2 would leave nothing to quantize"),
        (bert, {"train": rows}, "--train would not be read: onnx-dynamic"),
        (few_bits, {"keep_fp32": 1, "train": rows}, "--keep-fp32 does not fit: packed"),
        (bert, {"method": "packed"}, "was not trained for few bits"),
        (bert, {"method": "packed", "options": {"bits": 9}}, "bits = 9 must be 2 to 8"),
        (bert, {"keep_fp32": 1, "options": {"keep_fp32": [0]}, "train": rows}, "--option keep_fp32 both say"),
        (
            bert,
            {"options": {"keep_fp32": [1, 9]}},
            r"names the layers \[9\], and the graph has 2, counted from 0",
        ),
        (few_bits, {"options": {"bits": 4}}, "bits = 4 is not possible: the model was trained for its own"),
        (few_bits, {"options": {"groups": 16}}, "groups = 16 is not possible: the model was trained for its own"),
        (packed, {}, "is packed already"),
        (graph, {"method": "packed", "options": {"bits": 4}}, "packed needs the torch directory"),
        (bilstm, {"keep_fp32": 1, "train": rows}, "'compress-bilstm' model has none"),
        (bert, {"keep_fp32": 1, "train": rows, "validation": rows}, "of train also occur in validation"),
    ]
    for source, options, message in requests:
        with pytest.raises(CompressError, match=message):
            quantize(source, tmp_path / "made", **options)
    assert not (tmp_path / "made").exists()


# Taggers


def test_a_tagger_is_packed_or_keeps_layers_in_fp32(tmp_path: Path) -> None:
    source = Model.open(write(tmp_path / "tagger", tagger()))
    packed = quantize(source, tmp_path / "packed", method="packed", options={"bits": 8})
    inputs = padded_example(source.load(), 2, 7)
    with torch.no_grad():
        found, exact = packed.load()(**inputs).logits, source.load()(**inputs).logits
    assert found.shape == exact.shape == (2, 7, exact.shape[2])
    assert 0 < (found - exact).abs().max() < 0.1 * exact.abs().max()
    made = quantize(source, tmp_path / "int8", keep_fp32=1, train=sentences())
    assert len(made.manifest.notes["layers in fp32"]) == 1


def small_table(directory: Path) -> np.ndarray:
    graph = onnx.load(str(directory / "model.onnx")).graph
    return next(onnx.numpy_helper.to_array(one) for one in graph.initializer if one.name.startswith(SCALED_TABLE))


def test_a_table_of_few_rows_loses_nothing_by_codes(tmp_path: Path) -> None:
    exported = export(write(tmp_path / "torch", cnn()), tmp_path / "fp32")
    source = Model.open(tmp_path / "torch")
    plain = quantize(exported, tmp_path / "int8")
    coded = quantize(source, tmp_path / "codes", method="onnx-product", train=train_rows())
    assert [entry["role"] for entry in coded.manifest.data] == ["train"]
    np.testing.assert_array_equal(small_table(coded.path), small_table(plain.path))


def test_a_table_of_codes_is_a_fraction_of_its_size(tmp_path: Path) -> None:
    source = Model.open(write(tmp_path / "torch", ngram(buckets=2000)))
    plain = quantize(source, tmp_path / "int8")
    coded = quantize(source, tmp_path / "codes", method="onnx-product", train=train_rows())
    before, after = (small_table(one.path).astype(float) for one in (plain, coded))
    assert after.shape == before.shape and not np.array_equal(after, before)
    assert np.square(after - before).mean() < 0.8 * before.var()
    size, other = ((one.path / "model.native").stat().st_size for one in (coded, plain))
    books = 256 * before.shape[1]
    assert other - size == pytest.approx(before.size * 7 / 8 - books, abs=256)
    assert "largest logit difference from the graph" in coded.manifest.notes["native"]


def test_centres_are_nearer_to_what_counts_more() -> None:
    values = np.random.default_rng(0).normal(scale=40, size=(4000, 8)).astype(np.float32)
    weights = np.ones(len(values))
    weights[:500] = 50
    found = onnx_product.centres(values, weights)
    errors = np.square(found - values).sum(axis=1)
    assert len(np.unique(found, axis=0)) <= 256 and errors[:500].mean() < 0.8 * errors[500:].mean()
    np.testing.assert_array_equal(onnx_product.centres(np.zeros((300, 8), np.float32), np.ones(300)), 0)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("cnn", {}, "onnx-product counts the tokens of text like that which the model will read; give .* with --train"),
        ("bert", {"train": train_rows()}, "only the tables of .*cnn.* have codes; use --method onnx-dynamic"),
    ],
)
def test_what_has_no_codes_is_refused(kind: str, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match=said):
        quantize(torch_directory(kind), tmp_path / "int8", method="onnx-product", **options)
