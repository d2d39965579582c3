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


def praised(count: int, seed: int) -> list[Example]:
    """Rows with a label for good words, one for bad ones, both, or none."""
    rows = []
    for row in words(count, seed):
        labels = [name for name, known in (("praise", GOOD), ("blame", BAD)) if any(word in known for word in row)]
        rows.append(Example(" ".join(row), labels=tuple(labels)))
    return rows


# Task -> so many rows of a seed.
SAMPLES: Mapping[str, Callable[[int, int], list[Example]]] = {
    "classification": classes,
    "multi-label": praised,
    "regression": scores,
    "entities": lambda count, seed: entities(count, seed=seed),
    "tagging": lambda count, seed: sentences(count, seed=seed),
}


def write_sample(task: str, count: int, seed: int, folder: Path) -> Path:
    """Write rows of a task as a file that users have: CSV, or JSON Lines of words and tags, or of text and labels."""
    rows = SAMPLES[task](count, seed)
    if rows[0].label is not None:
        return labelled_file(folder / f"{seed}.csv", rows)
    path, tagged = folder / f"{seed}.jsonl", rows[0].tags is not None
    records = [
        {"words": row.words, "tags": row.tags} if tagged else {"text": row.text, "labels": row.labels} for row in rows
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
