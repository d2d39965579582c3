"""Windows lie where the document says, and pool as computed by hand; no token is lost, or read twice but by overlap."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from compress.data import Example, tokenization
from compress.data.tokenization import WHOLE, encode, shared_encoder
from compress.data.windows import WindowRows, Windows, windows_of
from compress.errors import CompressError
from tests.support.tiny import tokenizer

DOCUMENTS = [Example("good film " * words) for words in (1, 3, 4, 40)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("256", "windows '256' are not SIZE,STRIDE,POOLING"),
        ("256,128,median", "windows '256,128,median' are not SIZE,STRIDE,POOLING"),
        (256, "windows 256 are not SIZE,STRIDE,POOLING"),
        ("4,2", "windows of 4 tokens are too short; give 8 or more"),
        ("16,0", "a stride of 0 leaves tokens between windows of 16"),
        ("16,17", "a stride of 17 leaves tokens between windows of 16"),
    ],
)
def test_wrong_windows_are_refused_in_one_sentence(given: object, said: str) -> None:
    with pytest.raises(CompressError, match="^" + said):
        Windows.read(given)


def test_windows_are_read_as_they_are_written() -> None:
    assert Windows.read("256,128") == Windows(256, 128, "mean") == Windows.read(Windows(256, 128))
    assert Windows.read(str(Windows(16, 4, "max"))) == Windows(16, 4, "max")
    assert windows_of({}, "here") is None
    with pytest.raises(CompressError, match=r"compress_windows in the config.json of here: windows \[1\] are not"):
        windows_of({"compress_windows": [1]}, "here")


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("stride", [1, 3, 6, 8])
def test_windows_hold_every_token_of_a_document(family: str, stride: int) -> None:
    tokens = tokenizer(family)
    whole = encode(tokens, DOCUMENTS, WHOLE)["input_ids"]
    before, after = shared_encoder(tokens).ends(pairs=False)
    rows, room = WindowRows.of_texts(Windows(8, stride), tokens, DOCUMENTS), 8 - before - after
    assert rows.lengths.tolist() == [len(one["input_ids"]) for one in rows]
    assert rows.begins.sum() == len(DOCUMENTS) and rows.counts.sum() == len(rows.documents)
    for number, ids in enumerate(whole):
        text = ids[before : len(ids) - after].tolist()
        windows = [one["input_ids"] for one, of in zip(rows, rows.documents, strict=True) if of == number]
        inner = [one[before : len(one) - after].tolist() for one in windows]
        assert all((one[:before] == ids[:before]).all() and (one[-after:] == ids[-after:]).all() for one in windows)
        step = min(stride, room)
        starts = [*range(0, len(text) - room, step), len(text) - room] if len(text) > room else [0]
        assert inner == [text[start : start + room] for start in starts]
        reached = 0
        for start, part in zip(starts, inner, strict=True):
            assert start <= reached and text[start : start + len(part)] == part
            reached = start + len(part)
        assert reached == len(text)


def test_a_document_of_one_window_is_the_row_without_windows() -> None:
    tokens = tokenizer("bert")
    plain = encode(tokens, DOCUMENTS[:2], 16)
    rows = WindowRows.of_texts(Windows(16, 4), tokens, DOCUMENTS[:2])
    for number, row in enumerate(rows):
        assert {key: ids.tolist() for key, ids in row.items()} == {k: v[number].tolist() for k, v in plain.items()}


def test_windows_of_a_long_document_can_be_spread_over_it() -> None:
    rows = WindowRows.of_texts(Windows(8, 1), tokenizer("bert"), DOCUMENTS, most=3)
    assert rows.counts.tolist() == [1, 1, 3, 3] and rows.begins.tolist() == [True, True, True, False, False] + [
        True,
        False,
        False,
    ]
    everything = WindowRows.of_texts(Windows(8, 1), tokenizer("bert"), DOCUMENTS)
    *_, last = everything
    *_, kept = rows
    assert (last["input_ids"] == kept["input_ids"]).all()


def test_pooling_is_that_of_the_formula() -> None:
    logits = np.array([[1.0, 3.0], [2.0, -2.0], [0.5, 0.0], [4.0, 1.0]], np.float32)
    counts = [1, 3]
    assert Windows(8, 4, "mean").pool(logits, counts) == pytest.approx(np.array([[1, 3], [6.5 / 3, -1 / 3]]))
    assert Windows(8, 4, "max").pool(logits, counts).tolist() == [[1, 3], [4, 1]]
    weights = np.exp([2.0, 0.25, 1.5])  # how much the largest logit is above the mean
    weights /= weights.sum()
    expected = (weights[:, None] * logits[1:]).sum(axis=0)
    found = Windows(8, 4, "attention").pool(logits, counts)
    assert found.dtype == np.float32 and (found[0] == logits[0]).all() and found[1] == pytest.approx(expected)


@pytest.mark.parametrize("pooling", ["mean", "max", "attention"])
def test_pooling_one_window_gives_its_bits(pooling: str) -> None:
    logits = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    found = Windows(8, 4, pooling).pool(logits, [1, 1, 2, 1, 2])
    assert (found[[0, 1, 3]] == logits[[0, 1, 4]]).all()


def test_windows_that_do_not_fit_a_model_are_refused() -> None:
    with pytest.raises(CompressError, match="sure of a class they are, and here gives one score; pool by mean or max"):
        Windows(8, 4, "attention").check("here", 64, 1, by_word=False)
    with pytest.raises(CompressError, match="windows of 8 tokens are more than the 7 that here reads; give 7 or fewer"):
        Windows(8, 4).check("here", 7, 1, by_word=False)
    Windows(8, 4).check("here", 8, 1, by_word=False)


def test_pairs_and_windows_without_room_are_refused() -> None:
    with pytest.raises(CompressError, match="^windows are of one text, and these rows are pairs of texts"):
        WindowRows.of_texts(Windows(8, 4), tokenizer("bert"), [Example("good", "film")])
    with pytest.raises(CompressError, match="^special tokens fill windows of 2 tokens"):
        WindowRows.of_texts(Windows(2, 1), tokenizer("bert"), DOCUMENTS)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "albert", "modernbert"])
@pytest.mark.parametrize("end", ["", " ", "é"])
def test_tokens_of_a_text_that_is_read_in_parts_are_those_of_the_whole(
    family: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "good film, the  end. a\tvery dull plot " * 40 + end
    whole = shared_encoder(tokenizer(family)).ids([text, "good"])
    monkeypatch.setattr(tokenization, "PART_CHARACTERS", 128)
    assert shared_encoder(tokenizer(family)).ids([text, "good"]) == whole


def test_the_windows_of_a_large_document_take_little_memory() -> None:
    """Overlapping windows of 4 MB of text, which side by side would take 2 GB."""
    tokens, document = tokenizer("bert"), Example("good film " * 400_000)
    tracemalloc.start()
    rows = WindowRows.of_texts(Windows(64, 1), tokens, [document])
    assert sum(1 for _ in zip(rows, range(1000), strict=False)) == 1000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(rows.documents) == 800_000 - 61 and peak < 400e6
