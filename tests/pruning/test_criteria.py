"""Every criterion keeps the contract of its folder; the gradient one equals references of independent code."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from compress import plugins
from compress.errors import CompressError
from compress.models.batch import Batch
from compress.pruning.scoring import head_importance, scoring_batches
from compress.surgery.remove import remove_heads, remove_neurons
from compress.surgery.unit_masks import mask_hooks
from compress.tasks import find_task
from tests.support.tagging import tagger
from tests.support.tiny import (
    HEADS,
    LABELS,
    LAYERS,
    PRUNABLE,
    bilstm,
    classifier,
    examples,
    physical_layers,
    pruned,
    tokenizer,
)

CRITERIA = plugins.names("criteria")
OPTIONS: dict[str, dict[str, Any]] = {"oracle": {"measure": "loss"}, "shapley": {"permutations": 2}}
SIGNED = ("oracle", "shapley")  # a head can harm
OF_NEURONS = [name for name in CRITERIA if "part" in plugins.find("criteria", name).parameters]
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
    scores: Tensor = plugins.find("criteria", name).function(model, given, **OPTIONS.get(name, {}) | options)
    return scores


def one_at_a_time(model: Any, given: list[Batch]) -> Tensor:
    """Michel et al. 2019, equation 3, as it is written: one example, one backward, then the absolute value.

    |dL/dxi_h| is |<context_h, dL/dcontext_h>|, read here from the input of the output projection: no masks.
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
@pytest.mark.parametrize("family", PRUNABLE)
def test_scores_are_one_a_head(name: str, family: str) -> None:
    scores = score(classifier(family), batches(family), name)
    assert scores.shape == (physical_layers(family), HEADS) and scores.dtype == torch.float32
    assert scores.std() > 0 and (name in SIGNED or (scores >= 0).all())


@pytest.mark.parametrize("name", OF_NEURONS)
@pytest.mark.parametrize("family", ["albert", "bert", "modernbert"])
def test_scores_are_one_a_neuron(name: str, family: str) -> None:
    scores = score(classifier(family), batches(family), name, part="neurons")
    assert scores.shape == (physical_layers(family), 64)
    assert scores.std() > 0 and (scores >= 0).all()


@pytest.mark.parametrize("name", CRITERIA)
def test_missing_and_masked_heads_score_zero(name: str) -> None:
    scores = score(pruned("bert"), batches(), name, masks=[torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0, 1.0])])
    assert scores.shape == (2, 3)
    assert (scores != 0).tolist() == [[False, True, False], [True, False, True]]


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
    assert model.training and model.config._attn_implementation == "sdpa"


def test_random_scores_depend_on_the_seed_alone() -> None:
    first = score(bert(), batches(), "random", seed=3)
    assert torch.equal(first, score(bert(), batches(rows=4), "random", seed=3))
    assert not torch.equal(first, score(bert(), batches(), "random", seed=4))


def test_gradient_equals_one_example_at_a_time() -> None:
    given = batches()
    torch.testing.assert_close(score(bert(), given), one_at_a_time(bert(), given), atol=1e-6, rtol=1e-3)


def test_scoring_twice_gives_the_same() -> None:
    assert torch.equal(score(bert(), batches()), score(bert(), batches()))


def test_a_regression_is_scored_by_squared_error() -> None:
    model = classifier("bert", labels=("score",))
    (batch,) = batches(size=12)
    with torch.no_grad():
        exact = model(batch.input_ids, batch.attention_mask).logits[:, 0]
    regression = replace(batch, task=find_task("regression"))
    one, two = (score(model, [replace(regression, labels=exact + e)]) for e in (1.0, 2.0))
    assert one.min() > 0
    torch.testing.assert_close(two, 2 * one, atol=1e-6, rtol=1e-3)  # the gradient of e**2 is 2e
    none = score(model, [replace(regression, labels=exact)])
    assert none.max() < 1e-4 * one.max()


