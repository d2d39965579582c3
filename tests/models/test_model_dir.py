"""Model directories: written whole or not at all, and opened only when they are what they say."""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import load_file, save_file

from compress.errors import CompressError
from compress.files import write_atomically
from compress.models.manifest import Manifest, verify_files
from compress.models.model_dir import Model, parent_entry
from compress.models.output_dir import finish, writing
from tests.support.tiny import assert_reloaded, bilstm, classifier, load, onnx_directory, pruned, torch_directory, write

REQUEST = {"stage": "test", "seed": 0}


def make(target: Path, text: str = "first", **options: Any) -> None:
    with writing(target, REQUEST, **options) as working:
        (working / "result.txt").write_text(text)
        finish(working, Manifest(stage="test", kind="labels"))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def refused(target: Path, **options: Any) -> str:
    with pytest.raises(CompressError) as caught:
        make(target, **options)
    return str(caught.value)


# Writing


def test_a_directory_appears_when_everything_is_done(tmp_path: Path) -> None:
    with writing(tmp_path / "out", REQUEST) as working:
        (working / "result.txt").write_text("x")
        assert not (tmp_path / "out").exists() and working.parent == tmp_path
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == ["result.txt"]


def test_parents_are_made(tmp_path: Path) -> None:
    make(tmp_path / "a" / "b" / "out")
    assert (tmp_path / "a" / "b" / "out" / "result.txt").is_file()


def test_a_finished_directory_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "out")
    assert "already exists; choose another -o or replace it with --force" in refused(tmp_path / "out", text="second")
    assert (tmp_path / "out" / "result.txt").read_text() == "first" and names(tmp_path) == ["out"]


def test_an_empty_directory_may_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    make(tmp_path / "out")
    assert (tmp_path / "out" / "result.txt").is_file()


def test_unfinished_work_is_resumed_by_the_same_request(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "out", REQUEST) as working:
        (working / "half.txt").write_text("half")
        raise KeyboardInterrupt
    assert not (tmp_path / "out").exists()
    with writing(tmp_path / "out", dict(reversed(REQUEST.items()))) as working:
        assert (working / "half.txt").read_text() == "half"
    assert names(tmp_path / "out") == ["half.txt"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "folder")
    for place in ("file", "link"):
        wrong = pytest.raises(CompressError, match=f"{place}/out cannot be written .* choose another -o")
        with wrong, writing(tmp_path / place / "out", REQUEST):
            raise AssertionError("nothing is to be made here")


def test_the_request_is_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of it, the same command would take its own work for another's."""
    written: list[Path] = []
    original = Path.write_text
    monkeypatch.setattr(Path, "write_text", lambda self, *a, **n: (written.append(self), original(self, *a, **n))[1])
    with writing(tmp_path / "out", REQUEST) as working:
        (request,) = working.rglob("request.json")
        assert written and request not in written


def test_unfinished_work_of_another_request_is_refused_and_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "out", {"seed": 1}) as working:
        (working / "half.txt").write_text("half")
        raise KeyboardInterrupt
    message = refused(tmp_path / "out")
    assert "holds unfinished work of another command" in message and "--force" in message
    assert (working / "half.txt").is_file()
    make(tmp_path / "out", force=True)
    assert names(tmp_path / "out") == ["compress.json", "result.txt"] and names(tmp_path) == ["out"]


def test_another_request_begins_anew_where_nothing_was_made(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "out", {"seed": 1}):
        raise KeyboardInterrupt
    make(tmp_path / "out")
    assert names(tmp_path / "out") == ["compress.json", "result.txt"]


def test_a_users_mistake_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(CompressError), writing(tmp_path / "out", REQUEST):
        raise CompressError("no")
    assert names(tmp_path) == []


def test_a_mistake_that_shows_late_keeps_what_was_done(tmp_path: Path) -> None:
    with pytest.raises(CompressError), writing(tmp_path / "out", REQUEST) as working:
        (working / "shard").write_text("an hour's work")
        raise CompressError("no")
    assert (working / "shard").is_file()


def test_what_cannot_be_resumed_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "out", REQUEST, keep=False) as working:
        (working / "half").write_text("x")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_two_commands_do_not_write_one_directory(tmp_path: Path) -> None:
    with writing(tmp_path / "out", REQUEST) as working:
        (working / "mine").write_text("x")
        assert "another command is writing" in refused(tmp_path / "out")
        assert (working / "mine").is_file()
    assert names(tmp_path / "out") == ["mine"]


