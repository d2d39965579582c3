"""Exported graphs: the same logits at any shape, every attention layer fused, and a directory others open."""

from __future__ import annotations

import errno
import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from compress import plugins
from compress.errors import CompressError, interruptions, system_fault
from compress.exporting.export import NoGraph, exporter_for, padded_example, stock_config
from compress.exporting.onnx_graph import operator_counts
from compress.models.components import input_names
from compress.models.model_dir import Model
from compress.requests.compression import export
from tests.support.tiny import (
    HEADS,
    LAYERS,
    PRUNABLE,
    SMALL,
    bilstm,
    classifier,
    family_of,
    heads_after_pruning,
    load,
    onnx_directory,
    physical_layers,
    pruned,
    torch_directory,
    write,
)

KINDS = [*PRUNABLE, *(f"pruned-{family}" for family in PRUNABLE), *SMALL]
SHAPES = [(1, 1), (1, 7), (5, 12), (3, 40), (2, 64)]


def run(directory: Model, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    start = plugins.find("runtimes", "onnxruntime").function
    return start(directory.path, threads=1, device="cpu")({name: value.numpy() for name, value in inputs.items()})


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_torch_at_any_shape(kind: str) -> None:
    exported = onnx_directory(kind)
    model, _ = load(torch_directory(kind).path)
    for rows, length in SHAPES:
        inputs = dict(padded_example(model, rows, length))
        with torch.no_grad():
            expected = model(**inputs).logits.numpy()
        np.testing.assert_allclose(run(exported, inputs), expected, atol=1e-5, rtol=0)


PAIRS = [("the film is good", "dull"), ("a", "a very slow plot with its story, and a cold end"), ("the film", ".")]


@pytest.mark.parametrize(
    "rows", [PAIRS, PAIRS[:1], [(b, a) for a, b in PAIRS], [(a, "") for a, _ in PAIRS], [("", "")]]
)
@pytest.mark.parametrize("kind", ["bilstm-siamese", "cnn-siamese"])
def test_a_siamese_graph_splits_pairs_as_torch_does(kind: str, rows: list[tuple[str, str]]) -> None:
    model, tokens = load(torch_directory(kind).path)
    exported = onnx_directory(kind)
    assert model.config.pairs == "siamese"
    inputs = {k: v for k, v in tokens(rows, padding=True, return_tensors="pt").items() if k != "token_type_ids"}
    with torch.no_grad():
        expected = model(**inputs).logits.numpy()
    np.testing.assert_allclose(run(exported, inputs), expected, atol=1e-5, rtol=0)
    if len(rows) > 1:
        assert np.abs(expected - expected[:1]).max() > 1e-2  # the texts are seen


def test_a_siamese_graph_without_the_second_text_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = importlib.import_module("compress.models.networks.small_graph")
    correct = exporter._comparison_nodes

    def wrong() -> list[onnx.NodeProto]:
        nodes: list[onnx.NodeProto] = correct()
        nodes[-1].input[1] = "one_text"
        return nodes

    monkeypatch.setattr(exporter, "_comparison_nodes", wrong)
    with pytest.raises(CompressError, match="gives logits that differ by"):
        export(torch_directory("bilstm-siamese"), tmp_path / "onnx")


def test_a_convolution_with_too_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.models.networks.cnn.graph._EXACT", 100)
    with pytest.raises(CompressError, match="tokens at 4 places are more rows than 100"):
        export(torch_directory("cnn"), tmp_path / "onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS[: -len(SMALL)])
def test_every_layer_is_fused_with_its_own_heads(kind: str) -> None:
    exported = onnx_directory(kind)
    graph = onnx.load(str(exported.path / "model.onnx")).graph
    heads = [
        attribute.i
        for node in graph.node
        if node.op_type == "MultiHeadAttention"
        for attribute in node.attribute
        if attribute.name == "num_heads"
    ]
    family = kind.removeprefix("pruned-")
    of_layers = heads_after_pruning(family) if kind.startswith("pruned") else [HEADS] * physical_layers(family)
    assert heads == of_layers * (LAYERS // physical_layers(family))  # once for every use of a shared layer
    counts = operator_counts(exported.path / "model.onnx")
    assert counts["MultiHeadAttention"] == LAYERS
    if family == "mobilebert":  # a factor and a term in place of the norms, ReLU in place of GELU
        assert counts["Relu"] == 4 and not {"LayerNormalization", "Gelu"} & set(counts)
    else:
        assert counts["LayerNormalization"] == (6 if family == "modernbert" else 5) and counts["Gelu"] >= 2
    assert counts.get("RotaryEmbedding", 0) == (2 * LAYERS if family == "modernbert" else 0)
    assert not {"Softmax", "Erf"} & set(counts)
    if family != "deberta-v2":  # whose positions are shifted by reshaping, for which the graph squares the length
        assert "Pow" not in counts and counts["Reshape"] == 2  # to count the batch's tokens
    assert exported.manifest.architecture["heads_per_layer"] == of_layers
    if kind.startswith("pruned") and family != "mobilebert":
        assert exported.manifest.architecture["ffn_per_layer"] == [44, 57][: physical_layers(family)]
    assert exported.manifest.notes["operators"] == counts


@pytest.mark.parametrize("kind", KINDS)
def test_the_directory_is_a_stock_one(kind: str) -> None:
    source, exported = torch_directory(kind), onnx_directory(kind)
    assert exported.is_onnx and exported.is_classifier
    assert exported.labels == source.labels and exported.task == source.task
    assert exported.parameters == sum(parameter.numel() for parameter in source.load().parameters())
    assert exported.config["problem_type"] == "single_label_classification"
    assert not {"auto_map", "kept_heads"} & set(exported.config)
    assert not list(exported.path.glob("*.py"))
    family = family_of(kind)
    assert AutoConfig.from_pretrained(exported.path).model_type == family
    settings = json.loads((exported.path / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] != "TokenizersBackend"
    # A client feeds what the tokenizer gives: exactly the graph's inputs.
    encoded = AutoTokenizer.from_pretrained(exported.path)(["the film is good", "dull"], padding=True)
    graph = onnx.load(str(exported.path / "model.onnx")).graph
    assert set(encoded) == {argument.name for argument in graph.input}
    assert [dim.dim_param for dim in graph.input[0].type.tensor_type.shape.dim] == ["batch", "length"]
    before, after = source.tokenizer, exported.tokenizer
    texts = ["The film, is GOOD!", "unknowable 42 . ü"]
    assert before(texts)["input_ids"] == after(texts)["input_ids"]


@pytest.mark.parametrize("kind", ["albert", "pruned-albert"])
def test_a_shared_layer_is_stored_once(kind: str) -> None:
    graph = onnx.load(str(onnx_directory(kind).path / "model.onnx")).graph
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer]
    contents = [(array.dtype.str, array.shape, array.tobytes()) for array in arrays]
    assert len(set(contents)) == len(contents)
    widened = [array for array in arrays if array.shape == (32, 64 if kind == "albert" else 44)]
    assert len(widened) == 1


def write_graph(model: Any, folder: Path) -> None:
    model.config.save_pretrained(folder)
    source = SimpleNamespace(config=model.config.to_dict(), path=folder)
    exporter_for(source).function(model, folder / "model.onnx")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["albert", "bert", "pruned-deberta-v2", "modernbert", "pruned-mpnet"])
def test_the_model_is_left_as_it_was(kind: str, tmp_path: Path) -> None:
    family = kind.removeprefix("pruned-")
    changes = {"hidden_act": "relu"} if kind == "bert" else {}  # traced here: the other graphs may be known
    model = (pruned(family, neurons=True) if family != kind else classifier(kind, **changes)).train()
    inputs = padded_example(model, 2, 6)
    implementation = model.config._attn_implementation
    with torch.no_grad():
        before = model.eval()(**inputs).logits
        model.train()
        write_graph(model, tmp_path)
        assert model.config._attn_implementation == implementation
        assert all(module.training for module in model.modules())
        assert torch.equal(model.eval()(**inputs).logits, before)
        replaced = {"forward", "get_attention_mask", "get_rel_pos", "compute_position_bias"}
        assert not [module for module in model.modules() if replaced & set(vars(module))]


def test_only_inputs_in_use_are_inputs_of_the_graph() -> None:
    for family in ("albert", "bert", "electra", "mobilebert"):
        assert input_names(classifier(family)) == ("input_ids", "attention_mask", "token_type_ids")
    for family in ("deberta-v2", "distilbert", "modernbert", "mpnet", "roberta", "xlm-roberta"):
        assert input_names(classifier(family)) == ("input_ids", "attention_mask")


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "convolution-and-projections-of-positions": (
        "deberta-v2",
        {"conv_kernel_size": 3, "conv_act": "gelu", "share_att_key": False, "position_buckets": 16},
    ),
    # All layers read the same positions.
    "p2c": ("deberta-v2", {"layers": 1, "share_att_key": False, "pos_att_type": "p2c", "norm_rel_ebd": "none"}),
    "c2p-without-buckets": ("deberta-v2", {"layers": 1, "pos_att_type": ["c2p"], "position_buckets": -1}),
    "far-positions": ("deberta-v2", {"layers": 1, "position_buckets": -1, "max_relative_positions": 8}),
    "absolute": (
        "deberta-v2",
        {"layers": 1, "relative_attention": False, "position_biased_input": True, "type_vocab_size": 2},
    ),
    "all-global-mean-and-biases": (
        "modernbert",
        {"global_attn_every_n_layers": 1, "classifier_pooling": "mean", "attention_bias": True, "mlp_bias": True},
    ),
    "odd-windows-only": ("modernbert", {"layer_types": ["sliding_attention"] * 2, "local_attention": 5}),
    "angles": (
        "modernbert",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
                "sliding_attention": {"rope_type": "linear", "factor": 2.0},
            }
        },
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_configurations_that_change_the_attention(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    model = pruned(family, neurons=True, **changes)
    write_graph(model, tmp_path)
    assert operator_counts(tmp_path / "model.onnx")["MultiHeadAttention"] == changes.get("layers", LAYERS)
    start = plugins.find("runtimes", "onnxruntime").function(tmp_path, threads=1, device="cpu")
    for rows, length in SHAPES:
        inputs = dict(padded_example(model, rows, length))
        with torch.no_grad():
            expected = model(**inputs).logits.numpy()
        found = start({name: value.numpy() for name, value in inputs.items()})
        np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)


def test_distances_beyond_the_last_bucket_are_those_of_torch(tmp_path: Path) -> None:
    model = classifier("deberta-v2")
    write_graph(model, tmp_path)
    start = plugins.find("runtimes", "onnxruntime").function(tmp_path, threads=1, device="cpu")
    inputs = dict(padded_example(model, 2, 3 * model.config.max_position_embeddings))
    with torch.no_grad():
        expected = model(**inputs).logits.numpy()
    found = start({name: value.numpy() for name, value in inputs.items()})
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)