def test_unlabelled_batches_are_refused() -> None:
    (batch,) = batches(rows=3)
    with pytest.raises(CompressError, match="reads labels, and the rows have none"):
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
        ({"criterion": "random", "sed": 1}, "has no option 'sed'; it has part, seed"),
        ({"examples": [("the film", "great")]}, "has the label 'great'"),
        ({"examples": []}, "no rows to score"),
        ({"examples": [("the film", None)]}, "reads labels, and the rows have none; give labels, or labels='own'"),
        ({"part": "head"}, "part = 'head' is not known; use 'heads' or 'neurons'"),
    ],
)
def test_what_the_python_function_refuses(arguments: dict[str, Any], message: str) -> None:
    given = {"examples": [("the film", 0), ("good", 1)], "tokenizer": tokenizer(), **arguments}
    with pytest.raises(CompressError, match=message):
        head_importance(bert(), given.pop("examples"), **given)


def test_the_python_function_needs_no_labels_for_the_models_own() -> None:
    rows = [row.text for row in examples(12)]
    options: dict[str, Any] = {"tokenizer": tokenizer(), "labels": "own"}
    without = head_importance(bert(), [(text, None) for text in rows], **options)
    assert torch.equal(without, head_importance(bert(), [(text, 0) for text in rows], **options))
    model = bert()
    inputs = tokenizer()(rows, padding=True, return_tensors="pt")
    with torch.no_grad():
        said = model(**inputs).logits.argmax(dim=-1).tolist()
    gold = head_importance(bert(), list(zip(rows, said, strict=True)), tokenizer=tokenizer())
    torch.testing.assert_close(without, gold)


def test_a_tagger_is_no_classifier_of_texts() -> None:
    with pytest.raises(CompressError, match="this model tags words; use 'compress heads'"):
        head_importance(tagger(), [("the film", 0)], tokenizer=tokenizer())


def test_a_model_without_heads_is_refused() -> None:
    with pytest.raises(CompressError, match="attention heads"):
        head_importance(bilstm(), [("the film", 0)], tokenizer=tokenizer())


def test_scoring_batches_hold_every_row_with_its_own_label() -> None:
    rows = examples(40)
    gold = list(range(40))
    made = list(scoring_batches(rows, gold, tokenizer(), max_length=64, task=find_task("classification"), device="cpu"))
    assert [len(batch.input_ids) for batch in made] == [32, 8]
    seen = {}
    for batch in made:
        assert batch.labels is not None
        for ids, mask, label in zip(batch.input_ids, batch.attention_mask, batch.labels.tolist(), strict=True):
            seen[label] = tokenizer().decode(ids[mask.bool()], skip_special_tokens=True)
    assert seen == {index: row.text for index, row in enumerate(rows)}


# Labels of its own


@pytest.mark.parametrize("name", ["gradient", "taylor"])
def test_own_labels_are_what_the_model_predicts(name: str) -> None:
    (batch,) = batches(size=12)
    with torch.no_grad():
        predicted = bert()(batch.input_ids, batch.attention_mask).logits.argmax(dim=-1)
    assert predicted.tolist() != GOLD
    expected = score(bert(), [Batch(batch.input_ids, batch.attention_mask, labels=predicted)], name)
    torch.testing.assert_close(score(bert(), [batch], name, labels="own"), expected)
    unlabelled = Batch(batch.input_ids, batch.attention_mask)
    torch.testing.assert_close(score(bert(), [unlabelled], name, labels="own"), expected)


def test_a_regression_has_no_labels_of_its_own() -> None:
    with pytest.raises(CompressError, match="needs classes, and this model is a regression"):
        regression = [replace(batch, task=find_task("regression")) for batch in batches()]
        score(classifier("bert", labels=("score",)), regression, labels="own")


# The other criteria, each against code of another kind


def loss_of(model: Any, batch: Batch) -> float:
    with torch.no_grad():
        logits = model(batch.input_ids, batch.attention_mask).logits
        return float(torch.nn.functional.cross_entropy(logits, batch.labels))


def accuracy_of(model: Any, batch: Batch) -> float:
    assert batch.labels is not None
    with torch.no_grad():
        predicted = model(batch.input_ids, batch.attention_mask).logits.argmax(dim=-1)
        return float((predicted == batch.labels).float().mean())


def test_the_oracle_is_the_loss_of_slicing_off_a_head() -> None:
    (batch,) = batches(size=12)
    by_loss, by_metric = (score(bert(), batches(), "oracle", measure=measure) for measure in ("loss", "metric"))
    for layer in range(LAYERS):
        for head in range(HEADS):
            smaller = classifier("bert")
            remove_heads(smaller, {layer: [head]})
            more = loss_of(smaller, batch) - loss_of(bert(), batch)
            assert float(by_loss[layer, head]) == pytest.approx(more, abs=1e-5)
            lost = accuracy_of(bert(), batch) - accuracy_of(smaller, batch)
            assert float(by_metric[layer, head]) == pytest.approx(lost, abs=1e-6)
    assert by_metric.std() > 0


