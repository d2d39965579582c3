"""Variants of text: how often what is changed, that the seed decides it, and that the teacher labels them."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel

import compress
from compress import plugins
from compress.data import Example, ExampleSource, row_key
from compress.errors import CompressError
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import Model
from compress.recipes import Augmentation, Choice
from compress.requests.training import run
from compress.studies import run as run_module
from compress.training import training_data as training_data_module
from compress.training.augmenters import _common
from compress.training.augmenters._common import (
    Word,
    embedding_neighbours,
    file_neighbours,
    nearest_words,
    read_vectors,
    replaceable_words,
    reword,
    vary_sides,
    whole_words,
)
from compress.training.augmenters.masked_lm import expected_words
from compress.training.augmenters.masking import FrequencyBands
from compress.training.training_data import (
    AugmentedSource,
    LabelledPool,
    Selection,
    Variation,
    agreement_rows,
    augmented,
    held_out,
    one_of,
)
from tests.support.tiny import BAD, FAMILIES, GOOD, POSITIONS, bilstm, classifier, tokenizer, write
from tests.support.training_data import (
    BILSTM,
    STUDY_HEAD,
    TINY_STUDENT,
    distilled,
    pool_file,
    pool_rows,
    train_rows,
    validation_rows,
    write_study_data,
)

WORDS = [f"w{index}" for index in range(30)]
SENTENCE = Example(" ".join(WORDS))
CONTENT = "good dull plot story actor scene"
VECTORS = {"good": (1, 0.1), "great": (1, 0.2), "fine": (1, 0.3), "bad": (-1, 0.1), "dull": (-1, 0.3), ",": (1, 0.1)}


def masking(corpus: Iterable[Example] = (), **options: Any) -> Variation:
    return made("masking", corpus, **options)


def made(name: str, corpus: Iterable[Example] = (), teacher: Any = None, **options: Any) -> Variation:
    vary: Variation = plugins.find("augmenters", name).function(teacher, tokenizer(), corpus, **options)
    return vary


def draws(vary: Variation, example: Example, count: int = 2000) -> list[Example]:
    generator = random.Random(0)
    return [vary(example, generator) for _ in range(count)]


def about(found: int, count: int, probability: float) -> bool:
    """Within four standard deviations of a binomial distribution."""
    return abs(found - count * probability) <= 4 * (count * probability * (1 - probability)) ** 0.5


def masked_lm(family: str = "bert") -> PreTrainedModel:
    torch.manual_seed(0)
    tokens = tokenizer(family)
    config = AutoConfig.for_model(
        family,
        vocab_size=len(tokens),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
        pad_token_id=tokens.pad_token_id,
        initializer_range=0.3,
    )
    model: PreTrainedModel = AutoModelForMaskedLM.from_config(config)
    return model.eval()


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "masked-lm", masked_lm())


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.txt"
    path.write_text("".join(f"{word} {x} {y}\n" for word, (x, y) in VECTORS.items()), encoding="utf-8")
    return path


# The source with its variants


def shout(example: Example, generator: random.Random) -> Example:
    """Append one of four words."""
    return Example(f"{example.text} {generator.choice('abcd')}", example.text_pair)


def test_variants_follow_their_row_and_the_seed() -> None:
    rows = [Example(f"row {index}", "pair") for index in range(20)]
    source = ExampleSource(rows, "rows")
    first = list(AugmentedSource(source, shout, 2, 0))
    assert first == list(AugmentedSource(source, shout, 2, 0)) != list(AugmentedSource(source, shout, 2, 1))
    assert [e for e in first if e in rows] == rows and 40 < len(first) <= 60
    alone = list(AugmentedSource(source, shout, 2, 0, originals=False))
    assert alone == [e for e in first if e not in rows]


def test_variants_of_a_row_do_not_depend_on_the_rows_before_it() -> None:
    rows = [Example(f"row {index}") for index in range(20)]
    whole, later = (list(AugmentedSource(ExampleSource(part, "rows"), shout, 3, 0)) for part in (rows, rows[7:]))
    assert whole[-len(later) :] == later


def test_equal_and_held_out_variants_are_left_out() -> None:
    source = ExampleSource([Example("row", "pair")], "rows")
    held_out = one_of([Example("Row  b!", "pair")])
    texts = [e.text for e in AugmentedSource(source, shout, 200, 0, held_out)]
    assert texts[0] == "row" and sorted(texts[1:]) == ["row a", "row c", "row d"]
    assert [*AugmentedSource(source, shout, 200, 0, one_of(source))] == [Example("row", "pair")]
    assert list(AugmentedSource(source, lambda example, _: example, 5, 0)) == [Example("row", "pair")]


def test_first_text_second_text_and_both_are_varied_equally() -> None:
    drawn = draws(lambda example, generator: vary_sides(example, generator, str.upper), Example("a", "b"), 900)
    found = Counter((example.text, example.text_pair) for example in drawn)
    assert set(found) == {("A", "b"), ("a", "B"), ("A", "B")}
    assert all(about(count, 900, 1 / 3) for count in found.values())
    assert vary_sides(Example("a"), random.Random(0), str.upper) == Example("A")


def test_a_recipe_names_the_augmenter_and_its_options(tmp_path: Path) -> None:
    source = ExampleSource(train_rows(), "rows")
    teacher = Model.open(write(tmp_path / "teacher", classifier("bert")))
    recipe = Augmentation(Choice("masking", options={"mask": 0.5, "replace": 0.0, "ngram": 0.0}), copies=1)
    rows = list(augmented(source, recipe, teacher, tokenizer(), seed=0))
    assert len(rows) > 70 and sum("[MASK]" in row.text for row in rows) == len(rows) - 40
    with pytest.raises(CompressError, match="mask = 1.5 is not possible"):
        augmented(source, replace(recipe, by=Choice("masking", options={"mask": 1.5})), teacher, tokenizer(), seed=0)


# Masking, replacement, n-grams


def test_words_are_masked_and_replaced_as_often_as_asked() -> None:
    found = Counter[str]()
    for variant in draws(masking([SENTENCE], mask=0.2, replace=0.3, ngram=0.0), SENTENCE, 500):
        words = variant.text.split()
        assert len(words) == 30
        for old, new in zip(WORDS, words, strict=True):
            found["masked" if new == "[MASK]" else "kept" if new == old else "replaced"] += 1
            assert new in {*WORDS, "[MASK]"}
    assert about(found["masked"], 15000, 0.2) and about(found["replaced"], 15000, 0.3)


def test_a_run_of_one_to_five_words_is_kept_as_often_as_asked() -> None:
    runs = Counter[int]()
    for variant in draws(masking(mask=0.0, replace=0.0, ngram=0.25), SENTENCE, 4000):
        words = variant.text.split()
        start = WORDS.index(words[0])
        assert words == WORDS[start : start + len(words)]
        runs[len(words)] += 1
    assert set(runs) == {1, 2, 3, 4, 5, 30} and about(4000 - runs[30], 4000, 0.25)
    assert all(about(runs[length], 4000, 0.05) for length in range(1, 6))


def test_no_variant_is_without_a_word_of_its_text() -> None:
    example = Example("one two")
    for variant in draws(masking([Example("one two three four")] * 3, mask=0.4, replace=0.4, ngram=0.5), example, 500):
        assert {"one", "two"} & set(variant.text.split())
    assert draws(masking(mask=1.0, replace=0.0), SENTENCE, 5) == [SENTENCE] * 5


def test_a_text_of_which_nothing_changes_keeps_its_spaces() -> None:
    spaced = Example("one  two\tthree", "four  five")
    assert draws(masking(mask=0.0, replace=0.0, ngram=0.0), spaced, 20) == [spaced] * 20
    assert draws(masking(mask=0.0, replace=0.0, ngram=1.0), Example("one"), 5) == [Example("one")] * 5


def test_a_replacement_is_drawn_from_its_band_by_frequency() -> None:
    letters = [chr(ord("a") + index) for index in range(20)]
    counts = {letter: 200 - 5 * index for index, letter in enumerate(letters)}
    corpus = [Example(" ".join(letter for letter in letters for _ in range(counts[letter])), ", , . 7 7")]
    bands, generator = FrequencyBands(corpus), random.Random(0)
    drawn = Counter(bands.another("a", generator) for _ in range(5000))
    assert set(drawn) == set(letters[1:16])
    total = sum(counts[letter] for letter in drawn)
    assert all(about(drawn[letter], 5000, counts[letter] / total) for letter in drawn)
    assert {bands.another("q", generator) for _ in range(100)} == set(letters[17:])
    assert {bands.another(",", generator) for _ in range(100)} == {".", "7"}
    assert bands.another("unseen", generator) == "unseen"


def test_a_word_alone_in_its_band_stays() -> None:
    assert FrequencyBands([Example("one , .")]).another("one", random.Random(0)) == "one"


def test_a_word_that_is_most_of_its_band_is_replaced_at_once() -> None:
    bands = FrequencyBands([Example("the " * 200_000 + "cat sat")])
    generator = random.Random(0)
    assert {bands.another("the", generator) for _ in range(50)} == {"cat", "sat"}


def test_the_corpus_is_not_read_where_no_word_is_replaced() -> None:
    def never() -> Any:
        raise AssertionError
        yield

    assert masking(never(), mask=0.5, replace=0.0)(SENTENCE, random.Random(0)) != SENTENCE


def test_texts_are_masked_with_the_teachers_token(tmp_path: Path) -> None:
    for family in FAMILIES:
        tokens = tokenizer(family)
        vary = plugins.find("augmenters", "masking").function(None, tokens, (), mask=0.5, replace=0.0, ngram=0.0)
        special = set(vary(SENTENCE, random.Random(0)).text.split()) - set(WORDS)
        assert special == {tokens.mask_token or tokens.unk_token}
        assert tokens(special.pop(), add_special_tokens=False)["input_ids"][-1] in tokens.all_special_ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": 1.1}, "mask = 1.1 is not possible; give at least 0 and at most 1"),
        ({"replace": -0.1}, "replace = -0.1 is not possible"),
        ({"ngram": 2.0}, "ngram = 2.0 is not possible"),
        ({"mask": 0.6, "replace": 0.6}, r"mask \+ replace = 1.2 is not possible"),
    ],
)
def test_shares_that_are_none(options: dict[str, float], message: str) -> None:
    with pytest.raises(CompressError, match=message):
        masking(**options)


# Words and their neighbours


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The film, is GOOD!", ["film", "GOOD"]),
        ("a well-made story's end", ["story", "end"]),
        ("don't didn't 3d x_y 42 über-café", ["über", "café"]),
        ("film 's plot", ["film", "plot"]),
        ("", []),
        (" . ", []),
    ],
)
def test_which_words_may_be_replaced(text: str, words: list[str]) -> None:
    found = replaceable_words(text)
    assert [word.text for word in found if word.text != "made"] == words
    assert all(text[word.start : word.end] == word.text for word in found)


def test_words_are_replaced_in_place_at_the_requested_rate() -> None:
    def propose(text: str, words: Any) -> list[tuple[str, ...]]:
        return [() if word.text == "plot" else ("x", "y") for word in words]

    generator, found = random.Random(0), Counter[str]()
    for _ in range(2000):
        new = reword("The Film ,  is good!  plot\n", generator, 0.4, propose)
        assert new.startswith("The ") and new.endswith("!  plot\n") and " ,  is " in new
        found.update(new.replace("!", "").split())
    assert about(found["X"] + found["Y"], 2000, 0.4) and about(found["x"] + found["y"], 2000, 0.4)
    assert about(found["x"], found["x"] + found["y"], 0.5) and found["Film"] and not found["film"]


def test_the_nearest_words_by_cosine(vectors: Path) -> None:
    neighbours = file_neighbours(vectors, count=2)
    assert neighbours("good") == ("great", "fine") and neighbours("Bad") == ("dull", "fine")
    assert neighbours("unknown") == ()
    assert file_neighbours(vectors, count=15)("good") == ("great", "fine", "dull", "bad")


def test_the_length_of_a_vector_does_not_count() -> None:
    table = np.array([[1, 0], [100, 30], [0.1, 0.01]], dtype=np.float32)
    neighbours = nearest_words(["one", "long", "short"], table, lambda word: table[0], count=2)
    assert neighbours("one") == ("short", "long")


def test_other_spellings_of_the_word_are_no_neighbours() -> None:
    table = np.eye(3, dtype=np.float32)
    neighbours = nearest_words(["Film", "film", "plot"], table, lambda word: table[1], count=2)
    assert neighbours("film") == ("plot",)


@pytest.mark.parametrize("family", ["bert", "distilbert", "electra", "mpnet", "xlm-roberta"])
def test_neighbours_of_a_teacher_are_its_whole_words(family: str) -> None:
    model, tokens = classifier(family), tokenizer(family)
    vocabulary = whole_words(tokens)
    assert {*GOOD, *BAD, "film", "a"} <= set(vocabulary) and all(word.isalpha() for word in vocabulary)
    table = model.get_input_embeddings().weight.detach()  # type: ignore[operator]
    unit = torch.nn.functional.normalize(table[list(vocabulary.values())], dim=-1)
    own = list(vocabulary).index("film")
    ranked = [list(vocabulary)[index] for index in (unit @ unit[own]).argsort(descending=True).tolist()]
    assert embedding_neighbours(model, tokens, count=5)("film") == tuple(ranked[1:6])


def test_the_mean_of_its_pieces_stands_for_a_word_of_several() -> None:
    model, tokens = classifier("bert"), tokenizer()
    pieces = tokens("zq", add_special_tokens=False)["input_ids"]
    assert len(pieces) == 2
    with torch.no_grad():
        table = model.get_input_embeddings().weight  # type: ignore[operator]
        table[tokens.convert_tokens_to_ids("film")] = table[pieces].mean(dim=0)
    assert embedding_neighbours(model, tokens, count=3)("zq")[0] == "film"
    assert embedding_neighbours(model, tokens, count=3)("ß") == ()  # only the unknown token


def test_teachers_that_have_no_neighbours() -> None:
    with pytest.raises(CompressError, match="no token that is a whole word.*give vectors = 'FILE'"):
        embedding_neighbours(classifier("roberta"), tokenizer("roberta"), count=5)
    with pytest.raises(CompressError, match="'compress-bilstm' model has .* embeddings for the .* tokens"):
        embedding_neighbours(bilstm(), tokenizer(), count=5)


def test_neighbours_vary_an_example(vectors: Path, tmp_path: Path) -> None:
    example = Example(CONTENT, "The bad film!")
    before = (example.text, example.text_pair)
    by_file = draws(made("neighbours", vectors=str(vectors), probability=0.3), example, 900)
    changed = [sum((e.text, e.text_pair)[side] != before[side] for e in by_file) for side in (0, 1)]
    # A side is chosen in two of three draws; the first text has two words with vectors, the second one.
    assert about(changed[0], 900, 2 / 3 * (1 - 0.7**2)) and about(changed[1], 900, 2 / 3 * 0.3)
    assert all(" plot story actor scene" in e.text for e in by_file)
    teacher = Model.open(write(tmp_path / "teacher", classifier("bert")))
    drawn = {e.text for e in draws(made("neighbours", teacher=teacher), Example(CONTENT), 20)}
    assert len(drawn) > 10 and {len(text.split()) for text in drawn} == {6}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no vector of a word"),
        ("good 1 2\nbad 1\n", "line 2 is not a word and 2 numbers"),
        ("good\nbad\n", "line 1 is not a word and its numbers"),
        ("2 2\ngood 1 2\nbad 1 2\n", "holds no vector of a word"),
        ("good one two\n", "cannot be read as word vectors in GloVe's text format"),
    ],
)
def test_files_that_hold_no_vectors(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(CompressError, match=message):
        made("neighbours", vectors=str(tmp_path / "v.txt"))


def test_vectors_are_read_as_written_and_no_more_than_wanted(
    vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, table = read_vectors(vectors)
    assert words == [word for word in VECTORS if word.isalpha()]
    np.testing.assert_array_equal(table, np.array([VECTORS[word] for word in words], dtype=np.float32))
    monkeypatch.setattr(_common, "READ_VECTORS", 2)
    assert read_vectors(vectors)[0] == words[:2]
    with pytest.raises(CompressError, match="There is no file"):
        read_vectors(tmp_path / "none.txt")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CompressError, match="is a pipe, a socket or a device"):
        read_vectors(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["neighbours", "masked-lm"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": 0}, "candidates = 0 is not possible; give at least 1"),
        ({"probability": 1.5}, "probability = 1.5 is not possible"),
    ],
)
def test_options_of_rewording(name: str, options: dict[str, Any], message: str) -> None:
    given = {"model": "nowhere"} if name == "masked-lm" else {}
    with pytest.raises(CompressError, match=message):
        made(name, **given, **options)


# The masked language model


def expected_one_by_one(model: PreTrainedModel, text: str, word: str, count: int) -> list[str]:
    """The candidates of a word of one piece, by the model alone: text with the mask, then the text."""
    tokens = tokenizer()
    inputs = tokens(text.replace(word, tokens.mask_token, 1), text, return_tensors="pt")
    position = inputs["input_ids"][0].tolist().index(tokens.mask_token_id)
    with torch.no_grad():
        order = model(**inputs).logits[0, position].argsort(descending=True).tolist()
    pieces = [tokens.convert_ids_to_tokens(index) for index in order]
    return [piece for piece in pieces if piece in whole_words(tokens) and piece != word][:count]


def words_in(text: str, *wanted: str) -> list[Word]:
    return [word for word in replaceable_words(text) if word.text in wanted]


def test_candidates_are_what_the_model_expects(language_model: Path) -> None:
    model, text = masked_lm(), "The film, is Good and zq dull."
    neighbours = embedding_neighbours(model, tokenizer(), count=4)
    expected = expected_words(model, tokenizer(), neighbours, count=4)
    found = expected(text, words_in(text, "film", "Good", "zq", "dull"))
    assert [list(candidates) for candidates in found] == [
        expected_one_by_one(model, text, "film", 4),
        [w for w in expected_one_by_one(model, text, "Good", 5) if w != "good"][:4],
        list(neighbours("zq")),
        expected_one_by_one(model, text, "dull", 4),
    ]


def test_each_position_is_predicted_once_and_in_one_batch() -> None:
    model, text = masked_lm(), "film plot story"
    batches: list[int] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: batches.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    expected = expected_words(model, tokenizer(), embedding_neighbours(model, tokenizer(), count=3), count=3)
    first = expected(text, words_in(text, "film", "story"))
    assert expected(text, words_in(text, "film", "plot", "story"))[::2] == first
    assert batches == [2, 1]


def test_a_long_text_is_predicted_in_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = masked_lm(), "film plot story"
    batches: list[int] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: batches.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    at_once, apart = (
        expected_words(model, tokenizer(), embedding_neighbours(model, tokenizer(), count=3), count=3) for _ in range(2)
    )
    words = words_in(text, "film", "plot", "story")
    found = at_once(text, words)
    read = len(tokenizer()(text, text)["input_ids"])
    monkeypatch.setattr("compress.training.augmenters.masked_lm.BATCH_LOGITS", 2 * read * model.config.vocab_size)
    assert apart(text, words) == found
    monkeypatch.setattr("compress.training.augmenters.masked_lm.BATCH_LOGITS", 1)
    apart(text + " film", words_in(text + " film", "film"))
    assert batches == [3, 2, 1, 1, 1]


def test_words_beyond_what_the_model_reads_stay() -> None:
    model, text = masked_lm(), " ".join(["film"] * POSITIONS)
    expected = expected_words(model, tokenizer(), embedding_neighbours(model, tokenizer(), count=3), count=3)
    found = expected(text, replaceable_words(text))
    read = sum(bool(candidates) for candidates in found)
    assert 20 < read < POSITIONS // 2 and not any(found[read:])


def test_a_masked_language_model_varies_an_example(language_model: Path) -> None:
    vary = made("masked-lm", model=str(language_model), candidates=5, probability=0.4)
    assert draws(vary, Example(CONTENT), 20) == draws(vary, Example(CONTENT), 20)
    texts = [example.text.split() for example in draws(vary, Example(CONTENT), 400)]
    pairs = [pair for words in texts for pair in zip(CONTENT.split(), words, strict=True)]
    assert len(pairs) == 2400 and about(sum(old != new for old, new in pairs), 2400, 0.4)
    assert len(set(draws(vary, Example("The film", "good plot"), 30))) > 5


def test_vectors_serve_for_words_of_several_pieces(language_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("zq 1 0\nzebra 1 0.1\n")
    vary = made("masked-lm", model=str(language_model), probability=1.0, vectors=str(path))
    assert {e.text for e in draws(vary, Example("zq"), 5)} == {"zebra"}


def test_models_that_are_no_masked_language_models(teacher: Path, language_model: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="has no trained masked-language-model head .*cls.predictions"):
        made("masked-lm", model=str(teacher))
    with pytest.raises(CompressError, match="bert-base-uncased is neither a directory here nor a model that"):
        made("masked-lm", model="bert-base-uncased")
    with pytest.raises(CompressError, match="cannot be read as a model"):
        made("masked-lm", model=str(write(tmp_path / "bilstm", bilstm())))
    with pytest.raises(CompressError, match="--device tpu is not known"):
        made("masked-lm", model=str(language_model), device="tpu")
    with pytest.raises(CompressError, match="has no mask token"):
        made("masked-lm", model=str(without_mask(tmp_path / "xlm-roberta")))


def without_mask(path: Path) -> Path:
    masked_lm("xlm-roberta").save_pretrained(path)
    tokens = tokenizer("xlm-roberta")
    tokens.mask_token = None  # type: ignore[assignment]
    tokens.save_pretrained(path)
    return path


# Students that learn from variants


@pytest.mark.parametrize("name", ["masking", "neighbours", "masked-lm"])
def test_variants_are_labelled_and_taught(name: str, teacher: Path, language_model: Path, tmp_path: Path) -> None:
    options = {"model": str(language_model)} if name == "masked-lm" else {}
    recipe = replace(BILSTM, augmentation=Augmentation(Choice(name, options=options), copies=2))
    made = distilled(teacher, recipe, tmp_path / "student", unlabeled=pool_file(tmp_path / "pool.txt"), threads=1)
    assert 120 < made.manifest.data[0]["rows"] <= 270
    assert made.manifest.recipe["augmentation"]["by"]["name"] == name


def test_rows_that_select_have_no_variants_among_those_that_teach(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[list[Example], int]] = []

    def spy(pool: LabelledPool, task: str) -> Selection:
        read.append(([*pool], pool.rows))
        return agreement_rows(pool, task)

    monkeypatch.setattr(training_data_module, "agreement_rows", spy)
    recipe = replace(BILSTM, augmentation=Augmentation(Choice("masking"), copies=3))
    unlabeled = pool_file(tmp_path / "pool.txt", pool_rows(400))
    texts = {example.text for example in unlabeled}
    distilled(teacher, recipe, tmp_path / "student", unlabeled=unlabeled, threads=1)
    ((examples, rows),) = read
    groups: list[list[Example]] = []
    for example in examples:
        if example.text in texts:
            groups.append([])
        groups[-1].append(example)
    held = [group for group in groups if any(held_out(one, rows) for one in group)]
    assert rows > 800 and held and all(len(group) == 1 for group in held)


STUDY = (
    """
