"""Questions to a language model: what answers say, exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from compress.data import Example
from compress.errors import CompressError
from compress.inference.questions import FORMS, Answer, ChooseLabel, question
from compress.tasks import everything

ROW = Example("Anna Berg flew to Oslo from New York")


def choice(labels: int = 3, orders: int = 1) -> ChooseLabel:
    made = question("label", "", [f"label {number}" for number in range(labels)], orders)
    assert isinstance(made, ChooseLabel)
    return made


def spelled(chances: Mapping[str, float], split: bool) -> Answer:
    """The answer of a model with these probabilities of marks, each one token or a token a character."""
    best = max(chances, key=lambda mark: chances[mark])
    if not split:
        return Answer(best, ((best, {mark: math.log(one) for mark, one in chances.items()}),))
    tokens = []
    for place in range(len(best)):
        begun = {mark: one for mark, one in chances.items() if mark.startswith(best[:place])}
        nexts = {mark[place] for mark in begun}
        mass = {one: sum(value for mark, value in begun.items() if mark[place] == one) for one in nexts}
        tokens.append((best[place], {one: math.log(value / sum(begun.values())) for one, value in mass.items()}))
    return Answer(best, tuple(tokens))


def test_every_task_but_tags_can_be_asked() -> None:
    assert {task.asks for task in everything().values()} - {""} == set(FORMS)


def test_marks_have_one_length() -> None:
    assert choice(3).marks == ["A", "B", "C"]
    assert choice(120).marks[:2] == ["001", "002"] and choice(120).marks[-1] == "120"


@pytest.mark.parametrize("split", [False, True])
def test_probabilities_of_marks_are_those_of_tokens(split: bool) -> None:
    """Of marks of two tokens, those whose first token the answer did not take share its probability."""
    asked = choice(30)
    chances = {mark: 0.6 if mark == "12" else 0.4 / 29 for mark in asked.marks}
    found = asked.read(spelled(chances, split), ROW, 0)
    assert found is not None
    np.testing.assert_allclose(np.exp(found), [*chances.values()], rtol=1e-9)


def test_labels_that_the_server_does_not_list_share_the_rest() -> None:
    found = choice(4).read(Answer("A", (("A", {"A": math.log(0.9), "B": math.log(0.06)}),)), ROW, 0)
    assert found is not None
    np.testing.assert_allclose(np.exp(found), [0.9, 0.06, 0.02, 0.02])


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("B", 1),
        (" b.\n", 1),
        ("**B**", 1),
        ("B: label 1", 1),
        ("label 2", 2),
        ("<think>Is it A? No.</think>\nC", 2),
        ("A film that I liked", None),
        ("D", None),
        ("", None),
        ("A or B", None),
    ],
)
def test_answers_without_probabilities(said: str, place: int | None) -> None:
    found = choice(3).read(Answer(said), ROW, 0)
    assert (found is None) if place is None else found is not None and found.tolist() == np.eye(3)[place].tolist()


def test_a_mark_is_no_label_of_the_same_name() -> None:
    asked = question("label", "", ["B", "A"], 1)
    found = asked.read(Answer("B"), ROW, 0)
    assert found is not None and found.tolist() == [0, 1]


def test_place_preference_is_estimated_exactly_and_taken_away() -> None:
    """``log p = a[text, label] + b[place]`` gives back a and b."""
    draw = np.random.default_rng(0)
    asked, texts, preference = choice(5, orders=4), draw.normal(size=(20, 5)), draw.normal(size=5)
    preference -= preference.mean()
    found = list[list[np.ndarray]]()
    for text, order in itertools.product(range(20), range(4)):
        places = np.argsort(asked.orders[order])
        scores = texts[text] + preference[places]
        found += [[]] if not order else []
        found[-1].append(scores - np.logaddexp.reduce(scores))
    measured = asked.place_preference(found)
    assert measured is not None
    np.testing.assert_allclose(measured, preference, atol=1e-9)
    logits = np.concatenate([asked.logits(one, measured) for one in found])
    np.testing.assert_allclose(logits, texts - texts.mean(axis=1, keepdims=True), atol=1e-6)
    assert choice(5).place_preference([[one[0]] for one in found]) is None  # one order tells nothing


def test_votes_become_smoothed_probabilities() -> None:
    asked = choice(2, orders=2)
    found = asked.task.probabilities(asked.logits([np.array([1.0, 0]), np.array([0.0, 1])]))
    np.testing.assert_allclose(np.asarray(found), [[0.5, 0.5]])
    found = asked.task.probabilities(asked.logits([np.array([1.0, 0]), np.array([1.0, 0])]))
    np.testing.assert_allclose(np.asarray(found), [[0.95, 0.05]], rtol=1e-6)


@pytest.mark.parametrize(
    ("asks", "said", "wanted"),
    [
        ("labels", '{"labels": ["B-side"]}', [0, 1]),
        ("labels", 'Here you are: ```{"labels": []}```', [0, 0]),
        ("labels", '{"labels": ["other"]}', None),
        ("labels", "none", None),
        ("score", '{"score": 2.5}', [2.5]),
        ("score", '{"score": true}', None),
        ("score", '{"score": NaN}', None),
        ("score", "[1]", None),
    ],
)
def test_structured_answers(asks: str, said: str, wanted: Sequence[float] | None) -> None:
    asked = question(asks, "", ["A-side", "B-side"] if asks == "labels" else [], 1)
    found = asked.read(Answer(said), ROW, 0)
    assert (found is None) if wanted is None else found is not None and found.tolist() == wanted


def test_entities_are_found_in_the_text() -> None:
    asked = question("spans", "", ["PER", "LOC"], 1)
    said = '{"spans": [{"text": "Anna Berg", "label": "PER"}, {"text": "New York", "label": "LOC"}]}'
    found = asked.read(Answer(said), ROW, 0)
    assert found is not None
    tags = [asked.logit_labels[number] for number in found.argmax(axis=1)]
    assert tags == ["B-PER", "I-PER", "O", "O", "O", "O", "B-LOC", "I-LOC"]
    assert asked.logits([found]).shape == (8, 5)
    for wrong in ('{"spans": [{"text": "Bergen", "label": "LOC"}]}', '{"spans": [{"text": "Oslo"}]}'):
        assert asked.read(Answer(wrong), ROW, 0) is None


def test_the_text_is_what_the_user_says_and_the_rest_the_same() -> None:
    asked = choice(3, orders=2)
    first, second = (asked.messages(Example(text), 0) for text in ("one", "two"))
    assert first[0] == second[0] and [first[1]["content"], second[1]["content"]] == ["one", "two"]
    assert asked.messages(Example("one"), 1)[0] != first[0]
    assert "Second text:\nno" in asked.messages(Example("yes", "no"), 0)[1]["content"]


@pytest.mark.parametrize(
    ("asks", "labels", "orders", "said"),
    [
        ("label", ["one"], 1, "2 labels or more"),
        ("label", ["one", "one"], 1, "twice"),
        ("label", ["one", "two"], 3, "at most"),
        ("score", ["one"], 1, "no labels"),
        ("spans", [], 1, "1 labels or more"),
    ],
)
def test_refusals(asks: str, labels: list[str], orders: int, said: str) -> None:
    with pytest.raises(CompressError, match=said):
        question(asks, "", labels, orders)