def without(model: Any, absent: Any, batch: Batch) -> float:
    """Minus the loss of a model whose one shared layer has lost some heads; all four can go only by a mask."""
    with mask_hooks(model) as hooks:
        hooks.mask([[float(head not in absent) for head in range(HEADS)]])
        return -loss_of(model, batch)


def test_shapley_values_approach_those_of_all_orders() -> None:
    model, (batch,) = classifier("albert"), batches("albert", size=12)
    values = {
        frozenset(kept): without(model, set(range(HEADS)) - set(kept), batch)
        for size in range(HEADS + 1)
        for kept in itertools.combinations(range(HEADS), size)
    }
    exact = torch.zeros(HEADS)
    for order in itertools.permutations(range(HEADS)):
        for place, head in enumerate(order):
            exact[head] += (values[frozenset(order[: place + 1])] - values[frozenset(order[:place])]) / 24
    whole = values[frozenset(range(HEADS))] - values[frozenset()]
    for permutations in (1, 2, 3):  # their sum is exact after any number of orders
        found = score(model, [batch], "shapley", permutations=permutations)
        assert float(found.sum()) == pytest.approx(whole, abs=1e-5)
    estimate = score(model, [batch], "shapley", permutations=60)[0]
    assert (estimate - exact).abs().max() < 0.15 * exact.abs().max()


def test_shapley_needs_an_order() -> None:
    with pytest.raises(CompressError, match="permutations = 0"):
        score(bert(), batches(), "shapley", permutations=0)


@pytest.mark.parametrize(("part", "unit"), [("heads", slice(8, 16)), ("neurons", slice(9, 10))])
def test_taylor_is_the_slope_of_the_loss_over_shrinking_weights(part: str, unit: slice) -> None:
    model, step = classifier("bert").double(), 1e-4
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn_like(parameter, generator=None)  # biases of zero would count for nothing
    (batch,) = batches(size=12)
    layer = model.bert.encoder.layer[1]
    inside = layer.attention.self
    rows = (inside.query, inside.key, inside.value) if part == "heads" else (layer.intermediate.dense,)
    column = layer.attention.output.dense.weight if part == "heads" else layer.output.dense.weight
    total = 0.0
    of_rows = [view[unit] for linear in rows for view in (linear.weight.data, linear.bias.data)]
    for weights in (of_rows, [column.data[:, unit]]):
        losses = []
        for factor in ((1 + step), (1 - step) / (1 + step)):
            for weight in weights:
                weight *= factor
            losses.append(loss_of(model, batch))
        for weight in weights:
            weight /= 1 - step
        total += abs(losses[0] - losses[1]) / (2 * step)
    found = score(model, batches(), "taylor", part=part)
    assert float(found[1, unit.start // (8 if part == "heads" else 1)]) == pytest.approx(total, rel=1e-3)


def test_magnitude_is_the_norm_of_what_slicing_takes_away() -> None:
    for part, remove in (("heads", remove_heads), ("neurons", remove_neurons)):
        scores = score(bert(), [], "magnitude", part=part)
        smaller: Any = classifier("bert")
        before = sum(float(p.detach().square().sum()) for p in smaller.parameters())
        remove(smaller, {1: [2]})
        taken = before - sum(float(p.detach().square().sum()) for p in smaller.parameters())
        assert float(scores[1, 2]) == pytest.approx(taken**0.5, rel=1e-3)


def test_confidence_is_the_largest_weight_but_on_the_end_token() -> None:
    text = "the film is good"
    model: Any = AutoModelForSequenceClassification.from_config(bert().config, attn_implementation="eager").eval()
    model.load_state_dict(bert().state_dict())
    alone = tokenizer()([text], return_tensors="pt")
    with torch.no_grad():
        attentions = model(**alone, output_attentions=True).attentions
    expected = torch.stack([weights[0, :, :, :-1].amax(dim=-1).mean(dim=-1) for weights in attentions])
    padded = tokenizer()([text], padding="max_length", max_length=12, return_tensors="pt")
    found = score(bert(), [Batch(padded["input_ids"], padded["attention_mask"])], "confidence")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
