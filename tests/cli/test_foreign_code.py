"""No command runs code that lies in a model directory, opens a pickle, or reads weights of elsewhere."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification

from compress.cli import execute
from compress.errors import CompressError
from compress.models.encoders import encoder_of
from compress.models.loading import load_network
from compress.models.manifest import Manifest
from compress.models.model_dir import Model
from compress.models.output_dir import finish
from tests.cli.test_cli import Desk
from tests.support.training_data import STUDY_HEAD, write_study_data

CANARY = "from pathlib import Path\nPath({path!r}).write_text('ran')\n"


class Bomb:
    """Writes the canary when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, (CANARY.format(path=str(self.path)),)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.is_file() else {}), **changes}))


def own_model(path: Path, canary: Path) -> None:
    """A model type that transformers does not have, with the code that would be it."""
    names = {"AutoConfig": "own.OwnConfig", "AutoModelForSequenceClassification": "own.OwnModel"}
    edit(path / "config.json", model_type="own", auto_map=names)
    (path / "own.py").write_text(CANARY.format(path=str(canary)))


def own_code_for_a_known_model(path: Path, canary: Path) -> None:
    edit(path / "config.json", auto_map={"AutoModelForSequenceClassification": "own.OwnModel"})
    edit(path / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizer"]})
    (path / "own.py").write_text(CANARY.format(path=str(canary)))


def own_tokenizer(path: Path, canary: Path) -> None:
    edit(
        path / "tokenizer_config.json",
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": [None, "own.OwnTokenizer"]},
    )
    (path / "own.py").write_text(CANARY.format(path=str(canary)))


def pickled(path: Path, canary: Path) -> None:
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(canary)))


def pickle_in_the_index(path: Path, canary: Path) -> None:
    pickled(path, canary)
    edit(path / "model.safetensors.index.json", metadata={}, weight_map={"classifier.bias": "pytorch_model.bin"})


def kernels(path: Path, canary: Path) -> None:
    edit(path / "config.json", attn_implementation="somebody/kernel")


def quantized(path: Path, canary: Path) -> None:
    edit(path / "config.json", quantization_config={"quant_method": "quanto"})


def adapter(path: Path, canary: Path) -> None:
    edit(path / "adapter_config.json", base_model_name_or_path="somebody/model", peft_type="LORA")


def weights_of_elsewhere(path: Path, canary: Path) -> None:
    (path / "model.safetensors").rename(path.parent / "outside.safetensors")
    edit(path / "model.safetensors.index.json", metadata={}, weight_map={"classifier.bias": "../outside.safetensors"})


def link_to_elsewhere(path: Path, canary: Path) -> None:
    (path / "model.safetensors").rename(path.parent / "outside.safetensors")
    (path / "model.safetensors").symlink_to(path.parent / "outside.safetensors")


REFUSED: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "a model of its own": (own_model, "needs Python code of its own"),
    "a pickle": (pickled, "holds pickled weights"),
    "a pickle in the index": (pickle_in_the_index, "no safetensors file of the directory"),
    "kernels to fetch": (kernels, "names kernels to fetch"),
    "another library's weights": (quantized, "quantized by another library"),
    "an adapter": (adapter, "holds an adapter"),
    "weights of elsewhere": (weights_of_elsewhere, "no safetensors file of the directory"),
    "a link to elsewhere": (link_to_elsewhere, "outside the model directory"),
}
# Command -> the option that names the model.
TAKES = {
    "label": "teacher",
    "finetune": "teacher",
    "distill": "teacher",
    "prune": "model",
    "quantize": "model",
    "export": "model",
    "predict": "model",
    "benchmark": "model",
    "heads": "model",
    "pretrain": "encoder",
    "audit": "encoder",
    "run": "teacher",
}


