"""Batches that are run in parts: of one length where padding changes logits, of like length where it costs time."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from compress.models.batch import Batch
from compress.training.teacher_signal import ActivationRecorder, of_like_lengths
from tests.inference.test_batching import KINDS
from tests.support import tiny
from tests.support.tagging import tagger

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


def passes(recorder: ActivationRecorder, batch: Batch, cost: float) -> tuple[list[list[int]], Any]:
    """Return the shapes of the passes that a batch takes where a part costs so many tokens, and what came out."""
    shapes = []

    def forward(**inputs: Any) -> Any:
        shapes.append([*inputs["input_ids"].shape])
        return recorder.model(**inputs)

    recorder.part_tokens = cost
    _, outputs = recorder(batch, forward)
    return sorted(shapes), outputs


@pytest.mark.parametrize("family", ["bert", "albert", "deberta-v2", "modernbert", "a tagger"])
def test_rows_of_like_length_are_run_together(family: str) -> None:
    """Outputs and gradients are those of the batch as a whole; the cost of a part decides how many there are."""
    model = tagger() if family == "a tagger" else tiny.classifier(family)
    words = MASK.bool() if family == "a tagger" else None
    batch = Batch(ROWS, MASK, words=words)
    divided = {0: [[1, 4], [1, 6], [2, 3]], 2: [[2, 3], [2, 6]], 100: [[4, 6]]}
    outputs, gradients = {}, {}
    for cost in divided:
        model.zero_grad()
        shapes, outputs[cost] = passes(ActivationRecorder(model, WANTED), batch, cost)
        assert shapes == divided[cost]
        outputs[cost].logits.square().sum().backward()
        gradients[cost] = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    for cost in (0, 2):
        torch.testing.assert_close(outputs[cost].logits, outputs[100].logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(gradients[cost], gradients[100], atol=1e-4, rtol=1e-4)
        for name in ("hidden", "queries", "keys", "values"):
            for joined, whole in zip(getattr(outputs[cost], name), getattr(outputs[100], name), strict=True):
                tokens = (MASK if name == "hidden" else MASK[:, None]).bool().expand(joined.shape[:-1])
                torch.testing.assert_close(joined[tokens], whole[tokens], atol=1e-5, rtol=1e-5)
                assert cost or not joined[~tokens].any()  # parts of one length hold no padding


def test_parts_cost_least() -> None:
    """Against every division of the sorted rows."""
    generator = random.Random(0)

    def cost(parts: Any, lengths: torch.Tensor) -> int:
        return sum(len(part) * int(lengths[part].max()) + 10 for part in parts)

    found = []
    for _ in range(50):
        rows = generator.randint(1, 8)
        lengths = torch.tensor([generator.randint(1, 20) for _ in range(rows)])
        parts = of_like_lengths(lengths, 10)
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


def test_a_part_costs_what_all_parameters_do_beside_the_products() -> None:
    """Wide vocabularies make parts dear, wide layers cheap; 384 x 6 with 30,522 tokens is worth 84 tokens."""
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    worth = {}
    for pieces in (30_522, 3_000):
        config = AutoConfig.for_model("bert", vocab_size=pieces, **sizes)
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(config)
        worth[pieces] = round(ActivationRecorder(model, frozenset()).part_tokens)
    assert worth == {30_522: 84, 3_000: 45}


def test_what_sees_the_whole_batch_is_not_divided() -> None:
    """As modifiers want it; and models that are no transformers, whose passes cost otherwise."""
    whole = ActivationRecorder(tiny.classifier("bert"), WANTED, whole=True)
    assert passes(whole, Batch(ROWS, MASK), 0)[0] == [[4, 6]]
    small = ActivationRecorder(tiny.bilstm(), frozenset())
    assert passes(small, Batch(ROWS, MASK), 0)[0] == [[4, 6]]


def test_rows_of_one_length_leave_padding_out_where_it_is_read() -> None:
    recorder = ActivationRecorder(model_of("fnet"), frozenset())
    recorder(Batch(ROWS, MASK))  # the trial
    short = Batch(ROWS[[1, 3]], MASK[[1, 3]])
    assert passes(recorder, short, 0)[0] == [[2, 3]]


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