def test_temporary_files_of_a_killed_run_are_not_in_the_result(tmp_path: Path) -> None:
    with writing(tmp_path / "out", REQUEST) as working:
        (working / ".shard.json.123.tmp").write_text("ha")
        (working / "result.txt").write_text("x")
    assert names(tmp_path / "out") == ["result.txt"]


def test_a_text_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "a.json", "old")

    def full(self: Path, *arguments: Any, **named: Any) -> None:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "a.json", "new")
    assert names(tmp_path) == ["a.json"] and (tmp_path / "a.json").read_text(encoding="utf-8") == "old"


# The manifest


def full_manifest() -> Manifest:
    return Manifest(
        stage="prune",
        name="out",
        task="regression",
        labels=("é", "b"),
        architecture={"model_type": "bert", "parameters": 5, "heads_per_layer": [2, 3], "ffn_per_layer": [4]},
        parents=({"role": "teacher", "name": "t", "sha256": "0" * 64},),
        recipe={"heads": "60%"},
        data=({"role": "train", "name": "a", "rows": 3, "sha256": "1" * 64},),
        metrics=({"name": "accuracy", "value": 0.5, "split": "validation", "rows": 3},),
        notes={"n": None},
        seeds={"seed": 1},
    )


def test_a_manifest_survives_the_disk(tmp_path: Path) -> None:
    (tmp_path / "result.txt").write_text("x")
    written = finish(tmp_path, full_manifest())
    assert Manifest.read(tmp_path / "compress.json") == written
    assert written.files == {"result.txt": {"sha256": written.files["result.txt"]["sha256"], "size_bytes": 1}}
    assert written.versions["torch"] == version("torch") and written.host["cores"] >= 1
    assert dataclasses.replace(written, files={}, versions={}, host={}) == full_manifest()


def test_a_model_of_the_hub_is_called_as_there(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--owner--some-name" / "snapshots" / "95f0f6f85"
    shutil.copytree(torch_directory("bert").path, snapshot)
    assert Model.open(snapshot).name == "some-name"
    own = shutil.copytree(snapshot, tmp_path / "runs" / "snapshots" / "step-100")
    assert Model.open(own).name == "step-100"
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(CompressError, match="^some-name has neither model.safetensors nor model.onnx; pickled weights"):
        Model.open(snapshot)


def change(**keys: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda raw: {**raw, **keys}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change(format_version=2), "has format version 2; this compress reads version 1"),
        (change(colour="red"), r"has unknown keys \['colour'\]"),
        (change(labels=5), "is not a valid manifest"),
        (lambda raw: {k: v for k, v in raw.items() if k != "stage"}, "is not a valid manifest"),
        (change(architecture={"parameters": None}), "architecture is not a table whose parameters are a number"),
        (change(parents=[{"role": "teacher"}]), "parents is not a list of role, name and sha256"),
        (change(data=[{"role": "train", "name": "x.tsv"}]), "data is not a list of role, name and rows"),
        (
            change(metrics=[{"name": "accuracy", "value": "0.9", "split": "test", "rows": 3}]),
            "metrics is not a list of",
        ),
        (change(files={"../outside": {"sha256": 1}}), "files is not a table"),
        (lambda raw: [1], "holds no table"),
        (lambda raw: "cut", "holds no table"),
    ],
)
def test_damaged_manifests(damage: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    finish(tmp_path, full_manifest())
    file = tmp_path / "compress.json"
    file.write_text(json.dumps(damage(json.loads(file.read_text(encoding="utf-8")))))
    with pytest.raises(CompressError, match=message):
        Manifest.read(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b'{"format_version": 1,', "not valid JSON"), (b"\xff\xfe\x00", "not UTF-8"), (b"", "not valid JSON")],
)
def test_a_manifest_that_is_no_json(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "compress.json").write_bytes(content)
    with pytest.raises(CompressError, match=message):
        Manifest.read(tmp_path / "compress.json")


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "a/../../secret"])
def test_a_manifest_cannot_name_files_outside(name: str, tmp_path: Path) -> None:
    manifest = Manifest(stage="x", files={name: {"sha256": "0", "size_bytes": 1}})
    with pytest.raises(CompressError, match="lies outside the directory"):
        verify_files(tmp_path, manifest)


# Opening


@pytest.fixture
def model(teacher: Path, tmp_path: Path) -> Path:
    """A finished directory with a manifest."""
    shutil.copytree(teacher, tmp_path / "model")
    finish(tmp_path / "model", Manifest(stage="finetune", labels=("negative", "positive")))
    return tmp_path / "model"


