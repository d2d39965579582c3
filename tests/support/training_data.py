"""Small files, recipes and helpers for tests that run whole stages."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import compress
from compress.data import Example, TextSource, open_source
from compress.models.model_dir import Model
from compress.recipes import Choice, Phase, StudentRecipe, Training
from tests.support.tiny import BAD, GOOD, PLAIN, classifier, examples, write

# Enough steps to change every weight, few enough to take no time.
TRAINING = Training(
    epochs=2.0, batch_size=16, learning_rate=5e-3, evaluations=2, precision="float32", max_length=32, weight_decay=0.0
)
BILSTM = StudentRecipe(
    description="a tiny BiLSTM",
    architecture=Choice("bilstm", options={"embedding_size": 16, "hidden_size": 8, "dense_size": 8}),
    phases=(Phase((Choice("logit-mse"),)),),
    training=TRAINING,
    name="tiny-bilstm",
)
TRANSFORMER = replace(
    BILSTM,
    architecture=Choice("transformer", options={"depth": 1}),
    phases=(Phase((Choice("kl", 0.5, {"temperature": 2.0}), Choice("hidden-cosine"), Choice("hard-label", 0.5))),),
    name="tiny-transformer",
)


def distilled(teacher: Any, student: StudentRecipe | str, output: Path, **options: Any) -> Model:
    """Run ``distill`` on one thread of the CPU."""
    return compress.distill(teacher, student, output, **{"device": "cpu", "threads": 1, **options})


def finetuned(encoder: Any, output: Path, **options: Any) -> Model:
    """Run ``finetune`` on one thread of the CPU."""
    return compress.finetune(encoder, output, **{"device": "cpu", "threads": 1, **options})


def train_rows() -> list[Example]:
    return examples(40)


def validation_rows() -> list[Example]:
    """Labelled rows of which none is like a row of train or of the pool."""
    words = [*((word, "positive") for word in GOOD), *((word, "negative") for word in BAD)]
    return [Example(f"zebra {word} {PLAIN[index % 15]}", None, label) for index, (word, label) in enumerate(words)]


def pool_rows(count: int = 90) -> list[Example]:
    words = [*GOOD, *BAD, *PLAIN]
    return [Example(f"{words[i % 31]} {words[i * 7 % 31]} pool {words[i * 3 % 29]} {i}") for i in range(count)]


def pool_file(path: Path, rows: Sequence[Example] | None = None) -> TextSource:
    rows = pool_rows() if rows is None else rows
    path.write_text("".join(f"{row.text}\n" for row in rows), encoding="utf-8")
    return open_source(path, role="unlabeled", labelled=False)


def labelled_file(path: Path, rows: Sequence[Example]) -> Path:
    """Write labelled rows as CSV, pairs too."""
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle)
        pairs = rows[0].text_pair is not None
        writer.writerow(["sentence1", "sentence2", "label"] if pairs else ["text", "label"])
        writer.writerows([e.text, e.text_pair, e.label] if pairs else [e.text, e.label] for e in rows)
    return path


def state(directory: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    weights: dict[str, Any] = load_file(directory / "model.safetensors")
    return weights


TINY_STUDENT = """
description = "tiny"
[architecture]
name = "bilstm"
embedding_size = 8
hidden_size = 4
dense_size = 4
[[phases]]
losses = [{ name = "logit-mse" }]
[training]
epochs = 1.0
batch_size = 32
evaluations = 1
precision = "float32"
"""

# The data and the teacher of a study, as `write_study_data` lays them out.
STUDY_HEAD = """
[data]
train = { set = "tiny", split = "train" }
validation = { set = "tiny", split = "validation" }
test = { set = "tiny", split = "test" }
unlabeled = [{ set = "tiny", split = "unlabeled", rows = 60 }]
overlap = "drop"
[teacher]
model = "tiny-bert"
quantize = false
"""


def write_study_data(data_root: Path, model_root: Path) -> list[Example]:
    """Write the set ``tiny`` and the teacher ``tiny-bert`` that ``STUDY_HEAD`` names; return the test rows."""
    folder = data_root / "tiny"
    folder.mkdir(parents=True)
    write(model_root / "tiny-bert", classifier("bert"))
    tests = [
        Example(f"tests {word} {index}", None, ("negative", "positive")[index % 2])
        for index, word in enumerate(GOOD * 3)
    ]
    for split, rows in (("train", train_rows()), ("validation", validation_rows()), ("test", tests)):
        labelled_file(folder / f"{split}.csv", rows)
    pool_file(folder / "unlabeled.txt")
    return tests


def stop_at(number: int, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Let a function be stopped, like its process, at its call of this number, counted from 0."""
    own: Callable[..., Any] = getattr(owner, name)
    calls = iter(range(10_000))

    def stopping(*given: Any, **named: Any) -> Any:
        if next(calls) == number:
            raise KeyboardInterrupt
        return own(*given, **named)

    monkeypatch.setattr(owner, name, stopping)
