"""Entities: schemes of tags, metrics as conlleval and seqeval count, and spans in predictions."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from compress.benchmarking.result_fields import quality_fields
from compress.cli import execute
from compress.data import Example, open_source, read_examples
from compress.data.words import places, split_words
from compress.errors import CompressError
from compress.evaluation.entities import Entities, is_scheme
from compress.evaluation.metrics import bootstrap, interval, paired_difference, score
from compress.inference.predict import predictor
from compress.models.model_dir import Model
from compress.requests.compression import export
from compress.tasks import LEGAL_TAGS, find_task, of_config, of_rows
from tests.support.tagging import cnn_tagger, entities, tagger
from tests.support.tiny import classifier, write
from tests.support.training_data import TRAINING, finetuned

TASK = find_task("entities")
BIO = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def columns(rows: Sequence[Sequence[str]], labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of tags ``[W]`` and their sentences."""
    tags = [labels.index(tag) for row in rows for tag in row]
    return np.array(tags), np.repeat(np.arange(len(rows)), [len(row) for row in rows])


def values(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    labels = sorted({tag for row in (*gold, *predicted) for tag in row} | {"O"})
    (mine, sentences), (right, _) = columns(predicted, labels), columns(gold, labels)
    return {
        metric.name.removeprefix("entity-"): score(
            mine, right, metric=TASK.metric(metric.name, labels), classes=len(labels), sentences=sentences
        )
        for metric in TASK.metrics
    }


def conlleval(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return class, first and last word of entities by the rules of ``conlleval.pl``, a word at a time."""
    found, start, before, of = list[tuple[str, int, int]](), 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        part, _, kind = tag.partition("-")
        ends = before in "ES" or (before in "BI" and part in "BSO") or (before != "O" and of != kind)
        begins = part in "BS" or (part in "EI" and before in "ESO") or (part != "O" and of != kind)
        if before != "O" and ends:
            found.append((of, start, place - 1))
        start = place if begins else start
        before, of = part, kind
    return found


@pytest.mark.parametrize(
    ("tags", "known"),
    [
        (("O", "B-LOC", "I-LOC"), True),
        (("O", "I-LOC"), True),
        (("B-LOC", "I-LOC", "E-LOC", "S-LOC", "O"), True),
        (("O", "B-PER-first", "L-PER-first", "U-LOC"), True),
        (("B", "I", "O"), True),
        (("O",), False),
        (("O", "LOC"), False),
        (("NOUN", "VERB"), False),
        (("B", "NOUN"), False),
        (("I", "S", "E"), False),  # parts of speech of one letter
        ((), False),
    ],
)
def test_a_scheme_is_known_by_its_tags(tags: tuple[str, ...], known: bool) -> None:
    assert is_scheme(tags) is known
    labels = tags if known else (*tags, "X", "Y")
    config = {"architectures": ["BertForTokenClassification"], "id2label": dict(enumerate(labels))}
    assert str(of_config(config)) == ("entities" if known else "tagging")


def test_rows_of_a_scheme_are_entities_and_parts_of_speech_are_not() -> None:
    assert of_rows([Example("a b", tags=("O", "B-X"))]) is TASK
    assert of_rows([Example("a b", tags=("DET", "NOUN"))]) == "tagging"
    assert TASK.metric().name == "entity-f1" and TASK.metric("accuracy", BIO).name == "accuracy"
    with pytest.raises(CompressError, match="does not fit entities; choose one of entity-f1, entity-precision"):
        TASK.metric("macro-f1")


def test_a_mistyped_tag_is_named_with_its_row() -> None:
    good = [Example("a b", tags=("B-X", "I-X"))] * 30
    for tags, more in ((("B_X", "O"), []), (("B_X", "B-Y"), []), (("_", "_"), [Example("a", tags=("B-Y",))])):
        with pytest.raises(
            CompressError, match=r"^Row 31 .*\('c d'\) has the tag '(B)?_(X)?', and most tags are of ent.* B-X"
        ):
            of_rows([*good, Example("c d", tags=tags), *more])
    with pytest.raises(CompressError, match="has the tag 'b-X'"):
        of_rows([*good, Example("c d", tags=("b-X", "O"))])
    assert of_rows([Example("a b c", tags=("E-mail", "Name", "Phone"))]) == "tagging"


def test_lists_that_are_all_empty_are_refused_where_no_name_says_that_they_are_of_spans() -> None:
    with pytest.raises(CompressError, match=r"\('a b'\) has 0 tags for 2 words, .* or spans as entities"):
        TASK.gold([Example("a b", labels=())], BIO, "test")


@pytest.mark.parametrize(
    ("tags", "labels"),
    [
        (("B-X", "O"), "B-X I-X O"),  # all entities are single words
        (("S-X", "O"), "B-X E-X I-X O S-X"),
        (("U-X", "I-Y"), "B-X B-Y I-X I-Y L-X L-Y O U-X U-Y"),
        (("I-X", "I-Y"), "I-X I-Y O"),
        (("B", "O"), "B I O"),
    ],
)
def test_a_model_has_all_tags_of_the_scheme(tags: tuple[str, ...], labels: str) -> None:
    assert TASK.new_labels([Example("a b", tags=tags)], []) == tuple(labels.split())


def test_rare_and_many_classes_are_said(caplog: pytest.LogCaptureFixture) -> None:
    rows = [Example("a b", tags=("B-X", "I-X")), Example("a b", tags=("B-X", "B-Z"))]
    TASK.new_labels(rows, [Example("a", tags=("B-Y",))])
    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warned == [
        "train has no entity to learn these classes from: Y",
        "train has a single entity to learn these classes from: Z",
    ]
    with pytest.raises(CompressError, match="1,001 classes of entities in .* at most 1,000 are learned"):
        TASK.new_labels([Example("a", tags=(f"B-{number}",)) for number in range(1001)], [])


def test_rows_without_any_entity_are_refused() -> None:
    rows = [Example("a b", tags=("O", "O")), Example("c", tags=("O",))]
    with pytest.raises(CompressError, match="train has no entity in any row, but O or an empty list alone"):
        of_rows(rows).new_labels(rows, [])


def test_the_published_cases_of_seqeval() -> None:
    # README of seqeval: F1 0.5 by micro and macro average, accuracy 0.8.
    gold = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    predicted = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    assert values(gold, predicted) == {"f1": 0.5, "precision": 0.5, "recall": 0.5, "macro-f1": 0.5, "accuracy": 0.8}
    # Of its tests and issues: nothing found, nothing to find, and a class that is only predicted.
    assert values([["B-PER"]], [["O"]])["f1"] == 0.0
    assert values([["O"]], [["B-PER"]]) == {"f1": 0, "precision": 0, "recall": 0, "macro-f1": 0, "accuracy": 0}
    both = values([["B-A", "O", "B-B"]], [["B-A", "B-C", "B-B"]])
    assert both["precision"] == pytest.approx(2 / 3) and both["macro-f1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("I-A I-A O I-A", [("A", 0, 1), ("A", 3, 3)]),  # IOB1
        ("I-A B-A I-A", [("A", 0, 0), ("A", 1, 2)]),  # IOB1: B only between two of a class
        ("B-A I-B I-B", [("A", 0, 0), ("B", 1, 2)]),  # inside of another class
        ("O E-A E-A", [("A", 1, 1), ("A", 2, 2)]),
        ("B-A E-A S-A I-A", [("A", 0, 1), ("A", 2, 2), ("A", 3, 3)]),
        ("B-A S-A", [("A", 0, 0), ("A", 1, 1)]),
    ],
)
def test_tags_that_break_a_scheme(tags: str, found: list[tuple[str, int, int]]) -> None:
    row = tags.split()
    labels = sorted({*row, "O"})
    read = Entities(labels)
    starts, ends, kinds = read.read(*columns([row], labels))
    assert [(read.classes[kind], *where) for kind, *where in zip(kinds, starts, ends, strict=True)] == found
    assert conlleval(row) == found


def test_last_and_unit_tags_are_end_and_single_tags() -> None:
    rows = ["B-A I-A L-A U-B O".split(), "U-A O".split()]
    labels = sorted({tag for row in rows for tag in row})
    starts, ends, kinds = Entities(labels).read(*columns(rows, labels))
    assert [*zip(starts, ends, kinds, strict=True)] == [(0, 2, 0), (3, 3, 1), (5, 5, 0)]


@pytest.mark.parametrize("parts", ["BIO", "IO", "BIESO"])
def test_entities_are_those_of_conlleval(parts: str) -> None:
    draw = np.random.default_rng(len(parts))
    labels = ["O", *(f"{part}-{kind}" for part, kind in itertools.product(parts.replace("O", ""), ("A", "B", "C-D")))]
    sizes = draw.integers(1, 12, 300)
    gold, predicted = ([[*draw.choice(labels, size)] for size in sizes] for _ in range(2))
    predicted = [row if draw.random() < 0.5 else other for row, other in zip(gold, predicted, strict=True)]
    sets = [{(n, *one) for n, row in enumerate(rows) for one in conlleval(row)} for rows in (gold, predicted)]
    hits = len(sets[0] & sets[1])
    by_hand = {"precision": hits / len(sets[1]), "recall": hits / len(sets[0])}
    by_hand["f1"] = 2 * hits / (len(sets[0]) + len(sets[1]))
    found = values(gold, predicted)
    assert {name: found[name] for name in by_hand} == pytest.approx(by_hand)
    of_class = [[{one for one in some if one[1] == kind} for some in sets] for kind in ("A", "B", "C-D")]
    macro = np.mean([2 * len(a & b) / (len(a) + len(b)) for a, b in of_class])
    assert found["macro-f1"] == pytest.approx(macro)


def test_intervals_draw_whole_sentences() -> None:
    draw = np.random.default_rng(1)
    sizes = draw.integers(1, 9, 60)
    sentences = np.repeat(np.arange(60), sizes)
    gold, model, other = (draw.integers(0, 5, sizes.sum()) for _ in range(3))
    model, other = (np.where(draw.random(len(gold)) < share, gold, one) for share, one in ((0.8, model), (0.6, other)))
    metric, units = TASK.metric("entity-f1", BIO), Entities(BIO)
    compared: dict[str, Any] = {"metric": metric, "classes": 5, "sentences": sentences, "seed": 3}

    def f1(drawn: np.ndarray, counts: np.ndarray) -> np.ndarray:
        hits, predicted, known = counts[drawn].sum(axis=(1, 3)).T
        return 2 * hits / (predicted + known)

    mine, theirs = (units.counts(one, gold, sentences) for one in (model, other))
    rows = (np.arange(60),)
    assert interval(model, gold, **compared) == pytest.approx(bootstrap(rows, lambda x: f1(x, mine), seed=3))
    found = paired_difference(model, other, gold, **compared)
    low, high = bootstrap(rows, lambda x: 100 * (f1(x, mine) - f1(x, theirs)), seed=3)
    assert (found.low, found.high, found.mcnemar_p) == (pytest.approx(low), pytest.approx(high), None)
    assert found.low < found.points < found.high
    with pytest.raises(AssertionError, match="parts of sentences"):
        score(model, gold, metric=metric, classes=5)
    with pytest.raises(CompressError, match="one sentence, or query"):
        interval(model, gold, **{**compared, "sentences": np.zeros(len(gold))})


def test_the_classes_of_a_result_are_those_of_entities() -> None:
    rows = [["B-LOC", "I-LOC", "O"], ["B-PER", "O", "B-LOC"], ["B-LOC", "O", "O"]]
    gold, sentences = columns(rows, BIO)
    model, _ = columns([["B-LOC", "O", "O"], ["B-PER", "O", "B-LOC"], ["B-LOC", "O", "B-PER"]], BIO)
    teacher, _ = columns([["B-LOC", "I-LOC", "O"], ["B-PER", "O", "B-LOC"], ["O", "O", "O"]], BIO)
    quality = quality_fields(
        {name: 9.0 * np.eye(5)[tags] for name, tags in (("t", teacher), ("m", model))},
        gold,
        baseline="t",
        metric=TASK.metric(None, BIO),
        task=TASK.of_model(TASK.head_settings(BIO)),
        labels=BIO,
        sentences=sentences,
    )["m"]
    assert quality["metric"] == pytest.approx(2 * 3 / (5 + 4)) and quality["metric_name"] == "entity-f1"
    location, person = quality["classes"]
    assert location["label"] == "LOC" and location["rows"] == 3 and person["rows"] == 1
    assert (location["lost"], location["won"], person["lost"], person["won"]) == (1, 1, 0, 0)
    assert location["recall"] == location["teacher_recall"] == pytest.approx(2 / 3)
    assert location["precision"] == pytest.approx(2 / 3) and person["precision"] == 0.5
    assert person["f1"] == pytest.approx(2 / 3) and person["f1_low"] <= person["f1"] <= person["f1_high"]
    assert person["low"] is None  # of one sentence


# Legal tags


def of_labels(labels: Sequence[str]) -> Any:
    return TASK.of_model(TASK.head_settings(labels))


def is_legal(tags: Sequence[str], has_ends: bool) -> bool:
    """Tell it for BIO and BIOES, by their definition."""
    for before, tag in itertools.pairwise(("O", *tags, "O")):
        goes_on = before[0] in "BI" and tag[0] in "IE" and before[1:] == tag[1:]
        if not goes_on and (tag[0] in "IE" or (has_ends and before[0] in "BI")):
            return False
    return True


@pytest.mark.parametrize("parts", ["BI", "BIES", "BILU"])
def test_predicted_tags_are_the_likeliest_of_all_legal_ones(parts: str) -> None:
    labels = [*(f"{part}-{kind}" for part, kind in itertools.product(parts, "AB")), "O"]
    draw = np.random.default_rng(0)
    labels = [str(one) for one in draw.permutation(labels)]
    alike = [tag.translate(str.maketrans("LU", "ES")) for tag in labels]
    sizes = [*draw.integers(1, 4, 30)]
    logits = draw.normal(size=(sum(sizes), len(labels))).astype(np.float32)
    logits[draw.random(logits.shape) < 0.1] = -np.inf  # as log-probabilities may be
    logits[:, labels.index("O")] = np.maximum(logits[:, labels.index("O")], -3.0)
    found = of_labels(labels).predictions(logits, np.repeat(np.arange(30), sizes))
    likeliest = logits.argmax(axis=1)
    assert (found != likeliest).any() and (found == likeliest).any()
    ends = np.cumsum(sizes)[:-1]
    for values, tags in zip(np.split(logits.astype(float), ends), np.split(found, ends), strict=True):
        every = itertools.product(range(len(labels)), repeat=len(tags))
        legal = [one for one in every if is_legal([alike[tag] for tag in one], "E" in {*"".join(alike)})]
        best = max(legal, key=lambda one: values[np.arange(len(one)), one].sum())
        assert tags.tolist() == [*best]


def test_legal_tags_of_words_without_an_answer_and_of_other_schemes() -> None:
    likely = {"B-X": 0.1, "I-X": 0.6, "O": 0.3}
    logits = np.log(np.array([[*likely.values()]] * 4))
    labels = (*likely,)
    # One entity of four words is likelier than none, of one word or two it is not.
    assert of_labels(labels).predictions(logits).tolist() == [0, 1, 1, 1]
    logits[1] = np.nan
    assert of_labels(labels).predictions(logits).tolist() == [2, -1, 2, 2]
    # Nothing to begin a class with, or nothing that is outside: as IOB1 and others have it.
    for free in (("I-Y", "I-X", "O"), ("B-Y", "I-X", "O"), ("B-X", "I-X", "B-Y")):
        assert of_labels(free).predictions(logits).tolist() == [1, -1, 1, 1]


def test_the_probability_of_a_legal_tag_is_its_own() -> None:
    logits = np.log(np.array([[0.1, 0.6, 0.3], [0.2, 0.1, 0.7]]))
    task = of_labels(("B-X", "I-X", "O"))
    tags = task.predictions(logits)
    confidence, right, _ = task.decisions(task.probabilities(logits), tags, np.array([2, 0]))
    assert tags.tolist() == [2, 2] and confidence == pytest.approx([0.3, 0.7]) and right.tolist() == [True, False]


@pytest.mark.parametrize(
    ("labels", "given", "read"),
    [
        ("B-X I-X B-Y I-Y O", "I-X I-X B-X I-Y O I-Y", "B-X I-X B-X B-Y O B-Y"),
        ("B-X I-X E-X S-X O", "B-X O I-X I-X O E-X B-X I-X", "S-X O B-X E-X O S-X B-X E-X"),
        ("I-X I-Y O", "I-X I-Y O", "I-X I-Y O"),
        ("B-X I-X E-X O", "I-X O", "I-X O"),  # it has no tag for a single word
        ("B I O", "I I O I", "B I O B"),
    ],
)
def test_illegal_tags_of_data_become_legal_ones_of_the_same_entities(labels: str, given: str, read: str) -> None:
    names, row = labels.split(), Example("a " * len(given.split()), tags=tuple(given.split()))
    (tags,) = of_labels(names).gold([row], names, "train")
    assert [names[tag] for tag in tags] == read.split()
    assert values([read.split()], [given.split()])["f1"] == 1.0


# Plain text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I live in Paris.", "I|live|in|Paris|."),
        ("John's (red) car,", "John|'s|(|red|)|car|,"),
        ("“Wait...” he said!?", "“|Wait|...|”|he|said|!|?"),
        ("the U.S. and e.g.\tit 's 5:30 :)", "the|U.S.|and|e.g.|it|'s|5:30|:|)"),
        ("see http://t.co/a?b=1.", "see|http://t.co/a?b=1|."),
        ("50\u00a0000 caf\u00e9s\u2028\U0001f600!", "50|000|caf\u00e9s|\U0001f600|!"),
        (" \n ", ""),
        ("." * 100_000 + "a.", "." * 100_000 + "a|."),
    ],
)
def test_words_of_plain_text(text: str, words: str) -> None:
    found = split_words(text)
    assert found == [*filter(None, words.split("|"))]
    assert [text[start:end] for start, end in places(found, text)] == found


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """A tagger to which each word is an entity of its own."""
    network: Any = tagger(labels=("B-GOOD", "I-GOOD", "O"))
    network.classifier.bias.data[0] = 9.0
    return Model.open(write(tmp_path / "model", network))


def test_spans_are_places_in_the_text_as_it_was_given(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    text = "A\u00a0good, \U0001f600 GOOD film's  end."
    assert execute(["predict", "--model", str(model.path), "-q", text]) == 0
    (line,) = (json.loads(one) for one in capsys.readouterr().out.splitlines())
    assert line["text"] == text
    words = ["A", "good", ",", "\U0001f600", "GOOD", "film", "'s", "end", "."]
    for one in line["entities"]:
        assert text[one["start"] : one["end"]] == one["text"] and one["label"] == "GOOD"
        assert 0 < one["probability"] <= 1
    for found in (line, model.predict(" ".join(words))):
        assert [one["text"] for one in found["entities"]] == words
    # Words that were given as such are not split: their text is that of all with a space between.
    given = model.predict(Example("film's end."))
    assert [(one["start"], one["text"]) for one in given["entities"]] == [(0, "film's"), (7, "end.")]


def test_the_probability_of_a_span_is_the_product_of_its_words() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [np.nan] * 3, [0.6, 0.2, 0.2]]))
    rows = [Example("a b c"), Example("d e", given="d, e")]
    labels = ("B-X", "I-X", "O")
    first, second = TASK.of_model(TASK.head_settings(labels)).described(rows, logits, labels)
    assert first == {"entities": [{"start": 0, "end": 3, "label": "X", "text": "a b", "probability": 0.4}]}
    assert second == {"entities": [{"start": 3, "end": 4, "label": "X", "text": "e", "probability": 0.6}]}


def test_a_tagger_from_elsewhere_keeps_the_likeliest_tag_of_each_word(tmp_path: Path) -> None:
    """In IOB1 an entity begins with I; decoded as BIO it would be lost. Students decode as their teacher."""
    labels, logits = ("B-X", "I-X", "O"), np.log(np.array([[0.01, 0.9, 0.09], [0.01, 0.01, 0.98]]))
    elsewhere = TASK.of_model({"id2label": dict(enumerate(labels))})
    assert elsewhere.predictions(logits).tolist() == [1, 2]
    assert elsewhere.gold([Example("a b", tags=("I-X", "O"))], labels, "test") == [[1, 2]]
    assert LEGAL_TAGS not in elsewhere.head_settings(labels)
    ours = TASK.of_model(TASK.head_settings(labels))
    assert ours.predictions(logits).tolist() == [2, 2] and ours.head_settings(labels)[LEGAL_TAGS]


def test_words_of_files_are_not_split(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.conll").write_text("Mr.\tO\ngood\tB-GOOD\n\n", encoding="utf-8")
    (tmp_path / "a.txt").write_text("Mr. good\n", encoding="utf-8")
    for name, words in (("a.conll", ["Mr.", "good"]), ("a.txt", ["Mr", ".", "good"])):
        assert execute(["predict", "--model", str(model.path), "-q", "--data", str(tmp_path / name)]) == 0
        line = json.loads(capsys.readouterr().out)
        assert line["text"] == "Mr. good" and [one["text"] for one in line["entities"]] == words


def test_places_are_those_in_the_text_of_a_file(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "  \u3000 A good,  film! "
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")
    assert execute(["predict", "--model", str(model.path), "-q", "--data", str(tmp_path / "a.jsonl")]) == 0
    of_file = json.loads(capsys.readouterr().out)
    assert of_file == {**model.predict(text), "text": text}
    assert [one["text"] for one in of_file["entities"]] == ["A", "good", ",", "film", "!"]
    assert model.predict([{"text": text}]) == [model.predict(text)]


def test_torch_onnx_and_the_native_library_find_the_same(tmp_path: Path) -> None:
    torch_model = Model.open(write(tmp_path / "cnn", cnn_tagger(labels=("B-GOOD", "I-GOOD", "O"))))
    exported = export(torch_model, tmp_path / "onnx")
    texts = ["a good, GOOD film.", "", "bad!", *(row.text for row in entities(5))]
    found = [[one["entities"] for one in model.predict(texts)] for model in (torch_model, exported)]
    for mine, other in zip(*found, strict=True):
        assert [one | {"probability": 0} for one in mine] == [one | {"probability": 0} for one in other]
        assert [one["probability"] for one in mine] == pytest.approx([one["probability"] for one in other], abs=2e-3)
    assert any(found[0]) and found[0][1] == []


def test_words_in_c_are_those_of_python(tmp_path: Path) -> None:
    """By a tagger to which each word is an entity of its own."""
    network: Any = cnn_tagger(labels=("B-GOOD", "I-GOOD", "O"))
    network.classifier.bias.data[0] = 99.0
    exported, draw = export(Model.open(write(tmp_path / "cnn", network)), tmp_path / "c"), random.Random(0)
    parts = ["'s", "'LL", "'re", "'t", "U.S.", "a_b", "...", "Wait", "x", *map(chr, range(128))]
    texts = [*map(chr, range(128)), *("".join(draw.choices(parts, k=draw.randint(0, 8))) for _ in range(20_000))]
    found = exported.runner.core.entities(texts, *exported.task.native_spans)
    for text, own in zip(texts, found, strict=True):
        words = split_words(text)  # of which those of control characters alone have no token, and so no answer
        read = [
            place for word, place in zip(words, places(words, text), strict=True) if any(map(str.isprintable, word))
        ]
        assert [(one["start"], one["end"]) for one in own["entities"]] == read, text


def test_entities_in_c_are_those_of_python(tmp_path: Path) -> None:
    bio, ending = ("B-GOOD", "I-GOOD", "O"), ("B-A", "I-A", "E-A", "S-A", "O")
    for seed, (labels, legal) in enumerate([(bio, True), (("I-A", "I-B", "O"), True), (ending, True), (bio, False)]):
        network = cnn_tagger(labels=labels)
        network.config.legal_tags = legal
        for parameter in network.parameters():
            parameter.data += 0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
        written = Model.open(write(tmp_path / f"cnn-{seed}", network))
        exported = export(written, tmp_path / f"c-{seed}")
        rows = [row.text for row in entities(40, seed=seed)]
        texts = [*rows, "", " ", "a good, GOOD film's end.", "caf\u00e9 good", "good " * 3000, "x" * 20_000]
        core, given = exported.runner.core, exported.task.native_spans
        found = exported.predict(texts)
        by_python = predictor(written)(texts, False)
        assert [exported.predict(text) for text in texts] == found
        in_c = core.entities(texts, *given)
        assert in_c[-1] is None  # long, and the one that is not ASCII
        assert not legal or in_c[len(rows) + 3] is None
        assert sum(one is not None for one in in_c) > 3
        for mine, other in zip(found, by_python, strict=True):
            assert mine.keys() == other.keys() and mine.get("unread_tokens") == other.get("unread_tokens")
            for one, another in zip(mine["entities"], other["entities"], strict=True):
                assert one | {"probability": 0} == another | {"probability": 0}
                assert one["probability"] == pytest.approx(another["probability"], abs=2e-3)
    with pytest.raises(ValueError, match="int32"):
        core.entities(["a"], given[0], given[1][:-4], True)


TINY_CNN = """
description = "a tiny tagger for C"
[architecture]
name = "cnn"
embedding_size = 16
widths = [1, 2]
filters = 8
dense_size = 8
minimum_count = 1
[[phases]]
losses = [{ name = "logit-mse" }]
[training]
epochs = 2.0
batch_size = 16
learning_rate = 1e-2
evaluations = 1
precision = "float32"
"""


def write_spans(path: Path, rows: Sequence[Example]) -> Path:
    """Write sentences as texts, without spaces before full stops, and spans."""
    read, lines = Entities(BLAME), list[str]()
    for row in rows:
        tags, sentences = columns([row.tags or ()], BLAME)
        where = places(row.words, row.text)
        spans = [
            {"start": where[first][0], "end": where[last][1], "label": read.classes[kind]}
            for first, last, kind in zip(*read.read(tags, sentences), strict=True)
        ]
        lines.append(json.dumps({"text": f"{row.text}.", "entities": spans}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


BLAME = ("O", "B-BAD", "I-BAD", "B-GOOD", "I-GOOD")


def test_texts_with_spans_end_in_a_tagger_in_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, dev, test = (
        write_spans(tmp_path / f"{name}.jsonl", entities(count, seed=seed))
        for name, count, seed in (("train", 120, 0), ("dev", 40, 1), ("test", 40, 2))
    )
    (tmp_path / "pool.txt").write_text("".join(f"{row.text}!\n" for row in entities(60, seed=3)), encoding="utf-8")
    (tmp_path / "cnn.toml").write_text(TINY_CNN)
    encoder = write(tmp_path / "encoder", classifier("bert"))
    body: Any = AutoModel.from_pretrained(encoder)
    body.save_pretrained(encoder)
    roles = ("--train", train, "--validation", dev, "--drop-overlap", "--device", "cpu", "--threads", 1)

    def run(stage: str, *given: object, code: int = 0) -> str:
        assert execute([stage, *map(str, given)]) == code, capsys.readouterr().err
        return capsys.readouterr().out

    results, pool = tmp_path / "results.jsonl", tmp_path / "pool.txt"
    read = {
        role: read_examples(open_source(path, role=role, labelled=True))
        for role, path in (("train", train), ("validation", dev))
    }
    teacher = finetuned(encoder, tmp_path / "teacher", training=TRAINING, overlap="drop", **read)
    assert str(teacher.task) == "entities" and teacher.labels == tuple(sorted(BLAME))
    assert teacher.manifest.metrics[0]["name"] == "entity-f1"
    run(
        "distill",
        "--teacher",
        teacher.path,
        "--student",
        tmp_path / "cnn.toml",
        "--unlabeled",
        pool,
        *roles,
        "-o",
        tmp_path / "cnn",
    )
    run("prune", "--model", teacher.path, "--vocabulary", train, *roles[:-2], "--no-measure", "-o", tmp_path / "cut")
    run("export", "--model", tmp_path / "cnn", "-o", tmp_path / "c")
    measured = ("--model", tmp_path / "c", "--model", tmp_path / "cut", "--rounds", 3, "--batch-size", 2)
    run("benchmark", "--teacher", teacher.path, *measured, "--data", test, "-o", results)
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert {line["metric_name"] for line in lines} == {"entity-f1"} and "native" in {line["runtime"] for line in lines}
    assert all([one["label"] for one in line["classes"]] == ["BAD", "GOOD"] for line in lines)
    assert "entity-f1" in run("check", results, "--max-accuracy-drop", 100)
    run("check", results, "--min-recall", "2", code=2)
    run("report", results, "-o", tmp_path / "report")
    assert "Precision" in (tmp_path / "report" / "report.html").read_text("utf-8")
    texts = ("a good film! bad,", 'good [{"a": 1}, {"b": 2}]')
    lines = [json.loads(one) for one in run("predict", "--model", tmp_path / "c", "-q", *texts).splitlines()]
    assert [line["text"] for line in lines] == [*texts] and sum(len(line["entities"]) for line in lines) > 2
    assert all(line["text"][one["start"] : one["end"]] == one["text"] for line in lines for one in line["entities"])