def opening(path: Path | str, **options: Any) -> str:
    with pytest.raises(CompressError) as caught:
        Model.open(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_weights_of_a_graph_without_a_manifest_count(teacher: Path, tmp_path: Path) -> None:
    """As those that others export."""
    shutil.copytree(teacher, tmp_path / "onnx", ignore=shutil.ignore_patterns("*.safetensors"))
    constants = [numpy_helper.from_array(np.ones(shape, np.float32), f"w{shape}") for shape in ((3, 4), (5,))]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])
    graph = helper.make_graph([], "weights", [ids], [logits], constants)
    (tmp_path / "onnx" / "model.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    assert Model.open(tmp_path / "onnx").parameters == 17


def test_an_ordinary_hugging_face_directory_opens(teacher: Path) -> None:
    opened = Model.open(teacher)
    assert opened.manifest == Manifest(stage="") and opened.name == "tiny-bert"
    assert opened.labels == ("negative", "positive") and opened.task == "classification"
    assert opened.parameters == sum(p.numel() for p in opened.load().parameters())
    assert opened.size_bytes == (teacher / "model.safetensors").stat().st_size


def test_variants_of_the_weights_that_nobody_opens_do_not_count(teacher: Path, tmp_path: Path) -> None:
    """As in a repository of the hub that has its weights in half precision too."""
    plain = Model.open(teacher)
    shutil.copytree(teacher, tmp_path / "both")
    shutil.copy(teacher / "model.safetensors", tmp_path / "both" / "model.fp16.safetensors")
    both = Model.open(tmp_path / "both")
    assert (both.parameters, both.size_bytes) == (plain.parameters, plain.size_bytes)


@pytest.mark.parametrize("kind", ["bert", "pruned", "bilstm"])
def test_everything_reloads_with_its_tokenizer(kind: str, tmp_path: Path) -> None:
    made = {"bert": classifier, "pruned": pruned, "bilstm": bilstm}[kind]()
    model, tokenizer = load(write(tmp_path / kind, made))
    inputs = tokenizer(["the film is good", "dull"], padding=True, return_tensors="pt")
    assert_reloaded(made, model)
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits, made(**inputs).logits, atol=1e-6, rtol=1e-5)
    assert not model.training


def test_labels_come_in_the_order_of_the_logits(tmp_path: Path) -> None:
    labels = tuple(f"class {index}" for index in range(12))  # as text, "10" would sort before "2"
    assert Model.open(write(tmp_path / "m", classifier("bert", labels=labels))).labels == labels


def test_the_folder_one_is_in_has_a_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model)
    assert Model.open(".").name == "model"
    (model.parent / "latest").symlink_to("model")
    assert Model.open(model.parent / "latest").name == "latest"


def test_one_label_is_a_regression(tmp_path: Path) -> None:
    assert Model.open(write(tmp_path / "m", classifier("bert", labels=("score",)))).task == "regression"


def test_the_fingerprint_follows_the_files(model: Path, teacher: Path) -> None:
    before = Model.open(model).sha256
    assert parent_entry("teacher", Model.open(model)) == {"role": "teacher", "name": "model", "sha256": before}
    assert before == Model.open(teacher).sha256  # the manifest and the card do not count
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "id2label": {"0": "positive", "1": "negative"}}))
    (model / "compress.json").unlink()
    assert Model.open(model).sha256 != before


def test_a_file_that_is_not_the_one_of_the_manifest(model: Path) -> None:
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    assert "model.safetensors is not the file that compress.json names (its hash differs)" in opening(model)
    assert Model.open(model, verify=False).manifest.stage


def test_a_file_that_is_gone(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert "lacks tokenizer.json, which its compress.json names" in opening(model)


def truncated(path: Path) -> None:
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])


def long_header(path: Path) -> None:
    (path / "model.safetensors").write_bytes(struct.pack("<Q", 10**12) + b"{}")


def pickled(path: Path) -> None:
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def headless(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "it is corrupt or cut short"),
        (long_header, "it is corrupt or cut short"),
        (lambda path: (path / "model.safetensors").write_bytes(b""), "is corrupt or cut short"),
        (pickled, "holds pickled weights (pytorch_model.bin), which can run code when opened"),
        (lambda path: (path / "model.safetensors").unlink(), "has neither model.safetensors nor model.onnx"),
        (lambda path: (path / "config.json").unlink(), "is not a model directory: it has no config.json"),
        (lambda path: (path / "config.json").write_text("{"), "config.json is not valid JSON"),
        (lambda path: (path / "config.json").write_text("[]"), "it holds no table"),
        (headless, "is not a sequence classifier or a tagger of words (its architecture: BertModel)"),
    ],
)
def test_damaged_directories(damage: Callable[[Path], Any], message: str, teacher: Path, tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copytree(teacher, path)
    damage(path)
    assert message in opening(path)


def test_an_encoder_opens_where_no_classifier_is_needed(teacher: Path, tmp_path: Path) -> None:
    shutil.copytree(teacher, tmp_path / "encoder")
    headless(tmp_path / "encoder")
    assert not Model.open(tmp_path / "encoder", classifier=False).is_classifier


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_weights_without_their_scales_are_refused(kind: torch.dtype, teacher: Path, tmp_path: Path) -> None:
    shutil.copytree(teacher, tmp_path / "model")
    weights = load_file(teacher / "model.safetensors")
    weights["classifier.weight"] = (weights["classifier.weight"] * 100).to(kind)
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CompressError, match=r"quantized by another library \(classifier.weight\)"):
        Model.open(tmp_path / "model")


