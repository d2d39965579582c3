"""Near copies: what MinHash finds is what comparing every two texts finds."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest

from compress.data import near_copies
from compress.data.near_copies import near_pairs, signatures, similarity


def sentences(count: int, seed: int = 0) -> list[str]:
    """Return different sentences, of which many differ from another in a word."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 9))) for _ in range(200)]
    found = [draw.choices(words, k=draw.randint(1, 15)) for _ in range(count // 2)]
    varied = [[*sentence[:-1], draw.choice(words)] for sentence in found]
    return list(dict.fromkeys(" ".join(sentence) for sentence in [*found, *varied]))


def test_what_is_found_is_what_comparing_every_two_finds() -> None:
    texts = [*sentences(200), "", "a", "ab", "\ud800 half a character", "ein Stück ☃ Schnee", "ein Stück ☃ Schnees"]
    every = {pair: similarity(*(texts[place] for place in pair)) for pair in combinations(range(len(texts)), 2)}
    expected = {pair: value for pair, value in every.items() if value >= near_copies.SIMILAR}
    pairs, similarities = near_pairs(texts)
    assert len(expected) > 15
    assert dict(zip(map(tuple, pairs.tolist()), similarities.tolist(), strict=True)) == expected


def test_similarity_is_that_of_sets_of_five_characters() -> None:
    assert similarity("abcdefg", "abcdefx") == 2 / 4  # abcde bcdef cdefg, abcde bcdef cdefx
    assert similarity("aaaaaaaa", "aaaaa") == 1.0
    assert similarity("ab", "ab") == 1.0 and similarity("ab", "ac") == 0.0


def test_signatures_agree_as_often_as_texts_are_similar() -> None:
    one, other = "the plot is thin but the actors are fine", "the plot is thin but the actors are good"
    signed = signatures([one, other, one])
    assert signed.shape == (3, 100) and signed.dtype == np.uint32
    assert (signed[0] == signed[2]).all()
    expected = similarity(one, other)
    assert (signed[0] == signed[1]).mean() == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 100) ** 0.5)


def test_parts_give_the_signatures_of_all_texts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = sentences(50)
    whole = signatures(texts)
    monkeypatch.setattr(near_copies, "_PART", 7)
    assert (signatures(texts) == whole).all()


def test_a_template_of_many_rows_is_found_without_comparing_every_two(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        f"your parcel with the number {number:05} has arrived at the shop around the corner" for number in range(300)
    ]
    compared = []
    monkeypatch.setattr(near_copies, "similarity", lambda one, other: compared.append(one) or similarity(one, other))
    pairs, _ = near_pairs(texts)
    assert {*pairs.ravel().tolist()} == {*range(300)}  # each has a copy
    monkeypatch.setattr(near_copies, "COMPARED", 1)
    before = len(compared)
    near_pairs(texts)
    assert len(compared) - before < before < 300 * 299 / 2


@pytest.mark.parametrize("texts", [[], ["one text"], ["one text", "another of other letters"]])
def test_nothing_is_like_nothing_else(texts: list[str]) -> None:
    pairs, similarities = near_pairs(texts)
    assert pairs.shape == (0, 2) and similarities.shape == (0,)
