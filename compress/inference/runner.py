"""What the benchmark runs: anything that takes texts apart into inputs, and turns inputs into logits.

A runtime needs not know this: it opens a model directory and returns a function of token ids, and the benchmark
tokenises. Baselines and competitors have inputs of their own, such as words, or do both in one.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from compress.data.examples import Example


class Runner(Protocol):
    """A model that is ready to run.

    ``parameters`` is the number of its weights. ``tokenizer_inside`` says that ``prepare`` does next to nothing
    because ``run`` takes texts.
    """

    parameters: int
    tokenizer_inside: bool

    def prepare(self, examples: Sequence[Example]) -> Any:
        """Turn B texts or pairs into whatever ``run`` takes."""

    def run(self, inputs: Any) -> np.ndarray:
        """Return logits ``[B, C]``, or log-probabilities, or scores ``[B, 1]`` for regression.

        Of a tagger there is a row for every word of the B sentences, ``[W, C]``, not a number where it has no answer.
        """
