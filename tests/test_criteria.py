"""Every criterion keeps the contract of its folder; the gradient one equals references of independent code."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from tiny import (
    FAMILIES,
    HEADS,
    LABELS,
    LAYERS,
    bilstm,
    classifier,
    examples,
    physical_layers,
    pruned,
    tokenizer,
)
from torch import Tensor

from compress import plugins
from compress.errors import CompressError
from compress.importance import head_importance, scoring_batches
from compress.types import Batch

CRITERIA = plugins.names("criteria")
GOLD = [LABELS.index(row.label) for row in examples(12) if row.label]


def batches(family: str = "bert", rows: int = 12, size: int = 5, gold: list[Any] | None = None) -> list[Batch]:
    """Batches of examples in the given order, padded to their longest."""
    tokens, texts, made = tokenizer(family), examples(rows), []
    labels = torch.tensor(gold or GOLD[:rows])
    for start in range(0, rows, size):
        chosen = [row.text for row in texts[start : start + size]]
        encoded = tokens(chosen, padding=True, return_tensors="pt")
        made.append(Batch(encoded["input_ids"], encoded["attention_mask"], labels=labels[start : start + size]))
    return made


def score(model: Any, given: list[Batch], name: str = "gradient", **options: Any) -> Tensor:
    scores: Tensor = plugins.find("criteria", name).function(model, given, **options)
    return scores


def one_at_a_time(model: Any, given: list[Batch]) -> Tensor:
    """Michel et al. 2019, equation 3, as it is written: one example, one backward, then the absolute value.

    |dL/dxi_h| is |<context_h, dL/dcontext_h>|, read here from the input of the output projection: no gates.
    """
    outputs = [layer.attention.output.dense for layer in model.bert.encoder.layer]
    contexts: list[Tensor] = []

    def keep(module: Any, inputs: tuple[Tensor, ...]) -> None:
        inputs[0].retain_grad()
        contexts.append(inputs[0])

    handles = [output.register_forward_pre_hook(keep) for output in outputs]
    total, rows = torch.zeros(LAYERS, HEADS, dtype=torch.float64), 0
    for batch in given:
        assert batch.labels is not None
        for row in range(len(batch.input_ids)):
            length = int(batch.attention_mask[row].sum())
            contexts.clear()
            logits = model(input_ids=batch.input_ids[row : row + 1, :length]).logits
            torch.nn.CrossEntropyLoss()(logits, batch.labels[row : row + 1]).backward()
            for layer, context in enumerate(contexts):
                product = (context * context.grad).reshape(length, HEADS, -1)
                total[layer] += product.sum(dim=(0, 2)).abs().double()
            rows += 1
    for handle in handles:
        handle.remove()
    return (total / rows).float()


@functools.cache
def bert() -> Any:
    return classifier("bert")


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_one_a_head_and_never_negative(name: str, family: str) -> None:
    scores = score(classifier(family), batches(family), name)
    assert scores.shape == (physical_layers(family), HEADS) and scores.dtype == torch.float32
    assert (scores >= 0).all() and scores.std() > 0


@pytest.mark.parametrize("name", CRITERIA)
def test_missing_and_closed_heads_score_zero(name: str) -> None:
    scores = score(pruned("bert"), batches(), name, masks=[torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0, 1.0])])
    assert scores.shape == (2, 3)
    assert (scores > 0).tolist() == [[False, True, False], [True, False, True]]


@pytest.mark.parametrize("name", CRITERIA)
def test_order_and_size_of_batches_do_not_count(name: str) -> None:
    given = batches()
    expected = score(bert(), given, name)
    torch.testing.assert_close(score(bert(), given[::-1], name), expected)
    torch.testing.assert_close(score(bert(), batches(size=12), name), expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", CRITERIA)
def test_the_model_is_left_as_it_was(name: str) -> None:
    model = classifier("bert").train()
    model.bert.embeddings.requires_grad_(False)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    frozen = [parameter.requires_grad for parameter in model.parameters()]
    score(model, batches(), name)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [parameter.requires_grad for parameter in model.parameters()] == frozen
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_random_scores_depend_on_the_seed_alone() -> None:
    first = score(bert(), batches(), "random", seed=3)
    assert torch.equal(first, score(bert(), batches(rows=4), "random", seed=3))
    assert not torch.equal(first, score(bert(), batches(), "random", seed=4))


def test_gradient_equals_one_example_at_a_time() -> None:
    given = batches()
    torch.testing.assert_close(score(bert(), given), one_at_a_time(bert(), given), atol=1e-6, rtol=1e-3)


def test_absolute_values_are_taken_before_the_mean() -> None:
    """Summing signed gradients over the batch first, as several codebases do, gives other scores."""
    (batch,) = batches(size=12)
    assert batch.labels is not None
    rows = zip(batch.input_ids.split(1), batch.attention_mask.split(1), batch.labels.split(1), strict=True)
    alone = [score(bert(), [Batch(ids, mask, labels=label)]) for ids, mask, label in rows]
    torch.testing.assert_close(score(bert(), [batch]), torch.stack(alone).mean(dim=0), atol=1e-6, rtol=1e-3)


def test_gradients_do_not_pile_up_over_batches() -> None:
    (batch,) = batches(rows=5, size=5)
    torch.testing.assert_close(score(bert(), [batch] * 4), score(bert(), [batch]), atol=1e-7, rtol=1e-5)


def test_scoring_twice_gives_the_same() -> None:
    assert torch.equal(score(bert(), batches()), score(bert(), batches()))


def test_gradient_agrees_with_finite_differences() -> None:
    """Scale a head's columns of the output projection by 1 +- e: that is its gate, without any of our code."""
    model, step = classifier("bert").double(), 1e-4
    tokens = tokenizer()(["the film is good", "a dull plot"], padding=True, return_tensors="pt")
    labels = torch.tensor([1, 0])
    slopes = torch.zeros(LAYERS, HEADS)
    for layer in range(LAYERS):
        weight = model.bert.encoder.layer[layer].attention.output.dense.weight
        for head in range(HEADS):
            columns = slice(8 * head, 8 * head + 8)
            losses = []
            for factor in (1 + step, 1 - step):
                with torch.no_grad():
                    kept = weight[:, columns].clone()
                    weight[:, columns] *= factor
                    logits = model(**tokens).logits
                    losses.append(torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
                    weight[:, columns] = kept
            slopes[layer, head] = ((losses[0] - losses[1]) / (2 * step)).abs().mean()
    batch = Batch(tokens["input_ids"], tokens["attention_mask"], tokens.get("token_type_ids"), labels)
    torch.testing.assert_close(score(model, [batch]), slopes, atol=1e-5, rtol=1e-3)


def test_a_regression_is_scored_by_squared_error() -> None:
    model = classifier("bert", labels=("score",))
    (batch,) = batches(size=12)
    with torch.no_grad():
        exact = model(batch.input_ids, batch.attention_mask).logits[:, 0]
    one, two = (score(model, [Batch(batch.input_ids, batch.attention_mask, labels=exact + e)]) for e in (1.0, 2.0))
    assert one.min() > 0
    torch.testing.assert_close(two, 2 * one, atol=1e-6, rtol=1e-3)  # the gradient of e**2 is 2e
    none = score(model, [Batch(batch.input_ids, batch.attention_mask, labels=exact)])
    assert none.max() < 1e-4 * one.max()


def test_unlabelled_batches_are_refused() -> None:
    (batch,) = batches(rows=3)
    with pytest.raises(ValueError, match="needs labels"):
        score(bert(), [Batch(batch.input_ids, batch.attention_mask)])


def test_the_python_function_takes_texts_and_labels() -> None:
    rows = [(row.text, row.label or "") for row in examples(12)]
    raw = head_importance(bert(), rows, tokenizer=tokenizer())
    torch.testing.assert_close(raw, score(bert(), batches()), atol=1e-6, rtol=1e-3)
    by_layer = head_importance(bert(), rows, tokenizer=tokenizer(), normalise=True)
    torch.testing.assert_close(by_layer.norm(dim=1), torch.ones(LAYERS))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"criterion": "gradeint"}, "unknown criterion 'gradeint'"),
        ({"criterion": "random", "sed": 1}, "has no option 'sed'; it has seed"),
        ({"examples": [("the film", "great")]}, "has the label 'great'"),
    ],
)
def test_what_the_python_function_refuses(arguments: dict[str, Any], message: str) -> None:
    given = {"examples": [("the film", 0), ("good", 1)], "tokenizer": tokenizer(), **arguments}
    with pytest.raises(CompressError, match=message):
        head_importance(bert(), given.pop("examples"), **given)


def test_a_model_without_heads_is_refused() -> None:
    with pytest.raises(CompressError, match="attention heads"):
        head_importance(bilstm(), [("the film", 0)], tokenizer=tokenizer())


def test_scoring_batches_hold_every_row_with_its_own_label() -> None:
    rows = examples(40)
    gold = list(range(40))
    made = list(scoring_batches(rows, gold, tokenizer(), max_length=64, task="classification", device="cpu"))
    assert [len(batch.input_ids) for batch in made] == [32, 8]
    seen = {}
    for batch in made:
        assert batch.labels is not None
        for ids, mask, label in zip(batch.input_ids, batch.attention_mask, batch.labels.tolist(), strict=True):
            seen[label] = tokenizer().decode(ids[mask.bool()], skip_special_tokens=True)
    assert seen == {index: row.text for index, row in enumerate(rows)}
