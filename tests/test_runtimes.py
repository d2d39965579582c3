"""Every runtime gives the logits of eager fp32, and says in one sentence what it cannot do."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import onnx_directory, torch_directory

from compress import plugins
from compress.artifact import load
from compress.errors import CompressError
from compress.export import padded_example

RUNTIMES = plugins.names("runtimes")
KINDS = ["bert", "distilbert", "pruned-mpnet", "pruned-roberta", "bilstm"]


def directory_for(runtime: str, kind: str) -> Path:
    opens = plugins.find("runtimes", runtime).load().OPENS
    return (onnx_directory if opens == "onnx" else torch_directory)(kind).path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_logits_are_those_of_eager_fp32(runtime: str, kind: str) -> None:
    if runtime == "openvino":
        pytest.importorskip("openvino")
    module = plugins.find("runtimes", runtime).load()
    assert module.OPENS in {"torch", "onnx"} and "cpu" in module.DEVICES
    run = module.start(directory_for(runtime, kind), threads=1, device="cpu")
    model, _ = load(torch_directory(kind).path)
    model.config._attn_implementation = "eager"
    for rows, length in ((1, 5), (3, 17), (4, 40)):
        inputs = dict(padded_example(model, rows, length))
        with torch.no_grad():
            expected = model(**inputs).logits.numpy()
        arrays = {name: value.numpy() for name, value in inputs.items()}
        found = run(arrays)
        assert found.dtype == np.float32 and found.shape == (rows, 2)
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
        # A graph without segments does not mind them, one with segments takes their absence for zeros.
        arrays["token_type_ids"] = np.zeros_like(arrays["input_ids"])
        np.testing.assert_allclose(run(arrays), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_unknown_device_is_refused(runtime: str) -> None:
    if runtime == "openvino":
        pytest.importorskip("openvino")
    with pytest.raises(CompressError, match="'tpu'.*--device cpu"):
        plugins.find("runtimes", runtime).function(directory_for(runtime, "bert"), threads=1, device="tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_cuda_without_a_gpu_is_refused(runtime: str) -> None:
    with pytest.raises(CompressError, match="CUDA.*--device cpu"):
        plugins.find("runtimes", runtime).function(directory_for(runtime, "bert"), threads=1, device="cuda")


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(CompressError, match=r"pip install 'compress\[openvino\]'"):
        plugins.find("runtimes", "openvino").function(onnx_directory("bert").path, threads=1, device="cpu")


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_damaged_graph_is_one_sentence(runtime: str, tmp_path: Path) -> None:
    if runtime == "openvino":
        pytest.importorskip("openvino")
    damaged = tmp_path / "damaged"
    shutil.copytree(onnx_directory("bert").path, damaged)
    graph = (damaged / "model.onnx").read_bytes()
    (damaged / "model.onnx").write_bytes(graph[: len(graph) // 2])
    with pytest.raises(CompressError, match="cannot open") as error:
        plugins.find("runtimes", runtime).function(damaged, threads=1, device="cpu")
    assert "\n" not in str(error.value)
