"""Saved models: the bytes are those of the model, not of what was done with it before."""

from __future__ import annotations

from pathlib import Path

from compress.models.saving import save_model
from tests.support.tiny import classifier, tokenizer


def test_a_tokenizer_is_saved_without_its_last_caller_s_limits(tmp_path: Path) -> None:
    model, used = classifier("bert"), tokenizer()
    save_model(model, used, tmp_path / "before")
    used(["a film", "the end of a film"], truncation=True, max_length=4, padding=True)
    assert used.backend_tokenizer.truncation and used.backend_tokenizer.padding
    save_model(model, used, tmp_path / "after")
    before, after = (tmp_path / name / "tokenizer.json" for name in ("before", "after"))
    assert before.read_bytes() == after.read_bytes()
