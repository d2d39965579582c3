"""Several label directories of the same texts as one: the weighted mean of their probabilities.

The mean of the probabilities is the prediction that is closest to those of all teachers in the sense of the loss kl:
``sum_k w_k KL(p_k || q)`` is least at ``q = sum_k w_k p_k``, and at temperature 1 the gradient of a student is the same
as from each teacher in turn. Hinton et al. 2015 (arXiv:1503.02531) take this mean or the geometric one, which is that
of the logits; there one teacher that is certain outweighs all others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from compress.data import Example
from compress.data.examples import batched
from compress.data.tokenization import by_sentence
from compress.errors import CompressError
from compress.labelling.import_labels import centred
from compress.labelling.label_dir import LabelDir
from compress.labelling.shards import SHARD_ROWS, Shards


@dataclass(frozen=True)
class CombinedLabels(LabelDir):
    """Label directories of the same texts in the same order; a shard of each is in memory at a time."""

    parts: tuple[LabelDir, ...] = ()
    weights: tuple[float, ...] = ()

    @property
    def origin(self) -> dict[str, Any]:
        parts = [{**part.origin, "weight": weight} for part, weight in zip(self.parts, self.weights, strict=True)]
        return {"name": self.teacher_name, "mean_of": parts}

    @property
    def teacher_sha256(self) -> str:
        return ""

    @property
    def teacher_name(self) -> str:
        weighted = [f"{weight:g} x " if len(set(self.weights)) > 1 else "" for weight in self.weights]
        names = [f"{weight}{part.teacher_name}" for weight, part in zip(weighted, self.parts, strict=True)]
        return f"the mean of {', '.join(names)}"

    @property
    def has_zeros(self) -> bool:
        return any(part.has_zeros for part in self.parts)

    @cached_property
    def shards(self) -> "CombinedShards":  # type: ignore[override]
        return CombinedShards(tuple(part.shards for part in self.parts), self.weights)


@dataclass(frozen=True)
class CombinedShards:
    """The shards of label directories of the same texts; see :class:`compress.labelling.shards.Shards`."""

    parts: tuple[Shards, ...]
    weights: tuple[float, ...]

    @property
    def starts(self) -> np.ndarray:
        return self.parts[0].starts

    def keys(self, number: int) -> np.ndarray:
        return self.parts[0].keys(number)

    def rows_at(self, numbers: np.ndarray) -> Iterator[tuple[Example, np.ndarray]]:
        """Yield examples with the logits of their mean probabilities, of a regression with their mean score."""
        tagging = self.parts[0].task == "tagging"
        rows_of_parts = zip(*(part.rows_at(numbers) for part in self.parts), strict=True)
        for start, rows in enumerate(batched(rows_of_parts, SHARD_ROWS)):
            numbers_here = numbers[start * SHARD_ROWS :]
            examples = [self._same(row, int(number)) for row, number in zip(rows, numbers_here, strict=False)]
            columns = [[logits for _, logits in column] for column in zip(*rows, strict=True)]
            mean = mean_logits([np.concatenate(one) if tagging else np.stack(one) for one in columns], self.weights)
            words = [len(logits) for logits in columns[0]]
            yield from zip(examples, by_sentence(mean, words) if tagging else mean, strict=True)

    def _same(self, row: Sequence[tuple[Example, np.ndarray]], number: int) -> Example:
        """Return the example that all directories have in a row."""
        first, *others = (example for example, _ in row)
        for other, part in zip(others, self.parts[1:], strict=True):
            if other != first:
                raise CompressError(
                    f"row {number + 1:,} of {part.path} is {other.text[:40]!r}, and of {self.parts[0].path} "
                    f"{first.text[:40]!r}; labels are combined row by row, so label one file with every teacher"
                )
        return first


def combine_labels(parts: Sequence[LabelDir], weights: Sequence[float] = ()) -> CombinedLabels:
    """Return label directories as one, each with its weight (by default the same).

    Raises:
        CompressError: there are fewer than two, or they have different numbers of rows.
    """
    if len(parts) < 2:
        raise CompressError("--combine takes two label directories or more; give --labels DIR for each")
    if weights and len(weights) != len(parts):
        raise CompressError(f"there are {len(parts)} label directories and {len(weights)} weights; give one for each")
    if not all(1e-100 <= weight <= 1e100 for weight in weights):
        given = ", ".join(map(str, weights))
        raise CompressError(f"the weights {given} must be numbers above 0, from 1e-100 to 1e100; leave the others out")
    for one, other in pairwise(parts):
        if one.rows != other.rows:
            raise CompressError(
                f"{one.path} has {one.rows:,} rows, and {other.path} has {other.rows:,}; labels are combined row by "
                "row, so label one file with every teacher"
            )
    return CombinedLabels(
        parts[0].path, parts[0].manifest, parts=tuple(parts), weights=tuple(weights) or (1.0,) * len(parts)
    )


def mean_logits(logits: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Return the logits ``[N, C]`` of the mean probabilities of several ``[N, C]``; of one class the mean itself."""
    shares = np.asarray(weights, dtype=np.float64)[:, None, None] / sum(weights)
    stacked = np.stack(logits).astype(np.float64)
    if stacked.shape[-1] == 1:
        mean: np.ndarray = (shares * stacked).sum(axis=0)
        return mean.astype(np.float32)
    with np.errstate(invalid="ignore"):  # words without an answer
        log_probabilities = stacked - np.logaddexp.reduce(stacked, axis=-1, keepdims=True)
        return centred(np.logaddexp.reduce(log_probabilities + np.log(shares), axis=0))