title = "A tiny study"
description = "of variants"
seed = 1
"""
    + STUDY_HEAD
    + """
[[students]]
recipe = "FOLDER/small.toml"
quantize = false
seeds = [1, 5]
[benchmark]
batch_sizes = [1]
rounds = 3
runtimes = ["torch"]
baselines = false
"""
)


def test_a_study_labels_the_variants_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "benchmark", lambda *_, output, **__: output.path.write_text(""))
    monkeypatch.setattr("compress.reporting.report.report", lambda request: Path(request.output).mkdir())
    out = tmp_path / "study"
    tests = write_study_data(tmp_path / "data", tmp_path)
    augmentation = '[augmentation]\nby = { name = "masking", mask = 0.3, ngram = 0.5 }\ncopies = 3\n'
    (tmp_path / "small.toml").write_text(TINY_STUDENT + augmentation)
    study = STUDY.replace('model = "tiny-bert"', 'model = "tiny-bert"\nprecision = "bfloat16"')
    (tmp_path / "tiny.toml").write_text(study.replace("FOLDER", str(tmp_path)))
    given: dict[str, Any] = {"data_root": tmp_path / "data", "model_root": tmp_path, "device": "cpu", "threads": 1}
    run(str(tmp_path / "tiny.toml"), out, **given)
    pool, variants = (LabelDir.open(out / name) for name in ("labels", "small-variants-labels"))
    assert pool.rows == 60 + 40 and 60 < variants.rows <= 180
    assert [made.manifest.notes["precision"] for made in (pool, variants)] == ["bfloat16"] * 2
    assert not {e.text for e, _ in pool} & {e.text for e, _ in variants}
    held = {row_key(row) for row in (*validation_rows(), *tests)}
    assert not held & {row_key(example) for example, _ in variants}
    student, control, other = (Model.open(out / name).manifest for name in ("small", "small-control", "small-seed-5"))
    assert student and control and other and student.recipe["augmentation"]["copies"] == 3
    rows = [entry["rows"] for entry in student.data if entry["role"] == "unlabeled"]
    assert sum(rows) == sum(entry["rows"] for entry in other.data if entry["role"] == "unlabeled")
    assert sum(rows) == 60 + variants.rows + 40
    assert student.notes["planned_steps"] == control.notes["planned_steps"] == (60 + variants.rows + 40 + 31) // 32
    stamp = (out / "small-variants-labels" / "shard-00000.parquet").stat().st_mtime_ns
    run(str(tmp_path / "tiny.toml"), out, **given)
    assert (out / "small-variants-labels" / "shard-00000.parquet").stat().st_mtime_ns == stamp


def test_labels_without_variants_are_refused(teacher: Path, tmp_path: Path) -> None:
    pool, other_pool = pool_file(tmp_path / "pool.txt"), pool_file(tmp_path / "p.txt")
    labels = compress.label(teacher, pool, tmp_path / "labels", threads=1)
    recipe = replace(BILSTM, augmentation=Augmentation(Choice("masking")))
    with pytest.raises(CompressError, match="cannot use finished labels"):
        distilled(teacher, recipe, tmp_path / "student", labels=[labels])
    other_teacher = write(tmp_path / "other", classifier("bert", seed=5))
    other = compress.label(other_teacher, other_pool, tmp_path / "o", threads=1)
    with pytest.raises(CompressError, match="was labelled by another teacher"):
        distilled(teacher, recipe, tmp_path / "student", labels=[labels], variants=[other])
    made = distilled(teacher, recipe, tmp_path / "student", labels=[labels], variants=[labels], threads=1)
    assert [entry["rows"] for entry in made.manifest.data] == [90, 90]
