"""A vocabulary learned from a corpus, a teacher that reads it, and text in both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers.normalizers import NFC, Lowercase, Sequence
from transformers import BertTokenizer

from compress.data.examples import Example
from compress.errors import CompressError
from compress.recipes import load_recipe
from compress.training.build_student import build_student, learn_vocabulary, mixer, re_embed, tokenizer_kind
from tests.support.tiny import BAD, GOOD, PLAIN, classifier, examples, tokenizer

TEXTS = [Example(f"{word} zebra {' '.join(PLAIN)}") for word in (*GOOD, *BAD)]


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_special_tokens_keep_their_order(family: str) -> None:
    theirs, learned = tokenizer(family), learn_vocabulary(tokenizer(family), TEXTS, 100)
    assert len(learned) <= 100 and "zebra" in learned.get_vocab() and "zebra" not in theirs.get_vocab()
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    assert [getattr(learned, name) for name in names] == [getattr(theirs, name) for name in names]
    order = sorted(names, key=lambda name: theirs.convert_tokens_to_ids(getattr(theirs, name)))
    assert sorted(names, key=lambda name: learned.convert_tokens_to_ids(getattr(learned, name))) == order
    assert learned.pad_token_id == theirs.pad_token_id  # MPNet's embeddings have it for padding, and no other
    text = "film zebra"
    pieces = [learned.cls_token, "film", "zebra", learned.sep_token]
    assert learned.convert_ids_to_tokens(learned(text)["input_ids"]) == pieces


def test_a_vocabulary_does_not_depend_on_the_order_of_text() -> None:
    """A run that goes on learns it again, and the weights that it kept belong to these numbers."""
    learned = learn_vocabulary(tokenizer(), TEXTS, 100).get_vocab()
    assert learn_vocabulary(tokenizer(), TEXTS[::-1], 100).get_vocab() == learned
    inner = sorted((index, piece) for piece, index in learned.items() if piece.startswith("##") and len(piece) == 3)
    assert len(inner) > 10 and [piece for _, piece in inner] == sorted(piece for _, piece in inner)


@pytest.mark.parametrize(
    ("normalizer", "lowercase"), [(None, False), (NFC(), False), (Sequence([NFC(), Lowercase()]), True)]
)
def test_capitals_are_kept_where_the_teacher_keeps_them(normalizer: Any, lowercase: bool) -> None:
    theirs = tokenizer()
    theirs.backend_tokenizer.normalizer = normalizer
    learned = learn_vocabulary(theirs, [Example(f"Zebra {word}") for word in PLAIN], 100)
    assert learned.tokenize("Zebra") == (["zebra"] if lowercase else ["Zebra"])
    assert len(mixer(theirs, learned, 1000, seed=3)(Example("film is Zebra"), 32)) >= 5


@pytest.mark.parametrize("normalizer", [None, Sequence([NFC(), Lowercase()])])
def test_accents_are_kept_where_the_teacher_keeps_them(normalizer: Any) -> None:
    letters = "abcdefghijklmnopqrstuvwxyzü"
    pieces = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), *letters, *(f"##{letter}" for letter in letters)]
    teacher: Any = BertTokenizer({piece: n for n, piece in enumerate(pieces)}, do_lower_case=True, strip_accents=False)
    if normalizer:
        teacher.backend_tokenizer.normalizer = normalizer
    learned = learn_vocabulary(teacher, [Example("Müller")] * 5, 80)
    assert "".join(learned.tokenize("MÜLLER")).replace("##", "") == "müller"


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "modernbert"])
def test_teachers_with_other_tokenizers_give_a_wordpiece_one(family: str) -> None:
    """Words begin with a mark in the teacher's vocabulary, so that a token's vector depends on where it is."""
    theirs = tokenizer(family)
    teacher, learned = classifier(family), learn_vocabulary(theirs, TEXTS, 200)
    assert learned.tokenize("film zebra 中中") == ["film", "zebra", learned.unk_token, learned.unk_token]
    assert learned("a").input_ids == learned.convert_tokens_to_ids([theirs.cls_token, "a", theirs.sep_token])
    before, after = (model.get_input_embeddings().weight for model in (teacher, re_embed(teacher, theirs, learned)))
    new = learned.get_vocab()
    for token, text in (("film", " film"), ("##a", "a"), ("a", " a")):
        expected = before[theirs(text, add_special_tokens=False).input_ids].mean(dim=0)
        torch.testing.assert_close(after[new[token]], expected)
    torch.testing.assert_close(after[learned.pad_token_id], before[theirs.pad_token_id])


def test_mixed_words_need_a_wordpiece_teacher() -> None:
    recipe = load_recipe("students", "bert-192")
    with pytest.raises(CompressError, match="of the kind BPE; use a BERT-like teacher"):
        build_student(recipe, classifier("roberta"), tokenizer("roberta"), lambda: TEXTS, seed=0)


@pytest.mark.parametrize(("family", "is_own"), [("bert", False), ("roberta", True), ("xlm-roberta", True)])
def test_small_students_read_wordpiece_whatever_their_teacher_reads(family: str, is_own: bool) -> None:
    """So the native library runs them."""
    theirs, recipe = tokenizer(family), load_recipe("students", "ngram")
    student, read, _ = build_student(recipe, classifier(family), theirs, lambda: TEXTS, seed=0)
    assert tokenizer_kind(read) == "WordPiece" and (read.get_vocab() != theirs.get_vocab()) == is_own
    assert student.config.tokenizer_size == len(read)


def test_shared_tokens_keep_vectors_and_new_ones_get_a_mean() -> None:
    teacher, theirs = classifier(), tokenizer()
    learned = learn_vocabulary(theirs, TEXTS, 100)
    before, old = teacher.get_input_embeddings().weight, theirs.get_vocab()
    copied = re_embed(teacher, theirs, learned)
    after, new = copied.get_input_embeddings().weight, learned.get_vocab()
    assert copied.config.vocab_size == len(learned) == len(after)
    torch.testing.assert_close(after[new["film"]], before[old["film"]])
    letters = [old[piece] for piece in ("z", "##e", "##b", "##r", "##a")]
    torch.testing.assert_close(after[new["zebra"]], before[letters].mean(dim=0))
    assert teacher.config.vocab_size == len(theirs) == len(before)  # the teacher is left as it was


def test_words_use_both_vocabularies_equally_and_repeatably() -> None:
    theirs, learned = tokenizer(), learn_vocabulary(tokenizer(), TEXTS, 100)
    mixed = mixer(theirs, learned, 1000, seed=3)
    rows = [Example(f"film is {index}") for index in range(400)]
    firsts = [mixed(row, 32)[1] for row in rows]
    ours, other = 1000 + learned.get_vocab()["film"], theirs.get_vocab()["film"]
    assert set(firsts) == {ours, other} and abs(firsts.count(ours) - 200) < 4 * 10
    ids = mixed(rows[0], 32)
    assert ids == mixer(theirs, learned, 1000, seed=3)(rows[0], 32)
    assert ids[0] == theirs.cls_token_id and ids[-1] == theirs.sep_token_id
    assert len(mixed(Example("film " * 50), 16)) == 16


def test_a_pair_is_not_mixed() -> None:
    mixed = mixer(tokenizer(), tokenizer(), 1000, seed=0)
    with pytest.raises(CompressError, match="reads single texts"):
        mixed(Example(examples()[0].text, "pair"), 32)
