"""Graphs compute the tokens that are there, and after the last attention those that are read, and no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from compress.exporting.onnx_graph import module_of
from compress.models.components import input_names
from compress.models.model_dir import Model
from compress.requests.compression import export
from tests.support.tagging import pruned_tagger, tagger
from tests.support.tiny import LAYERS, PRUNABLE, load, onnx_directory, write

SIZES = (3, 9, 5, 1)
WIDEST = max(SIZES)


def batch(directory: Model) -> dict[str, np.ndarray]:
    graph = onnx.load(str(directory.path / "model.onnx")).graph
    mask = (np.arange(WIDEST) < np.array(SIZES)[:, None]).astype(np.int64)
    ids = np.random.default_rng(0).integers(5, 30, mask.shape) * mask
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
    return {argument.name: inputs[argument.name] for argument in graph.input}


def sizes_of_products(directory: Model, path: Path) -> list[tuple[str, tuple[int, ...]]]:
    """Run a graph and return the module and the shape of each product with weights in the encoder's layers."""
    model = onnx.load(str(directory.path / "model.onnx"))
    weights = {tensor.name for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in weights]
    nodes = [node for node in nodes if "layer" in module_of(node)]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(node.output[0]) for node in nodes)
    onnx.save(model, str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    shapes = [value.shape for value in session.run([node.output[0] for node in nodes], batch(directory))]
    return list(zip(map(module_of, nodes), shapes, strict=True))


@pytest.mark.parametrize("kind", [*PRUNABLE, "pruned-bert", "pruned-modernbert"])
def test_products_are_of_tokens_and_in_the_last_layer_of_first_tokens(kind: str, tmp_path: Path) -> None:
    found = sizes_of_products(onnx_directory(kind), tmp_path / "model.onnx")
    of_all = [module for module, shape in found if shape[:-1] == (sum(SIZES),)]
    of_first = [module for module, shape in found if shape[:-1] == (len(SIZES),)]
    assert len(of_all) + len(of_first) == len(found) and len(of_first) < len(of_all)
    # The queries, the attention's output and the two products of the feed-forward network. DeBERTa's queries meet all
    # positions too, ModernBERT's are one product with keys and values; MobileBERT has two networks and a bottleneck.
    family = kind.removeprefix("pruned-")
    assert len(of_first) == {"mobilebert": 8, "modernbert": 3, "deberta-v2": 3}.get(family, 4)
    if family != "albert":
        assert all(f".{LAYERS - 1}." in module for module in of_first)


@pytest.mark.parametrize(
    "kind", [*(f"pruned-{family}" for family in PRUNABLE), "deberta-v2", "mobilebert", "modernbert"]
)
def test_a_tagger_computes_every_token_and_no_padding(kind: str, tmp_path: Path) -> None:
    family = kind.removeprefix("pruned-")
    network = tagger(family) if kind == family else pruned_tagger(family)
    source = Model.open(write(tmp_path / "tagger", network, family))
    exported = export(source, tmp_path / "onnx")
    found = sizes_of_products(exported, tmp_path / "model.onnx")
    assert {shape[:-1] for _, shape in found} == {(sum(SIZES),)}
    inputs = batch(exported)
    session = onnxruntime.InferenceSession(str(exported.path / "model.onnx"), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, inputs)
    model, _ = load(source)
    read = {name: torch.from_numpy(inputs[name]) for name in input_names(model) if name in inputs}
    with torch.no_grad():
        expected = model(**read).logits.numpy()
    there = inputs["attention_mask"] == 1
    assert logits.shape == expected.shape
    np.testing.assert_allclose(logits[there], expected[there], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "deberta-v2"])
def test_a_text_gets_the_same_logits_in_any_batch(kind: str) -> None:
    exported = onnx_directory(kind)
    session = onnxruntime.InferenceSession(str(exported.path / "model.onnx"), providers=["CPUExecutionProvider"])
    inputs = batch(exported)
    (together,) = session.run(None, inputs)
    for row, size in enumerate(SIZES):
        (alone,) = session.run(None, {name: value[row : row + 1, :size] for name, value in inputs.items()})
        np.testing.assert_allclose(together[row], alone[0], atol=1e-6, rtol=0)
