"""Models whose logits depend on padding are trained on what they read without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from compress.models.batch import Batch
from compress.training.teacher_signal import ActivationRecorder
from tests.inference.test_padding import KINDS
from tests.support import tiny

ROWS = torch.tensor([[2, 7, 9, 11, 12, 3], [2, 8, 3, 0, 0, 0], [2, 8, 9, 3, 0, 0], [2, 9, 3, 0, 0, 0]])
MASK = (ROWS != 0).long()
WANTED = frozenset({"hidden", "attention"})


def model_of(kind: str) -> Any:
    if kind.startswith("mobilebert"):
        model: Any = tiny.classifier("mobilebert")
        if kind == "mobilebert with an embedding of padding":  # as a checkpoint may have it
            torch.nn.init.normal_(model.mobilebert.embeddings.word_embeddings.weight.data[0])
        return model
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=40, pad_token_id=0, initializer_range=0.3, **KINDS[kind])
    return AutoModelForSequenceClassification.from_config(config).eval()


@pytest.mark.parametrize(
    "kind", ["mobilebert", "mobilebert with an embedding of padding", "fnet", "xlnet", "nystromformer", "convbert"]
)
def test_a_row_is_learned_from_as_if_it_were_alone(kind: str) -> None:
    model = model_of(kind)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    recorder = ActivationRecorder(model, WANTED)
    raw, outputs = recorder(Batch(ROWS, MASK))
    assert all(module.training for module in model.modules())
    outputs.logits.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    for row, (ids, mask) in enumerate(zip(ROWS, MASK, strict=True)):
        length = int(mask.sum())
        _, alone = recorder(Batch(ids[None, :length], mask[None, :length]))
        torch.testing.assert_close(alone.logits[0], outputs.logits[row], atol=1e-4, rtol=1e-4)
        for one, all_of_them in zip(alone.hidden, outputs.hidden, strict=True):
            torch.testing.assert_close(one[0], all_of_them[row, :length], atol=1e-3, rtol=1e-3)
        for one, all_of_them in zip(alone.keys, outputs.keys, strict=True):
            torch.testing.assert_close(one[0], all_of_them[row, :, :length], atol=1e-3, rtol=1e-3)
        alone.logits.sum().backward()
    again = [p.grad for p in model.parameters() if p.grad is not None]
    torch.testing.assert_close(again, gradients, atol=1e-3, rtol=1e-3)


def test_only_what_reads_padding_is_split() -> None:
    """MobileBERT joins each embedding with those beside it; the padding's is zero unless somebody stored another."""
    split = {}
    for kind in ("mobilebert", "mobilebert with an embedding of padding"):
        recorder = ActivationRecorder(model_of(kind), WANTED)
        recorder(Batch(ROWS, MASK))
        split[kind] = recorder._reads_padding
    assert [*split.values()] == [False, True]
    bert = ActivationRecorder(tiny.classifier("bert"), WANTED)
    assert bert._reads_padding is False  # untried: parity tests hold it
