"""Teachers of every kind go through the commands, or are refused with a sentence that names the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from compress.cli import execute
from compress.data import Example
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import Model
from compress.models.saving import save_model
from tests.cli.test_cli import Desk
from tests.cli.test_foreign_code import TAKES, command, edit
from tests.support import tiny
from tests.support.training_data import labelled_file

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


def vocabulary_alone(path: Path) -> None:
    """As BERT's first checkpoints have it: a list of word pieces, and no tokenizer.json."""
    vocabulary = json.loads((path / "tokenizer.json").read_text())["model"]["vocab"]
    (path / "tokenizer.json").unlink()
    (path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in sorted(vocabulary, key=vocabulary.get)))


def python_tokenizer(path: Path) -> None:
    vocabulary_alone(path)
    edit(path / "tokenizer_config.json", tokenizer_class="BertJapaneseTokenizer", word_tokenizer_type="basic")


def with_labels(*labels: str, named: bool = True) -> Callable[[Path], None]:
    def store(path: Path) -> None:
        shutil.rmtree(path)
        tiny.write(path, tiny.classifier("bert", labels=labels))
        if not named:
            without_label_names(path)
            edit(path / "config.json", num_labels=len(labels), problem_type=None)

    return store


def one_label_or_none(path: Path) -> None:
    edit(path / "config.json", problem_type="multi_label_classification", id2label={"0": "toxic"})


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
    "a vocabulary alone": vocabulary_alone,
    "labels without names": without_label_names,
    "one score without a name": with_labels("score", named=False),
    "10,000 labels": with_labels(*(f"class {number}" for number in range(10_000))),
}
# Kind -> how it is made, and what is said of it.
REFUSED = {
    "one label or none": (one_label_or_none, "has one label that a text has or not"),
    "labels with gaps": (gaps_in_labels, "numbered from 0"),
    "no padding token": (no_padding_token, "has no padding token"),
    "ids beyond the embeddings": (more_ids_than_embeddings, "copy the tokenizer that belongs to these weights"),
    "a tokenizer in Python": (python_tokenizer, "has a tokenizer in Python alone (BertJapaneseTokenizer)"),
    "infinite weights": (infinite, "weights that are not finite numbers (classifier.bias)"),
}
# What reads the encoder of a refused teacher alone.
ANOTHER_USE = {
    *((kind, "audit") for kind in ("one label or none", "infinite weights")),
    *(("one label or none", name) for name in ("finetune", "pretrain")),
}
# Kinds that can only teach: they label and predict.
TEACHES = {
    "gpt2": of_family("gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "qwen2": of_family("qwen2", **SHAPE, num_key_value_heads=2, max_position_embeddings=64),
    "llama": of_family("llama", **SHAPE, num_key_value_heads=2, max_position_embeddings=64),
    "t5": of_family(
        "t5", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, eos_token_id=3, decoder_start_token_id=0
    ),
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


def label_rows(desk: Desk, model: Path) -> None:
    """Write labelled rows of a model's own labels, or of scores, for the commands that read such."""
    opened = Model.open(model)
    for role in ("train", "validation"):
        rows = [Example(f"{role} {tiny.GOOD[number % 8]} {number}") for number in range(16)]
        labels = [
            str(number / 7) if opened.task == "regression" else opened.labels[number * 617 % len(opened.labels)]
            for number in range(16)
        ]
        labelled = [replace(row, label=label) for row, label in zip(rows, labels, strict=True)]
        labelled_file(getattr(desk, role), labelled)


def run(name: str, desk: Desk, model: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    for left in (desk.out, desk.out.with_name(".out.partial")):
        shutil.rmtree(left, ignore_errors=True)
    words = command(desk, name, model)
    code = execute([*words, "--no-measure"] if name == "prune" else words)
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
    label_rows(desk, model)
    for name in COMMANDS:
        code, said = run(name, desk, model, capsys)
        assert code == 0, f"{name}: {said}"
        if name == "distill":
            assert Model.open(desk.out).labels == Model.open(model).labels


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
    for name in TAKES:
        if (kind, name) in ANOTHER_USE:
            continue
        code, said = run(name, desk, model, capsys)
        assert (code, said[:7]) == (2, "Error: "), name
        assert reason in said, name
        made = [path for path in desk.out.parent.rglob("*") if path.suffix in {".parquet", ".safetensors", ".onnx"}]
        assert not made, name


@pytest.mark.parametrize("kind", TEACHES)
def test_a_teacher_of_another_family_labels_or_is_refused(
    kind: str, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    model = desk.folder / "model"
    TEACHES[kind](model)
    codes = {name: run(name, desk, model, capsys) for name in COMMANDS}
    assert {codes["predict"][0], codes["label"][0]} == {0}, codes
    for name in ("prune", "quantize"):
        code, said = codes[name]
        assert code == 2 and "model, which compress cannot" in said or repr(kind) in said, codes
    assert codes["distill"][0] == 0 or codes["distill"][1].startswith("Error: "), codes


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ({"eos_token_id": 3}, "lacks decoder_start_token_id"),
        (
            {"eos_token_id": 1, "decoder_start_token_id": 0},
            "does not end a text with the token that this model answers at",
        ),
    ],
)
def test_a_sequence_to_sequence_teacher_without_a_beginning_or_an_end_is_refused(
    tokens: dict[str, int], reason: str, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    model = desk.folder / "model"
    of_family("t5", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, **tokens)(model)
    for name in ("predict", "label", "distill"):
        code, said = run(name, desk, model, capsys)
        assert code == 2 and reason in said, said


@pytest.mark.parametrize("kind", ["bart", "gpt2"])
def test_a_teacher_of_another_family_is_fine_tuned(kind: str, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    TEACHES[kind](desk.folder / "model")
    assert run("finetune", desk, desk.folder / "model", capsys)[0] == 0
    assert execute(["predict", "--model", str(desk.out), "a good film"]) == 0


@pytest.mark.parametrize("kind", TEACHES)
def test_texts_of_several_lengths_are_labelled_as_each_alone(
    kind: str, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    model = desk.folder / "model"
    TEACHES[kind](model)
    texts = [" ".join(tiny.PLAIN[(length + at) % 15] for at in range(length)) for length in (1, 40, 3, 17, 100, 8)]
    desk.pool.write_text("\n".join(texts) + "\n")
    assert run("label", desk, model, capsys)[0] == 0
    found = {example.text: logits for example, logits in LabelDir.open(desk.out)}
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForSequenceClassification.from_pretrained(model).eval()
    for text in texts:
        read = tokenizer(text, truncation=True, max_length=tiny.POSITIONS, return_tensors="pt")
        with torch.no_grad():
            expected = network(input_ids=read["input_ids"], attention_mask=read["attention_mask"]).logits[0].numpy()
        assert np.abs(found[text] - expected).max() < 1e-4, text
    assert len({tuple(np.round(logits, 3)) for logits in found.values()}) > 1