def test_angles_that_depend_on_the_length_are_refused(tmp_path: Path) -> None:
    angles = {"rope_type": "dynamic", "factor": 4.0}
    model = classifier("modernbert", rope_parameters={"full_attention": angles, "sliding_attention": angles})
    source = write(tmp_path / "model", model, "modernbert")
    with pytest.raises(CompressError, match="rope_type 'dynamic' turns queries and keys by other angles.*torch"):
        export(source, tmp_path / "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    config = json.loads((source / "config.json").read_text())
    plain = {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in config["rope_parameters"]}
    of_both = config | {"rope_parameters": plain, "rope_scaling": angles}
    (source / "config.json").write_text(json.dumps(of_both))  # transformers reads the older name too
    with pytest.raises(NoGraph, match="'dynamic'"):
        exporter_for(Model.open(source, verify=False))
    (source / "config.json").write_text(json.dumps(config | {"rope_parameters": plain}))
    assert exporter_for(Model.open(source, verify=False)).name == "modernbert"


def test_regression_and_unnamed_problem_types(tmp_path: Path) -> None:
    model = classifier("bert", labels=("score",))
    exported = export(write(tmp_path / "model", model), tmp_path / "onnx")
    assert exported.task == "regression" and exported.config["problem_type"] == "regression"
    model.config.problem_type = None
    assert stock_config(model.config).problem_type == "regression"
    unnamed = classifier("bert").config
    unnamed.problem_type = None
    assert stock_config(unnamed).problem_type == "single_label_classification"


def test_an_untold_padding_token_and_length_of_a_bilstm(tmp_path: Path) -> None:
    config = stock_config(bilstm().config)
    assert config.model_type == "bert" and config.max_position_embeddings == 512
    of_roberta = bilstm().config
    of_roberta.base_model_type = "compress-pruned-roberta"
    assert stock_config(of_roberta).model_type == "roberta"
    of_roberta.base_model_type = "something-of-their-own"
    assert stock_config(of_roberta).architectures == ["BertForSequenceClassification"]


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    exported = onnx_directory("bert")
    with pytest.raises(CompressError, match="is an ONNX model already"):
        export(exported, tmp_path / "again")
    unknown = write(tmp_path / "unknown", classifier("bert"))
    config = json.loads((unknown / "config.json").read_text())
    (unknown / "config.json").write_text(json.dumps({**config, "model_type": "deberta"}))
    names = ", ".join(PRUNABLE)
    with pytest.raises(CompressError, match=f"'deberta' model, which compress cannot turn into ONNX.*{names} and"):
        export(unknown, tmp_path / "onnx")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    for manifest in (None, "{"):  # a damaged one is somebody's work too
        if manifest:
            (tmp_path / "taken" / "compress.json").write_text(manifest)
        with pytest.raises(CompressError, match="already exists"):
            export(torch_directory("bert"), tmp_path / "taken")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_wrong_graph_is_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = classifier("bert", seed=1)
    right = write(tmp_path / "model", classifier("bert", seed=0))
    exporter = plugins.find("exporters", "attention-interface").load()
    correct = exporter.export
    monkeypatch.setattr(exporter, "export", lambda model, path, **options: correct(wrong, path, **options))
    with pytest.raises(CompressError, match=r"differ by .* from torch at 1 x 5 tokens"):
        export(right, tmp_path / "onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_data_of_the_parent_is_inherited(tmp_path: Path) -> None:
    from compress.models.manifest import Manifest
    from compress.models.output_dir import finish

    directory = write(tmp_path / "model", classifier("distilbert"), "distilbert")
    data = ({"role": "train", "name": "train", "rows": 3, "sha256": "abc"},)
    finish(directory, Manifest(stage="finetune", labels=("negative", "positive"), data=data, seeds={"seed": 7}))
    exported = export(directory, tmp_path / "onnx")
    assert exported.manifest.data == data and exported.manifest.seeds == {"seed": 7}
    assert exported.manifest.parents[0]["sha256"] == Model.open(directory).sha256


def test_a_full_disk_is_not_blamed_on_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(model: object, path: Path) -> None:
        raise RuntimeError("the exporter failed") from OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr("compress.exporting.export.exporter_for", lambda source: SimpleNamespace(function=fill))
    with pytest.raises(RuntimeError) as raised:  # the command line has a sentence for the cause
        export(torch_directory("bert"), tmp_path / "onnx")
    assert system_fault(raised.value) == errno.EFBIG


@pytest.mark.parametrize(
    "raised", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")]
)
def test_too_little_memory_is_no_fault_of_the_model(
    raised: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search would keep the fault and never try the shape again."""

    def fail(model: object, path: Path) -> None:
        raise raised

    monkeypatch.setattr("compress.exporting.export.exporter_for", lambda source: SimpleNamespace(function=fail))
    with pytest.raises(type(raised)) as caught:
        export(torch_directory("bert"), tmp_path / "onnx")
    assert system_fault(caught.value) == errno.ENOMEM


def test_an_interruption_that_an_exporter_wraps_is_no_fault_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: object, path: Path) -> None:
        interruptions.append(2)
        raise RuntimeError("KeyboardInterrupt: <EMPTY MESSAGE>")

    monkeypatch.setattr("compress.exporting.export.exporter_for", lambda source: SimpleNamespace(function=fail))
    try:
        with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
            export(torch_directory("bert"), tmp_path / "onnx")
    finally:
        interruptions.clear()


def test_an_exporter_that_fails_without_words_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: object, path: Path) -> None:
        raise NotImplementedError

    monkeypatch.setattr("compress.exporting.export.exporter_for", lambda source: SimpleNamespace(function=fail))
    with pytest.raises(CompressError, match="cannot be exported to ONNX: NotImplementedError$"):
        export(torch_directory("bert"), tmp_path / "onnx")
