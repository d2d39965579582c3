"""Calibration of models that give a text several labels: scaling of each, decisions by F1, and acceptance by label."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compress.calibration.calibrate import (
    FEWEST_OF_LABEL,
    _accepted,
    _quality,
    best_f1_cuts,
    calibrations,
    decided_by,
    fit_vector,
)
from compress.cli import execute
from compress.data import Example
from compress.errors import CompressError
from compress.evaluation.metrics import as_sets, calibration_error
from compress.inference.predict import load
from compress.models.model_dir import Model
from compress.requests.compression import Decision
from compress.tasks import find_task
from tests.support.samples import SAMPLES
from tests.support.tiny import classifier, write

TASK = find_task("multi-label")
HAMMING = TASK.metric("hamming")


def draw(rows: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return logits that are twice as sure as they should be and shifted, and gold sets; three labels."""
    generator = np.random.default_rng(seed)
    true = generator.normal(size=(rows, 3)) * 2 + [0.0, -1.0, -3.0]
    held = generator.random(true.shape) < 1 / (1 + np.exp(-true))
    return 2 * true + [0.0, 1.0, -1.0], held


def test_each_label_gets_its_scale_and_shift() -> None:
    logits, held = draw()
    found = fit_vector(logits, as_sets(held), TASK)
    assert found.scale == pytest.approx([0.5] * 3, abs=0.06)
    assert found.shift == pytest.approx([0.0, -0.5, 0.5], abs=0.25)
    none, temperature, vector = calibrations(logits, as_sets(held), np.arange(len(held)), task=TASK)
    assert vector.losses.mean() < temperature.losses.mean() < none.losses.mean()


def test_surprise_is_the_sum_of_binary_cross_entropies_and_has_the_gradient_that_it_says() -> None:
    logits, held = draw(5)
    expected = -np.log(np.where(held, TASK.probabilities(logits), 1 - TASK.probabilities(logits))).sum(axis=1)
    assert TASK.surprise(logits, as_sets(held)) == pytest.approx(expected)
    step = 1e-6
    for label in range(3):
        moved = logits + step * np.eye(3)[label]
        slope = (TASK.surprise(moved, as_sets(held)) - TASK.surprise(logits, as_sets(held))) / step
        assert slope == pytest.approx((TASK.probabilities(logits) - held)[:, label], abs=1e-4)


def test_cuts_are_where_f1_is_highest() -> None:
    logits, held = draw(300)
    for label, cut in enumerate(best_f1_cuts(logits, held)):
        tried = [2 * (held[:, label] & (logits[:, label] > at)).sum() for at in np.sort(logits[:, label])]
        sizes = [(logits[:, label] > at).sum() + held[:, label].sum() for at in np.sort(logits[:, label])]
        given = logits[:, label] > cut
        best = 2 * (held[:, label] & given).sum() / (given.sum() + held[:, label].sum())
        assert best == pytest.approx(max(np.divide(tried, sizes)))
    rare = np.zeros((300, 1), dtype=bool)
    rare[: FEWEST_OF_LABEL - 1] = True
    assert best_f1_cuts(logits[:, :1], rare).tolist() == [0.0]
    assert best_f1_cuts(np.ones((20, 1)), np.ones((20, 1), dtype=bool)).tolist() == [0.0]


def test_decisions_by_f1_are_judged_on_other_rows() -> None:
    logits, held = draw(2000)
    gold, keys = as_sets(held), np.arange(len(held))
    none = calibrations(logits, gold, keys, task=TASK)[0]
    moved = decided_by(Decision("f1", 0.0, ""), none, logits, gold, keys, TASK, ("a", "b", "c"))
    metric = TASK.metric("macro-f1")
    whole = TASK.score(moved.scaling.apply(logits), gold, metric)
    out_of_fold = TASK.score(moved.logits, gold, metric)
    assert TASK.score(logits, gold, metric) < out_of_fold <= whole + 1e-9


