"""The native library answers as the graph and the tokenizer that its container was made of."""

from __future__ import annotations

import gc
import json
import logging
import signal
import threading
import unicodedata
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import ANY

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, Whitespace
from tokenizers.processors import TemplateProcessing

from compress.data.examples import Example
from compress.data.stored_tokenizer import PlainTokenizer
from compress.data.tokenization import shared_encoder
from compress.errors import CompressError, Unavailable
from compress.inference import native
from compress.inference.batching import open_runtime
from compress.inference.native import NativeRunner, write
from compress.inference.native.write import packed
from compress.inference.predict import load
from compress.inference.runners import LoadedModel
from compress.models.manifest import NATIVE_NAME
from compress.models.model_dir import Model
from compress.models.networks.cnn.model import CNNForTokenClassification
from compress.models.saving import save_model
from compress.requests.compression import calibrate, export, quantize
from tests.support import tiny
from tests.support.tagging import bilstm_tagger
from tests.support.tiny import examples, onnx_directory

core = pytest.importorskip("compress.inference.native._core", reason="the native library was not built")

TEXTS = [
    "a good film",
    "",
    "  Dull, \u00e9l\u00e8ve!  ",
    "[SEP] a [MASK] film [unk]",
    "\u4e2d\u6587 \ud55c\uae00 \u0130stanbul\u0301",
    "x" * 101,
    " ".join(["film"] * 600),
]
MARKS = [chr(code) for code in range(0x30000) if unicodedata.combining(chr(code))]


