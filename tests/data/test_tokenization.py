"""Ids by words are those of the tokenizer, for any text."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from compress.data import tokenization
from compress.data.stored_tokenizer import PlainTokenizer
from compress.data.tokenization import (
    TextEncoder,
    TokenRows,
    first_tokens,
    maximum_length,
    position_limit,
    shared_encoder,
)
from compress.errors import CompressError
from tests.support.tiny import GOOD, PRUNABLE, tokenizer

BY_WORDS = ("bert", "distilbert", "electra", "mobilebert", "mpnet")
TOKENIZERS = {family: tokenizer(family) for family in PRUNABLE}
WORDS = [
    "the",
    "film",
    "FILM's",
    "plotless",
    "x" * 101,
    "don't",
    "[SEP]",
    "<mask>",
    "[sep]",
    "é",
    "漢字",
    "\x07",
    "\u2028",
]
TEXT = st.lists(st.sampled_from(WORDS) | st.text(max_size=6), max_size=8).map(" ".join)


def lists(rows: TokenRows) -> dict[str, list[list[int]]]:
    assert {row.dtype.name for key in rows for row in rows[key]} == {"int64"}
    return {key: [row.tolist() for row in rows[key]] for key in rows}


def encoded(
    tokens: PreTrainedTokenizerFast, texts: list[str], pairs: list[str] | None, max_length: int
) -> dict[str, Any]:
    return lists(shared_encoder(tokens)(texts, pairs, max_length))


def expected(
    tokens: PreTrainedTokenizerFast, texts: list[str], pairs: list[str] | None, max_length: int
) -> dict[str, Any]:
    found = tokens(texts, pairs, truncation=True, max_length=max_length, return_attention_mask=False)
    return {key: found[key] for key in ("input_ids", "token_type_ids") if key in found}


@pytest.mark.parametrize("family", PRUNABLE)
@given(text=TEXT, pair=st.none() | TEXT, max_length=st.sampled_from([5, 8, 64]))
@example(text="", pair=None, max_length=8)
@example(text="the\tfilm\r\nis_good", pair="", max_length=64)
@example(text="a\x0bb\x00c\x7fd", pair=None, max_length=64)
def test_any_text_has_the_ids_of_its_tokenizer(family: str, text: str, pair: str | None, max_length: int) -> None:
    tokens = TOKENIZERS[family]
    texts, pairs = [text, "good film"], None if pair is None else [pair, "dull"]
    wanted = expected(tokens, texts, pairs, max_length)
    assert encoded(tokens, texts, pairs, max_length) == wanted
    assert encoded(tokens, texts, pairs, max_length) == wanted  # with the words of the first time


@pytest.mark.parametrize("family", BY_WORDS)
def test_plain_text_does_not_reach_the_tokenizer(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokenizer(family)
    encoder = shared_encoder(tokens)
    wanted = expected(tokens, ["The film, is GOOD!"], ["dull"], 64)
    monkeypatch.setattr(encoder, "_backend", None)
    assert lists(encoder(["The film, is GOOD!"], ["dull"], 64)) == wanted


def test_a_cased_tokenizer_keeps_capitals() -> None:
    tokens = tokenizer("bert")
    tokens.backend_tokenizer.normalizer.lowercase = False
    assert encoded(tokens, ["FILM film"], None, 64) == expected(tokens, ["FILM film"], None, 64)
    assert encoded(tokens, ["FILM"], None, 64) != encoded(tokens, ["film"], None, 64)


@pytest.mark.parametrize("added", ["Zz", "Žz", "o z"])  # the second is normalised to the letters of the first
def test_an_added_token_within_a_word_is_found(added: str) -> None:
    tokens = tokenizer("bert")
    tokens.add_tokens([AddedToken(added, normalized=True)])
    texts = ["fizzle good", "zz", "foo\tzz"]
    assert encoded(tokens, texts, None, 64) == expected(tokens, texts, None, 64)


def test_padding_and_truncation_of_the_file_do_not_count() -> None:
    """Tokenizers of sentence encoders come with both switched on."""
    tokens = tokenizer("bert")
    tokens.backend_tokenizer.enable_padding(length=16)
    tokens.backend_tokenizer.enable_truncation(4)
    texts = ["the film is good and the plot is not", "漢字"]
    assert encoded(tokens, texts, None, 64) == expected(tokenizer("bert"), texts, None, 64)


def test_rows_are_cut_on_the_side_of_the_tokenizer() -> None:
    tokens = tokenizer("bert")
    tokens.truncation_side = "left"
    assert encoded(tokens, ["the film is good"], None, 4) == expected(tokens, ["the film is good"], None, 4)


def test_threads_share_an_encoder() -> None:
    """Texts beyond ASCII go through the library, whose truncation is a setting of the whole tokenizer."""
    encoder, texts, interval = shared_encoder(tokenizer("bert")), ["é good film " * 30] * 8, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: encoder(texts, None, 16), range(300)))
    finally:
        sys.setswitchinterval(interval)
    assert {len(row) for rows in found for row in rows["input_ids"]} == {16}


def test_only_so_many_words_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenization, "KEPT_WORDS", 3)
    tokens = tokenizer("bert")
    encoder = TextEncoder(tokens.backend_tokenizer, segments=False, truncation_side="right")
    texts = [" ".join(GOOD)]
    assert lists(encoder(texts, None, 64)) == lists(encoder(texts, None, 64))
    assert encoder._words is not None and len(encoder._words) == 3


def test_the_encoder_ends_with_its_tokenizer() -> None:
    before = len(tokenization._ENCODERS)
    tokens = tokenizer("bert")
    assert shared_encoder(tokens) is shared_encoder(tokens) and len(tokenization._ENCODERS) == before + 1
    del tokens
    assert len(tokenization._ENCODERS) == before


@pytest.mark.parametrize("family", PRUNABLE)
def test_a_stored_tokenizer_reads_as_that_of_transformers(family: str, tmp_path: Path) -> None:
    tokens = TOKENIZERS[family]
    tokens.save_pretrained(tmp_path)
    stored = PlainTokenizer.read(tmp_path, segments="token_type_ids" in tokens.model_input_names)
    assert (stored.pad_token_id, stored.unk_token_id) == (tokens.pad_token_id, tokens.unk_token_id)
    assert maximum_length(stored, {}) == maximum_length(tokens, {}) and stored.truncation_side == tokens.truncation_side
    texts = ["the film is good", "FILM's <mask> 漢字", "", "one two three four five six seven eight nine ten"]
    for pairs in (None, texts[::-1]):
        for limit in (6, 64):
            assert lists(shared_encoder(stored)(texts, pairs, limit)) == expected(tokens, texts, pairs, limit)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_stored_tokenizer_keeps_its_settings(side: str, tmp_path: Path) -> None:
    tokenizer("bert").save_pretrained(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    changed = {"truncation_side": side, "model_max_length": 7}
    settings.write_text(json.dumps(json.loads(settings.read_text(encoding="utf-8")) | changed), encoding="utf-8")
    tokens = AutoTokenizer.from_pretrained(tmp_path)
    stored = PlainTokenizer.read(tmp_path, segments=True)
    assert (stored.truncation_side, stored.model_max_length) == (side, 7) == (tokens.truncation_side, 7)
    text = ["one two three four five six seven eight nine ten"]
    assert lists(shared_encoder(stored)(text, None, 7)) == expected(tokens, text, None, 7)


@pytest.mark.parametrize("damaged", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_one_error(damaged: str, tmp_path: Path) -> None:
    tokenizer("bert").save_pretrained(tmp_path)
    (tmp_path / damaged).write_text("{", encoding="utf-8")
    with pytest.raises(CompressError, match="cannot be read as a directory with a tokenizer|is not valid JSON"):
        PlainTokenizer.read(tmp_path, segments=True)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"max_position_embeddings": -1}, None),
        ({"max_position_embeddings": "512"}, None),
        ({}, None),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "compress-pruned-mpnet", "max_position_embeddings": 514, "pad_token_id": None}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 0}, 513),
    ],
)
def test_positions_that_tokens_can_use(config: dict[str, Any], positions: int | None) -> None:
    assert position_limit(config) == positions


# Three times as long as what is cut; of two long texts the library makes all pairs of their parts.
LONG_TEXTS = {
    "words": "the film is good and the plot , well , is not ; " * 13,
    "no spaces": "thefilmisgoodandtheplotisnot" * 20,
    "spaces": "good" + " " * 500 + "film" + "  dull" * 30,
    "one letter": "a" * 650,
    "scripts": "漢字 é\u0301\u200b <mask> [SEP]\n" * 30,
}


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut texts of some hundred characters as those of many thousands are."""
    for name, value in {"_LONG": 8, "_FIRST_PART": 4, "_LEAST_PART": 64}.items():
        monkeypatch.setattr(tokenization, name, value)


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", PRUNABLE)
def test_long_texts_are_cut_to_the_ids_of_the_whole(family: str, side: str) -> None:
    tokens = tokenizer(family)
    tokens.truncation_side = side
    for text in LONG_TEXTS.values():
        assert encoded(tokens, [text], None, 24) == expected(tokens, [text], None, 24)
        for pair in ("good film", text[:200], LONG_TEXTS["words"]):  # an odd number of tokens for both
            assert encoded(tokens, [text], [pair], 24) == expected(tokens, [text], [pair], 24)
            assert encoded(tokens, [pair], [text], 25) == expected(tokens, [pair], [text], 25)


