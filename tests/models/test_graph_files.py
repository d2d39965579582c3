"""ONNX files of others: which are opened, which are refused before a library reads them, and where they lie."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from compress.errors import CompressError
from compress.inference.predict import load
from compress.models.graph_files import MOST_NODES, OPERATORS, check_graph
from compress.models.manifest import Manifest, describe_files
from compress.models.model_dir import Model
from tests.support import odd_graphs
from tests.support.tiny import onnx_directory, torch_directory


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Return an ONNX directory without a manifest."""
    directory = tmp_path / "model"
    shutil.copytree(onnx_directory("bert").path, directory)
    (directory / "compress.json").unlink()
    return directory


def changed(directory: Path, change: Callable[[onnx.ModelProto], object]) -> Path:
    path = directory / "model.onnx"
    model = onnx.load(path)
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def first_node(**fields: str) -> Callable[[onnx.ModelProto], object]:
    return lambda model: [setattr(model.graph.node[0], key, value) for key, value in fields.items()]


def add_function(model: onnx.ModelProto) -> None:
    node = helper.make_node("Identity", ["a"], ["b"])
    model.functions.append(helper.make_function("own", "twice", ["a"], ["b"], [node], model.opset_import))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: odd_graphs.loop(model.graph), "a graph inside a node"),
        (lambda model: odd_graphs.branch(model.graph), "a graph inside a node"),
        (add_function, "functions of its own"),
        (first_node(op_type="EPContext", domain="com.microsoft"), "the operator 'com.microsoft::EPContext'"),
        (first_node(op_type="RandomNormal"), "the operator 'RandomNormal'"),
        (first_node(domain="somebody.else"), "the operator 'somebody.else::"),
        (lambda model: model.graph.node.extend([model.graph.node[0]] * MOST_NODES), " nodes, which no classifier"),
        (lambda model: odd_graphs.other_input(model.graph), "inputs and outputs are attention_mask, inputs"),
        (lambda model: odd_graphs.other_output(model.graph), "and output_0, and not"),
    ],
)
def test_unusual_graph_is_refused_at_opening(
    change: Callable[[onnx.ModelProto], object], reason: str, foreign: Path
) -> None:
    changed(foreign, change)
    with pytest.raises(CompressError, match="model.onnx (has|is no classifier)") as caught:
        Model.open(foreign)
    assert reason in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff" * 50, b"a text", b"\x3a\xff\xff\xff\x0f"])
def test_file_that_is_no_graph_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(CompressError):
        check_graph(path)


def test_operator_hidden_behind_a_number_of_its_field_is_found(tmp_path: Path) -> None:
    """Protobuf skips a field of another wire type; the text before it counts."""
    node = b"\x22\x04Loop" + b"\x25Relu"  # field 4: text; field 4 again: four bytes that it takes for a number
    graph = b"\x0a" + bytes([len(node)]) + node
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x3a" + bytes([len(graph)]) + graph)
    assert onnx.load(path).graph.node[0].op_type == "Loop"
    with pytest.raises(CompressError, match="the operator 'Loop'"):
        check_graph(path)


def test_inputs_may_be_weights_as_in_old_graphs(foreign: Path) -> None:
    def name_weights(model: onnx.ModelProto) -> None:
        weight = model.graph.initializer[0]
        model.graph.input.append(helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))

    check_graph(changed(foreign, name_weights))


def test_operators_are_known_to_onnx() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}
    assert OPERATORS[""] - known == {"SimplifiedLayerNormalization"}  # ONNX Runtime's own, in this domain
    assert not OPERATORS[""] & {"Loop", "Scan", "If", "SequenceMap", "RandomNormal", "Multinomial"}


@pytest.mark.parametrize("place", ["onnx/model.onnx", "onnx/model_quantized.onnx", "model_quantized.onnx"])
def test_only_graph_is_opened_where_others_lay_it(place: str, foreign: Path) -> None:
    expected = load(foreign).predict(["a good film"])
    (foreign / "onnx").mkdir()
    (foreign / "model.onnx").rename(foreign / place)
    assert load(foreign).predict(["a good film"]) == expected
    assert Model.open(foreign).size_bytes == (foreign / place).stat().st_size


def test_several_graphs_are_named(foreign: Path) -> None:
    (foreign / "onnx").mkdir()
    shutil.copy(foreign / "model.onnx", foreign / "onnx" / "model.onnx")
    (foreign / "model.onnx").rename(foreign / "onnx" / "model_quantized.onnx")
    with pytest.raises(CompressError, match=r"onnx/model.onnx, onnx/model_quantized.onnx\).*choose one: cp "):
        Model.open(foreign)


def test_weights_answer_before_a_graph_in_a_folder(tmp_path: Path) -> None:
    shutil.copytree(torch_directory("bert").path, tmp_path / "model")
    shutil.copytree(onnx_directory("bert").path, tmp_path / "model" / "onnx")
    assert not Model.open(tmp_path / "model").is_onnx


@pytest.mark.parametrize("has_manifest", [False, True])
def test_directory_with_weights_and_graph_says_which_answers(
    has_manifest: bool, foreign: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(torch_directory("bert").path / "model.safetensors", foreign)
    if has_manifest:  # of the weights alone, as where a graph was put beside them
        manifest = Manifest(stage="finetune", files={"model.safetensors": describe_files(foreign)["model.safetensors"]})
        (foreign / "compress.json").write_text(manifest.to_json())
    for _ in range(2):
        assert Model.open(foreign).is_onnx
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "model.onnx answers; move the other one away"
    ]


def test_quantized_copy_of_another_layout_is_complete(foreign: Path, tmp_path: Path) -> None:
    from compress.requests.compression import quantize

    (foreign / "onnx").mkdir()
    (foreign / "model.onnx").rename(foreign / "onnx" / "model.onnx")
    made = quantize(foreign, tmp_path / "int8")
    assert made.size_bytes < Model.open(foreign).size_bytes
    assert load(made).predict(["a good film"])[0]["label"] in made.labels


def test_foreign_graph_that_a_quantizer_cannot_read_is_one_sentence(foreign: Path, tmp_path: Path) -> None:
    """Its logits come straight from an input, so that there is no last layer to leave out."""
    from compress.requests.compression import quantize

    def straight(model: onnx.ModelProto) -> None:
        graph = model.graph
        del graph.node[:], graph.initializer[:]
        graph.node.append(helper.make_node("Cast", ["input_ids"], ["logits"], to=TensorProto.FLOAT))

    changed(foreign, straight)
    with pytest.raises(CompressError, match="cannot be quantized by onnx-dynamic .*use another --method"):
        quantize(foreign, tmp_path / "int8")
