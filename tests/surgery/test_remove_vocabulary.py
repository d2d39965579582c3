"""Pieces that a corpus does not use are cut: covered text keeps its pieces and its logits, in all ten families."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertTokenizer,
    DebertaV2Tokenizer,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from compress.data.examples import Example
from compress.data.tokenization import encode
from compress.errors import CompressError
from compress.models.model_dir import Model
from compress.models.saving import save_model
from compress.requests.compression import export
from compress.surgery.remove_vocabulary import cut_tokenizer, cut_vocabulary, fallbacks
from tests.support.tagging import sentences, tagger
from tests.support.tiny import BAD, GOOD, PLAIN, PRUNABLE, bilstm, classifier, examples, pruned, tokenizer

CORPUS = [Example(f"the film is {word} .") for word in GOOD] + [Example("a plot with an end", "and a good actor")]
COVERED = [Example("good fine warm"), Example("the plot is a film with an actor . good"), Example("end")]
BARE = {"add_special_tokens": False}


def byte_pairs() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return byte pieces and joins learned from words of all kinds."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    made.train_from_iterator([" ".join(words) for words in (GOOD, BAD, PLAIN)] * 2, trainer)
    learned = json.loads(made.to_str())["model"]
    return learned["vocab"], [(left, right) for left, right in learned["merges"]]


def made(family: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Return a classifier and its tokenizer, where bytes are read with joins; ModernBERT's special tokens are last."""
    model = classifier(family)
    if family not in {"roberta", "modernbert"}:
        return model, tokenizer(family)
    vocabulary, merges = byte_pairs()
    if family == "roberta":
        specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        tokens: Any = RobertaTokenizer({piece: i for i, piece in enumerate([*specials, *vocabulary])}, merges)
    else:
        backend = Tokenizer(models.BPE(vocabulary, merges))
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
        tokens = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
        tokens.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B [SEP]",
            special_tokens=[("[CLS]", tokens.cls_token_id), ("[SEP]", tokens.sep_token_id)],
        )
    model.resize_token_embeddings(len(tokens))
    if family == "modernbert":
        for name in ("cls", "sep", "pad", "bos", "eos"):
            setattr(model.config, f"{name}_token_id", getattr(tokens, f"{name}_token_id"))
        model.get_input_embeddings().padding_idx = tokens.pad_token_id  # type: ignore[union-attr]
    return model, tokens


@torch.no_grad()
def logits_of(model: PreTrainedModel, tokens: PreTrainedTokenizerFast, rows: Sequence[Example]) -> torch.Tensor:
    batch = tokens([row.text for row in rows], padding=True, return_tensors="pt")
    return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits


def pieces_of(tokens: PreTrainedTokenizerFast, *texts: str, **options: Any) -> list[str]:
    return tokens.convert_ids_to_tokens(tokens(*texts, **options)["input_ids"])


@pytest.mark.parametrize("family", PRUNABLE)
def test_covered_text_keeps_its_pieces_and_its_logits_to_the_bit(family: str) -> None:
    model, tokens = made(family)
    table = model.get_input_embeddings().weight.detach().clone()
    expected = logits_of(model, tokens, COVERED)  # also leaves padding in the tokenizer's own settings
    smaller, cut = cut_vocabulary(model, tokens, iter(CORPUS))
    assert torch.equal(logits_of(model, smaller, COVERED), expected)
    for row in COVERED:
        assert pieces_of(smaller, row.text) == pieces_of(tokens, row.text)
    assert pieces_of(smaller, "good", "film") == pieces_of(tokens, "good", "film")
    assert cut.pieces_before == len(tokens) > cut.pieces_after == len(smaller) == model.config.vocab_size
    assert cut.corpus_pieces < cut.pieces_after
    assert cut.parameters == (cut.pieces_before - cut.pieces_after) * table.shape[1]
    old, new = tokens.get_vocab(), smaller.get_vocab()
    assert sorted(new.values()) == list(range(len(new)))
    assert sorted(new, key=lambda piece: new[piece]) == sorted(new, key=lambda piece: old[piece])
    after = model.get_input_embeddings().weight
    assert all(torch.equal(after[new[piece]], table[old[piece]]) for piece in new)
    missing = set(old) - set(new)
    assert missing and not any(len(piece.removeprefix("##")) == 1 for piece in missing)
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(smaller, f"{name}_token") == getattr(tokens, f"{name}_token")
    assert model.config.pad_token_id == smaller.pad_token_id == model.get_input_embeddings().padding_idx
    assert type(smaller) is type(tokens) and smaller.model_input_names == tokens.model_input_names


