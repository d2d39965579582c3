"""What --heads, --ffn and --layers mean."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from compress.errors import CompressError
from compress.recipes.pruning import parse_amount, units_to_remove

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
        ("max", MINILM, 66),
    ],
)
def test_what_is_understood(text: str, heads: list[int], removed: int) -> None:
    assert units_to_remove("--heads", text, heads, "heads") == removed


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
        ("99%", "give at most 66 (91%)"),
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
        units_to_remove("--heads", text, MINILM, "heads")
    assert f"--heads {text} " in str(caught.value) and message in str(caught.value)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=12), st.floats(0.01, 99.99))
def test_a_share_is_the_nearest_number_of_heads(heads: list[int], percent: float) -> None:
    wanted = round(percent, 2) * sum(heads) / 100
    assume(0.51 < wanted < sum(heads) - len(heads))
    assert abs(units_to_remove("--heads", f"{percent:.2f}%", heads, "heads") - wanted) <= 0.5 + 1e-9


def test_other_units_have_other_names_and_other_things_to_keep() -> None:
    message = r"removes 115 of the model's 128 neurons, but each of its 2 layers keeps at least 32; give at most 64 "
    with pytest.raises(CompressError, match=message):
        units_to_remove("--ffn", "90%", [64, 64], "neurons", keep=32)
    with pytest.raises(CompressError, match="--layers 6 removes 6 of the model's 6 layers, but one must stay; give at"):
        units_to_remove("--layers", "6", [6], "layers")
    assert units_to_remove("--layers", "50%", [6], "layers") == 3
    assert units_to_remove("--ffn", "max", [64, 40], "neurons", keep=32) == 40


def test_max_of_nothing_is_refused() -> None:
    with pytest.raises(CompressError, match="removes none"):
        units_to_remove("--ffn", "max", [16, 16], "neurons", keep=32)


@pytest.mark.parametrize(("text", "amount"), [("25%", 0.25), ("3", 3), ("max", "max")])
def test_an_amount_without_a_model(text: str, amount: object) -> None:
    assert parse_amount("--hidden", text) == amount
