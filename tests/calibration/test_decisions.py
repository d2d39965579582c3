"""Decisions of one class moved by its F1, recall or precision on validation rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

import compress
from compress.calibration.calibrate import calibrations, certain_cut, decided_by
from compress.cli import execute
from compress.data import Example
from compress.errors import CompressError
from compress.inference.predict import load
from compress.models.model_dir import Model
from compress.requests.compression import Calibrate, Decision
from compress.tasks import find_task
from tests.support.tiny import classifier, cnn, write

TASK = find_task("classification")


def draw(rows: int = 4000, seed: int = 0, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Return logits that say the last class, which is rare, too seldom; and gold classes."""
    generator = np.random.default_rng(seed)
    gold = (generator.random(rows) < 0.1) * (classes - 1)
    logits = generator.normal(size=(rows, classes))
    logits[np.arange(rows), gold] += 2.0
    logits[:, -1] -= 2.0
    return logits, gold


@pytest.mark.parametrize("classes", [2, 3])
def test_the_margin_is_above_0_where_a_class_is_given(classes: int) -> None:
    logits, _ = draw(classes=classes)
    for index in range(classes):
        assert np.array_equal(TASK.margins(logits, index) > 0, TASK.predictions(logits) == index)
        moved = logits + 1.5 * np.eye(classes)[index]
        assert np.array_equal(TASK.margins(logits, index) > -1.5, TASK.predictions(moved) == index)


@pytest.mark.parametrize("classes", [2, 3])
def test_f1_of_a_class_is_highest_and_judged_on_other_rows(classes: int) -> None:
    logits, gold = draw(classes=classes)
    labels = ("ham", "more", "spam")[-classes:] if classes == 3 else ("ham", "spam")
    none = calibrations(logits, gold, np.arange(len(gold)))[0]
    moved = decided_by(Decision("f1", 0.0, "spam"), none, logits, gold, np.arange(len(gold)), TASK, labels)

    def f1(values: np.ndarray) -> float:
        given, held = TASK.predictions(values) == classes - 1, gold == classes - 1
        return float(2 * (given & held).sum() / (given.sum() + held.sum()))

    tried = [f1(logits + cut * np.eye(classes)[-1]) for cut in np.linspace(-4, 6, 201)]
    whole, out_of_fold = f1(moved.scaling.apply(logits)), f1(moved.logits)
    assert whole >= max(tried) - 1e-9 and f1(logits) < out_of_fold <= whole + 1e-9
    assert moved.scaling.shift is not None and moved.scaling.shift[:-1].tolist() == [0.0] * (classes - 1)


def test_the_threshold_of_a_recall_is_that_of_a_binomial_bound() -> None:
    """With 59 rows none may be missed for 95%, with 93 one, by tables of tolerance limits (Wilks 1941)."""
    for rows, missed in ((59, 0), (92, 0), (93, 1), (124, 2)):
        margins, held = np.arange(rows + 50, dtype=float), np.arange(rows + 50) >= 50
        cut = certain_cut(margins, held, Decision("recall", 0.95, "spam"))
        assert cut == 49.5 + missed
        assert beta.ppf(0.05, rows - missed, missed + 1) >= 0.95 > beta.ppf(0.05, rows - missed - 1, missed + 2)
    with pytest.raises(CompressError, match=r"of 95% for 'spam' on its 58 .* at most 95.0% is; give more, 59 wi"):
        certain_cut(np.arange(58.0), np.ones(58, bool), Decision("recall", 0.95, "spam"))


def test_new_rows_are_found_as_often_as_asked_with_the_certainty_that_is_said() -> None:
    logits, gold = draw(60_000, seed=1)
    margins, kept = TASK.margins(logits, 1), []
    generator = np.random.default_rng(2)
    for by, least in (("recall", 0.9), ("precision", 0.7)):
        held = []
        for _ in range(200):
            some = generator.integers(0, len(gold), 2000)
            given = margins > certain_cut(margins[some], gold[some] == 1, Decision(by, least, "spam"))
            hits = (given & (gold == 1)).sum()
            held.append(hits / ((gold == 1).sum() if by == "recall" else given.sum()) >= least)
        kept.append(np.mean(held))
    assert 0.9 <= kept[0] < 1.0 and 0.9 <= kept[1]


