"""What the benchmark runs: two functions, one from texts to inputs and one from inputs to logits.

A runtime does not know this: it opens a model directory and returns a function of token ids, and
:class:`compress.inference.token_runner.TokenRunner` tokenises. Baselines and competitors have inputs of their own, such
as words, or do both in one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compress.data.examples import Example


@dataclass
class Runner:
    """A model that is ready to run.

    Args:
        prepare: turns B texts or pairs into whatever ``run`` takes.
        run: returns logits ``[B, C]``, or log-probabilities, or scores ``[B, 1]`` for regression. Of a tagger there is
            a row for every word of the B sentences, ``[W, C]``, not a number where it has no answer.
        parameters: the number of its weights.
        tokenizer_inside: whether ``prepare`` does next to nothing because ``run`` takes texts.
    """

    prepare: Callable[[Sequence[Example]], Any]
    run: Callable[[Any], np.ndarray]
    parameters: int
    tokenizer_inside: bool = False
