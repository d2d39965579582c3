"""Which units are masked next: the lowest, in widths that the hardware likes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compress.surgery.unit_selection import mask_lowest, normalised


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