def rows(count: int = 120) -> list[Example]:
    generator = np.random.default_rng(0)
    words = ("good", "great", "fine", "bad", "awful", "poor", "film", "plot", "the", "a")
    texts = [" ".join(generator.choice(words, 5)) + f" {number}" for number in range(count)]
    return [Example(text, None, "positive" if number % 6 == 0 else "negative") for number, text in enumerate(texts)]


@pytest.mark.parametrize("way", ["f1:positive", "recall=0.8:positive"])
def test_the_decision_is_the_same_wherever_the_model_runs(way: str, tmp_path: Path) -> None:
    model = write(tmp_path / "model", cnn())
    made = compress.calibrate(model, tmp_path / "made", validation=rows(), decide_by=way, device="cpu", threads=1)
    texts = [row.text for row in rows()]
    answers = [one["label"] for one in load(made.path).predict(texts)]
    assert answers != [one["label"] for one in load(model).predict(texts)]
    decisions = made.manifest.notes["decisions"]
    before = load(model).predict_proba(texts)[:, 1]
    temperature = made.manifest.notes["temperature"]
    odds = np.log(before / (1 - before)) / temperature
    cut = decisions["thresholds"]["positive"]
    sure = np.abs(1 / (1 + np.exp(-odds)) - cut) > 1e-4
    assert np.array_equal((np.array(answers) == "positive")[sure], (1 / (1 + np.exp(-odds)) > cut)[sure])
    if way.startswith("recall"):
        found = np.mean(
            [answer == "positive" for answer, row in zip(answers, rows(), strict=True) if row.label == "positive"]
        )
        assert found >= 0.8 and decisions["metrics"]["recall"][1] == pytest.approx(found)
    for form in ("onnx", "native"):
        other = compress.export(made, tmp_path / form, format=form)
        assert [one["label"] for one in load(other.path).predict(texts)] == answers
    graph = compress.export(model, tmp_path / "graph")
    of_graph = compress.calibrate(
        graph, tmp_path / "of-graph", validation=rows(), decide_by=way, device="cpu", threads=1
    )
    assert [one["label"] for one in load(of_graph.path).predict(texts)] == answers
    page = (made.path / "calibration" / "report.html").read_text()
    assert "which was moved to a probability of 0.5: accuracy" in page and "; recall" in page
    assert Model.open(made.path).manifest.recipe["decide_by"] == way


@pytest.mark.parametrize(
    "way", ["f2", "f1=3:spam", "recall:spam", "recall=0:spam", "recall=101%:spam", "f1:", "precision=1"]
)
def test_words_that_say_no_decision(way: str) -> None:
    with pytest.raises(CompressError, match="is none of probability, f1, f1:CLASS, recall=98%:CLASS or precision="):
        Calibrate("model", validation=[], decide_by=way)


def test_words_that_say_one() -> None:
    said: dict[str, Any] = {
        "probability": ("probability", 0.0, ""),
        "f1": ("f1", 0.0, ""),
        "f1:a:b=c": ("f1", 0.0, "a:b=c"),
        "recall=98%:spam": ("recall", 0.98, "spam"),
        "precision=.5:spam": ("precision", 0.5, "spam"),
    }
    assert {way: tuple(Calibrate("model", validation=[], decide_by=way).decision) for way in said} == said


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("f1", "takes no --decide-by f1; use --decide-by probability, or name a class, such as f1:CLASS"),
        ("f1:spam", "--decide-by names 'spam', and the classes are negative, positive"),
        ("recall=99%:positive", "for 'positive' on its 20 validation rows: at most 86.1% is; give more, 299 without"),
        ("precision=99%:positive", "no threshold is certain to have a precision of 99% for 'positive'"),
    ],
)
def test_decisions_that_cannot_be_made(way: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path = write(tmp_path / "model", classifier("bert")), tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"{row.text},{row.label}\n" for row in rows()))
    given = ["--model", str(model), "--validation", str(path), "-o", str(tmp_path / "made"), "--decide-by", way]
    assert execute(["calibrate", *given]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
    few = "".join(f"{row.text},{row.label}\n" for row in rows(42))
    path.write_text(f"text,label\n{few}")
    assert execute(["calibrate", *given[:-1], "f1:positive"]) == 2
    assert "needs 10 rows of 'positive' or more, and --validation has 7; give more" in capsys.readouterr().err
