"""Labelled rows of every task, which tiny models can learn: a task of a new file in ``compress/tasks`` adds its own."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from compress.data import Example
from tests.support.tagging import entities, sentences
from tests.support.tiny import BAD, GOOD, PLAIN
from tests.support.training_data import labelled_file


def words(count: int, seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    return [[draw.choice([*GOOD, *BAD, *PLAIN]) for _ in range(draw.randint(3, 9))] for _ in range(count)]


def praise(row: list[str]) -> int:
    return sum((word in GOOD) - (word in BAD) for word in row)


def classes(count: int, seed: int) -> list[Example]:
    return [Example(" ".join(row), None, "positive" if praise(row) > 0 else "negative") for row in words(count, seed)]


def scores(count: int, seed: int) -> list[Example]:
    return [Example(" ".join(row), None, str(praise(row) / 2)) for row in words(count, seed)]


# Task -> so many rows of a seed.
SAMPLES: Mapping[str, Callable[[int, int], list[Example]]] = {
    "classification": classes,
    "regression": scores,
    "entities": lambda count, seed: entities(count, seed=seed),
    "tagging": lambda count, seed: sentences(count, seed=seed),
}


def write_sample(task: str, count: int, seed: int, folder: Path) -> Path:
    """Write rows of a task as a file that users have: JSON Lines of words and tags, else CSV."""
    rows = SAMPLES[task](count, seed)
    if rows[0].tags is None:
        return labelled_file(folder / f"{seed}.csv", rows)
    path = folder / f"{seed}.jsonl"
    path.write_text("".join(json.dumps({"words": row.words, "tags": row.tags}) + "\n" for row in rows))
    return path