@pytest.mark.parametrize("family", PRUNABLE)
def test_what_is_written_reads_text_as_what_is_in_memory(family: str, tmp_path: Path) -> None:
    model, tokens = made(family)
    smaller, _ = cut_vocabulary(model, tokens, CORPUS)
    save_model(model, smaller, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    reopened = Model.open(tmp_path)
    again = reopened.tokenizer
    assert again.backend_tokenizer.to_str() == smaller.backend_tokenizer.to_str()
    others = [*COVERED, *examples(6), Example("words n3ver seen!")]
    for row in others:
        assert again(row.text)["input_ids"] == smaller(row.text)["input_ids"]
    assert torch.equal(logits_of(reopened.load(), again, others), logits_of(model, smaller, others))


def test_the_word_list_of_the_old_tokenizer_is_not_copied(tmp_path: Path) -> None:
    old = tmp_path / "old"
    save_model(classifier(), tokenizer(), old)
    vocabulary = tokenizer().get_vocab()
    (old / "vocab.txt").write_text("".join(f"{piece}\n" for piece in sorted(vocabulary, key=lambda p: vocabulary[p])))
    (old / "tokenizer.json").unlink()
    source = Model.open(old)
    model, tokens = source.load(), source.tokenizer
    assert len(tokens) == len(vocabulary)
    smaller, cut = cut_vocabulary(model, tokens, CORPUS)
    save_model(model, smaller, tmp_path / "new")
    assert not (tmp_path / "new" / "vocab.txt").exists()
    assert len(Model.open(tmp_path / "new").tokenizer) == cut.pieces_after


def test_an_exported_model_has_the_smaller_vocabulary(tmp_path: Path) -> None:
    model, tokens = made("roberta")
    smaller, cut = cut_vocabulary(model, tokens, CORPUS)
    save_model(model, smaller, tmp_path / "torch")
    exported = export(tmp_path / "torch", tmp_path / "onnx")  # compares the logits of both
    assert exported.config["vocab_size"] == cut.pieces_after
    assert exported.tokenizer.get_vocab() == smaller.get_vocab()
    settings = json.loads((exported.path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["tokenizer_class"] == "RobertaTokenizer"


def test_special_token_ids_of_the_config_follow() -> None:
    model, tokens = made("modernbert")
    assert tokens.pad_token_id > 300  # they come last, and all move
    smaller, _ = cut_vocabulary(model, tokens, CORPUS)
    assert model.config.cls_token_id == smaller.cls_token_id < tokens.cls_token_id
    assert model.config.sep_token_id == smaller.sep_token_id and model.config.bos_token_id is None
    model, tokens = made("bert")
    model.config.eos_token_id = 5000  # a default that no piece has
    cut_vocabulary(model, tokens, CORPUS)
    assert model.config.eos_token_id is None


def test_ids_in_the_settings_of_a_tokenizer_follow() -> None:
    pieces = ["unused", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "film", *"abc"]
    backend = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.Sequence(
        [processors.ByteLevel(), processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))]
    )
    backend.enable_padding(pad_id=4, pad_token="[PAD]", length=8)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad")}
    tokens = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    smaller, kept = cut_tokenizer(tokens, [5])
    assert kept == list(range(1, len(pieces)))
    assert smaller.backend_tokenizer.encode("film").ids == [1, 4, 2, 3, 3, 3, 3, 3]


def test_the_unknown_piece_of_deberta_follows() -> None:
    scored = [("[PAD]", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[MASK]", 0.0), ("unused", -9.0), ("[UNK]", -1.0)]
    tokens: Any = DebertaV2Tokenizer([*scored, ("▁", -2.0), ("▁film", -3.0), ("rarest", -10.0)], unk_id=5)
    smaller, _ = cut_tokenizer(tokens, tokens("film", **BARE)["input_ids"])
    assert smaller.unk_token_id == 4 == smaller.init_kwargs["unk_id"]
    assert pieces_of(smaller, "film z", **BARE) == pieces_of(tokens, "film z", **BARE) == ["▁film", "▁", "[UNK]"]


def test_padding_keeps_its_id_if_positions_depend_on_it() -> None:
    specials = ["unused", "<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens: Any = RobertaTokenizer({piece: i for i, piece in enumerate([*specials, *symbols, "unused too"])}, [])
    model = classifier("roberta")
    model.resize_token_embeddings(len(tokens))
    model.config.bos_token_id, model.config.eos_token_id = tokens.bos_token_id, tokens.eos_token_id
    expected = logits_of(model, tokens, COVERED)
    smaller, cut = cut_vocabulary(model, tokens, CORPUS)
    assert cut.pieces_before - cut.pieces_after == 1 and smaller.pad_token_id == 1 == model.config.pad_token_id
    assert torch.equal(logits_of(model, smaller, COVERED), expected)


@pytest.mark.parametrize("model", [pruned(), tagger()], ids=["pruned", "tagger"])
def test_a_pruned_model_and_a_tagger_of_words_are_cut_too(model: PreTrainedModel) -> None:
    tokens, corpus = tokenizer(), sentences(3)
    expected = logits_of(model, tokens, corpus)
    smaller, cut = cut_vocabulary(model, tokens, corpus)
    assert cut.parameters > 0 and torch.equal(logits_of(model, smaller, corpus), expected)


def test_a_tagger_keeps_the_pieces_of_words_that_it_reads_alone() -> None:
    """Pieces of bytes begin with the space within a text, and without it where words are read one by one."""
    model, (_, tokens), rows = tagger("roberta"), made("roberta"), sentences(3)
    model.resize_token_embeddings(len(tokens))

    def pieces(reader: PreTrainedTokenizerFast) -> list[list[str]]:
        return [reader.convert_ids_to_tokens(ids) for ids in encode(reader, rows, 64, by_word=True)["input_ids"]]

    whole = pieces(tokens)
    smaller, cut = cut_vocabulary(model, tokens, rows)
    assert cut.pieces_after < cut.pieces_before and pieces(smaller) == whole


@pytest.mark.parametrize("pairs", ["joined", "siamese"])
def test_a_bilstm_keeps_the_vectors_that_its_pieces_share(pairs: str, tmp_path: Path) -> None:
    """The later half of its pieces shares one vector, and a siamese one looks for the separator."""
    model, tokens = bilstm(pairs=pairs), tokenizer()
    rows, expected = model.config.vocab_size, logits_of(model, tokens, COVERED)
    smaller, cut = cut_vocabulary(model, tokens, CORPUS)
    assert torch.equal(logits_of(model, smaller, COVERED), expected)
    assert model.config.tokenizer_size == len(model.remap) == len(smaller)
    assert model.config.vocab_size == len(model.embedding.weight) < rows
    assert cut.parameters == (rows - model.config.vocab_size) * model.config.embedding_size
    assert model.config.separator_token_id == smaller.sep_token_id
    save_model(model, smaller, tmp_path)
    # An LSTM's kernels round by where its weights lie in memory, whether it was cut or not.
    torch.testing.assert_close(logits_of(Model.open(tmp_path).load(), smaller, COVERED), expected)


# Any text of a few letters, of which the vocabularies below know all but d.
TEXT = st.text("abcd ", min_size=1, max_size=24)
PIECES = st.lists(st.text("abc", min_size=2, max_size=5), max_size=12)


def assert_covered_text_keeps_its_pieces(
    tokens: PreTrainedTokenizerFast, corpus: list[str], others: list[str]
) -> PreTrainedTokenizerFast:
    """Cut to the corpus, and compare every text of which all pieces stay; the corpus itself is such."""
    smaller, kept = cut_tokenizer(tokens, itertools.chain.from_iterable(tokens(corpus, **BARE)["input_ids"]))
    for text in corpus + others:
        if set(tokens(text, **BARE)["input_ids"]) <= set(kept):
            assert pieces_of(smaller, text) == pieces_of(tokens, text)
        else:
            assert text not in corpus
    unknown = fallbacks(tokens, smaller, map(Example, others))["words_unknown"]
    assert unknown == 0  # every letter that is known stays
    return smaller


@given(PIECES, PIECES, st.lists(TEXT, min_size=1, max_size=3), st.lists(TEXT, max_size=12))
def test_tokens_of_covered_text_stay(starts: list[str], inner: list[str], corpus: list[str], others: list[str]) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc", "##a", "##b", "##c", *starts]
    vocabulary = dict.fromkeys([*pieces, *(f"##{piece}" for piece in inner)])
    tokens: Any = BertTokenizer({piece: index for index, piece in enumerate(vocabulary)})
    assert_covered_text_keeps_its_pieces(tokens, corpus, others)


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=14, unique=True),
    st.lists(TEXT, min_size=1, max_size=3),
    st.lists(TEXT, max_size=12),
)
def test_byte_pairs_of_covered_text_stay(joins: list[tuple[int, int]], corpus: list[str], others: list[str]) -> None:
    """Joins are of any two pieces in any order, so that some pieces can be joined in several ways."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces, merges = list("abcĠ"), []
    for left, right in joins:
        pair = (pieces[left % len(pieces)], pieces[right % len(pieces)])
        if len("".join(pair)) <= 6:
            merges.append(pair)
            pieces = list(dict.fromkeys([*pieces, "".join(pair)]))
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = dict.fromkeys([*specials, *reversed(pieces), *symbols])
    tokens: Any = RobertaTokenizer({piece: i for i, piece in enumerate(vocabulary)}, list(dict.fromkeys(merges)))
    assert_covered_text_keeps_its_pieces(tokens, corpus, others)


@given(
    st.dictionaries(st.text("▁abc", min_size=1, max_size=5), st.integers(-24, -1), max_size=16),
    st.lists(TEXT, min_size=1, max_size=3),
    st.lists(TEXT, max_size=12),
)
def test_scored_pieces_of_covered_text_stay(scores: dict[str, int], corpus: list[str], others: list[str]) -> None:
    """Letters may be absent, scores are often equal, and the rarest piece says what an unknown letter costs."""
    specials = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    tokens: Any = XLMRobertaTokenizer([*specials, *((piece, float(score)) for piece, score in scores.items())])
    smaller, kept = cut_tokenizer(tokens, itertools.chain.from_iterable(tokens(corpus, **BARE)["input_ids"]))
    for text in corpus + others:
        if set(tokens(text, **BARE)["input_ids"]) <= set(kept):
            assert pieces_of(smaller, text) == pieces_of(tokens, text)
        else:
            assert text not in corpus


def test_a_part_that_is_joined_late_stays_with_its_whole() -> None:
    """abcd is joined from abc and d before it is known how else; abc is first joined by a join of higher rank."""
    merges = [("b", "c"), ("abc", "d"), ("a", "bc"), ("x", "y")]
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pieces = dict.fromkeys([*names, *("".join(merge) for merge in merges)])
    tokens: Any = RobertaTokenizer({piece: index for index, piece in enumerate(pieces)}, merges)
    assert pieces_of(tokens, "abcd", **BARE) == ["abcd"]
    smaller, _ = cut_tokenizer(tokens, tokens("abcd", **BARE)["input_ids"])
    assert pieces_of(smaller, "abcd", **BARE) == ["abcd"]
    assert set(tokens.get_vocab()) - set(smaller.get_vocab()) == {"xy"}


def test_an_unknown_letter_costs_what_it_cost() -> None:
    """The best path takes the whole piece; were the rarest piece away, an unknown letter would be the cheaper one."""
    scores = {"▁": -1.0, "▁ab": -30.0, "b": -1.0, "cc": -25.0}
    specials = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    tokens: Any = XLMRobertaTokenizer([*specials, *scores.items(), ("rare", -40.0)])
    assert pieces_of(tokens, "ab", **BARE) == ["▁ab"]
    smaller, _ = cut_tokenizer(tokens, tokens("ab", **BARE)["input_ids"])
    assert pieces_of(smaller, "ab", **BARE) == ["▁ab"]
    assert set(tokens.get_vocab()) - set(smaller.get_vocab()) == {"cc"}


def test_fallbacks_are_counted_by_text_and_by_word() -> None:
    tokens = tokenizer()
    smaller, _ = cut_tokenizer(tokens, tokens("the film is good", **BARE)["input_ids"])
    rows = [Example("the film is dull", "good film"), Example("a dull, dull end!"), Example("the \u2603 is unknown")]
    found = fallbacks(tokens, smaller, iter(rows))
    # Of four texts two hold dull, twice, and end; the snowman was not known before.
    assert found == {
        "texts": 4,
        "texts_changed": 2,
        "words": 4 + 2 + 6 + 4,
        "words_changed": 4,
        "words_unknown": 0,
        "text_share": 0.5,
        "word_share": 0.25,
    }
    assert pieces_of(smaller, "dull", **BARE) == ["d", "##u", "##l", "##l"]
    assert fallbacks(tokens, smaller, [])["word_share"] == 0


def test_a_word_of_a_letter_that_is_no_piece_becomes_unknown() -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "film", "zoo", "o", "##o"]
    tokens: Any = BertTokenizer({piece: index for index, piece in enumerate(pieces)})
    smaller, _ = cut_tokenizer(tokens, tokens("film", **BARE)["input_ids"])
    assert list(fallbacks(tokens, smaller, [Example("film zoo oo")]).values()) == [1, 1, 3, 1, 1, 1, 1 / 3]


def refused(model: PreTrainedModel, tokens: Any, corpus: Sequence[Example] = CORPUS) -> str:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CompressError) as raised:
        cut_vocabulary(model, tokens, corpus)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    return str(raised.value)


def test_a_corpus_without_text_is_refused() -> None:
    assert "has no text that the tokenizer knows" in refused(classifier(), tokenizer(), [])
    assert "give text such as the model will read" in refused(classifier(), tokenizer(), [Example("  ")])


def test_a_tokenizer_that_is_not_known_is_refused() -> None:
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "film": 1}, unk_token="[UNK]"))
    kind = PreTrainedTokenizerFast(tokenizer_object=words)
    assert "kinds WordPiece, BPE, Unigram; this one is of the kind WordLevel" in refused(classifier(), kind)
    ends = Tokenizer(models.BPE({"a</w>": 0, "a": 1}, [], end_of_word_suffix="</w>"))
    setting = PreTrainedTokenizerFast(tokenizer_object=ends)
    assert "BPE tokenizer has end_of_word_suffix = '</w>'" in refused(classifier(), setting)


def test_a_tokenizer_class_that_writes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokenizer()
    monkeypatch.setattr(BertTokenizer, "from_pretrained", lambda folder: tokenizer())
    message = refused(classifier(), tokens)
    assert "class BertTokenizer makes something else of a smaller vocabulary" in message


def test_a_model_that_is_not_known_is_refused() -> None:
    config = GPT2Config(vocab_size=40, n_embd=8, n_layer=1, n_head=1)
    message = refused(GPT2ForSequenceClassification(config), tokenizer())
    assert "where a 'gpt2' model keeps its vocabulary" in message and "modernbert" in message and "bilstm" in message
