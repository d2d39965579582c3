"""Rare classes in training: weights of classes and logit adjustment in the loss on gold labels."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compress.cli import execute
from compress.data import Example
from compress.errors import CompressError
from compress.evaluation.metrics import as_sets
from compress.inference.compute import Compute
from compress.inference.predict import load
from compress.models.batch import Balance, Batch, Outputs
from compress.recipes import Choice, Phase, Training
from compress.tasks import find_task
from compress.training.losses.hard_label import loss
from compress.training.phases import balance_of
from tests.support.tiny import bilstm, classifier, write
from tests.support.training_data import (
    BILSTM,
    TRAINING,
    distilled,
    finetuned,
    labelled_file,
    pool_file,
    train_rows,
    validation_rows,
)

CLASSES, SETS = find_task("classification"), find_task("multi-label")


def value(logits: torch.Tensor, labels: list[Any], balance: Balance, task: Any = CLASSES) -> torch.Tensor:
    ids = torch.zeros((len(labels), 1), dtype=torch.long)
    outputs = Outputs(logits)
    return loss(outputs, outputs, Batch(ids, ids, labels=torch.tensor(labels), task=task, balance=balance))


def test_the_loss_and_its_gradient_by_hand() -> None:
    logits = torch.tensor([[math.log(3), 0.0], [0.0, 0.0], [9.0, 9.0]], requires_grad=True)
    found = value(logits, [0, 1, -100], Balance(weights=(1.0, 5.0)))
    assert found.item() == pytest.approx((-math.log(0.75) - 5 * math.log(0.5)) / 2)
    # With priors of 3/4 and 1/4 the first row is softmax (ln 3 + ln 3/4, ln 1/4) = (9/10, 1/10), the second (3/4, 1/4).
    shift = (math.log(0.75), math.log(0.25))
    found = value(logits, [0, 1, -100], Balance((1.0, 5.0), shift))
    assert found.item() == pytest.approx((-math.log(0.9) - 5 * math.log(0.25)) / 2)
    found.backward()
    expected = torch.tensor([[-0.1, 0.1], [5 * 0.75, -5 * 0.75], [0.0, 0.0]]) / 2
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, expected)


@pytest.mark.parametrize(("tau", "apart"), [(0.0, math.log(9)), (1.0, 0.0), (0.5, math.log(9) / 2)])
def test_the_adjustment_moves_the_decision_by_the_prior(tau: float, apart: float) -> None:
    """Where rows say nothing, logits differ by the logarithm of the ratio of shares, and adjusted by 1 not at all."""
    gold = [0] * 899 + [1] * 99  # one row is added to each class
    balance = balance_of(Training(logit_adjustment=tau), CLASSES, gold, ("ham", "spam"))
    assert balance.shift == (pytest.approx((tau * math.log(0.9), tau * math.log(0.1)), abs=1e-6) if tau else ())
    answer = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.LBFGS([answer], max_iter=100)

    def closure() -> float:
        optimizer.zero_grad()
        found = value(answer.expand(len(gold), 2), gold, balance)
        found.backward()
        return found.item()

    optimizer.step(closure)
    assert (answer[0] - answer[1]).item() == pytest.approx(apart, abs=0.02)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    gold = np.array([0] * 90 + [1] * 9 + [3])
    found = CLASSES.class_weights("balanced", gold, ("a", "b", "c", "d"))
    assert found[[0, 1, 3]] == pytest.approx(compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=gold))
    assert found[2] == 1.0 and found[gold].mean() == pytest.approx(1.0)
    assert CLASSES.class_weights({"b": 5.0}, gold, ("a", "b")).tolist() == [1.0, 5.0]
    with pytest.raises(CompressError, match="class_weights names 'spm', and the classes are .*Did you mean 'spam'"):
        CLASSES.class_weights({"spm": 5.0}, gold, ("ham", "spam"))


def test_a_label_of_several_is_weighted_where_it_is_there() -> None:
    held = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]], dtype=bool)
    found = SETS.class_weights("balanced", as_sets(held), ("a", "b", "c"))
    assert found.tolist() == [1.0, 3.0, 1.0]  # three rows have no b, one has; all rows are alike in a and c
    logits = torch.tensor([[0.0, 0.0, 0.0]])
    weighted = value(logits, [(1.0, 1.0, 0.0)], Balance(weights=(1.0, 3.0, 1.0)), SETS)
    assert weighted.item() == pytest.approx(5 * math.log(2) / 3)
    shifted = value(logits, [(1.0, 1.0, 0.0)], Balance(shift=(0.0, math.log(3), 0.0)), SETS)
    assert shifted.item() == pytest.approx((2 * math.log(2) - math.log(0.75)) / 3)


def skewed() -> list[Example]:
    """Nine negative rows for each positive one, whose words say nothing."""
    return [Example(f"word {index}", None, "positive" if index % 10 == 0 else "negative") for index in range(80)]


@pytest.mark.parametrize(
    "options", [{"class_weights": "balanced"}, {"class_weights": {"positive": 9.0}}, {"logit_adjustment": 1.0}]
)
def test_a_teacher_answers_the_rare_class_more_often(options: dict[str, Any], tmp_path: Path) -> None:
    training = replace(TRAINING, epochs=10.0, learning_rate=1e-2)
    start = write(tmp_path / "start", bilstm())
    given = {"train": skewed(), "validation": validation_rows(), "training": training, "metric": "average-precision"}
    plain, made = finetuned(start, tmp_path / "plain", **given), finetuned(start, tmp_path / "made", **given, **options)
    rare = [
        load(one, compute=Compute("cpu", 1)).predict_proba([row.text for row in skewed()])[:, 1].mean()
        for one in (plain, made)
    ]
    assert rare[1] > 1.5 * rare[0]
    name = next(iter(options))
    assert made.manifest.recipe["training"][name] == options[name]
    kept, key = made.manifest.notes["balance"], "weights" if name == "class_weights" else "shift"
    assert [*kept] == [key] and [*kept[key]] == ["negative", "positive"]
    assert kept[key]["positive"] - kept[key]["negative"] == pytest.approx(
        {"balanced": 5 - 5 / 9, "shift": math.log(9 / 73)}.get(key if key == "shift" else str(options[name]), 8.0),
        abs=1e-5,
    )
    assert "balance" not in plain.manifest.notes


def test_words_on_the_command_line_and_what_they_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start, train = write(tmp_path / "start", bilstm()), labelled_file(tmp_path / "train.csv", train_rows())
    held = labelled_file(tmp_path / "held.csv", validation_rows())
    common = ["finetune", "--teacher", str(start), "--train", str(train), "--validation", str(held), "-o"]
    for words, said in (
        ("spam", "'spam' is neither balanced nor a weight for each of some classes, such as spam=5,ham=1"),
        ("positive=1,positive=2", "is neither balanced nor a weight"),
        ("positive=-1", "'--class-weights': positive = -1.0 must be above 0"),
        ("good=2", "class_weights names 'good', and the classes are"),
    ):
        assert execute([*common, str(tmp_path / "made"), "--class-weights", words]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_scores_have_no_classes(tmp_path: Path) -> None:
    rows = [replace(row, label=f"{index / 7:.2f}") for index, row in enumerate(train_rows())]
    held = [replace(row, label=f"{index / 7:.2f}") for index, row in enumerate(validation_rows())]
    given: dict[str, Any] = {"train": rows, "validation": held, "training": TRAINING}
    with pytest.raises(CompressError, match="are of classes, and a regression has none; leave them out"):
        finetuned(write(tmp_path / "start", bilstm()), tmp_path / "made", **given, logit_adjustment=1.0)


def test_a_student_is_balanced_where_it_learns_from_gold_labels(tmp_path: Path) -> None:
    teacher, pool = write(tmp_path / "teacher", classifier("bert")), pool_file(tmp_path / "pool.txt")
    given: dict[str, Any] = {"unlabeled": pool, "class_weights": "balanced", "validation": validation_rows()}
    with pytest.raises(CompressError, match="the student 'tiny-bilstm' has no such loss; use one that has, such as"):
        distilled(teacher, BILSTM, tmp_path / "made", train=train_rows(), **given)
    with pytest.raises(CompressError, match="--class-weights changes nothing without --train FILE"):
        distilled(teacher, BILSTM, tmp_path / "made", **given)
    both = replace(BILSTM, phases=(Phase((Choice("logit-mse"), Choice("hard-label"))),))
    made = distilled(teacher, both, tmp_path / "made", train=train_rows(), **given)
    assert made.manifest.notes["balance"]["weights"] == {"negative": 1.0, "positive": 1.0}
    adjusted = replace(both, training=replace(TRAINING, logit_adjustment=1.0))
    with pytest.raises(CompressError, match="change the loss on gold labels, and there are none; give --train FILE"):
        distilled(teacher, adjusted, tmp_path / "other", unlabeled=pool)
    asked: dict[str, Any] = {"unlabeled": pool, "train": train_rows(), "control": True, "logit_adjustment": 1.0}
    alone = distilled(teacher, BILSTM, tmp_path / "control", **asked)
    assert json.loads((alone.path / "compress.json").read_text())["notes"]["balance"]["shift"]["positive"] < 0


def test_phases_have_one_balance() -> None:
    with pytest.raises(CompressError, match="training.class_weights cannot differ between phases"):
        Phase((Choice("hard-label"),), training={"class_weights": "balanced"})