def test_quality_is_of_each_label_of_each_row() -> None:
    logits, held = draw(400)
    found = _quality(calibrations(logits, as_sets(held), np.arange(len(held)), task=TASK)[0], as_sets(held), TASK)
    chances = TASK.probabilities(logits)
    right, sure = ((chances > 0.5) == held).ravel(), np.maximum(chances, 1 - chances).ravel()
    assert found["accuracy"]["value"] == pytest.approx(right.mean()) == TASK.score(logits, as_sets(held), HAMMING)
    assert found["accuracy"]["low"] < right.mean() < found["accuracy"]["high"]
    assert found["confidence"] == pytest.approx(sure.mean())
    assert found["calibration_error"]["value"] == pytest.approx(calibration_error(sure, right))
    assert sum(one["rows"] for one in found["bins"]) == 1200 and found["bins"][-1]["right"] > 0.9


def test_what_to_type_where_no_label_is_certain() -> None:
    logits, held = draw(200)
    one = calibrations(logits, as_sets(held), np.arange(200), task=TASK)[0]
    asked = {"right": 0.99, "by": "class"}
    with pytest.raises(CompressError, match="no class of 3 has enough .*; lower --accept-at, or give more rows"):
        _accepted(asked, one, as_sets(held), ("a", "b", "c"), TASK)
    with pytest.raises(CompressError, match="none of the 3 labels is given to any of these 200 .* use --decide-by f1"):
        _accepted(asked, replace(one, logits=-np.ones((200, 3))), as_sets(held), ("a", "b", "c"), TASK)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    network = classifier("bert", num_labels=2)
    network.config.update(TASK.head_settings(("blame", "praise")))
    return write(folder / "model", network)


def rows(path: Path, count: int = 300) -> Path:
    written: list[Example] = SAMPLES["multi-label"](count, 3)
    path.write_text("".join(json.dumps({"text": row.text, "labels": row.labels}) + "\n" for row in written))
    return path


def calibrated(model: Path, folder: Path, *given: str) -> int:
    data = rows(folder / "validation.jsonl")
    return execute(["calibrate", "--model", str(model), "--validation", str(data), "-o", str(folder / "made"), *given])


def test_the_model_decides_by_f1_wherever_it_runs(model: Path, tmp_path: Path) -> None:
    assert calibrated(model, tmp_path, "--decide-by", "f1", "--accept-at", "40%", "--accept-by", "class") == 0
    made, texts = Model.open(tmp_path / "made"), ["a good film", "a dull plot"]
    decisions = made.manifest.notes["decisions"]
    before, after = (TASK.probabilities(load(one).runner.logits([*map(Example, texts)])) for one in (model, made.path))
    cuts = [decisions["thresholds"][label] for label in made.labels]
    assert 0.5 not in cuts
    assert execute(["export", "--model", str(made.path), "-o", str(tmp_path / "graph")]) == 0
    answers = load(made.path).predict(texts)
    assert load(tmp_path / "graph").predict(texts) == [
        {name: value for name, value in one.items() if name != "accepted"} for one in answers
    ]
    prediction = load(made.path).predict(texts[0])
    given, given_before = (
        {label for label, one in zip(made.labels, chances[0], strict=True) if one > 0.5} for chances in (after, before)
    )
    assert set(prediction["labels"]) == given != given_before
    assert prediction["accepted"] and set(prediction["accepted"]) <= given
    assert before.shape == after.shape == (2, 2)
    page = (made.path / "calibration" / "report.html").read_text()
    assert "Each label is given from where its F1 is highest" in page
    assert load(made.path).predict_proba(texts) == pytest.approx(after, abs=1e-6)


def test_ways_that_do_not_fit_a_task_are_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrated(model, tmp_path, "--accept-at", "90%") == 2
    assert "takes no --accept-by overall; use --accept-by class" in capsys.readouterr().err
    (tmp_path / "one.csv").write_text("text,label\n" + "a good film,positive\na dull plot,negative\n" * 30)
    one = write(tmp_path / "one", classifier("bert"))
    given = ["--validation", str(tmp_path / "one.csv"), "--decide-by", "f1", "-o", str(tmp_path / "x")]
    assert execute(["calibrate", "--model", str(one), *given]) == 2
    assert (
        "made for classification, which takes no --decide-by f1; use --decide-by probability" in capsys.readouterr().err
    )
