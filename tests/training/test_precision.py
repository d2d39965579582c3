"""Precision of trainings: bfloat16 where it is faster and the model computes in it, else float32, and it is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    CanineConfig,
    DebertaConfig,
    PretrainedConfig,
    ReformerConfig,
    T5Config,
)

from compress.errors import CompressError
from compress.inference import compute
from compress.models.model_dir import Model
from compress.training.teacher_signal import ActivationRecorder
from tests.support.tiny import POSITIONS, classifier, tokenizer, write
from tests.support.training_data import (
    BILSTM,
    TRAINING,
    TRANSFORMER,
    distilled,
    finetuned,
    pool_file,
    train_rows,
    validation_rows,
)

BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
LOCAL = {"hidden_size": 32, "attn_layers": ["local"], "is_decoder": False}
AXES = {"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16], "max_position_embeddings": 64}
CONFIGS: dict[str, Callable[..., PretrainedConfig]] = {
    "T5": lambda **given: T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, **given),
    "DeBERTa": lambda **given: DebertaConfig(**BERT, relative_attention=True, pos_att_type=["c2p", "p2c"], **given),
    "CANINE": lambda **given: CanineConfig(**BERT, num_hash_buckets=64, local_transformer_stride=16, **given),
    "Reformer": lambda **given: ReformerConfig(**LOCAL, **AXES, **given),
}


def model(family: str, folder: Path) -> Path:
    """Write a tiny random model, with byte-level pieces."""
    tokens = tokenizer("roberta")
    torch.manual_seed(0)
    config = CONFIGS[family](
        vocab_size=len(tokens),
        pad_token_id=tokens.pad_token_id,
        bos_token_id=tokens.bos_token_id,
        eos_token_id=tokens.eos_token_id,
        decoder_start_token_id=tokens.pad_token_id,
    )
    if family != "Reformer":
        config.max_position_embeddings = POSITIONS + 2
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokens.save_pretrained(folder)
    return folder


def tuned(start: Path, output: Path, **options: Any) -> Model:
    training = replace(TRAINING, max_steps=2, evaluations=1, precision=options.pop("recipe", "auto"))
    return finetuned(start, output, train=train_rows(), validation=validation_rows(), training=training, **options)


@pytest.fixture
def fast_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "supports_bfloat16", lambda device: True)
    monkeypatch.setattr(compute, "multiplies_bfloat16_faster", lambda: True)


def test_t5_trains_in_bfloat16(fast_bfloat16: None, tmp_path: Path) -> None:
    """Its position bias is in float32 there."""
    notes = tuned(model("T5", tmp_path / "model"), tmp_path / "teacher").manifest.notes
    assert notes["precision"] == "bfloat16" and "precision_reason" not in notes


def test_a_family_that_fails_in_bfloat16_trains_in_float32(
    fast_bfloat16: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = tuned(model("DeBERTa", tmp_path / "model"), tmp_path / "teacher")
    notes = made.manifest.notes
    assert (
        notes["precision"] == "float32" and "ForSequenceClassification fails in bfloat16 (" in notes["precision_reason"]
    )
    assert caplog.text.count("computing in float32: ") == 1


def test_bfloat16_that_is_asked_for_and_fails_is_refused(tmp_path: Path) -> None:
    start = model("DeBERTa", tmp_path / "model")
    with pytest.raises(CompressError, match="--precision bfloat16: Deberta.* fails in .*; give float32, or leave"):
        tuned(start, tmp_path / "teacher", precision="bfloat16")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]  # and leaves no folder that refuses the next command
    assert tuned(start, tmp_path / "teacher", precision="float32").manifest.notes["precision"] == "float32"


@pytest.mark.parametrize(
    ("asked", "recipe", "expected"),
    [
        ("auto", "auto", "bfloat16"),
        ("auto", "float32", "float32"),
        ("float32", "auto", "float32"),
        ("bfloat16", "float32", "bfloat16"),
    ],
)
def test_the_option_comes_before_the_recipe(
    asked: str, recipe: str, expected: str, fast_bfloat16: None, tmp_path: Path
) -> None:
    write(tmp_path / "model", classifier())
    made = tuned(tmp_path / "model", tmp_path / "teacher", precision=asked, recipe=recipe)
    assert made.manifest.notes["precision"] == expected and "precision_reason" not in made.manifest.notes


def test_the_teacher_of_hidden_states_is_tried_too(
    fast_bfloat16: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in every step, in the precision of the training."""
    forward = torch.nn.LayerNorm.forward

    def failing(self: Any, values: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled():
            raise RuntimeError("no such numbers")
        return forward(self, values)

    monkeypatch.setattr(torch.nn.LayerNorm, "forward", failing)
    recipe = replace(TRANSFORMER, training=replace(TRAINING, max_steps=2, evaluations=1, precision="auto"))
    write(tmp_path / "model", classifier())
    pool = pool_file(tmp_path / "pool.txt")
    made = distilled(tmp_path / "model", recipe, tmp_path / "student", unlabeled=pool, train=train_rows())
    assert made.manifest.notes["precision_reason"].endswith("fails in bfloat16 (RuntimeError: no such numbers)")


def test_a_model_whose_own_code_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="ReformerForSequenceClassification fails in float32 .*another type"):
        tuned(model("Reformer", tmp_path / "model"), tmp_path / "teacher")


def test_a_fault_of_ours_is_not_said_to_be_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: Any, **named: Any) -> Any:
        raise ValueError("ours")

    monkeypatch.setattr(ActivationRecorder, "__call__", failing)
    write(tmp_path / "model", classifier())
    with pytest.raises(ValueError, match="ours"):
        tuned(tmp_path / "model", tmp_path / "teacher")


def test_a_model_without_a_table_of_embeddings_is_tuned_and_starts_no_student(tmp_path: Path) -> None:
    start = model("CANINE", tmp_path / "model")
    made = tuned(start, tmp_path / "teacher")
    with pytest.raises(CompressError, match="Canine.* has no table of embeddings .*another model type"):
        distilled(made.path, BILSTM, tmp_path / "student", unlabeled=pool_file(tmp_path / "pool.txt"))
