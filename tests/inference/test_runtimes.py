"""Every runtime gives the logits of eager fp32, and says in one sentence what it cannot do."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from compress import plugins
from compress.errors import CompressError, Unavailable
from compress.exporting.export import padded_example
from compress.inference.batching import open_runtime
from compress.inference.runtimes import torch_cuda_graphs
from compress.inference.torch_run import TorchRun
from compress.models.manifest import NATIVE_NAME
from tests.support.tiny import bilstm, load, onnx_directory, torch_directory

RUNTIMES = plugins.names("runtimes")
KINDS = [
    *("albert", "bert", "distilbert", "mobilebert", "bilstm", "cnn", "cnn-deep", "ngram"),
    *("pruned-deberta-v2", "pruned-modernbert", "pruned-mpnet", "pruned-roberta"),
]
CUDA_ONLY = ("torch-cuda-graphs", "torch-float16")
EXACT = 1e-4


def devices(runtime: str) -> tuple[str, ...]:
    return tuple(plugins.find("runtimes", runtime).load().DEVICES)


def usable(runtime: str) -> str:
    """Return a device that this host has for a runtime; skip the test where there is none."""
    if runtime == "openvino":
        pytest.importorskip("openvino")
    if runtime == "native":
        pytest.importorskip("compress.inference.native._core")
    if runtime == "torch-compile" and shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    if "cpu" in devices(runtime):
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return "cuda"


def directory_for(runtime: str, kind: str) -> Path:
    opens = plugins.find("runtimes", runtime).load().OPENS
    return (onnx_directory if opens == "onnx" else torch_directory)(kind).path


def arrays_of(rows: int, length: int) -> dict[str, np.ndarray]:
    """Return rows of different lengths, the first as long as the batch."""
    generator = np.random.default_rng(rows * 100 + length)
    mask = (np.arange(length)[None] < np.linspace(length, 2, rows).astype(int)[:, None]).astype(np.int64)
    return {"input_ids": np.where(mask, generator.integers(5, 60, (rows, length)), 0), "attention_mask": mask}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_logits_are_those_of_eager_fp32(runtime: str, kind: str) -> None:
    device = usable(runtime)
    if runtime == "torch-compile" and kind not in {"distilbert", "bilstm"}:
        pytest.skip("compiling takes a minute")
    if runtime == "torch-cuda-graphs" and kind == "bilstm":
        pytest.skip("see test_a_model_that_packs_rows_has_no_graph")
    if runtime == "native" and not (directory_for(runtime, kind) / NATIVE_NAME).is_file():
        with pytest.raises(Unavailable, match="no model.native .*; use --runtime onnxruntime"):
            open_runtime(directory_for(runtime, kind), runtime, threads=1)
        return
    module = plugins.find("runtimes", runtime).load()
    assert module.OPENS in {"torch", "onnx"} and set(module.DEVICES) <= {"cpu", "cuda"}
    run = module.start(directory_for(runtime, kind), threads=1, device=device)
    model, _ = load(torch_directory(kind).path)
    model.config._attn_implementation = "eager"
    for rows, length in ((1, 5), (3, 17), (4, 40)):
        inputs = dict(padded_example(model, rows, length))
        with torch.no_grad():
            expected = model(**inputs).logits.numpy()
        # A runtime of lower precision says how far it may be off: t (1 + |x|) for a logit x.
        relative = getattr(module, "TOLERANCE", 0)
        within = {"rtol": relative, "atol": relative or EXACT}
        arrays = {name: value.numpy() for name, value in inputs.items()}
        found = run(arrays)
        assert found.dtype == np.float32 and found.shape == (rows, 2)
        np.testing.assert_allclose(found, expected, **within)
        # A graph without segments does not mind them, one with segments takes their absence for zeros.
        arrays["token_type_ids"] = np.zeros_like(arrays["input_ids"])
        np.testing.assert_allclose(run(arrays), expected, **within)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_unknown_device_is_refused(runtime: str) -> None:
    with pytest.raises(CompressError, match="'tpu'.*--device cpu"):
        open_runtime(directory_for(runtime, "bert"), runtime, threads=1, device="tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if "cuda" in devices(name)])
def test_cuda_without_a_gpu_is_refused(runtime: str) -> None:
    with pytest.raises(CompressError, match="CUDA.*--device cpu"):
        open_runtime(directory_for(runtime, "bert"), runtime, threads=1, device="cuda")


@pytest.mark.parametrize("runtime", CUDA_ONLY)
def test_a_processor_is_refused_by_what_needs_a_card(runtime: str) -> None:
    with pytest.raises(CompressError, match=f"'cpu'.*{runtime}.*--device cuda.*--runtime torch"):
        open_runtime(directory_for(runtime, "bert"), runtime, threads=1, device="cpu")


def test_a_reduced_precision_is_another_than_float32() -> None:
    arrays = arrays_of(3, 17)
    exact, rounded = (
        plugins.find("runtimes", name).function(directory_for(name, "bert"), threads=1, device="cpu")(arrays)
        for name in ("torch", "torch-bfloat16")
    )
    assert np.abs(exact - rounded).max() > 10 * EXACT


def test_mixed_precision_is_an_option_of_torch() -> None:
    start, arrays = plugins.find("runtimes", "torch").function, arrays_of(3, 17)
    exact, mixed = (
        start(directory_for("torch", "bert"), threads=1, device="cpu", precision=precision)(arrays)
        for precision in ("float32", "bfloat16")
    )
    difference = np.abs(exact - mixed).max()
    assert 10 * EXACT < difference < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("runtime", ["torch", "torch-bfloat16"])
def test_a_processor_has_no_device_time(runtime: str) -> None:
    run = plugins.find("runtimes", runtime).function(directory_for(runtime, "bert"), threads=1, device="cpu")
    run(arrays_of(1, 5))
    assert run.device_ms is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name.startswith("torch")])
def test_a_card_says_how_long_it_worked(runtime: str) -> None:
    run = plugins.find("runtimes", runtime).function(directory_for(runtime, "bert"), threads=1, device="cuda")
    run(arrays_of(4, 40))
    started = time.perf_counter()
    run(arrays_of(4, 40))
    assert 0 < run.device_ms < 1000 * (time.perf_counter() - started)
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32


def test_a_compiled_model_is_compiled_once_for_all_shapes() -> None:
    usable("torch-compile")
    start = plugins.find("runtimes", "torch-compile").function
    run = start(directory_for("torch-compile", "distilbert"), threads=1, device="cpu")
    exact = plugins.find("runtimes", "torch").function(directory_for("torch", "distilbert"), threads=1, device="cpu")
    with torch.compiler.set_stance("fail_on_recompile"):
        for rows, length in ((1, 3), (1, 16), (1, 64), (2, 2), (2, 33), (3, 3), (4, 16), (7, 48), (32, 32), (33, 64)):
            arrays = arrays_of(rows, length)
            np.testing.assert_allclose(run(arrays), exact(arrays), atol=EXACT, rtol=0)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.exc import InternalTorchDynamoError

    from compress.inference.runtimes import torch_compile

    def fail(*_: object, **__: object) -> None:
        raise InternalTorchDynamoError("No working C++ compiler found\nand a long trace")

    monkeypatch.setattr(torch_compile.torch, "compile", lambda model, dynamic: fail)
    with pytest.raises(Unavailable, match=r"No working C\+\+ compiler found\).*apt install g\+\+") as error:
        torch_compile.start(torch_directory("bert").path, threads=1, device="cpu")
    assert "long trace" not in str(error.value)


@pytest.mark.parametrize(
    ("length", "limit", "padded"),
    [(1, 9, 8), (8, 512, 8), (9, 20, 16), (505, 512, 512), (512, 512, 512), (45, 50, 48), (49, 50, 50), (9, None, 16)],
)
def test_a_bucket_is_the_next_multiple_of_8_within_the_model(length: int, limit: int | None, padded: int) -> None:
    assert torch_cuda_graphs.bucket(length, limit) == padded


class EagerRecorder:
    """Records as a CUDA graph does: what is written is one tensor, and only what was recorded is repeated."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.repeats = 0

    def __call__(self, forward: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        logits = forward()
        self.shapes.append(tuple(logits.shape))

        def replay() -> None:
            self.repeats += 1
            logits.copy_(forward())

        return replay, logits


@pytest.mark.parametrize("kind", ["bert", "pruned-roberta", "pruned-mpnet"])
def test_padding_to_the_bucket_does_not_change_logits(kind: str) -> None:
    model, _ = load(torch_directory(kind).path)
    recorder = EagerRecorder()
    run = torch_cuda_graphs.GraphRun(model, recorder)
    exact = TorchRun(model)
    answers = []
    for rows, length in ((1, 5), (3, 17), (3, 19), (3, 24), (3, 64), (1, 7)):
        arrays = arrays_of(rows, length)
        arrays["input_ids"][arrays["attention_mask"] == 0] = model.config.pad_token_id
        answers.append((run(arrays), exact(arrays)))
    for found, expected in answers:  # later calls must not have written into earlier answers
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    # (1, 8), (3, 24) and (3, 64), each recorded once and repeated at every call.
    assert len(recorder.shapes) == 3 and recorder.repeats == 6


def test_segments_of_one_batch_are_forgotten_by_the_next() -> None:
    model, _ = load(torch_directory("bert").path)
    run, exact = torch_cuda_graphs.GraphRun(model, EagerRecorder()), TorchRun(model)
    plain = arrays_of(2, 9)
    segments = {**plain, "token_type_ids": plain["attention_mask"]}
    assert np.abs(run(segments) - run(plain)).max() > 1e-3
    np.testing.assert_allclose(run(plain), exact(plain), atol=1e-5, rtol=0)


def test_graphs_are_recorded_beforehand() -> None:
    model, _ = load(torch_directory("bert").path)
    recorder = EagerRecorder()
    run = torch_cuda_graphs.GraphRun(model, recorder)
    run.prepare_shapes(2, 33)
    assert len(recorder.shapes) == 5  # 8, 16, 24, 32 and 40 tokens
    for length in range(1, 41):
        run(arrays_of(2, length))
    assert len(recorder.shapes) == 5


def test_a_model_that_packs_rows_has_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_cuda_graphs, "open_torch", lambda *_, **__: bilstm())
    with pytest.raises(Unavailable, match="packs its rows.*--runtime torch"):
        torch_cuda_graphs.start(torch_directory("bilstm").path, threads=1, device="cuda")


@pytest.mark.parametrize("labels", [1, 3])
def test_a_graph_and_a_config_of_other_labels_are_refused(labels: int, tmp_path: Path) -> None:
    shutil.copytree(onnx_directory("bert").path, tmp_path / "m")
    (tmp_path / "m" / "compress.json").unlink()
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["id2label"] = {str(number): f"class {number}" for number in range(labels)}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    run = open_runtime(tmp_path / "m", threads=1)
    with pytest.raises(
        CompressError, match=rf"with float32 \[1, 2\], and its .* asks for float logits \[1, {labels}\]"
    ):
        run(arrays_of(1, 4))


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
