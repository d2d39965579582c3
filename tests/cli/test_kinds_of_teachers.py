"""Teachers of every kind go through the commands, or are refused with a sentence that names the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification

from compress.cli import execute
from compress.models.saving import save_model
from tests.cli.test_cli import Desk
from tests.cli.test_foreign_code import edit
from tests.support import tiny

COMMANDS = ("predict", "label", "distill", "prune", "quantize")
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def in_precision(dtype: torch.dtype) -> Callable[[Path], None]:
    def store(path: Path) -> None:
        weights = load_file(path / "model.safetensors")
        save_file(
            {name: weight.to(dtype) for name, weight in weights.items()}, path / "model.safetensors", {"format": "pt"}
        )
        edit(path / "config.json", dtype=str(dtype).removeprefix("torch."))

    return store


def in_shards(path: Path) -> None:
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    places = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(weights)}
    for file in sorted(set(places.values())):
        save_file({name: weights[name] for name in weights if places[name] == file}, path / file, {"format": "pt"})
    edit(path / "model.safetensors.index.json", metadata={"total_size": 1}, weight_map=places)


def without_label_names(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    del config["id2label"], config["label2id"]
    (path / "config.json").write_text(json.dumps(config))


def several_labels(path: Path) -> None:
    edit(path / "config.json", problem_type="multi_label_classification")


def gaps_in_labels(path: Path) -> None:
    edit(path / "config.json", id2label={"0": "negative", "7": "positive"})


def no_padding_token(path: Path) -> None:
    settings = json.loads((path / "tokenizer_config.json").read_text())
    settings.pop("pad_token")
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


def more_ids_than_embeddings(path: Path) -> None:
    content = json.loads((path / "tokenizer.json").read_text())
    content["model"]["vocab"]["##beyond"] = len(content["model"]["vocab"]) + 50
    (path / "tokenizer.json").write_text(json.dumps(content))


def infinite(path: Path) -> None:
    weights = load_file(path / "model.safetensors")
    weights["classifier.bias"][0] = torch.inf
    save_file(weights, path / "model.safetensors", {"format": "pt"})


def of_family(kind: str, **sizes: Any) -> Callable[[Path], None]:
    def store(path: Path) -> None:
        shutil.rmtree(path)
        tokenizer = tiny.tokenizer("bert")
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            kind,
            vocab_size=len(tokenizer) + 8,
            pad_token_id=tokenizer.pad_token_id,
            id2label=dict(enumerate(tiny.LABELS)),
            problem_type="single_label_classification",
            **sizes,
        )
        save_model(AutoModelForSequenceClassification.from_config(config).eval(), tokenizer, path)

    return store


WORKS = {
    "bfloat16 weights": in_precision(torch.bfloat16),
    "float16 weights": in_precision(torch.float16),
    "sharded weights": in_shards,
}
# Kind -> how it is made, and what is said of it.
REFUSED = {
    "several labels a text": (several_labels, "gives a text several labels"),
    "labels with gaps": (gaps_in_labels, "numbered from 0"),
    "no padding token": (no_padding_token, "has no padding token"),
    "ids beyond the embeddings": (more_ids_than_embeddings, "copy the tokenizer that belongs to these weights"),
    "infinite weights": (infinite, "weights that are not finite numbers (classifier.bias)"),
}
# Kinds that can only teach: they label and predict.
TEACHES = {
    "gpt2": of_family("gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "qwen2": of_family("qwen2", **SHAPE, num_key_value_heads=2, max_position_embeddings=64),
    "xlnet": of_family("xlnet", d_model=32, n_layer=2, n_head=4, d_inner=64),
    "bart": of_family(
        "bart",
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
        eos_token_id=3,
    ),
}


def run(command: str, desk: Desk, model: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    option = "teacher" if command in {"label", "distill"} else "model"
    for left in (desk.out, desk.out.with_name(".out.partial")):
        shutil.rmtree(left, ignore_errors=True)
    code = execute(desk.command(command, **{option: model}))
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return code, said.strip().splitlines()[-1] if said.strip() else ""


@pytest.fixture
def desk(tmp_path: Path, teacher: Path) -> Desk:
    shutil.copytree(teacher, tmp_path / "model")
    return Desk(tmp_path, teacher)


@pytest.mark.parametrize("kind", WORKS)
def test_a_teacher_goes_through_every_command(kind: str, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    model = desk.folder / "model"
    WORKS[kind](model)
    for command in COMMANDS:
        code, said = run(command, desk, model, capsys)
        assert code == 0, f"{command}: {said}"


def test_labels_without_names_are_numbered(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    model = desk.folder / "model"
    without_label_names(model)
    assert execute(["predict", "--model", str(model), "a good film"]) == 0
    assert json.loads(capsys.readouterr().out)["label"] in {"LABEL_0", "LABEL_1"}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_teacher_is_refused_by_name(kind: str, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    make, reason = REFUSED[kind]
    model = desk.folder / "model"
    make(model)
    for command in COMMANDS:
        code, said = run(command, desk, model, capsys)
        assert (code, said[:7]) == (2, "Error: "), command
        assert reason in said, command


@pytest.mark.parametrize("kind", TEACHES)
def test_a_teacher_of_another_family_labels_or_is_refused(
    kind: str, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    model = desk.folder / "model"
    TEACHES[kind](model)
    codes = {command: run(command, desk, model, capsys) for command in COMMANDS}
    assert {codes["predict"][0], codes["label"][0]} == {0}, codes
    for command in ("prune", "quantize"):
        code, said = codes[command]
        assert code == 2 and "model, which compress cannot" in said or repr(kind) in said, codes
    assert codes["distill"][0] == 0 or codes["distill"][1].startswith("Error: "), codes
