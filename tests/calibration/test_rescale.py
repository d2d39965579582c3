"""Models of every kind give scaled logits after their weights, or their graphs, were rescaled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification

from compress.calibration.calibrate import UNCHANGED, Scaling, last_layer, rescale_graph, rescale_torch
from compress.errors import CompressError
from compress.inference.batching import open_runtime
from compress.models.components import example_inputs
from compress.models.manifest import ONNX_NAME
from compress.requests.compression import quantize
from tests.support.tiny import FAMILIES, PRUNED_ONLY, SMALL, classifier, onnx_directory, torch_directory

VECTOR = Scaling(np.array([0.5, 2.0]), np.array([0.3, -0.7]))
TEMPERATURE = Scaling(np.array([0.25]))
IDS = {"input_ids": np.array([[7, 9, 11, 6]]), "attention_mask": np.ones((1, 4), np.int64)}


@pytest.mark.parametrize("kind", [*FAMILIES, *PRUNED_ONLY, *SMALL, "pruned-bert"])
def test_torch_models_are_scaled(kind: str) -> None:
    model = torch_directory(kind).load()
    with torch.no_grad():
        before = model(**example_inputs(model)).logits.numpy()
        rescale_torch(model, VECTOR)
        after = model(**example_inputs(model)).logits.numpy()
    assert after == pytest.approx(VECTOR.apply(before), abs=1e-4)


def test_decoders_are_scaled_at_every_token() -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model("gpt2", vocab_size=40, n_embd=32, n_layer=1, n_head=2, pad_token_id=0, num_labels=3)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    assert last_layer(model).bias is None
    with torch.no_grad():
        before = model(**example_inputs(model)).logits.numpy()
        rescale_torch(model, TEMPERATURE)
        assert model(**example_inputs(model)).logits.numpy() == pytest.approx(before / 4, abs=1e-5)


def test_models_whose_logits_do_not_follow_a_layer_are_refused() -> None:
    model = classifier("bert")
    model.classifier = nn.Sequential(model.classifier, nn.Tanh())
    with pytest.raises(CompressError, match="do not follow the weights"):
        rescale_torch(model, TEMPERATURE)
    model.classifier = nn.AdaptiveAvgPool1d(2)
    with pytest.raises(CompressError, match="no linear layer that gives its logits"):
        rescale_torch(model, TEMPERATURE)


@pytest.mark.parametrize("kind", ["bert", "cnn", "bilstm"])
@pytest.mark.parametrize("scaling", [VECTOR, TEMPERATURE, UNCHANGED], ids=["vector", "temperature", "none"])
def test_graphs_are_scaled(kind: str, scaling: Scaling, tmp_path: Path) -> None:
    source = onnx_directory(kind).path
    rescale_graph(source, tmp_path, scaling)
    expected = scaling.apply(open_runtime(source, threads=1)(IDS))
    assert open_runtime(tmp_path, threads=1, config={})(IDS) == pytest.approx(expected, abs=1e-5)
    onnx.checker.check_model(onnx.load(tmp_path / ONNX_NAME), full_check=False)
    assert [output.name for output in onnx.load(tmp_path / ONNX_NAME).graph.output] == ["logits"]


def test_graphs_are_scaled_twice_and_in_int8(tmp_path: Path) -> None:
    int8 = quantize(onnx_directory("bert"), tmp_path / "int8")
    for name, source in (("one", int8.path), ("two", tmp_path / "one")):
        (tmp_path / name).mkdir()
        rescale_graph(source, tmp_path / name, VECTOR)
    before = open_runtime(int8.path, threads=1)(IDS)
    after = open_runtime(tmp_path / "two", threads=1, config={})(IDS)
    assert after == pytest.approx(VECTOR.apply(VECTOR.apply(before)), abs=1e-5)
