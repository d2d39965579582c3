"""Runtimes are opened within bounds, and what they answer fits the labels, in one place for all of them."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from compress.cli import execute
from compress.errors import CompressError
from compress.inference.batching import open_runtime
from compress.inference.runtimes import _onnx_session
from tests.support import odd_graphs
from tests.support.tiny import classifier, onnx_directory, torch_directory, write
from tests.support.training_data import pool_file

Change = Callable[[onnx.GraphProto], None]
ARRAYS = {name: np.ones((2, 5), np.int64) for name in ("input_ids", "attention_mask")}


def changed(folder: Path, change: Change) -> Path:
    directory = folder / "model"
    shutil.copytree(onnx_directory("bert").path, directory)
    (directory / "compress.json").unlink()
    model = onnx.load(directory / "model.onnx")
    change(model.graph)
    onnx.save(model, directory / "model.onnx")
    return directory


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("change", odd_graphs.WRONG_ANSWERS[:5], ids=lambda change: change.__name__)
def test_answers_of_another_shape_are_refused(change: Change, runtime: str, tmp_path: Path) -> None:
    if runtime == "openvino":
        pytest.importorskip("openvino")
    run = open_runtime(changed(tmp_path, change), runtime, threads=1)
    with pytest.raises(CompressError, match=r"answers 2 texts of 5 tokens with float32 \[.*logits \[2, 2\]"):
        run(ARRAYS)


@pytest.mark.parametrize("change", odd_graphs.WRONG_ANSWERS, ids=lambda change: change.__name__)
def test_commands_refuse_wrong_answers(change: Change, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = changed(tmp_path, change), tmp_path / "out"
    pool_file(tmp_path / "pool.txt")
    assert execute(["predict", "--model", str(model), "a good film"]) == 2
    assert execute(["label", "--teacher", str(model), "--unlabeled", str(tmp_path / "pool.txt"), "-o", str(out)]) == 2
    captured = capsys.readouterr()
    assert not captured.out and "fault of compress" not in captured.err and not out.exists()


@pytest.mark.parametrize("labels", [("score",), ("a", "b", "c")])
def test_regression_and_more_labels_have_their_own_width(labels: tuple[str, ...], tmp_path: Path) -> None:
    directory = write(tmp_path / "model", classifier("bert", labels=labels))
    assert open_runtime(directory, threads=1)(ARRAYS).shape == (2, len(labels))


def test_tags_of_every_token_are_expected_of_a_tagger(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(torch_directory("bert").path, directory)
    config = json.loads((directory / "config.json").read_text())
    run = open_runtime(directory, config={**config, "architectures": ["BertForTokenClassification"]}, threads=1)
    with pytest.raises(CompressError, match=r"asks for float logits \[2, 5, 2\]"):
        run(ARRAYS)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("change", odd_graphs.BOMBS[2:], ids=lambda change: change.__name__)
def test_graph_that_needs_all_memory_is_refused(change: Change, runtime: str, tmp_path: Path) -> None:
    if runtime == "openvino":
        pytest.importorskip("openvino")
    directory = changed(tmp_path, change)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(CompressError, match=r"model.onnx needs more than \d+ MB for 8 tokens"):
        open_runtime(directory, runtime, threads=1)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_threads_that_open_graphs_leave_no_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    directory = onnx_directory("bert").path
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: open_runtime(directory, threads=1), range(12)))
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_first_run_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop, which is refused before where a model directory is opened."""
    monkeypatch.setattr(_onnx_session, "LIMIT_SECONDS", 0.2)
    with pytest.raises(CompressError, match="needs more than 0 s for 8 tokens"):
        open_runtime(changed(tmp_path, odd_graphs.loop), threads=1)


def test_graph_that_reads_only_longer_texts_opens(tmp_path: Path) -> None:
    """The first run is a bound, and no trial: Longformer's graphs take multiples of a window."""

    def thirty_tokens(graph: onnx.GraphProto) -> None:
        shape = onnx.helper.make_node("Reshape", ["input_ids", "thirty"], ["thirty_ids"])
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1, 30], np.int64), "thirty"))
        for node in graph.node:
            node.input[:] = ["thirty_ids" if name == "input_ids" else name for name in node.input]
        graph.node.insert(0, shape)

    run = open_runtime(changed(tmp_path, thirty_tokens), threads=1)
    arrays = {name: np.full((2, 30), 1, np.int64) for name in ARRAYS}
    assert run(arrays).shape == (2, 2)
    with pytest.raises(CompressError, match="cannot be run on these texts"):
        run(ARRAYS)


def test_session_has_the_threads_that_are_asked_for(tmp_path: Path) -> None:
    session = _onnx_session.open_session(onnx_directory("bert").path / "model.onnx", 3)
    assert session.get_session_options().intra_op_num_threads == 3
    assert session.get_session_options().graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL


@pytest.mark.parametrize(
    ("error", "expected"), [(CompressError("as it is"), CompressError), (MemoryError(), MemoryError)]
)
def test_what_is_no_fault_of_the_texts_passes(
    error: Exception, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_runtime(torch_directory("bert").path, "torch", threads=1)
    monkeypatch.setattr(run, "_run", lambda arrays: (_ for _ in ()).throw(error))
    with pytest.raises(expected) as caught:
        run(ARRAYS)
    assert caught.value is error and caught.value.__cause__ is None