def test_large_numbers_that_size_nothing_and_large_files_that_nothing_reads_are_no_fault(
    teacher: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(teacher, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rope_theta": 10_000_000, "seed": 1_234_567_890}))
    (model / "checkpoint-9").mkdir()
    for name in ("corpus.txt", "checkpoint-9/trainer_state.json"):
        with (model / name).open("wb") as handle:
            handle.truncate(2**27)
    assert Model.open(model).load()
    (model / "vocab.txt").write_bytes(b"")
    with (model / "vocab.txt").open("wb") as handle:
        handle.truncate(2**27)
    with pytest.raises(CompressError, match="vocab.txt has 134,217,728 bytes; at most 67,108,864 are read"):
        Model.open(model)


def test_weights_that_do_not_fit_the_config(teacher: Path, tmp_path: Path) -> None:
    shutil.copytree(teacher, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    with pytest.raises(CompressError, match="or in another shape"):
        load(tmp_path / "model")


def test_missing_weights_are_not_made_up(teacher: Path, tmp_path: Path) -> None:
    """transformers fills a weight that is not in the file at random, with a warning that nobody reads."""
    shutil.copytree(teacher, tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CompressError, match="classifier.weight"):
        load(tmp_path / "model")


def test_a_directory_without_a_tokenizer(teacher: Path, tmp_path: Path) -> None:
    shutil.copytree(teacher, tmp_path / "model", ignore=shutil.ignore_patterns("tokenizer*", "vocab*", "special*"))
    with pytest.raises(CompressError, match="has no tokenizer"):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("./missing", "does not exist; give a model directory or a Hugging Face name"),
        ("/no/such/model", "does not exist; give a model directory or a Hugging Face name"),
        ("someone/some-model", "neither a directory here nor a model that the Hugging Face hub gave"),
        ("a b c", "neither a directory here nor a model that the Hugging Face hub gave"),
    ],
)
def test_nothing_is_there(path: str, message: str) -> None:
    assert message in opening(path)


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    assert "is a file; a model is a directory with config.json" in opening(tmp_path / "model.safetensors")


def test_labels_are_not_a_model(tmp_path: Path) -> None:
    make(tmp_path / "labels")
    assert (
        "is a directory of labels, not a model; 'compress distill' and 'compress prune' take it as --labels"
        in opening(tmp_path / "labels")
    )


def test_an_onnx_directory_cannot_be_trained() -> None:
    opened = onnx_directory("bert")
    assert opened.is_onnx and opened.size_bytes == (opened.path / "model.onnx").stat().st_size
    with pytest.raises(CompressError, match="is an ONNX model, which cannot be trained or pruned"):
        opened.load()


@pytest.mark.parametrize("name", ["config_setfit.json", "model_head.pkl"])
def test_setfit_model_is_named_with_its_use_as_a_teacher(name: str, teacher: Path, tmp_path: Path) -> None:
    shutil.copytree(teacher, tmp_path / "model")
    (tmp_path / "model" / name).write_bytes(b"{}")
    with pytest.raises(CompressError, match="is a SetFit model, .* 'compress labels import TABLE"):
        Model.open(tmp_path / "model")
    assert Model.open(tmp_path / "model", classifier=False).path == tmp_path / "model"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("minilm-l6", "compress finetune --teacher minilm-l6 --train FILE --validation FILE -o NEW"),
        ("cnn", "compress distill --teacher DIR --student cnn --unlabeled FILE -o NEW"),
    ],
)
def test_the_name_of_a_recipe_is_no_model(name: str, command: str) -> None:
    with pytest.raises(CompressError) as raised:
        Model.open(name)
    assert f"make the model with '{command}' and give NEW" in str(raised.value)


def test_a_directory_called_as_a_recipe_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "cnn", classifier("bert"))
    monkeypatch.chdir(tmp_path)
    assert Model.open("cnn").labels == ("negative", "positive")
