"""Questions to a language model about a text, and what its answers say: logits, as a teacher's.

A form of question is a class, found by the word that its task has for it (``Task.asks``). The prompt and the labels are
the system message, which is the same for all texts, so that servers can keep it; the text is the user's.

Language models prefer some places of a list (Zheng et al. 2024, "Large Language Models Are Not Robust Multiple Choice
Selectors", arXiv:2309.03882). Each text is asked in several orders of the labels, and the preference is estimated and
taken away: log-probabilities are ``a[text, label] + b[place]``, of which ``b`` is found by least squares.
"""

from __future__ import annotations

import json
import math
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from compress.data import Example
from compress.data.words import places
from compress.errors import refuse
from compress.evaluation.entities import OUTSIDE
from compress.requests.labelling import DEFAULT_SMOOTHING
from compress.tasks import Task, everything

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LEAST_MASS = 1e-9  # of a label that the server does not list among the likeliest tokens
LARGEST_SCORE = 1e30  # that float32 holds
_THOUGHTS = re.compile("<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True)
class Answer:
    """What a server answered.

    ``tokens`` are those of the answer, each with the likeliest tokens at its place and their log-probabilities, where
    the server gives them. ``refusal`` says why there is no answer, and ``failed`` that this is a fault of the server.
    ``seconds`` is how long it took; 0 where that is unknown.
    """

    text: str
    tokens: tuple[tuple[str, Mapping[str, float]], ...] = ()
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    refusal: str = ""
    failed: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Question(ABC):
    """One form of question.

    ``orders`` are permutations of the labels: the number of the label at each place.
    """

    prompt: str
    labels: tuple[str, ...]
    orders: tuple[tuple[int, ...], ...]
    task: Task

    instruction: ClassVar[str]
    default_prompt: ClassVar[str] = "You classify texts."
    most_tokens: ClassVar[int] = 512
    least_labels: ClassVar[int] = 1

    @property
    def logit_labels(self) -> tuple[str, ...]:
        """The labels of the logits, in order."""
        return self.labels

    def messages(self, row: Example, order: int) -> list[dict[str, str]]:
        shown = self.shown([self.labels[number] for number in self.orders[order]])
        system = f"{self.prompt or self.default_prompt}\n\n{self.instruction.format(labels=shown)}"
        text = row.given or row.text
        user = text if row.text_pair is None else f"First text:\n{text}\n\nSecond text:\n{row.text_pair}"
        return [{"role": "system", "content": system}, {"role": "user", "content": user}]

    def shown(self, labels: Sequence[str]) -> str:
        """Return the labels as the system message lists them."""
        return "\n".join(f"- {label}" for label in labels)

    def parameters(self) -> dict[str, Any]:
        """Return what else the server is asked for; a server that knows a parameter not is asked without it."""
        form = {"name": "answer", "strict": True, "schema": self.schema()}
        return {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": form}}

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of an answer."""
        return {}

    @abstractmethod
    def read(self, answer: Answer, row: Example, order: int) -> np.ndarray | None:
        """Return the share of each label in an answer, ``[C]``, of words ``[W, C]``; None where it says nothing."""

    def logits(self, found: Sequence[np.ndarray], preference: np.ndarray | None = None) -> np.ndarray:
        """Return logits ``[1, C]``, of words ``[W, C]``, of what the answers in all orders say, as votes."""
        share = np.atleast_2d(np.mean(found, axis=0))
        unread = np.asarray(self.task.probabilities(np.zeros((1, share.shape[1]))))
        return self.task.logits((1 - DEFAULT_SMOOTHING) * share + DEFAULT_SMOOTHING * unread).astype(np.float32)


class ChooseLabel(Question):
    """Each label has a mark of the same length, so that none begins another, and the answer is a mark.

    :meth:`read` returns log-probabilities where the server gives those of tokens, else 1 for the label and 0.
    """

    instruction = "Answer with the mark of the one label that fits the text best, and nothing else.\n{labels}"
    most_tokens = 16
    least_labels = 2

    @property
    def marks(self) -> list[str]:
        count = len(self.labels)
        return (
            [*LETTERS[:count]]
            if count <= len(LETTERS)
            else [f"{one:0{len(str(count))}}" for one in range(1, count + 1)]
        )

    def shown(self, labels: Sequence[str]) -> str:
        return "\n".join(f"{mark}: {label}" for mark, label in zip(self.marks, labels, strict=True))

    def parameters(self) -> dict[str, Any]:
        return {"temperature": 0, "logprobs": True, "top_logprobs": 20}

    def read(self, answer: Answer, row: Example, order: int) -> np.ndarray | None:
        labels = self.orders[order]
        place = self._place(answer.text, [self.labels[number] for number in labels])
        if place is None:
            return None
        found = np.empty(len(labels))
        found[list(labels)] = self._chances(answer, place)
        return found

    def _place(self, text: str, labels: Sequence[str]) -> int | None:
        said = _THOUGHTS.sub("", text).strip().strip("\"'`*.()[]").casefold()
        names = [label.casefold() for label in labels]
        said = said.zfill(len(self.marks[0])) if said.isdecimal() and said not in names else said
        for place, (mark, name) in enumerate(zip(self.marks, names, strict=True)):
            if said.startswith(mark.casefold()) and said[len(mark) :].strip(" :.)-*\n") in ("", name):
                return place
        return names.index(said) if said in names else None

    def _chances(self, answer: Answer, place: int) -> np.ndarray:
        """Return the log-probability of the label at each place; without those of tokens 1 for the one and 0."""
        mass, path, before = np.zeros(len(self.marks)), "", 1.0
        for token, likeliest in answer.tokens:
            for other, log_chance in likeliest.items():
                said = (path + other).strip()
                fits = [one for one, mark in enumerate(self.marks) if said and mark.startswith(said)]
                if fits and (other != token or said in self.marks):
                    mass[fits] += before * math.exp(log_chance) / len(fits)
            before *= math.exp(likeliest.get(token, 0.0))
            path = (path + token).lstrip()
            if path.strip() in self.marks or path and not any(mark.startswith(path.strip()) for mark in self.marks):
                break
        if path.strip() != self.marks[place]:  # another spelling, such as the name of the label
            return np.asarray(np.eye(len(mass))[place])
        unseen = mass == 0
        rest = max(0.0, 1 - mass.sum()) / max(1, int(unseen.sum()))
        mass[unseen] = max(LEAST_MASS, min(rest, mass[~unseen].min()))
        return np.asarray(np.log(mass / mass.sum()))

    def logits(self, found: Sequence[np.ndarray], preference: np.ndarray | None = None) -> np.ndarray:
        if not all(map(_is_soft, found)):
            votes = np.eye(len(self.labels))[[int(one.argmax()) for one in found]]
            return super().logits(list(votes))
        mean = np.mean([one - self._at_places(preference, order) for order, one in enumerate(found)], axis=0)
        return np.asarray((mean - mean.mean())[None], np.float32)

    def _at_places(self, preference: np.ndarray | None, order: int) -> np.ndarray:
        """Return the preference of the place of each label in an order, ``[C]``."""
        at = np.zeros(len(self.labels))
        if preference is not None and preference.size:
            at[list(self.orders[order])] = preference
        return at

    def place_preference(self, found: Sequence[Sequence[np.ndarray]]) -> np.ndarray | None:
        """Return how much likelier the label at each place is for its place, ``[C]``, in nats, of mean 0.

        ``found`` is what the answers to each of some texts say, in all orders; None where they are no log-probabilities
        or there is one order.
        """
        soft = [np.stack(one) for one in found if all(map(_is_soft, one))]
        if not soft or len(self.orders) < 2:
            return None
        values = np.mean(soft, axis=0)  # [orders, labels]
        values -= values.mean(axis=1, keepdims=True)
        count = len(self.labels)
        at = np.zeros((len(self.orders), count, count))  # which place each label has in each order
        for order, labels in enumerate(self.orders):
            at[order, list(labels), range(count)] = 1
        design = at - at.mean(axis=0)
        preference = np.linalg.lstsq(design.reshape(-1, count), (values - values.mean(axis=0)).ravel(), rcond=None)[0]
        return np.asarray(preference - preference.mean())


class ListLabels(Question):
    """The answer lists the labels that fit, maybe none."""

    instruction = 'Answer with JSON that lists the labels that fit the text, maybe none: {{"labels": [...]}}\n{labels}'

    def schema(self) -> dict[str, Any]:
        return _object(labels={"type": "array", "items": {"type": "string", "enum": [*self.labels]}})

    def read(self, answer: Answer, row: Example, order: int) -> np.ndarray | None:
        listed = _json(answer.text).get("labels")
        if not isinstance(listed, list) or not all(one in self.labels for one in listed):
            return None
        return np.array([label in listed for label in self.labels], float)


class ListEntities(Question):
    """The answer lists entities with their text, which is looked for in the text from where the last one ends."""

    default_prompt = "You find entities in texts."
    instruction = (
        "Answer with JSON that lists the entities of the text in their order, each as it is written there: "
        '{{"spans": [{{"text": "...", "label": "..."}}]}}. Their labels:\n{labels}'
    )
    most_tokens = 2048

    @property
    def logit_labels(self) -> tuple[str, ...]:
        return tuple(sorted({OUTSIDE, *(f"{part}-{label}" for part in "BI" for label in self.labels)}))

    def schema(self) -> dict[str, Any]:
        entity = _object(text={"type": "string"}, label={"type": "string", "enum": [*self.labels]})
        return _object(spans={"type": "array", "items": entity})

    def read(self, answer: Answer, row: Example, order: int) -> np.ndarray | None:
        listed = _json(answer.text).get("spans")
        if not isinstance(listed, list):
            return None
        tags, text = [OUTSIDE] * len(row.words), row.given or row.text
        where, end = places(row.words, text), 0
        for one in listed:
            said, label = (one.get("text"), one.get("label")) if isinstance(one, Mapping) else (None, None)
            if not isinstance(said, str) or not said or label not in self.labels:
                return None
            start = text.find(said, end)
            if start < 0:
                return None
            end = start + len(said)
            inside = [word for word, (first, last) in enumerate(where) if first < end and last > start]
            for number, word in enumerate(inside):
                tags[word] = f"{'I' if number else 'B'}-{label}"
        return np.eye(len(self.logit_labels))[list(map(self.logit_labels.index, tags))]


class GiveScore(Question):
    """The answer is a number."""

    default_prompt = "You score texts."
    instruction = 'Answer with JSON: {{"score": NUMBER}}{labels}'

    @property
    def logit_labels(self) -> tuple[str, ...]:
        return ("score",)

    def schema(self) -> dict[str, Any]:
        return _object(score={"type": "number"})

    def read(self, answer: Answer, row: Example, order: int) -> np.ndarray | None:
        score = _json(answer.text).get("score")
        is_number = isinstance(score, int | float) and not isinstance(score, bool) and abs(score) < LARGEST_SCORE
        return np.array([float(score)]) if is_number else None  # type: ignore[arg-type]

    def logits(self, found: Sequence[np.ndarray], preference: np.ndarray | None = None) -> np.ndarray:
        return np.asarray(np.mean(found, axis=0)[None], np.float32)


FORMS: Mapping[str, type[Question]] = {
    "label": ChooseLabel,
    "labels": ListLabels,
    "spans": ListEntities,
    "score": GiveScore,
}


def question(asks: str, prompt: str, labels: Sequence[str], orders: int) -> Question:
    """Return a question with so many orders of its labels: the given one, and others drawn at random."""
    form = FORMS[asks]
    task = next(task for task in everything().values() if task.asks == asks)
    least = 0 if asks == "score" else form.least_labels
    needs = f"{least} labels or more" if least else "no labels"
    refuse(
        (
            len(labels) < least or labels and not least,
            f"--answer {asks} needs {needs}, and --labels names {len(labels)}; correct --labels",
        ),
        (len({*labels}) < len(labels), "--labels names a label twice; give each label once"),
    )
    most = math.factorial(min(len(labels), 5))
    refuse((orders > most, f"{len(labels)} labels have {most} orders; give --orders {most} at most"))
    drawn, first = random.Random(0), tuple(range(len(labels)))
    found = {first: None}
    while len(found) < orders:
        found[tuple(drawn.sample(first, len(first)))] = None
    return form(prompt, tuple(labels), tuple(found), task)


def _is_soft(found: np.ndarray) -> bool:
    """Tell log-probabilities, all below 0, from votes."""
    return bool((found < 0).any())


def _object(**properties: Any) -> dict[str, Any]:
    names = [*properties]
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _json(text: str) -> dict[str, Any]:
    """Return the first JSON object of a text; nothing where there is none."""
    said = _THOUGHTS.sub("", text)
    with suppress(ValueError, RecursionError):
        found, _ = json.JSONDecoder().raw_decode(said[max(0, said.find("{")) :])
        return found if isinstance(found, dict) else {}
    return {}
