"""``--method auto``: every candidate is checked, and the fastest of those that pass is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from compress.cli import execute
from compress.data import Example
from compress.errors import CompressError
from compress.inference.speedup_intervals import Interval
from compress.models.model_dir import Model
from compress.quantization.quantize import Judge
from compress.requests.compression import Quantize, quantize
from tests.support.tiny import onnx_directory, torch_directory
from tests.support.training_data import labelled_file, train_rows, validation_rows

DYNAMIC, REDUCED, STATIC = NAMES = ("onnx-dynamic", "onnx-dynamic reduce_range", "onnx-qdq")
AUTO: dict[str, Any] = {"method": "auto", "max_accuracy_drop": 100.0, "min_agreement": 0.0}
BOTH: dict[str, Any] = {"train": train_rows(), "validation": validation_rows()}


def is_static(graph: onnx.GraphProto) -> bool:
    """Tell whether no range is measured while the graph runs."""
    return not any(node.op_type == "ReduceMax" for node in graph.node)


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], float]:
    """Speed-ups by candidate and batch size, which are found instead of being measured."""
    found: dict[tuple[str, int], float] = {}

    class Timed(Judge):
        def __init__(self, source: Model, fp32: Path, int8: Path, threads: int) -> None:
            super().__init__(source, fp32, int8, threads)
            graph = onnx.load(str(int8 / "model.onnx")).graph
            products = [node.input[1] for node in graph.node if node.op_type == "MatMulIntegerToFloat"]
            weights = [onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name in products]
            reduced = all(abs(weight).max() < 100 for weight in weights)
            self.name = STATIC if is_static(graph) else REDUCED if reduced else DYNAMIC

        def time(self, rows: Sequence[Example], batch_size: int) -> Interval:
            return Interval(found[self.name, batch_size], 0.0, 9.0)

    monkeypatch.setattr("compress.quantization.quantize.Judge", Timed)
    return found


@pytest.mark.parametrize(
    ("sizes", "best"),
    [((1, 32), DYNAMIC), ((1,), STATIC), ((32,), REDUCED)],  # the means are 2.0, 1.9 and 1.5
)
def test_the_fastest_at_the_named_batch_sizes_is_kept(
    sizes: tuple[int, ...], best: str, speeds: dict[tuple[str, int], float], tmp_path: Path
) -> None:
    speeds |= {(DYNAMIC, 1): 2.0, (REDUCED, 1): 1.2, (STATIC, 1): 2.4}
    speeds |= {(DYNAMIC, 32): 2.0, (REDUCED, 32): 3.0, (STATIC, 32): 0.94}
    made = quantize(torch_directory("bert"), tmp_path / "int8", **AUTO, **BOTH, batch_sizes=sizes)
    notes = made.manifest.notes
    assert notes["method"].startswith(f"{best}, the fastest that passes") and notes["precision"] == "int8"
    assert set(notes["candidates"]) == set(NAMES)
    for name, outcome in notes["candidates"].items():
        assert {size: found["value"] for size, found in outcome["speedup"].items()} == {
            str(size): speeds[name, size] for size in sizes
        }
        assert outcome["bytes"] > 0
    assert notes["check"]["speedup"] == notes["candidates"][best]["speedup"]
    assert made.manifest.recipe["method"] == best.partition(" ")[0]
    assert made.manifest.recipe["options"] == ({"reduce_range": True} if best == REDUCED else {})
    assert is_static(onnx.load(str(made.path / "model.onnx")).graph) == (best == STATIC)


def test_one_that_does_not_pass_is_not_kept_however_fast(
    speeds: dict[tuple[str, int], float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds |= {(name, size): value for name, value in zip(NAMES, (1.5, 1.4, 9.0), strict=True) for size in (1, 32)}
    check = Judge.check

    def refuse_static(self: Judge, rows: Any, gold: Any, metric: Any, limits: Quantize, **options: Any) -> object:
        least = 1.1 if self.name == STATIC else 0.0  # type: ignore[attr-defined]
        return check(self, rows, gold, metric, SimpleNamespace(**{**vars(limits), "min_agreement": least}), **options)

    monkeypatch.setattr(Judge, "check", refuse_static)
    made = quantize(torch_directory("bert"), tmp_path / "int8", **AUTO, **BOTH)
    assert made.manifest.notes["method"].startswith(f"{DYNAMIC}, the fastest that passes")
    (reason,) = made.manifest.notes["candidates"][STATIC]["reasons"]
    assert "it agrees with fp32 on" in reason


def test_float32_is_kept_where_none_is_faster(speeds: dict[tuple[str, int], float], tmp_path: Path) -> None:
    speeds |= {(name, size): 0.9 for name in NAMES for size in (1, 32)}
    source = onnx_directory("bert")
    made = quantize(source, tmp_path / "int8", **AUTO, validation=validation_rows())
    notes = made.manifest.notes
    assert notes["precision"] == "fp32" and "the first, as none passes" in notes["method"]
    assert (made.path / "model.onnx").read_bytes() == (source.path / "model.onnx").read_bytes()
    assert "give the torch directory" in notes["candidates"][STATIC]  # ranges cannot be measured on a graph


def test_a_candidate_that_cannot_be_made_is_left_out_with_the_reason(
    speeds: dict[tuple[str, int], float], tmp_path: Path
) -> None:
    speeds |= {(name, size): 1.5 for name in NAMES for size in (1, 32)}
    made = quantize(torch_directory("cnn"), tmp_path / "int8", **AUTO, **BOTH)
    assert made.manifest.notes["precision"] == "int8"
    assert "nodes are named after torch modules" in made.manifest.notes["candidates"][STATIC]
    assert {entry["role"] for entry in made.manifest.data} == {"validation"}  # the kept one read no training rows


def test_the_command_says_what_each_candidate_came_to(
    speeds: dict[tuple[str, int], float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds |= {(DYNAMIC, 8): 1.5, (REDUCED, 8): 0.5}
    model, rows = torch_directory("bert").path, labelled_file(tmp_path / "rows.csv", validation_rows())
    words = ["quantize", "--method", "auto", "--batch-size", "8", "--max-accuracy-drop", "100"]
    assert execute([*words, "--model", str(model), "--validation", str(rows), "-o", str(tmp_path / "int8")]) == 0
    said = capsys.readouterr().out
    assert f"method: {DYNAMIC}, the fastest that passes at batch size 8" in said
    assert f"{DYNAMIC}: x1.50 at batch size 8" in said
    assert f"{REDUCED}: it is not faster on this host (x0.50 at batch size 8)" in said
    assert f"{STATIC}: bert was not trained with ranges" in said


def test_the_command_passes_options_of_the_method_on(tmp_path: Path) -> None:
    words = ["quantize", "--model", str(torch_directory("bert").path), "-o", str(tmp_path / "made")]
    assert execute([*words, "--option", "embeddings=float16", "--option", "per_channel=false"]) == 0
    made = Model.open(tmp_path / "made")
    assert made.manifest.recipe["options"] == {"embeddings": "float16", "per_channel": False}
    tables = {tensor.data_type for tensor in onnx.load(str(made.path / "model.onnx")).graph.initializer}
    assert onnx.TensorProto.FLOAT16 in tables


def test_where_no_candidate_can_be_made_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise CompressError("this graph is odd")

    monkeypatch.setattr("compress.quantization.quantize.make", refuse)
    with pytest.raises(CompressError, match="this graph is odd"):
        quantize(torch_directory("bert"), tmp_path / "int8", **AUTO, **BOTH)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (AUTO, "--validation FILE"),
        ({**BOTH, "method": "auto", "options": {"per_channel": False}}, "name a method"),
        ({"method": "auto", "keep_fp32": 1, "validation": validation_rows()}, "--train FILE"),
        ({**BOTH, "method": "auto", "keep_fp32": 2}, "--keep-fp32 2 would leave nothing"),
        ({**BOTH, "method": "auto", "batch_sizes": ()}, "--batch-size"),
        ({**BOTH, "batch_sizes": (1, 0)}, "--batch-size"),
    ],
)
def test_what_auto_cannot_do_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match=message):
        quantize(torch_directory("bert"), tmp_path / "int8", **options)
    assert not list(tmp_path.iterdir())
