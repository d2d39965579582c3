"""Rows that were cut are counted once each, by the length at which they were."""

from __future__ import annotations

from compress.data import Example
from compress.data.tokenization import encode
from compress.data.truncation import Truncation, counting
from tests.support.tiny import tokenizer

ROWS = [Example("good film"), Example("good film " * 9), Example("good", "film " * 9), Example("dull")]


def test_rows_are_counted_once_a_length() -> None:
    tokens = tokenizer("bert")
    with counting() as truncation:
        for _ in range(2):
            encode(tokens, ROWS[:2], 8)
        encode(tokens, ROWS[1:2], 12, counted=False)
        encode(tokens, [ROWS[2]], 16)
        encode(tokens, [ROWS[2]], 12)
    assert truncation.entries() == [
        {"max_length": 8, "rows": 2, "truncated": 1},
        {"max_length": 12, "rows": 1, "truncated": 1},
    ]
    assert [truncation.unread_tokens(row) > 0 for row in ROWS] == [False, True, True, False]
    assert "1 of 2 rows at 8 tokens, 1 of 1 rows at 12 tokens; shorten" in truncation.sentence("shorten")


def test_nothing_is_said_where_no_row_was_cut() -> None:
    with counting() as truncation:
        encode(tokenizer("bert"), ROWS[:1], 8)
        truncation.add_counts(8, 1000, 0)
    assert not truncation.notes() and not truncation.sentence()


def test_an_inner_block_counts_for_itself() -> None:
    tokens = tokenizer("bert")
    with counting() as outer:
        with counting() as inner:
            encode(tokens, ROWS[:2], 8)
        encode(tokens, ROWS[3:], 8)
    assert inner.entries() and not outer.entries()


def test_a_sentence_whose_words_were_cut_off_counts() -> None:
    with counting() as truncation:
        encode(tokenizer("bert"), ROWS[:2], 8, by_word=True)
        encode(tokenizer("bert"), [Example("")], 8, by_word=True)
    assert truncation.entries() == [{"max_length": 8, "rows": 3, "truncated": 1}]


def test_a_row_is_cut_as_it_was_last_read() -> None:
    """As in a cascade, whose second member reads more of the text."""
    long, short, truncation = Example("long"), Example("short"), Truncation()
    truncation.add(16, [long, short], {0: 7})
    truncation.add(16, [long], {0: 7})
    assert truncation.entries() == [{"max_length": 16, "rows": 2, "truncated": 1}]
    assert truncation.unread_tokens(long) == 7 and truncation.cut_rows([long, short]) == 1
    truncation.add(512, [long], {})
    assert not truncation.unread_tokens(long)