def tokenizer(side: str = "right", max_length: int = 40, **settings: Any) -> PlainTokenizer:
    """Return a BERT tokenizer whose ids show most characters: each has a token, as a word and as what continues one."""
    letters = dict.fromkeys([*map(chr, (*range(33, 0x250), *range(0x1B00, 0x1B80), *range(0x4E00, 0x4E40)))])
    letters |= dict.fromkeys([*MARKS, *"\uac00\u1100\u1161\U0001d15f\U0001d158", "the", "ing"])
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{one}" for one in letters)]
    backend = Tokenizer(WordPiece({one: id for id, one in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer = BertNormalizer(**settings)
    backend.pre_tokenizer = BertPreTokenizer()
    backend.add_special_tokens(pieces[:5])
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PlainTokenizer(backend, ("input_ids", "attention_mask"), max_length, side, 0, 1)


def model_of(tokens: PlainTokenizer, other: Mapping[str, Any] = {}, layers: Mapping[str, np.ndarray] = {}) -> Any:
    """Return the library's model of a tokenizer and the smallest network, or one of other numbers and layers."""
    definition, size = json.loads(tokens.backend_tokenizer.to_str()), tokens.backend_tokenizer.get_vocab_size()
    special = write.special_ids(tokens)
    rows = np.zeros((1, 16), np.float32)
    sections = {
        **write._joined("label", "names", [b"one", b"two"]),
        **write.tokenizer_sections(definition),
        "special_ids": np.array(sum(special, []), np.uint32),
        "remap": np.zeros(size, np.uint32),
        "table": rows,
        "dense_weight": np.zeros((16, 16), np.float32),
        "dense_bias": rows[0],
        "classifier_weight": np.zeros((2, 16), np.float32),
        "classifier_bias": np.zeros(2, np.float32),
    }
    numbers = {
        **{"network": 1, "labels": 2, "max_length": tokens.model_max_length, "tokenizer_size": size, "unknown_id": 1},
        **{"truncates_left": tokens.truncation_side == "left", "word_characters": 100},
        **{"special": [len(ids) for ids in special], "table_rows": 1, "table_columns": 16, "features": 16},
        **{"dense": 16, "pooling": 1, "longest": 1, "buckets": 1},
    }
    return core.Model(packed({**numbers, **other}, {**sections, **layers}))


def fuzz(random: Random, pieces: int) -> str:
    """Return a text of single characters of all kinds, special tokens, and words near the limit of WordPiece."""
    special = [
        "[CLS]",
        "[SEP]",
        "[MASK",
        "[UNK]",
        " ",
        "\n",
        "the",
        "ing",
        "a" * 99,
        "b" * 101,
        "\u4e2d",
        "\uac00",
        "\u0130",
    ]
    some = [
        lambda: chr(random.randrange(32, 127)),
        lambda: chr(random.randrange(0x250)),
        lambda: random.choice(MARKS),
        lambda: chr(random.choice([random.randrange(0xD800), random.randrange(0xE000, 0x110000)])),
        lambda: random.choice(special),
    ]
    return "".join(random.choice(some)() for _ in range(random.randrange(pieces)))


SETTINGS = {
    "uncased": {},
    "cased": {"lowercase": False},
    "accents": {"strip_accents": False},
    "cased without accents": {"lowercase": False, "strip_accents": True},
    "as it is": {"clean_text": False, "handle_chinese_chars": False, "lowercase": False},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_ids_are_those_of_the_tokenizer(settings: dict[str, Any]) -> None:
    tokens, random = tokenizer(**settings), Random(0)
    model, encoder = model_of(tokens), shared_encoder(tokens)
    codes = [code for code in range(0, 0x110000) if not 0xD800 <= code < 0xE000 and (code < 0x3400 or not code % 61)]
    texts = [*TEXTS, *(f"a{chr(code)}b {chr(code)}" for code in codes), *(fuzz(random, 24) for _ in range(5000))]
    texts += [f"a\u302e{mark}\U0001d165" for mark in MARKS]  # the last mark goes before the first unless one is between
    rows = encoder(texts, None, tokens.model_max_length)
    for number, (text, expected) in enumerate(zip(texts, rows["input_ids"], strict=True)):
        assert model.ids(text) == (expected.tolist(), rows.unread.get(number, 0)), ascii(text)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("length", [5, 6, 17])
def test_long_texts_and_pairs_are_cut_as_the_tokenizer_does(side: str, length: int) -> None:
    tokens, random = tokenizer(side, length), Random(1)
    model, encoder = model_of(tokens), shared_encoder(tokens)
    for _ in range(500):
        text, pair = ("".join(random.choices("ab c!", k=random.randrange(2 * length))) for _ in range(2))
        rows = encoder([text], None, length)
        assert model.ids(text) == (rows["input_ids"][0].tolist(), rows.unread.get(0, 0))
        rows = encoder([text], [pair], length)
        assert model.ids((text, pair)) == (rows["input_ids"][0].tolist(), rows.unread.get(0, 0))


@pytest.mark.parametrize("side", ["right", "left"])
def test_words_have_the_logits_of_their_first_tokens(side: str) -> None:
    tokens, random = tokenizer(side, 12), Random(2)
    size = tokens.backend_tokenizer.get_vocab_size()
    # One window of one token with one filter, whose logit is the token's id.
    numbers = {"network": 2, "is_tagger": 1, "pooling": 3, "filters": 1, "widths": [1], "width_count": 1}
    weight = np.eye(1, 16, dtype=np.float32)
    rows = {"remap": np.arange(size, dtype=np.uint32), "table": np.arange(size, dtype=np.float32)}
    layers = {"dense_weight": weight, "classifier_weight": np.repeat(weight, 2, axis=0)}
    changes = {"table_rows": size, "table_columns": 1, "features": 1}
    model, encoder = model_of(tokens, numbers | changes, rows | layers), shared_encoder(tokens)
    texts = [*TEXTS, *(" ".join(fuzz(random, 4) for _ in range(random.randrange(12))) for _ in range(3000))]
    for text in texts:
        words = Example(text).words
        found, unread = np.zeros((len(words), 2), np.float32), np.zeros(1, np.int64)
        model.logits([text], found, unread)
        read, expected = encoder.of_words([words], 12), np.full(len(words), np.nan)
        for id, start in zip(read["input_ids"][0], read["words"][0], strict=True):
            if start:
                expected[start - 1] = id
        np.testing.assert_array_equal(found[:, 0], expected, ascii(text))
        assert unread[0] == read.unread.get(0, 0)


NETWORKS: dict[str, Any] = {
    "cnn": lambda: tiny.cnn(),
    "cnn-wide": lambda: tiny.cnn(filters=70, widths=(4, 1, 2), labels=tuple("abcdefghijklmnopqrs")),
    "cnn-widest": lambda: tiny.cnn(filters=17, widths=(1, 5), pooling="max-mean"),
    "ngram": lambda: tiny.ngram(),
    "ngram-sum": lambda: tiny.ngram(longest=2, pooling="sum"),
    "ngram-tokens": lambda: tiny.ngram(longest=1),
    "cnn-siamese": lambda: tiny.cnn(pairs="siamese"),
    "cnn-siamese-mean": lambda: tiny.cnn(filters=5, widths=(3, 1), pairs="siamese", pooling="max-mean"),
    "cnn-siamese-deep": lambda: tiny.cnn(pairs="siamese", second_filters=20, pooling="max-mean"),
    "cnn-deep": lambda: tiny.cnn(widths=(4, 1), second_filters=20),
    "cnn-deep-mean": lambda: tiny.cnn(filters=5, second_filters=32, second_width=4, pooling="max-mean"),
    "cnn-deep-narrow": lambda: tiny.cnn(filters=1, widths=(2,), second_filters=3, second_width=1),
    "ngram-siamese": lambda: tiny.ngram(pairs="siamese"),
    "ngram-siamese-sum": lambda: tiny.ngram(pairs="siamese", longest=2, pooling="sum"),
    "bilstm": lambda: tiny.bilstm(),
    "bilstm-padded": lambda: tiny.bilstm(hidden_size=30),
    "bilstm-most": lambda: tiny.bilstm(hidden_size=302),
    "bilstm-siamese": lambda: tiny.bilstm(pairs="siamese"),
    "tagger": lambda: tiny.cnn(CNNForTokenClassification, labels=tuple("abcde"), widths=(3, 1)),
    "tagger-bilstm": lambda: bilstm_tagger(),
    "tagger-deep": lambda: tiny.cnn(CNNForTokenClassification, second_filters=20, pooling="max-mean"),
}


def layers_of(directory: Path) -> list[int]:
    """Return how many numbers each layer of a float32 container has, by the sizes of its sections."""
    content = (directory / NATIVE_NAME).read_bytes()
    begin = write.HEADER_BYTES + 4 * sum(write.NUMBERS.values())
    sizes = np.frombuffer(content, np.uint64, 2 * len(write.SECTIONS), begin)[1::2].tolist()
    return [size // 4 for size in sizes[write.SECTIONS.index("table") :]]


@pytest.mark.parametrize("kind", NETWORKS)
def test_logits_are_those_of_the_graph(kind: str, tmp_path: Path) -> None:
    exported = export(tiny.write(tmp_path / "torch", NETWORKS[kind]()), tmp_path / "onnx")
    rows = [Example(text) for text in TEXTS]
    pairs = [Example(text, other) for text, other in zip(TEXTS, reversed(TEXTS), strict=True)]
    for directory in (exported.path, quantize(exported, tmp_path / "int8").path):
        graph = LoadedModel.open(Model.open(directory))
        graph.start(lambda one: open_runtime(one.path, "onnxruntime", threads=1, device="cpu"))
        for some in (rows, pairs)[: 1 if kind.startswith("tagger") else 2]:
            expected = graph.logits(some)
            for instructions in core.INSTRUCTIONS:
                found = NativeRunner(directory, instructions)
                assert found.core.instructions == instructions
                assert found.core.weights == (sum(layers_of(directory)) if directory == exported.path else ANY)
                close = 2e-5 if "bilstm" not in kind or directory == exported.path else 2e-3  # states are rounded
                np.testing.assert_allclose(found.logits(some), expected, rtol=close, atol=close)


@pytest.mark.parametrize("kind", ["cnn-wide", "cnn-widest", "cnn-deep-mean", "ngram", "ngram-tokens"])
def test_whole_documents_have_the_logits_of_the_graph(kind: str, tmp_path: Path) -> None:
    """Longer than what is held at a time: less by one token, as long, more, and several times as long."""
    network, tokens = NETWORKS[kind](), tiny.tokenizer("bert")
    network.config.max_position_embeddings = tokens.model_max_length = 30_000
    save_model(network, tokens, tmp_path / "torch")
    exported = export(tmp_path / "torch", tmp_path / "onnx")
    words = [Random(size).choices([*tiny.GOOD, *tiny.PLAIN], k=size) for size in (8189, 8190, 8191, 8205, 29_999)]
    for directory in (exported.path, quantize(exported, tmp_path / "int8").path):
        run = open_runtime(directory, threads=1)
        for some in words:
            text = " ".join(some)
            ids, unread = NativeRunner(directory).core.ids(text)
            rows = np.array([ids])
            expected = run({"input_ids": rows, "attention_mask": np.ones_like(rows)})
            assert len(ids) + unread == len(some) + 2 and unread == (len(some) == 29_999)
            for instructions in core.INSTRUCTIONS:
                found = NativeRunner(directory, instructions)
                np.testing.assert_allclose(found.run([text]), expected, rtol=5e-5, atol=5e-5)
                np.testing.assert_allclose(found.logits_of_ids(rows[0])[None], expected, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("longest", [1, 3])
def test_documents_and_pairs_are_cut_as_shorter_texts_are(side: str, longest: int) -> None:
    """A bag of n-grams whose logits are sums of numbers of tokens, which tell which tokens were read."""
    tokens, random = tokenizer(side, 20_000), Random(3)
    size = tokens.backend_tokenizer.get_vocab_size()
    generator = np.random.default_rng(0)
    rows = size + (longest - 1) * 50
    layers = {
        "remap": np.arange(size, dtype=np.uint32),
        "table": generator.integers(-99, 99, (rows, 16)).astype(np.int8),
        "dense_weight": np.eye(16, dtype=np.float32),
        "classifier_weight": np.eye(2, 16, dtype=np.float32),
    }
    factors = [1, 7, 13]
    numbers = {"table_rows": rows, "longest": longest, "buckets": 50, "pooling": 2, "is_int8": 1, "factors": factors}
    model, encoder = model_of(tokens, numbers, layers), shared_encoder(tokens)
    sizes = [(9000, 0), (19_998, 3), (30_000, 5), (5, 30_000), (15_000, 15_000), (12_000, 4000), (8190, 8190)]
    for given in sizes:
        text, pair = ("".join(random.choices("ab c!", k=2 * size)) for size in given)
        for texts in (text, (text, pair)):
            pairs = None if texts is text else [pair]
            read = encoder([text], pairs, 20_000, whole=True)
            ids = read["input_ids"][0]
            assert model.ids(texts) == (ids.tolist(), read.unread.get(0, 0))
            found, again, unread = np.empty((1, 2), np.float32), np.empty(2, np.float32), np.empty(1, np.int64)
            model.logits([texts], found, unread)
            model.logits_of_ids(ids.astype(np.int32), again)
            assert found[0].tolist() == again.tolist() and unread[0] == read.unread.get(0, 0)


def test_sums_of_the_longest_documents_stay_within_their_numbers() -> None:
    """Windows of 16 tokens whose every number is the largest, over 2**20 tokens: nearly all of int32."""
    tokens = tokenizer(max_length=2**20)
    numbers = {"network": 2, "pooling": 4, "filters": 16, "widths": [16], "width_count": 1, "longest": 0, "buckets": 0}
    table = np.full((2, 256), 127, np.int8)
    table[0] = 0
    layers = {"table": table, "remap": np.ones(tokens.backend_tokenizer.get_vocab_size(), np.uint32)}
    dense = {
        "dense_weight": np.eye(32, 16, k=-16, dtype=np.float32),
        "classifier_weight": np.eye(2, 16, dtype=np.float32),
    }
    sizes = {"table_rows": 2, "table_columns": 256, "features": 32, "is_int8": 1}
    model, logits, unread = (
        model_of(tokens, numbers | sizes, layers | dense),
        np.empty((1, 2), np.float32),
        np.empty(1, int),
    )
    model.logits(["a " * (2**20 + 98)], logits, unread)
    reached = 2**20 * 16 - sum(range(8)) - sum(range(9))  # less at both ends
    assert unread[0] == 100 and logits[0, 0] == pytest.approx(127 * reached / 2**20, rel=1e-6)


def test_an_lstm_of_whole_numbers_is_the_lstm_of_its_graph(tmp_path: Path) -> None:
    """By the equations, with states rounded as the graph's operator documents it, in float64."""
    made = quantize(export(tiny.write(tmp_path / "torch", tiny.bilstm()), tmp_path / "onnx"), tmp_path / "int8")
    stored = {
        one.name: numpy_helper.to_array(one) for one in onnx.load(str(made.path / "model.onnx")).graph.initializer
    }
    table, bias = (
        stored["scaled_table.embedding.int8"].astype(float),
        stored["states.bias"].reshape(2, 2, -1).sum(axis=1),
    )
    weights, recurrent = (
        stored[f"states.{name}.int8"] * stored[f"states.{name}.scale"][:, None].astype(float)
        for name in ("input", "recurrent")
    )
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    runner = NativeRunner(made.path)
    for text in ("a good film", " ".join(["dull", "film"] * 9)):
        ids, ends = runner.core.ids(text)[0], []
        for direction, order in enumerate((ids, ids[::-1])):
            cell = state = np.zeros(bias.shape[1] // 4)
            for id in order:
                step = (max(state.max(), 0) - min(state.min(), 0)) / 255 or 1
                read = step * np.rint(state / step)
                gates = table[stored["remap"][id]] @ weights[direction] + read @ recurrent[direction] + bias[direction]
                into, out, kept, new = np.split(gates, 4)
                cell = sigmoid(kept) * cell + sigmoid(into) * np.tanh(new)
                state = sigmoid(out) * np.tanh(cell)
            ends.append(state[:-2])  # two hold the range
        hidden = np.maximum(np.concatenate(ends) @ stored["dense.weight"] + stored["dense.bias"], 0)
        expected = hidden @ stored["classifier.weight"] + stored["classifier.bias"]
        np.testing.assert_allclose(runner.logits_of_ids(np.array(ids)), expected, atol=1e-3)


def test_a_long_sentence_is_tagged_in_blocks(tmp_path: Path) -> None:
    """Around the ends of blocks and the longest that is read: the logits of each token are those of the graph."""
    tokens, network = tiny.tokenizer("bert"), bilstm_tagger()
    network.config.max_position_embeddings = tokens.model_max_length = 2048
    save_model(network, tokens, tmp_path / "torch")
    made = export(tmp_path / "torch", tmp_path / "onnx")
    run, runner = open_runtime(made.path, threads=1), NativeRunner(made.path)
    for length in (1, 63, 64, 65, 128, 129, 2047, 2048):
        ids = np.random.default_rng(length).integers(5, network.config.vocab_size, (1, length))
        expected = run({"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
        np.testing.assert_allclose(runner.logits_of_ids(ids[0]), expected, rtol=2e-5, atol=2e-5)
    network.config.max_position_embeddings = tokens.model_max_length = 2049
    save_model(network, tokens, tmp_path / "longer")
    assert "more than 2048 tokens" in export(tmp_path / "longer", tmp_path / "none").manifest.notes["native"]


@pytest.mark.parametrize("kind", ["is_tagger", "is_siamese"])
def test_taggers_and_siamese_students_read_no_documents(kind: str) -> None:
    numbers = {"network": 2, "pooling": 3, "filters": 16, "widths": [1], "width_count": 1, "longest": 0, "buckets": 0}
    for length, said in ((8192, "a section has another size|features are not"), (8193, "reads more than 8192 tokens")):
        with pytest.raises(ValueError, match=said):
            model_of(tokenizer(max_length=length), {**numbers, kind: 1, "features": 48})
    with pytest.raises(ValueError, match="max_length is out of range"):
        model_of(tokenizer(max_length=2**20 + 1))


CODED: dict[str, Mapping[str, Any]] = {
    "ngram": {"network": 1, "table_columns": 48, "features": 48, "pooling": 1, "longest": 3, "buckets": 90},
    "cnn": {"network": 2, "table_columns": 10 * 99, "features": 4 * 99, "pooling": 3, "widths": (1, 2, 3, 4)},
    "cnn-mean": {"network": 2, "table_columns": 3 * 99, "features": 4 * 99, "pooling": 4, "widths": (1, 2)},
    "tagger": {"network": 2, "table_columns": 3 * 99, "features": 99, "pooling": 3, "widths": (3,), "is_tagger": 1},
}


@pytest.mark.parametrize("form", CODED)
def test_codes_stand_for_the_numbers_of_a_table(form: str) -> None:
    """A table of codes and books gives the logits of the table that it stands for, to the last bit."""
    tokens, generator, numbers = tokenizer(max_length=512), np.random.default_rng(0), CODED[form]
    rows, columns, features = 900, numbers["table_columns"], numbers["features"]
    books = generator.integers(-127, 128, (-(-columns // 8), 256, 8)).astype(np.int8)
    books[:, 0] = 0  # what is beyond the text
    chosen = np.pad(generator.integers(256, size=(rows - 1, len(books))), ((1, 0), (0, 0)))
    table = np.concatenate([book[code] for book, code in zip(books, chosen.T, strict=True)], axis=1)[:, :columns]
    codes, found = write.table_codes(np.ascontiguousarray(table))
    assert codes is not None and codes.shape == chosen.shape and np.shape(found) == books.shape
    layers = {
        "remap": generator.integers(rows - 180, size=tokens.backend_tokenizer.get_vocab_size()).astype(np.uint32),
        "dense_weight": generator.normal(size=(features, 16)).astype(np.float32),
        "classifier_weight": generator.normal(size=(2, 16)).astype(np.float32),
    }
    cnn = {"filters": 99, "width_count": len(numbers.get("widths", ())), "longest": 0, "buckets": 0}
    given = {"is_int8": 1, "table_rows": rows, **(cnn if numbers["network"] == 2 else {}), **numbers}
    plain = model_of(tokens, given, {**layers, "table": table})
    coded = model_of(tokens, {**given, "has_codes": 1}, {**layers, "table": codes, "codebooks": np.array(found)})
    for text in (*TEXTS, fuzz(Random(0), 900)):
        ids = np.array(plain.ids(text)[0], np.int32)
        shape = (len(ids), 2) if form == "tagger" else (2,)
        answers = [np.full(shape, np.nan, np.float32) for _ in range(2)]
        for model, logits in zip((plain, coded), answers, strict=True):
            model.logits_of_ids(ids, logits)
        assert np.isfinite(answers[0]).all() and np.ptp(answers[0]) > 0
        np.testing.assert_array_equal(*answers)


def test_tables_that_have_no_codes() -> None:
    some = np.random.default_rng(0).integers(-127, 128, (400, 24)).astype(np.int8)
    assert write.table_codes(some) == write.table_codes(some[:200]) == (None, ())


def test_it_is_what_predicts(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = examples()
    made = quantize(tiny.write(tmp_path / "torch", tiny.cnn()), tmp_path / "int8")
    calibrated = calibrate(made, validation=rows, accept_at=0.2, output=tmp_path / "calibrated")
    assert "largest logit difference from the graph" in made.manifest.notes["native"]
    for directory in (made.path, calibrated.path):
        model = load(directory)
        assert isinstance(model.runner, NativeRunner)
        with monkeypatch.context() as patch:
            patch.setattr(native, "native_core", absent)
            graph = load(directory)
            assert isinstance(graph.runner, LoadedModel)
        found, expected = model.predict(TEXTS), graph.predict(TEXTS)
        chances, others = ([one.pop("probability") for one in some] for some in (found, expected))
        assert chances == pytest.approx(others, abs=2e-4)
        assert found == expected and found[-1]["unread_tokens"] > 0
        assert [model.predict(text)["label"] for text in TEXTS] == [one["label"] for one in found]
        assert model.predict(TEXTS[0]) == model.predict([TEXTS[0]])[0] == model.predict([Example(TEXTS[0])])[0]
        pair = ("a film", "a plot")
        assert model.predict(pair) == model.predict([pair])[0]
        assert model.predict(TEXTS[0], probabilities=1) == model.predict(TEXTS[0], probabilities=True)  # type: ignore[call-overload]
        every = [[one["probabilities"] for one in by.predict(TEXTS, probabilities=True)] for by in (model, graph)]
        for one, other in zip(*every, strict=True):
            assert one == pytest.approx(other, abs=2e-4) and [*one] == [*model.labels]
        np.testing.assert_allclose(model.predict_proba(TEXTS), graph.predict_proba(TEXTS), atol=1e-4)
        for wrong in ("\ud800", [3], ["a", "\ud800"], ["a", ("a", "b")], [("a", "b", "c")]):
            with pytest.raises(CompressError):
                model.predict(wrong)
    with caplog.at_level(logging.DEBUG, "compress"), monkeypatch.context() as patch:
        patch.setattr(native, "native_core", absent)
        load(made)
    assert "ONNX Runtime: the native library was not built" in caplog.text


def test_it_gives_a_text_several_labels(tmp_path: Path) -> None:
    labels = ("A", "B", "C", "D", "E")
    network = tiny.cnn(labels=labels, problem_type="multi_label_classification", factor=4)
    with torch.no_grad():
        for parameter in network.classifier.parameters():
            parameter[3] = parameter[1]  # as likely: the first of both is named first
    made = export(tiny.write(tmp_path / "torch", network), tmp_path / "onnx")
    model, rows = load(made), [*map(Example, TEXTS)]
    assert isinstance(model.runner, NativeRunner)
    logits = model.runner.logits(rows)
    chances = model.task.probabilities(logits)
    assert len({tuple(one["labels"]) for one in model.predict(TEXTS)}) > 2
    thresholds = tuple(np.quantile(chances, 0.6, axis=0).tolist())
    for accepted_from in (None, thresholds):
        for every in (False, True):
            found = model.runner.core.predict(TEXTS, accepted_from, every, True)
            given = None if accepted_from is None else np.array(accepted_from)
            expected = [*model.task.described(rows, logits, labels, given, every)]
            for one, other in zip(found, expected, strict=True):
                one = {key: value for key, value in one.items() if key not in {"truncated", "unread_tokens"}}
                assert one == other and [*one] == [*other]
                assert [*one["probabilities"].items()] == [*other["probabilities"].items()]
            assert model.runner.core.predict(TEXTS[0], accepted_from, every, True) == found[0]


def test_it_is_what_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = tiny.cnn(CNNForTokenClassification, labels=("A", "B", "C"))
    made = quantize(tiny.write(tmp_path / "torch", tagger), tmp_path / "int8")
    model = load(made)
    assert isinstance(model.runner, NativeRunner)
    with monkeypatch.context() as patch:
        patch.setattr(native, "native_core", absent)
        graph = load(made.path)
        assert isinstance(graph.runner, LoadedModel)
    found, expected = model.predict(TEXTS), graph.predict(TEXTS)
    chances, others = ([one.pop("probabilities") for one in some] for some in (found, expected))
    assert [*map(len, chances)] == [*map(len, others)] and found == expected and found[-1]["unread_tokens"] > 0
    for some, other in zip(chances, others, strict=True):
        assert [value or 0 for value in some] == pytest.approx([value or 0 for value in other], abs=2e-4)
    assert model.predict(TEXTS[0]) == model.predict([Example(TEXTS[0])])[0] == model.predict(TEXTS)[0]
    assert model.predict(TEXTS[2]) == model.predict(TEXTS)[2] and len(model.predict(TEXTS[2])["words"]) == 4
    for wrong in (("a", "b"), "\ud800", [3]):
        with pytest.raises(CompressError):
            model.predict(wrong)
    core_model = model.runner.core
    for call in (lambda: core_model.predict("a", None, False, False), lambda: core_model.ids(("a", "b"))):
        with pytest.raises(TypeError, match="tagger"):
            call()
    for rows in (2, 4):
        with pytest.raises(ValueError, match="float32"):
            core_model.logits(["a good film"], np.zeros((rows, 3), np.float32), np.zeros(1, np.bool_))


def absent() -> Any:
    raise Unavailable("the native library was not built")


def test_what_it_does_not_run_is_left_to_the_graph() -> None:
    made = onnx_directory("bert")
    assert "native kernels are there for" in made.manifest.notes["native"] and not (made.path / NATIVE_NAME).exists()


def test_a_container_of_other_logits_than_the_graph_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "TOLERANCE", -1.0)
    made = export(tiny.write(tmp_path / "torch", tiny.cnn()), tmp_path / "onnx")
    assert made.manifest.notes["native"].startswith("not written: largest logit difference")
    assert not (made.path / NATIVE_NAME).exists() and load(made).predict("a good film")


@pytest.mark.parametrize(
    "network",
    [
        lambda: tiny.cnn(widths=(1, 17)),
        lambda: tiny.cnn(widths=tuple(range(1, 10))),
        lambda: tiny.cnn(filters=1100),
        lambda: tiny.bilstm(hidden_size=305),
    ],
)
def test_sizes_beyond_those_of_the_library_are_left_to_the_graph(network: Any, tmp_path: Path) -> None:
    made = export(tiny.write(tmp_path / "torch", network()), tmp_path / "onnx")
    assert made.manifest.notes["native"].startswith("not written: ") and not (made.path / NATIVE_NAME).exists()
    assert load(made).predict("a good film")


def test_tokenizers_that_it_does_not_have_are_refused() -> None:
    tokens = tokenizer()
    tokens.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $B [SEP] $A", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    with pytest.raises(Unavailable, match="another order"):
        model_of(tokens)
    tokens = tokenizer()
    tokens.backend_tokenizer.add_tokens([AddedToken("film", single_word=True)])
    with pytest.raises(Unavailable, match="added tokens"):
        model_of(tokens)
    tokens.backend_tokenizer.pre_tokenizer = Whitespace()
    with pytest.raises(Unavailable, match="not BERT's"):
        model_of(tokens)


def test_what_cannot_be_predicted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(onnx_directory("cnn").path)
    predict = model.runner.core.predict
    for texts in (3, None, ["a"] * 300 + [3], ["a", ("a", "b")], ("a",)):
        with pytest.raises(TypeError):
            predict(texts, None, False, False)
    for thresholds, error in (((), IndexError), (("a", "b"), TypeError), ([0.5, 0.5], TypeError)):
        for several in (False, True):
            with pytest.raises(error):
                predict([*TEXTS, "a"], thresholds, False, several)
    large = {
        name: np.full(size, 3e38, np.float32) for name, size in (("classifier_weight", (2, 16)), ("dense_bias", 16))
    }
    broken = model_of(tokenizer(), layers=large)
    monkeypatch.setattr(model.runner, "core", broken)
    for text in ("a film", ["a film", "bad"], ("a", "b")):
        with pytest.raises(CompressError, match="not finite numbers; its weights are damaged"):
            model.predict(text)


def test_threads_share_a_model() -> None:
    model = NativeRunner(onnx_directory("cnn").path).core
    texts = [f"{text} {number}" for number, text in enumerate(TEXTS[:6] * 40)]
    expected = [model.predict(text, None, True, False) for text in texts]
    with ThreadPoolExecutor(16) as pool:
        assert (
            list(pool.map(lambda _: [model.predict(text, None, True, False) for text in texts], range(32)))
            == [expected] * 32
        )


def test_a_damaged_container_is_refused(tmp_path: Path) -> None:
    content = (onnx_directory("cnn").path / NATIVE_NAME).read_bytes()
    random = Random(0)
    for _ in range(200):
        changed = bytearray(content)
        changed[random.randrange(len(content))] ^= 1 << random.randrange(8)
        if bytes(changed[32:64]) == content[32:64]:  # nothing reads the rest of the header
            with pytest.raises(ValueError, match="the model cannot be read"):
                core.Model(bytes(changed))
    for size in (0, 7, 64, 1000, len(content) - 8):
        with pytest.raises(ValueError, match="the model cannot be read"):
            core.Model(content[:size])
    (tmp_path / NATIVE_NAME).write_bytes(content[:-64])
    with pytest.raises(CompressError, match="cut short; export the model again"):
        NativeRunner(tmp_path)


def test_a_container_of_another_model_is_refused(tmp_path: Path) -> None:
    made = export(tiny.write(tmp_path / "torch", tiny.cnn(labels=("one", "other"))), tmp_path / "onnx")
    (made.path / "compress.json").unlink()
    for content, message in (
        ((onnx_directory("ngram").path / NATIVE_NAME).read_bytes(), "another model"),
        (b"", "cannot mmap an empty file"),
    ):
        (made.path / NATIVE_NAME).write_bytes(content)
        with pytest.raises(CompressError, match=f"{message}.*; export the model again"):
            load(made.path).predict("a film")


def filled(content: bytes, value: float, *names: str) -> bytes:
    """Return a container whose sections of floats have one value."""
    changed = bytearray(content)
    for name in names:
        entry = write.HEADER_BYTES + 4 * sum(write.NUMBERS.values()) + 16 * write.SECTIONS.index(name)
        place, size = np.frombuffer(content, np.uint64, 2, entry)
        changed[place : place + size] = np.full(int(size) // 4, value, np.float32).tobytes()
    changed[24:32] = write.checksum(np.frombuffer(changed, np.uint64)[8:]).to_bytes(8, "little")
    return bytes(changed)


@pytest.mark.parametrize("kind", ["cnn", "tagger"])
def test_logits_that_are_no_numbers_are_refused(kind: str, tmp_path: Path) -> None:
    made = export(tiny.write(tmp_path / "torch", NETWORKS[kind]()), tmp_path / "onnx")
    path = made.path / NATIVE_NAME
    path.write_bytes(filled(path.read_bytes(), 3e38, "dense_bias", "classifier_weight"))
    (made.path / "compress.json").unlink()
    for texts in ("a film", ["a film"], ("a film", "a plot"))[: 2 if kind == "tagger" else 3]:
        with pytest.raises(CompressError, match="not finite"):
            load(made.path).predict(texts)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_no_numbers_are_refused(value: float, tmp_path: Path) -> None:
    made = export(tiny.write(tmp_path / "torch", NETWORKS["cnn-deep"]()), tmp_path / "onnx")
    layers = ["dense_weight", "dense_bias", "classifier_weight", "classifier_bias", "second_bias"]
    for model, names in (
        (made, [*layers, "table", "second_weight"]),
        (quantize(made, tmp_path / "int8"), [*layers, "second_scale"]),
        (quantize(onnx_directory("cnn"), tmp_path / "cnn"), ["dense_scale", "dense_bias"]),
    ):
        content = (model.path / NATIVE_NAME).read_bytes()
        assert core.Model(filled(content, 1.0, "dense_bias"))
        for name in names:
            with pytest.raises(ValueError, match="a weight is no finite number"):
                core.Model(filled(content, value, name))


def test_too_many_added_tokens_are_refused() -> None:
    """Each is looked for at many places of a text."""
    tokens = tokenizer()
    tokens.backend_tokenizer.add_special_tokens([f"<{number}>" for number in range(4097)])
    with pytest.raises(ValueError, match="too many added tokens"):
        model_of(tokens)


def test_predictions_are_seen_by_no_other_thread_before_they_are_whole() -> None:
    """The collector lists a list at once, and a profiler that reads an empty place of it ends the process."""
    model, texts, stop = NativeRunner(onnx_directory("cnn").path).core, ["a good film " * 40] * 5000, threading.Event()

    def watch() -> None:
        while not stop.is_set():
            for one in gc.get_objects(generation=0):
                if type(one) is list and len(one) == len(texts) and one is not texts:
                    one[-1]

    with ThreadPoolExecutor(1) as pool:
        pool.submit(watch)
        for _ in range(3):
            assert len(model.predict(texts, None, False, False)) == len(texts)
        stop.set()


def test_signals_are_handled_within_a_list() -> None:
    """Those that come while nobody looks become one."""
    model, texts, handled = NativeRunner(onnx_directory("cnn").path).core, ["a good film " * 40] * 20_000, list[int]()
    logits, unread = np.empty((len(texts), len(model.labels)), np.float32), np.empty(len(texts), np.int64)
    before = signal.signal(signal.SIGALRM, lambda number, frame: handled.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for call in (lambda: model.predict(texts, None, False, False), lambda: model.logits(texts, logits, unread)):
            handled.clear()
            call()
            assert len(handled) > 4
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_logits_are_written_to_whole_floats_only() -> None:
    model = NativeRunner(onnx_directory("cnn").path).core
    room = memoryview(bytearray(4 * len(model.labels) + 1))[1:]
    with pytest.raises(ValueError, match="logits are float32"):
        model.logits(["a"], room, bytearray(1))
    with pytest.raises(ValueError, match="logits float32"):
        model.logits_of_ids(np.ones(3, np.int32), room)


def test_a_container_that_others_may_change_is_copied() -> None:
    content = bytearray((onnx_directory("cnn").path / NATIVE_NAME).read_bytes())
    model = core.Model(content)
    expected = model.predict("a good film", None, True, False)
    content[64:] = bytes(len(content) - 64)
    assert model.predict("a good film", None, True, False) == expected


def test_int8_of_the_last_layer_is_left_to_the_graph(tmp_path: Path) -> None:
    made = quantize(onnx_directory("cnn"), tmp_path / "int8", method="onnx-dynamic", options={"last_layer": True})
    assert "quantized in a way" in made.manifest.notes["native"] and load(made).predict("a good film")
