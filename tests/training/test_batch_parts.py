"""Batches that are run in parts: of one length where padding changes logits, of like length where it costs time."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from compress.models.batch import Batch
from compress.training import batch_parts
from compress.training.batch_parts import of_like_lengths
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


def passes(recorder: ActivationRecorder, batch: Batch) -> tuple[list[list[int]], Any]:
    """Return the shapes of the passes that a batch takes, and what came out."""
    shapes = []

    def forward(**inputs: Any) -> Any:
        shapes.append([*inputs["input_ids"].shape])
        return recorder.model(**inputs)

    return shapes, recorder(batch, forward)[1]


def test_rows_of_like_length_are_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients are those of the batch as a whole; the cost of a part decides how many there are."""
    model = tiny.classifier("bert")
    divided = {0: [[1, 4], [1, 6], [2, 3]], 2: [[2, 3], [2, 6]], 100: [[4, 6]]}
    wanted, gradients = {}, {}
    for cost in divided:
        monkeypatch.setattr(batch_parts, "PART_TOKENS", cost)
        model.zero_grad()
        shapes, wanted[cost] = passes(ActivationRecorder(model, WANTED), Batch(ROWS, MASK))
        assert sorted(shapes) == divided[cost]
        wanted[cost].logits.square().sum().backward()
        gradients[cost] = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    for cost in (0, 2):
        torch.testing.assert_close(wanted[cost].logits, wanted[100].logits)
        torch.testing.assert_close(gradients[cost], gradients[100])
        for name in ("hidden", "queries", "keys", "values"):
            for joined, whole in zip(getattr(wanted[cost], name), getattr(wanted[100], name), strict=True):
                tokens = (MASK if name == "hidden" else MASK[:, None]).bool()
                tokens = tokens.expand(joined.shape[:-1])
                torch.testing.assert_close(joined[tokens], whole[tokens])


def test_parts_cost_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against every division of the sorted rows."""
    monkeypatch.setattr(batch_parts, "PART_TOKENS", 10)
    generator = random.Random(0)

    def cost(parts: Any, lengths: torch.Tensor) -> int:
        return sum(len(part) * int(lengths[part].max()) + 10 for part in parts)

    found = []
    for _ in range(50):
        rows = generator.randint(1, 8)
        lengths = torch.tensor([generator.randint(1, 20) for _ in range(rows)])
        parts = of_like_lengths(lengths)
        assert sorted(torch.cat(parts).tolist()) == [*range(rows)]
        order = lengths.argsort()
        divisions = (
            [order[start:end] for start, end in itertools.pairwise((0, *cuts, rows))]
            for number in range(rows)
            for cuts in itertools.combinations(range(1, rows), number)
        )
        assert cost(parts, lengths) == min(cost(division, lengths) for division in divisions)
        found.append(len(parts))
    assert {1, 2, 3} <= {*found}


def test_what_sees_the_whole_batch_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a modifier wants it; and models that are no transformers, whose passes cost otherwise."""
    monkeypatch.setattr(batch_parts, "PART_TOKENS", 0)
    assert len(passes(ActivationRecorder(tiny.classifier("bert"), WANTED, whole=True), Batch(ROWS, MASK))[0]) == 1
    assert not ActivationRecorder(tiny.bilstm(), frozenset()).divides


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
