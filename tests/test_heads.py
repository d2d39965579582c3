"""What --heads means, and which heads go."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from compress.errors import CompressError
from compress.heads import close_lowest, heads_to_remove, normalised, step_sizes

MINILM = [12] * 6  # 72 heads
BERT = [12] * 12  # 144 heads


@pytest.mark.parametrize(
    ("text", "heads", "removed"),
    [
        ("60%", MINILM, 43),  # 43.2
        ("60%", BERT, 86),  # 86.4
        ("0.6", MINILM, 43),
        (".6", MINILM, 43),
        ("40", MINILM, 40),
        ("1", MINILM, 1),
        ("66", MINILM, 66),
        (" 60 % ", MINILM, 43),
        ("12.5%", MINILM, 9),
        ("0.7%", MINILM, 1),  # 0.504 rounds up
        ("50%", [3, 2], 3),  # 2.5 rounds up: the nearest head is a tie
        ("91.5%", MINILM, 66),  # 65.88
        ("2", [2, 3], 2),
    ],
)
def test_what_is_understood(text: str, heads: list[int], removed: int) -> None:
    assert heads_to_remove(text, heads) == removed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0%", "is not between 0% and 100%"),
        ("100%", "is not between 0% and 100%"),
        ("160%", "is not between 0% and 100%"),
        ("1.0", "is not between 0% and 100%"),
        ("1.", "is not between 0% and 100%"),
        ("0.0", "is not between 0% and 100%"),
        ("2.5", "is not between 0% and 100%"),
        ("0", "removes none of the model's 72 heads"),
        ("0.5%", "removes none of the model's 72 heads"),
        ("67", "removes 67 of the model's 72 heads, but each of its 6 layers keeps at least one"),
        ("99%", "give at most 66 (92%)"),
        ("72", "give at most 66"),
        ("", "is neither a share nor a count"),
        ("abc", "is neither a share nor a count"),
        ("-3", "is neither a share nor a count"),
        ("-60%", "is neither a share nor a count"),
        ("6e1", "is neither a share nor a count"),
        ("60%%", "is neither a share nor a count"),
        ("nan", "is neither a share nor a count"),
        ("1,5%", "is neither a share nor a count"),
        (".", "is neither a share nor a count"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(CompressError) as caught:
        heads_to_remove(text, MINILM)
    assert f"--heads {text} " in str(caught.value) and message in str(caught.value)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=12), st.floats(0.01, 99.99))
def test_a_share_is_the_nearest_number_of_heads(heads: list[int], percent: float) -> None:
    wanted = round(percent, 2) * sum(heads) / 100
    assume(0.51 < wanted < sum(heads) - len(heads))
    assert abs(heads_to_remove(f"{percent:.2f}%", heads) - wanted) <= 0.5 + 1e-9


def test_each_layer_is_divided_by_its_own_norm() -> None:
    scores = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.5]])
    expected = torch.tensor([[0.6, 0.8, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(normalised(scores), expected)


def test_the_lowest_heads_of_all_layers_go_first() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.3], [0.2, 0.8, 0.7]])
    masks = close_lowest(scores, [torch.ones(3), torch.ones(3)], 3)
    assert [mask.tolist() for mask in masks] == [[0, 1, 0], [0, 1, 1]]


def test_a_layer_keeps_its_best_head_whatever_the_others_score() -> None:
    scores = torch.tensor([[0.1, 0.2, 0.3], [7.0, 8.0, 9.0]])
    masks = close_lowest(scores, [torch.ones(3), torch.ones(3)], 3)
    assert [mask.tolist() for mask in masks] == [[0, 0, 1], [0, 1, 1]]


def test_ties_go_by_layer_and_head() -> None:
    masks = close_lowest(torch.zeros(2, 3), [torch.ones(3), torch.ones(3)], 2)
    assert [mask.tolist() for mask in masks] == [[0, 0, 1], [1, 1, 1]]


def test_masks_are_not_changed_in_place() -> None:
    before = [torch.ones(2), torch.ones(2)]
    close_lowest(torch.zeros(2, 2), before, 1)
    assert all(mask.tolist() == [1, 1] for mask in before)


def test_more_than_the_layers_can_give_is_an_error() -> None:
    with pytest.raises(ValueError, match="more heads to close"):
        close_lowest(torch.zeros(2, 2), [torch.ones(2), torch.ones(2)], 3)


@st.composite
def scored_layers(draw: st.DrawFn) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """Scores of uneven layers, some heads closed already, and how many more shall close."""
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
def test_exactly_so_many_close_and_no_layer_is_left_without_heads(
    drawn: tuple[torch.Tensor, list[torch.Tensor], int],
) -> None:
    scores, masks, count = drawn
    closed = close_lowest(scores, masks, count)
    assert sum(int(m.sum()) for m in masks) - sum(int(m.sum()) for m in closed) == count
    for layer, (before, after) in enumerate(zip(masks, closed, strict=True)):
        assert after.sum() >= 1
        assert (after <= before).all()  # what was closed stays closed
        gone = scores[layer, : len(before)][(before == 1) & (after == 0)]
        left = scores[layer, : len(before)][after == 1]
        assert not len(gone) or gone.max() <= left.max()


@pytest.mark.parametrize(
    ("total", "step", "sizes"), [(43, 7, [7] * 6 + [1]), (4, 2, [2, 2]), (3, 7, [3]), (0, 3, []), (1, 1, [1])]
)
def test_steps(total: int, step: int, sizes: list[int]) -> None:
    assert step_sizes(total, step) == sizes