def command(desk: Desk, name: str, model: Path) -> list[str]:
    if name == "heads":
        words = ["heads", "--model", str(model), "--train", str(desk.train), "-o", str(desk.out)]
        return [*words, "--validation", str(desk.validation)]
    if name == "audit":
        return ["audit", "--encoder", str(model), "--train", str(desk.train), "-o", str(desk.out)]
    if name == "pretrain":
        words = ["pretrain", "--student", "pd", "--unlabeled", str(desk.pool), "-o", str(desk.out)]
        return [*words, "--encoder", str(model)]
    if name == "run":
        return study(desk, model)
    return desk.command(name, **{TAKES[name]: model})


def study(desk: Desk, model: Path) -> list[str]:
    data, models, recipe = desk.folder / "data", desk.folder / "models", desk.folder / "study.toml"
    if not recipe.exists():
        write_study_data(data, models)
        recipe.write_text(f'title = "a"\ndescription = "b"\n{STUDY_HEAD}[[students]]\nrecipe = "{desk.student}"\n')
    roots = ["--data-root", str(data), "--model-root", str(models)]
    return ["run", str(recipe), *roots, "--teacher", str(model), "-o", str(desk.out)]


@pytest.mark.parametrize("name", TAKES)
@pytest.mark.parametrize("trap", REFUSED)
def test_every_command_refuses_what_would_run_or_read_something_else(
    trap: str,
    name: str,
    tmp_path: Path,
    teacher: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(tmp_path, teacher)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))  # transformers would ask
    lay, sentence = REFUSED[trap]
    model, canary = tmp_path / "model", tmp_path / "canary"
    shutil.copytree(teacher, model)
    lay(model, canary)
    words = command(desk, name, model)
    capsys.readouterr()  # of models that a study needs
    assert execute(words) == 2
    said = capsys.readouterr().err
    assert not canary.exists()
    assert sentence in said
    assert said.splitlines()[-1].startswith("Error: ")
    assert trap != "a model of its own" or said.count("\n") == 1  # before any work


@pytest.mark.parametrize("name", ["label", "finetune", "distill", "predict"])
@pytest.mark.parametrize("lay", [own_code_for_a_known_model, own_tokenizer])
def test_a_known_model_runs_without_the_code_beside_it(
    lay: Callable[[Path, Path], None], name: str, tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path, teacher)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    model, canary = tmp_path / "model", tmp_path / "canary"
    shutil.copytree(teacher, model)
    lay(model, canary)
    assert execute(command(desk, name, model)) in {0, 2}
    assert not canary.exists()


@pytest.mark.parametrize("trap", REFUSED)
def test_the_loader_itself_runs_and_reads_nothing_else(trap: str, tmp_path: Path, teacher: Path) -> None:
    """Without the checks of options and directories before it."""
    model, canary = tmp_path / "model", tmp_path / "canary"
    shutil.copytree(teacher, model)
    REFUSED[trap][0](model, canary)
    with pytest.raises(CompressError):
        load_network(AutoModelForSequenceClassification, model)
    assert not canary.exists()


@pytest.mark.parametrize("package", ["canary_package", "canary_package.inner", "../canary_package"])
def test_a_package_that_a_manifest_names_is_not_imported(
    package: str, tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "canary_package" / "inner").mkdir(parents=True)
    for folder in ("canary_package", "canary_package/inner"):
        (tmp_path / folder / "__init__.py").write_text(CANARY.format(path=str(canary)))
    monkeypatch.syspath_prepend(str(tmp_path))
    model = tmp_path / "model"
    shutil.copytree(teacher, model)
    finish(model, Manifest(stage="finetune", recipe={"package": package, "package_folder": "model"}))
    with pytest.raises(CompressError, match="needs the package"):
        encoder_of(Model.open(model))
    assert not canary.exists()


def test_the_name_of_a_result_is_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gate opens no model, whatever lies in the current folder under the name of a result."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cnn").mkdir()
    own_model(tmp_path / "cnn", tmp_path / "canary")
    assert execute(["check", "missing.jsonl", "--model", "cnn", "--max-accuracy-drop", "1"]) == 2
    assert "missing.jsonl does not exist" in capsys.readouterr().err
