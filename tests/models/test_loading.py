"""Configs that transformers takes: what only says how a network answers is set right, the rest is one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from compress.cli import execute
from compress.errors import CompressError
from compress.inference.predict import load
from compress.models.model_dir import Model
from compress.models.saving import save_model
from tests.fuzzing.kinds.configs import ODD
from tests.support import tiny


def edited(folder: Path, **changes: Any) -> Path:
    directory = folder / "model"
    shutil.copytree(tiny.torch_directory("bert").path, directory, dirs_exist_ok=True)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    return directory


@pytest.mark.parametrize(
    "changes",
    [{"return_dict": False}, {"chunk_size_feed_forward": 3}, {"output_attentions": True, "output_hidden_states": True}],
)
def test_how_a_network_answers_changes_no_answer(changes: dict[str, Any], tmp_path: Path) -> None:
    texts = ["a good film, and quite a long one", "bad"]
    assert load(edited(tmp_path, **changes)).predict(texts) == load(tiny.torch_directory("bert")).predict(texts)


def test_network_that_does_not_run_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="model cannot be run as a model .*correct its config.json"):
        Model.open(edited(tmp_path, num_attention_heads=-2)).load()


@pytest.mark.parametrize("key", ODD)
def test_odd_value_is_no_fault_of_compress(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for value in ODD[key]:
        code = execute(["predict", "--model", str(edited(tmp_path, **{key: value})), "a good film"])
        said = capsys.readouterr().err
        assert code in (0, 2) and "fault of compress" not in said, (value, said)


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_sequence_to_sequence_classifier_without_padding_token(kind: str, tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer("bert")
    sizes = {
        "bart": {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
        "t5": {"d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 4},
    }
    config = AutoConfig.for_model(
        kind,
        vocab_size=len(tokenizer),
        d_model=32,
        pad_token_id=0,
        eos_token_id=tokenizer.sep_token_id,
        decoder_start_token_id=0,
        id2label=dict(enumerate(tiny.LABELS)),
        **sizes[kind],
    )
    torch.manual_seed(0)
    save_model(AutoModelForSequenceClassification.from_config(config).eval(), tokenizer, tmp_path)
    assert load(tmp_path).predict(["a good film"])[0]["label"] in tiny.LABELS
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token_id": None}))
    with pytest.raises(CompressError, match="pad_token_id has to be defined"):
        load(tmp_path)


def test_a_tokenizer_reads_no_vocabulary_of_another_place(tmp_path: Path) -> None:
    directory = edited(tmp_path)
    (tmp_path / "secret.txt").write_text("\n".join(["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "secret"]))
    definition = json.loads((directory / "tokenizer.json").read_text())
    definition["model"]["vocab"] = str(tmp_path / "secret.txt")
    (directory / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(CompressError, match="tokenizer.json names a file in place of its vocabulary"):
        Model.open(directory).tokenizer.get_vocab()
