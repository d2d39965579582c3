"""Classify by a cascade: every member reads the rows that those before it were not sure of, in one batch.

Viola and Jones (2001, "Rapid object detection using a boosted cascade of simple features"); for encoders of text with
the confidence of the softmax as here, Li et al. (2021, arXiv:2012.14682). N rows, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from compress.data.examples import Example
from compress.evaluation.softmax import confidence
from compress.inference.token_runner import Function, TokenArrays, TokenRunner
from compress.models.cascade_dir import CascadeDir, open_model
from compress.models.model_dir import ModelDir

# The number of a member, and those of the n rows that it reads -> logits [n, C].
Ask = Callable[[int, np.ndarray], np.ndarray]


class Answers(NamedTuple):
    """Logits ``[N, C]`` of the member that answered each row, and how many rows each member answered."""

    logits: np.ndarray
    answered: list[int]


def ask_in_turn(first: np.ndarray, thresholds: Sequence[float], ask: Ask) -> Answers:
    """Ask each member but the first for the rows of which those before were less confident than their threshold.

    Args:
        first: logits ``[N, C]`` of the first member, which reads all rows.
    """
    found, waiting = first, np.arange(len(first))
    logits, left = first.copy(), [len(first)]
    for number, threshold in enumerate(thresholds, 1):
        waiting = waiting[confidence(found) < threshold]
        left.append(len(waiting))
        if not len(waiting):
            break
        found = ask(number, waiting)
        logits[waiting] = found
    left += [0] * (len(thresholds) + 2 - len(left))
    return Answers(logits, [before - after for before, after in pairwise(left)])


class CascadeInputs(NamedTuple):
    """Rows as texts, and as the tokens ``[B, T]`` of the first member."""

    examples: Sequence[Example]
    arrays: TokenArrays
    shape: dict[str, Any]


@dataclass
class CascadeRunner:
    """A :class:`compress.inference.runner.Runner` of a cascade.

    ``prepare`` makes the tokens of the first member, and ``run`` those of the others, of the rows that they read.

    Args:
        members: one for each member.
        thresholds: of all but the last.
        answered: how many rows each member answered so far.
    """

    members: Sequence[TokenRunner]
    thresholds: Sequence[float]
    answered: np.ndarray
    parameters: int = 0
    tokenizer_inside: bool = False

    @classmethod
    def open(cls, cascade: CascadeDir, max_length: int, lengths: Sequence[int]) -> Self:
        """Load the tokenizers; see :meth:`TokenRunner.open`."""
        members = [TokenRunner.open(member, max_length, lengths) for member in cascade.members]
        return cls(members, cascade.thresholds, np.zeros(len(members), np.int64))

    def start(self, open_one: Callable[[ModelDir], Function]) -> None:
        """Open the model of every member."""
        for member in self.members:
            member.start(open_one)

    @property
    def max_length(self) -> int:
        """The tokens that the first member reads."""
        return self.members[0].max_length

    def lengths(self, examples: Sequence[Example]) -> list[int]:
        """Return the tokens of each row, as the first member counts them."""
        return self.members[0].lengths(examples)

    def prepare(self, examples: Sequence[Example], **shape: Any) -> CascadeInputs:
        """Tokenise for the first member; ``shape`` is that of :meth:`TokenRunner.prepare`."""
        return CascadeInputs(examples, self.members[0].prepare(examples, **shape), shape)

    def run(self, inputs: CascadeInputs) -> np.ndarray:
        """Return logits ``[B, C]``, and count in ``answered`` which member they are of."""

        def ask(number: int, rows: np.ndarray) -> np.ndarray:
            member = self.members[number]
            return member.run(member.prepare([inputs.examples[row] for row in rows], **inputs.shape))

        logits, answered = ask_in_turn(self.members[0].run(inputs.arrays), self.thresholds, ask)
        self.answered += answered
        return logits


def open_runner(directory: Path, max_length: int, lengths: Sequence[int]) -> TokenRunner | CascadeRunner:
    """Return what reads the texts of a model or a cascade, and runs it once it is started."""
    model = open_model(directory, verify=False)
    kind = CascadeRunner if isinstance(model, CascadeDir) else TokenRunner
    return kind.open(model, max_length, lengths)  # type: ignore[arg-type]
