"""A student of labels from elsewhere: what it learns, from which model it starts, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModel

from compress.cli import execute
from compress.data import Example
from compress.errors import CompressError
from compress.inference import predict as predict_module
from compress.inference.compute import Compute
from compress.labelling.label_dir import LabelDir
from compress.models.model_dir import Model
from compress.pruning.prune import check_labels
from compress.recipes import Choice, Phase, StudentRecipe
from compress.requests.labelling import import_labels
from compress.training.training_data import LabelledPool, TrainingData
from tests.support.labelling import label
from tests.support.tiny import LABELS, PLAIN, classifier, write
from tests.support.training_data import BILSTM, TRAINING, TRANSFORMER, distilled, pool_file, train_rows, validation_rows

LONGER = replace(BILSTM, training=replace(TRAINING, epochs=30.0, evaluations=4, learning_rate=1e-2))
KL = replace(BILSTM, phases=(Phase((Choice("kl", options={"temperature": 1.0}),)),))


def rows(count: int = 90) -> list[tuple[str, float]]:
    """Return texts, and how probable it is that each is positive: it is if ``film`` is in it."""
    others = [word for word in PLAIN if word not in {"film", "plot"}]
    words = [(others[n % len(others)], "film" if n % 2 else "plot", others[n * 7 % len(others)]) for n in range(count)]
    return [(f"{a} {word} {b} {n}", 0.9 if word == "film" else 0.2) for n, (a, word, b) in enumerate(words)]


def table(path: Path, texts: Sequence[tuple[str, float]], names: Sequence[str]) -> Path:
    """Write rows as JSON Lines with a column for each class; the last named is the one that is probable."""
    records = [{"text": text, names[0]: round(1 - share, 6), names[1]: share} for text, share in texts]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def imported(path: Path, texts: Sequence[tuple[str, float]] = (), names: Sequence[str] = LABELS) -> LabelDir:
    file = table(path.with_suffix(".jsonl"), texts or rows(), LABELS if set(names) == set(LABELS) else names)
    made: LabelDir = import_labels(file, path, probabilities=tuple(names))
    return made


def answers(made: Model, texts: Sequence[tuple[str, float]]) -> list[str]:
    predict = predict_module.load(made, compute=Compute(device="cpu", threads=1)).predict
    return [answer["label"] for answer in predict([text for text, _ in texts])]


def expected(texts: Sequence[tuple[str, float]]) -> list[str]:
    return ["positive" if share > 0.5 else "negative" for _, share in texts]


@pytest.mark.parametrize("names", [LABELS, LABELS[::-1]])
def test_a_student_learns_what_the_table_says_by_the_names_of_the_classes(
    names: tuple[str, str], teacher: Path, tmp_path: Path
) -> None:
    labels = imported(tmp_path / "labels", names=names)
    made = distilled(teacher, LONGER, tmp_path / "student", labels=[labels])
    assert made.labels == LABELS
    agreed = np.mean([one == two for one, two in zip(answers(made, rows()), expected(rows()), strict=True)])
    assert agreed > 0.9
    assert made.manifest.metrics[0]["split"] == "held-out pool (agreement with the labels)"
    assert made.manifest.notes["labels_of"] == [
        {"name": "probabilities of labels.jsonl", "sha256": labels.manifest.notes["values_sha256"]}
    ]
    assert [parent["role"] for parent in made.manifest.parents] == ["teacher"]


def test_logits_are_in_the_order_of_the_model(teacher: Path, tmp_path: Path) -> None:
    model = Model.open(teacher)
    one, other = imported(tmp_path / "one"), imported(tmp_path / "other", names=LABELS[::-1])
    first, second = (np.stack([logits for _, logits in part.for_model(model)]) for part in (one, other))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(np.stack([logits for _, logits in other]), first[:, ::-1])
    np.testing.assert_allclose(first[0], np.log([0.8, 0.2]) - np.log([0.8, 0.2]).mean(), rtol=1e-6)


def test_live_losses_read_the_teacher_and_its_logits_never_teach(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gold = [Example(text, None, label) for (text, _), label in zip(rows(20), expected(rows(20)), strict=True)]
    seen: list[Any] = []
    original = TrainingData.rows
    monkeypatch.setattr(
        TrainingData, "rows", lambda self, text: (seen.append(row) or row for row in original(self, text))
    )
    labels = imported(tmp_path / "labels")
    made = distilled(teacher, TRANSFORMER, tmp_path / "s", labels=[labels], train=gold, validation=validation_rows())
    assert made.is_classifier
    known = {example.text: logits for example, logits in labels}
    assert {row.example.text for row in seen} == set(known)
    assert all(np.array_equal(row.logits, known[row.example.text]) for row in seen)


def test_a_pretrained_encoder_is_enough(tmp_path: Path) -> None:
    body = write(tmp_path / "encoder", classifier("bert"))
    AutoModel.from_pretrained(body).save_pretrained(body)
    labels = imported(tmp_path / "labels")
    made = distilled(body, TRANSFORMER, tmp_path / "student", labels=[labels], validation=validation_rows())
    assert made.labels == LABELS and made.task == "classification"
    assert made.manifest.parents[0]["name"] == "encoder"
    longer = distilled(body, LONGER, tmp_path / "bilstm", labels=[labels])
    assert np.mean([a == b for a, b in zip(answers(longer, rows()), expected(rows()), strict=True)]) > 0.9
    (tmp_path / "mine.toml").write_text(f'description = "mine"\nhub = "{body}"\n')
    recipe = distilled(tmp_path / "mine.toml", TRANSFORMER, tmp_path / "of-recipe", labels=[labels])
    assert recipe.manifest.parents[0] == made.manifest.parents[0]
    file = table(tmp_path / "several.jsonl", rows(), LABELS)
    several: LabelDir = import_labels(file, tmp_path / "several", probabilities=LABELS, several_labels=True)
    assert distilled(body, BILSTM, tmp_path / "of-several", labels=[several]).task == "multi-label"
    with pytest.raises(CompressError, match="is not a sequence classifier .* fine-tune it first"):
        distilled(body, BILSTM, tmp_path / "other", train=train_rows(), validation=validation_rows())


# Refused


def phases(recipe: StudentRecipe, *made: Phase) -> StudentRecipe:
    return replace(recipe, phases=made)


MASKED = phases(TRANSFORMER, Phase((Choice("kl"), Choice("mlm")), masking=0.15))


@pytest.mark.parametrize(
    ("student", "given", "message"),
    [
        (
            BILSTM,
            {"names": ("neutral", "positive")},
            "have other classes: .* lacks negative; tiny-bert lacks neutral; they must have the same names",
        ),
        (BILSTM, {"texts": [*rows(), ("sure", 1.0)]}, r"compares logits \(the loss logit-mse\), .* --smoothing 0.01"),
        (MASKED, {}, r"logits of changed text \(masked, or in two vocabularies\), .* not of tiny-bert"),
    ],
)
def test_labels_that_a_student_cannot_use(
    student: StudentRecipe, given: dict[str, Any], message: str, teacher: Path, tmp_path: Path
) -> None:
    labels = imported(tmp_path / "labels", **given)
    with pytest.raises(CompressError, match=message):
        distilled(teacher, student, tmp_path / "student", labels=[labels])
    assert not list(tmp_path.glob("*student*"))


def test_labels_of_another_task_are_refused(tmp_path: Path) -> None:
    scorer = write(tmp_path / "scorer", classifier("bert", labels=("score",)))
    with pytest.raises(CompressError, match="labels is of classification, and scorer of regression; use others"):
        distilled(scorer, BILSTM, tmp_path / "student", labels=[imported(tmp_path / "labels")])


def test_probabilities_of_0_teach_by_kl(teacher: Path, tmp_path: Path) -> None:
    labels = imported(tmp_path / "labels", [*rows(), ("sure", 1.0)])
    assert distilled(teacher, KL, tmp_path / "student", labels=[labels]).is_classifier


def test_gold_rows_without_imported_labels_are_refused(teacher: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"labels": [imported(tmp_path / "labels")], "train": train_rows()}
    with pytest.raises(
        CompressError, match="40 of 40 rows of train are not in the labels, and the logits of tiny-bert"
    ):
        distilled(teacher, BILSTM, tmp_path / "student", **given)
    assert not list(tmp_path.glob("*student*"))
    assert distilled(teacher, BILSTM, tmp_path / "control", control=True, **given).manifest.notes["control"]


def test_pruning_recovers_by_its_own_model_alone(teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="was labelled by probabilities of labels.jsonl, which is neither"):
        check_labels(Model.open(teacher), [imported(tmp_path / "labels")])


def test_the_pool_has_the_mapped_logits(teacher: Path, tmp_path: Path) -> None:
    labels = imported(tmp_path / "labels", names=LABELS[::-1]).for_model(Model.open(teacher))
    pool = LabelledPool((labels,)).sample(9)
    assert all((row.logits[1] > row.logits[0]) == ("film" in row.example.text.split()) for row in pool.labelled())


# Several teachers


def test_the_mean_of_a_teacher_and_of_others(teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [Example(text) for text, _ in rows()]
    source = pool_file(tmp_path / "pool.txt", texts)
    other = write(tmp_path / "other", classifier("bert", seed=5))
    parts = [label(one, source, tmp_path / f"{one.name}-labels") for one in (teacher, other)]
    parts.append(imported(tmp_path / "votes", names=LABELS[::-1]))
    given: dict[str, Any] = {"labels": parts, "combine": "mean"}
    made = distilled(teacher, LONGER, tmp_path / "student", weights=(1.0, 1.0, 50.0), **given)
    agreed = np.mean([one == two for one, two in zip(answers(made, rows()), expected(rows()), strict=True)])
    assert agreed > 0.9
    (noted,) = made.manifest.notes["labels_of"]
    assert noted["name"] == "the mean of 1 x tiny-bert, 1 x other, 50 x probabilities of votes.jsonl"
    assert execute(["show", str(made.path)]) == 0
    assert f"\nlearned from: {noted['name']}\n" in capsys.readouterr().out
    assert [part["weight"] for part in noted["mean_of"]] == [1.0, 1.0, 50.0]
    assert noted["mean_of"][0]["sha256"] == Model.open(teacher).sha256
    assert [(entry["role"], entry["rows"]) for entry in made.manifest.data] == [("unlabeled", 90)]
    with pytest.raises(CompressError, match=r"another teacher \(other\) than tiny-bert; .* with --combine mean"):
        distilled(teacher, BILSTM, tmp_path / "added", labels=parts)
    with pytest.raises(CompressError, match="--weight changes nothing without --combine"):
        distilled(teacher, BILSTM, tmp_path / "added", labels=parts[:1], weights=(1.0,))
