"""Heads and neurons: where they are, masks on them, and their removal, for every family."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForSequenceClassification

from compress.errors import CompressError
from compress.exporting.export import padded_example
from compress.models.components import attention_layers, example_inputs, ffn_widths, heads_per_layer, units_of
from compress.models.modeling.families import layers_of
from compress.models.modeling.pruned import kept_heads
from compress.surgery.remove import remove_heads, remove_neurons
from compress.surgery.unit_masks import mask_hooks, mask_lowest, normalised
from tests.support.tiny import (
    FAMILIES,
    HEADS,
    PRUNABLE,
    UNEVEN,
    bilstm,
    classifier,
    heads_after_pruning,
    physical_layers,
    uneven,
)

MASKS = [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]]


@pytest.mark.parametrize("family", PRUNABLE)
def test_shapes_are_found(family: str) -> None:
    model = classifier(family)
    layers = physical_layers(family)
    assert heads_per_layer(model) == [HEADS] * layers
    assert ffn_widths(model) == [64] * layers
    # MobileBERT attends inside its bottleneck, which is half as wide here.
    assert {units.size for units in units_of(model)} == {4 if family == "mobilebert" else 8}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_projections_of_attention_are_in_order(family: str) -> None:
    for layer, units in zip(layers_of(model := classifier(family)), attention_layers(model), strict=True):
        names = {module: name.rpartition(".")[2] for name, module in layer.named_modules()}
        assert [names[linear][0] for linear in units.rows] == ["q", "k", "v"]


@pytest.mark.parametrize("family", PRUNABLE)
def test_sliced_equals_masked_and_pruning_composes(family: str) -> None:
    model = classifier(family).train()
    model.requires_grad_(False)
    inputs = padded_example(model, 3, 11)
    model.eval()
    layers = physical_layers(family)
    with torch.no_grad(), mask_hooks(model) as hooks:
        whole = model(**inputs).logits
        hooks.mask(MASKS[:layers])
        masked = model(**inputs).logits
        hooks.mask([[1, 0, 0, 0], [0, 1, 0, 1]][:layers])
        masked_further = model(**inputs).logits
    remove_heads(model, uneven(family))
    assert heads_per_layer(model) == heads_after_pruning(family) == [2, 3][:layers]
    assert kept_heads(model) == [[0, 3], [1, 2, 3]][:layers]
    with torch.no_grad():
        assert (model(**inputs).logits - masked).abs().max() <= 1e-5
        assert (whole - masked).abs().max() > 1e-3
        remove_heads(model, {layer: [1] for layer in range(layers)})  # positions among the heads that are left
        assert kept_heads(model) == [[0], [1, 3]][:layers]
        assert (model(**inputs).logits - masked_further).abs().max() <= 1e-5
    assert not any(parameter.requires_grad for name, parameter in model.named_parameters() if "LayerNorm" in name)


@pytest.mark.parametrize("family", [family for family in PRUNABLE if family != "mobilebert"])
def test_a_model_without_neurons_equals_one_with_them_masked(family: str) -> None:
    model, layers = classifier(family), physical_layers(family)
    inputs = padded_example(model, 3, 11)
    masks = torch.ones(layers, 64)
    masks[0, [0, 7, 40]] = 0.0
    masks[-1, 10:] = 0.0
    with torch.no_grad(), mask_hooks(model, "neurons") as hooks:
        whole = model(**inputs).logits
        hooks.mask(list(masks))
        masked = model(**inputs).logits
    remove_neurons(model, {layer: (1 - row).nonzero().flatten().tolist() for layer, row in enumerate(masks)})
    assert ffn_widths(model) == masks.sum(dim=1).int().tolist() == model.config.ffn_per_layer
    with torch.no_grad():
        assert (model(**inputs).logits - masked).abs().max() <= 1e-5
        assert (whole - masked).abs().max() > 1e-3


def test_several_feed_forward_networks_keep_their_neurons() -> None:
    with pytest.raises(CompressError, match="mobilebert has several feed-forward networks"):
        remove_neurons(classifier("mobilebert"), {0: [1]})


def test_position_projections_of_their_own_lose_their_heads_too() -> None:
    torch.manual_seed(0)
    config = classifier("deberta-v2").config
    config.share_att_key = False
    model = AutoModelForSequenceClassification.from_config(config).eval()
    assert len(units_of(model)[0].rows) == 5
    inputs = padded_example(model, 2, 12)
    with torch.no_grad(), mask_hooks(model) as hooks:
        hooks.mask(MASKS)
        masked = model(**inputs).logits
    remove_heads(model, UNEVEN)
    with torch.no_grad():
        assert (model(**inputs).logits - masked).abs().max() <= 1e-5


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "mobilebert", "mpnet"])
def test_removal_keeps_the_training_mode(family: str) -> None:
    model = classifier(family).train()
    remove_heads(model, UNEVEN)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("family", PRUNABLE)
def test_one_backward_gives_the_gradient_of_every_example(family: str) -> None:
    model = classifier(family)
    model.requires_grad_(False)
    inputs = padded_example(model, 3, 9)
    with mask_hooks(model) as hooks:
        together = hooks.per_example(3)
        model(**inputs).logits[:, 0].sum().backward()
        for row in range(3):
            alone = hooks.per_example(1)
            model(**{name: tensor[row : row + 1] for name, tensor in inputs.items()}).logits[:, 0].sum().backward()
            for batch_mask, mask in zip(together, alone, strict=True):
                torch.testing.assert_close(batch_mask.grad[row], mask.grad[0], atol=1e-5, rtol=1e-4)


def test_masks_are_removed_after_the_block() -> None:
    model = classifier("bert")
    inputs = example_inputs(model)
    with torch.no_grad():
        before = model(**inputs).logits
        with pytest.raises(RuntimeError), mask_hooks(model) as hooks:
            hooks.mask([[0.0] * HEADS] * 2)
            assert not torch.equal(model(**inputs).logits, before)
            raise RuntimeError
        assert torch.equal(model(**inputs).logits, before)


@pytest.mark.parametrize("shape", [{"num_hidden_groups": 2}, {"inner_group_num": 2}])
def test_an_albert_that_shares_several_layers_is_refused(shape: dict[str, int]) -> None:
    config = AutoConfig.for_model("albert", hidden_size=32, num_attention_heads=4, embedding_size=8, **shape)
    model = AutoModelForSequenceClassification.from_config(config)
    assert heads_per_layer(model) == [] and ffn_widths(model) == []
    with pytest.raises(CompressError, match=r"shares \d groups of \d layers; compress knows the heads of one that"):
        units_of(model)


def test_a_model_without_known_heads_is_refused() -> None:
    model = bilstm()
    assert heads_per_layer(model) == [] and ffn_widths(model) == []
    with pytest.raises(CompressError, match="'compress-bilstm'.*albert, bert, deberta-v2"):
        attention_layers(model)


# Selection of the units to mask next


def test_each_layer_is_divided_by_its_own_norm() -> None:
    scores = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.5]])
    expected = torch.tensor([[0.6, 0.8, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(normalised(scores), expected)


def test_the_lowest_heads_of_all_layers_go_first() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.3], [0.2, 0.8, 0.7]])
    masks = mask_lowest(scores, [torch.ones(3), torch.ones(3)], 3)
    assert [mask.tolist() for mask in masks] == [[0, 1, 0], [0, 1, 1]]


def test_a_layer_keeps_its_best_head_whatever_the_others_score() -> None:
    scores = torch.tensor([[0.1, 0.2, 0.3], [7.0, 8.0, 9.0]])
    masks = mask_lowest(scores, [torch.ones(3), torch.ones(3)], 3)
    assert [mask.tolist() for mask in masks] == [[0, 0, 1], [0, 1, 1]]


def test_ties_go_by_layer_and_head() -> None:
    masks = mask_lowest(torch.zeros(2, 3), [torch.ones(3), torch.ones(3)], 2)
    assert [mask.tolist() for mask in masks] == [[0, 0, 1], [1, 1, 1]]


def test_masks_are_not_changed_in_place() -> None:
    before = [torch.ones(2), torch.ones(2)]
    mask_lowest(torch.zeros(2, 2), before, 1)
    assert all(mask.tolist() == [1, 1] for mask in before)


def test_more_than_the_layers_can_give_is_an_error() -> None:
    with pytest.raises(ValueError, match="more units to mask"):
        mask_lowest(torch.zeros(2, 2), [torch.ones(2), torch.ones(2)], 3)


@st.composite
def scored_layers(draw: st.DrawFn) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """Scores of uneven layers, some heads masked already, and how many more shall be masked."""
    heads = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    scores = torch.zeros(len(heads), max(heads))
    masks = []
    for layer, count in enumerate(heads):
        values = draw(st.lists(st.floats(0, 1, width=32), min_size=count, max_size=count))
        scores[layer, :count] = torch.tensor(values)
        mask = torch.tensor([float(on) for on in draw(st.lists(st.booleans(), min_size=count, max_size=count))])
        mask[0] = 1.0
        masks.append(mask)
    most = sum(int(mask.sum()) - 1 for mask in masks)
    return scores, masks, draw(st.integers(0, most))


@given(scored_layers())
def test_the_count_is_exact_and_no_layer_loses_all_heads(
    drawn: tuple[torch.Tensor, list[torch.Tensor], int],
) -> None:
    scores, masks, count = drawn
    masked = mask_lowest(scores, masks, count)
    assert sum(int(m.sum()) for m in masks) - sum(int(m.sum()) for m in masked) == count
    for layer, (before, after) in enumerate(zip(masks, masked, strict=True)):
        assert after.sum() >= 1
        assert (after <= before).all()  # what was masked stays masked
        gone = scores[layer, : len(before)][(before == 1) & (after == 0)]
        left = scores[layer, : len(before)][after == 1]
        assert not len(gone) or gone.max() <= left.max()


def test_layers_lose_alike_where_they_are_told_to() -> None:
    scores = torch.tensor([[0.1, 0.2, 0.3, 0.4], [7.0, 9.0, 8.0, 6.0]])
    masks = mask_lowest(scores, [torch.ones(4), torch.ones(4)], 4, by_layer=True)
    assert [mask.tolist() for mask in masks] == [[0, 0, 1, 1], [0, 1, 1, 0]]
    masks = mask_lowest(scores, [torch.tensor([1.0, 1, 0, 0]), torch.ones(4)], 2, by_layer=True)
    assert [mask.tolist() for mask in masks] == [[1, 1, 0, 0], [0, 1, 1, 0]]  # the wider one comes down first


def test_every_layer_keeps_what_it_is_told_to() -> None:
    scores = torch.tensor([[0.1, 0.2, 0.3, 0.4], [7.0, 9.0, 8.0, 6.0]])
    for by_layer in (False, True):
        masks = mask_lowest(scores, [torch.ones(4), torch.ones(4)], 2, keep=3, by_layer=by_layer)
        assert [int(mask.sum()) for mask in masks] == [3, 3]
        with pytest.raises(ValueError, match="more units"):
            mask_lowest(scores, [torch.ones(4), torch.ones(4)], 3, keep=3, by_layer=by_layer)


def test_widths_are_multiples_and_the_best_of_a_layer_stay() -> None:
    torch.manual_seed(0)
    scores = torch.rand(3, 64)
    scores[1] += 0.2
    masks = mask_lowest(scores, [torch.ones(64)] * 3, 96, keep=16, multiple=16)
    widths = [int(mask.sum()) for mask in masks]
    assert sum(widths) == 96 and all(width % 16 == 0 and width >= 16 for width in widths)
    assert widths[1] > max(widths[0], widths[2])
    for row, mask in zip(scores, masks, strict=True):
        assert row[mask == 1].min() > row[mask == 0].max()


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=4),
    st.integers(1, 32),
    st.integers(0, 300),
    st.booleans(),
    st.integers(0, 5),
)
def test_rounded_widths_are_near_to_what_was_asked(
    present: list[int], multiple: int, count: int, by_layer: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    scores = torch.rand(len(present), max(present))
    count = min(count, sum(max(0, number - multiple) for number in present))
    before = [torch.ones(number) for number in present]
    masked = mask_lowest(scores, before, count, keep=multiple, multiple=multiple, by_layer=by_layer)
    widths = [int(mask.sum()) for mask in masked]
    for width, number in zip(widths, present, strict=True):
        assert width == number or (width % multiple == 0 and multiple <= width < number)
    assert abs(sum(widths) - (sum(present) - count)) <= multiple * len(present)
    if by_layer:
        assert all(width in {min(number, max(widths)) for number in present} for width in widths)
    else:
        exact = mask_lowest(scores, before, count, keep=multiple)
        assert sum(int(mask.sum()) for mask in exact) == sum(present) - count


def test_layers_get_one_width_if_the_amount_does_not_divide() -> None:
    masks = mask_lowest(torch.rand(6, 12), [torch.ones(12)] * 6, 43, by_layer=True)
    assert [int(mask.sum()) for mask in masks] == [5] * 6  # 4.83 of each
    masks = mask_lowest(torch.rand(6, 1536), [torch.ones(1536)] * 6, 3686, keep=32, multiple=32, by_layer=True)
    assert [int(mask.sum()) for mask in masks] == [928] * 6  # 921.7 of each