@pytest.mark.parametrize("side", ["left", "right"])
def test_of_a_million_characters_few_are_tokenised(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "the film is good . " * 50_000
    for family in PRUNABLE:
        encoder = TextEncoder(tokenizer(family).backend_tokenizer, segments=False, truncation_side=side)
        read = Mock(wraps=encoder._read)
        monkeypatch.setattr(encoder, "_read", read)
        encoder([text], None, 64)
        encoder([text], ["good film"], 64)
        encoder.of_words([text.split()], 64)
        assert max(len(str(call.args)) for call in read.call_args_list) < 50_000


def test_a_word_of_a_million_characters_is_looked_up_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes thirty times as long, whenever the text is read."""
    encoder = TextEncoder(tokenizer("bert").backend_tokenizer, segments=False, truncation_side="right")
    monkeypatch.setattr(encoder, "_read", Mock(side_effect=AssertionError))
    assert lists(encoder(["x" * 10**6], None, 64)) == lists(encoder(["x" * 101], None, 64))
    assert encoder._words is not None and not encoder._words


def test_the_tokens_that_were_not_read_are_counted() -> None:
    tokens = tokenizer("bert")
    rows = shared_encoder(tokens)(["good film", "good film " * 20, "é " * 6, "é " * 7, "a"], None, 8)
    assert rows.unread == {1: 34, 3: 1}
    pairs = shared_encoder(tokens)(["good", "good " * 5, "good"], ["film", "film", "film " * 4], 8)
    assert pairs.unread == {1: 1}
    assert shared_encoder(tokens).of_words([["good"] * 6, ["good"] * 7], 8).unread == {1: 1}


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("family", PRUNABLE)
def test_tokens_of_long_texts_are_counted_in_pieces(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokenizer(family)
    texts = ["the film  is good . " * 90, "a plotless é 漢 film\n" * 70, " " * 300, "good film"]
    texts.append("plotless\n" * 80)
    pairs = ["good " * 99, *texts[:4]]
    every, both = (shared_encoder(tokens).ids(some) for some in (texts, pairs))
    monkeypatch.setattr(tokenization, "PART_CHARACTERS", 100)
    encoder = TextEncoder(tokens.backend_tokenizer, segments=False, truncation_side="right")
    assert encoder.ids(texts) == every
    for others, sizes in (
        (None, [len(ids) // 8 for ids in every]),
        (pairs, [len(a + b) // 8 for a, b in zip(every, both, strict=True)]),
    ):
        special = sum(len(part.special) // 8 for part in encoder.layouts[others is not None])
        found = encoder(texts, others, 24, whole=True)
        left_out = {row: size + special - 24 for row, size in enumerate(sizes) if size + special > 24}
        assert found.unread == left_out and lists(found) == lists(encoder(texts, others, 24))
    words = [text.split() for text in texts]
    found, part = (encoder.of_words(words, 24, whole=whole) for whole in (True, False))
    counts = [
        len(tokens.backend_tokenizer.encode(row, is_pretokenized=True, add_special_tokens=False)) for row in words
    ]
    assert found.unread == {
        row: count + sum(encoder.ends(pairs=False)) - 24 for row, count in enumerate(counts) if count > 22
    }
    for row in range(len(words)):
        assert all((found[key][row] == part[key][row]).all() for key in ("input_ids", "words"))


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", PRUNABLE)
def test_lists_of_words_have_the_tokens_and_words_of_the_library(family: str, side: str) -> None:
    tokens = tokenizer(family)
    rows = [["good", "film"], [], ["the", "plotless", "x" * 300, "é", "漢字"] * 40, ["y" * 200]]
    found = TextEncoder(tokens.backend_tokenizer, segments=False, truncation_side=side).of_words(rows, 16)
    for row, ids, starts in zip(rows, found["input_ids"], found["words"], strict=True):
        tokens.backend_tokenizer.enable_truncation(16, direction=side)
        wanted = tokens.backend_tokenizer.encode(row, is_pretokenized=True)
        tokens.backend_tokenizer.no_truncation()
        before = {"left": len(row) - 1 - max((w for w in wanted.word_ids if w is not None), default=0)}
        numbers = [n and n + (before.get(side, 0) if wanted.overflowing else 0) for n in first_tokens(wanted.word_ids)]
        assert ids.tolist() == wanted.ids and starts.tolist() == numbers


MARKS = [("[CLS]", 1), ("[SEP]", 2)]
POST_PROCESSORS: dict[str, Any] = {
    "none": None,
    "byte level": processors.ByteLevel(),
    "roberta": processors.RobertaProcessing(("[SEP]", 2), ("[CLS]", 1)),
    "sequence": processors.Sequence(
        [
            processors.ByteLevel(),
            processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=MARKS),
        ]
    ),
    "end only": processors.TemplateProcessing("$A [SEP]", "$A [SEP] $B [SEP]", special_tokens=MARKS),
    "second text first": processors.TemplateProcessing("[CLS] $A", "$B:1 [CLS] $A:0", special_tokens=MARKS),
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", POST_PROCESSORS)
def test_rows_are_cut_and_marked_as_by_the_library(name: str, side: str) -> None:
    words = ["[UNK]", "[CLS]", "[SEP]", "the", "film", "is", "good"]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = POST_PROCESSORS[name]
    encoder = TextEncoder(backend, segments=True, truncation_side=side)
    texts = ["the film is good and so is the plot", "film", "", "good " * 30]
    for length, pair in itertools.product((4, 7, 64), (None, *texts)):
        found = lists(encoder(texts, None if pair is None else [pair] * len(texts), length))
        backend.enable_truncation(length, direction=side)
        wanted = [backend.encode(text, pair) for text in texts]
        assert found == {
            "input_ids": [one.ids for one in wanted],
            "token_type_ids": [one.type_ids for one in wanted],
        }


def changed_tokenizer(directory: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    tokenizer("bert").save_pretrained(directory)
    path = directory / "tokenizer.json"
    definition = json.loads(path.read_text(encoding="utf-8"))
    change(definition)
    path.write_text(json.dumps(definition), encoding="utf-8")
    return directory


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda one: one["model"].update(max_input_chars_per_word=10**12), "words of 1,000,000,000,000 characters"),
        (lambda one: one.update(normalizer={"type": "Prepend", "prepend": "x" * 5_000_000}), "normalizer of 5,000,"),
        (lambda one: one.update(normalizer={"type": "Prepend", "prepend": "x" * 5000}), "5e+03 characters of one"),
        (lambda one: one.update(normalizer={"type": "Sequence", "normalizers": [REPLACE] * 40}), "1.1e+12 characters"),
    ],
)
def test_a_tokenizer_that_takes_much_of_a_short_text_is_refused(
    change: Callable[[dict[str, Any]], object], says: str, tmp_path: Path
) -> None:
    with pytest.raises(CompressError, match=re.escape(says)):
        PlainTokenizer.read(changed_tokenizer(tmp_path, change), segments=True)


@pytest.mark.parametrize("key", ["strategy", "pad_to_multiple_of"])
def test_padding_of_the_file_costs_nothing(key: str, tmp_path: Path) -> None:
    padding = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None}
    padding |= {
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
        key: {"Fixed": 10**9} if key == "strategy" else 10**9,
    }
    changed_tokenizer(tmp_path, lambda one: one.update(padding=padding))
    stored = PlainTokenizer.read(tmp_path, segments=True)
    assert len(stored.backend_tokenizer.encode("good film")) == 4


def test_a_text_that_the_tokenizer_fails_on_is_named(tmp_path: Path) -> None:
    pattern = {"type": "Split", "pattern": {"Regex": r"(a+)+b(?<=c)|(.*)*\1x"}, "behavior": "Isolated", "invert": False}
    stored = PlainTokenizer.read(
        changed_tokenizer(tmp_path, lambda one: one.update(pre_tokenizer=pattern)), segments=True
    )
    with pytest.raises(CompressError, match=f"{re.escape(str(tmp_path))} .* 'aaaaaaaaa.*retry-limit"):
        shared_encoder(stored)(["good", "a" * 60], None, 64)
