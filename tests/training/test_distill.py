"""Distillation end to end: what a student learns from, is selected by, and leaves on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import TrainerState

import compress.training.distill
from compress.data import Example, open_source, row_key, row_keys
from compress.errors import CompressError
from compress.inference import predict as predict_module
from compress.inference.compute import Compute
from compress.labelling.label_dir import LabelDir
from compress.models.manifest import seal
from compress.models.model_dir import Model
from compress.recipes import Choice, Phase, StudentRecipe, Training, needs_of, resolved
from compress.tasks import default, everything, find_task
from compress.training import distill as distill_module
from compress.training import trainer as trainer_module
from compress.training.phases import StepRange, phase_signal, steps_for
from compress.training.teacher_signal import LiveTeacher
from compress.training.trainer import TrainingRun, last_whole_checkpoint
from compress.training.training_data import (
    Gold,
    LabelledPool,
    TrainingData,
    agreement_rows,
    collator,
    held_out,
    tokenized,
)
from tests.support.tagging import tagger
from tests.support.tiny import classifier, load, pruned, tokenizer, write
from tests.support.training_data import (
    BILSTM,
    TRAINING,
    TRANSFORMER,
    distilled,
    pool_file,
    pool_rows,
    state,
    train_rows,
    validation_rows,
)


def taught(teacher: Path, output: Path, recipe: StudentRecipe = BILSTM, **options: Any) -> Model:
    return distilled(teacher, recipe, output, **options)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# What comes out


def test_from_labels_and_selected_by_agreement(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    made = taught(teacher, tmp_path / "student", labels=[labels])
    manifest = made.manifest
    assert names(tmp_path) == {"student"} and not {".work", ".lock"} & names(made.path)
    assert manifest.parents == ({"role": "teacher", "name": "tiny-bert", "sha256": Model.open(teacher).sha256},)
    assert manifest.recipe == resolved(BILSTM) and manifest.seeds == {"seed": 0}
    assert [(d["role"], d["rows"]) for d in manifest.data] == [("unlabeled", 90)]
    assert manifest.labels == ("negative", "positive") and manifest.architecture["model_type"] == "compress-bilstm"
    (metric,) = manifest.metrics
    assert metric["split"] == "held-out pool (agreement with the teacher)" and 0 <= metric["value"] <= 1
    held = [row for row in pool_rows() if held_out(row, LabelledPool((labels,)).rows)]
    assert metric["rows"] == len(held) > 0
    assert manifest.notes["steps"] == manifest.notes["planned_steps"] == 12  # 2 epochs of 90 rows by 16
    assert made.parameters == sum(p.numel() for p in load(made.path)[0].parameters())


def test_from_text_with_gold_rows_and_validation(teacher: Path, tmp_path: Path) -> None:
    made = taught(
        teacher,
        tmp_path / "student",
        TRANSFORMER,
        unlabeled=pool_file(tmp_path / "pool.txt"),
        rows=0,  # all
        train=train_rows(),
        validation=validation_rows(),
    )
    assert [(d["role"], d["rows"]) for d in made.manifest.data] == [
        ("train", 40),
        ("validation", 16),
        ("unlabeled", 90),
    ]
    assert made.manifest.metrics[0]["split"] == "validation" and made.manifest.metrics[0]["rows"] == 16
    assert made.manifest.architecture["heads_per_layer"] == [4]
    assert made.manifest.notes["planned_steps"] == 17  # 2 * (90 + 40) / 16
    model, tokenizer = load(made.path)
    assert torch.isfinite(model(**tokenizer("the film", return_tensors="pt")).logits).all()


def test_a_student_comes_to_agree_with_its_teacher(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    longer = replace(BILSTM, training=replace(TRAINING, epochs=30.0, evaluations=4, learning_rate=1e-2))
    made = taught(teacher, tmp_path / "student", longer, labels=[labels])
    run = predict_module.load(made, compute=Compute(device="cpu", threads=1)).predict
    expected = [made.labels[logits.argmax()] for _, logits in labels]
    given = [answer["label"] for answer in run([example for example, _ in labels])]
    assert np.mean([one == two for one, two in zip(expected, given, strict=True)]) > 0.9
    assert len(set(expected)) == 2


def test_the_same_seed_gives_the_same_weights(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    one, same, other = (
        state(taught(teacher, tmp_path / str(i), labels=[labels], seed=seed).path) for i, seed in enumerate((0, 0, 1))
    )
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["classifier.weight"], other["classifier.weight"])


def test_cached_labels_and_fresh_ones_teach_the_same(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    cached = state(taught(teacher, tmp_path / "cached", labels=[labels]).path)
    fresh = state(taught(teacher, tmp_path / "fresh", unlabeled=pool_file(tmp_path / "pool.txt")).path)
    assert all(torch.equal(cached[key], fresh[key]) for key in cached)


def test_pairs_and_a_regression(tmp_path: Path) -> None:
    teacher = write(tmp_path / "teacher", classifier("bert", labels=("score",)))
    rows = [
        Example(row.text, other.text, f"{index / 8:.2f}")
        for index, (row, other) in enumerate(zip(pool_rows(40), train_rows(), strict=True))
    ]
    (tmp_path / "pairs.tsv").write_text(
        "sentence1\tsentence2\n" + "".join(f"{e.text} more\t{e.text_pair}\n" for e in rows)
    )
    source = open_source(tmp_path / "pairs.tsv", role="unlabeled", labelled=False)
    held = [replace(row, text=f"zebra {row.text}") for row in rows[:12]]
    made = taught(teacher, tmp_path / "student", unlabeled=source, train=rows, validation=held, metric="spearman")
    assert made.task == "regression" and made.labels == ("score",)
    assert made.manifest.metrics[0]["name"] == "spearman"
    assert -1 <= made.manifest.metrics[0]["value"] <= 1
    by_agreement = taught(teacher, tmp_path / "agreeing", unlabeled=source)
    assert by_agreement.manifest.metrics[0]["rows"] < 12


# The control


def test_a_control_trains_as_many_steps_on_gold_labels_alone(
    teacher: Path, labels: LabelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    original = distill_module.fit

    def spied(model: Any, tokenizer: Any, data: Any, run: Any, **named: Any) -> Any:
        start = {key: value.clone() for key, value in model.state_dict().items()}
        seen.append(
            {
                "rows": list(data.rows(named["phases"][0].text)),
                "steps": steps_for(data.planned_rows, run.training),
                "start": start,
                **named,
            }
        )
        return original(model, tokenizer, data, run, **named)

    monkeypatch.setattr(distill_module, "fit", spied)
    options: dict[str, Any] = {"labels": [labels], "train": train_rows(), "validation": validation_rows()}
    student = taught(teacher, tmp_path / "student", **options)
    control = taught(teacher, tmp_path / "control", control=True, **options)
    assert [run["steps"] for run in seen] == [17, 17]
    assert all(torch.equal(seen[0]["start"][key], seen[1]["start"][key]) for key in seen[0]["start"])
    assert [[choice.name for choice in phase.losses] for phase in seen[1]["phases"]] == [["hard-label"]]
    assert [row.example for row in seen[1]["rows"]] == train_rows()
    assert all(row.logits is None and row.label is not None for row in seen[1]["rows"])
    assert control.manifest.notes["control"] is True and student.manifest.notes["control"] is False
    assert [made.manifest.notes["pool_rows"] for made in (student, control)] == [130 - len(train_rows()), 0]
    assert len(seen[0]["rows"]) == 130 and all(row.logits is not None for row in seen[0]["rows"])


def test_a_control_without_validation_has_its_own_slice(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    rows = [replace(row, text=f"{row.text} {index}") for index, row in enumerate(train_rows())]
    made = taught(teacher, tmp_path / "control", labels=[labels], train=rows, control=True)
    assert made.manifest.metrics[0]["split"] == "slice of train"
    assert 0 < made.manifest.metrics[0]["rows"] <= 5


def test_a_loss_that_is_no_number_is_refused_before_the_work(teacher: Path, tmp_path: Path) -> None:
    student = replace(BILSTM, phases=(Phase((Choice("kl", options={"temperature": 1e-40}),)),))
    with pytest.raises(
        CompressError, match=r"the loss kl is nan with its options \{'temperature': 1e-40\}; change them"
    ):
        taught(teacher, tmp_path / "made", student, unlabeled=pool_file(tmp_path / "pool.txt"))
    assert not (tmp_path / "made").exists()


def test_a_loss_that_is_no_number_is_told_from_the_next(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, compute_loss = iter(range(100)), trainer_module.DistillationTrainer.compute_loss

    def broken_once(self: Any, *given: Any, **named: Any) -> Any:
        loss = compute_loss(self, *given, **named)
        return loss + math.inf if next(steps) == 1 else loss  # which has no gradient

    monkeypatch.setattr(trainer_module.DistillationTrainer, "compute_loss", broken_once)
    made = taught(teacher, tmp_path / "student", unlabeled=pool_file(tmp_path / "pool.txt"))
    lines = [json.loads(line) for line in (made.path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[1] is None and len(losses) > 3 and None not in [losses[0], *losses[2:]]


# What it learns from


def test_held_out_rows_never_teach(labels: LabelDir) -> None:
    pool = LabelledPool((labels,))
    taught_texts = {row.example.text for row in TrainingData(pool.part(held=False).labelled, Gold()).rows("all")}
    held_texts = {row.example.text for row in agreement_rows(pool, default()).rows}
    assert held_texts and not held_texts & taught_texts
    assert len(held_texts) + len(taught_texts) == 90


def test_a_sample_of_labels_is_spread_evenly(labels: LabelDir) -> None:
    pool = LabelledPool((labels,))
    every = [(row.example.text, tuple(row.logits)) for row in pool.labelled()]
    excluded = frozenset({row_key(Example(every[0][0])), row_key(Example(every[7][0]))})
    sample = pool.without(excluded).sample(22)
    left = [row for number, row in enumerate(every) if number not in {0, 7}]
    assert [(row.example.text, tuple(row.logits)) for row in sample.labelled()] == left[::4]
    assert sample.rows == 22 and len(list(sample)) == 22
    assert pool.sample(90) is pool


def test_a_pool_of_several_directories_numbers_its_rows_through(labels: LabelDir) -> None:
    one = [example.text for example in LabelledPool((labels,))]
    both = LabelledPool((labels, labels))
    assert both.rows == 180 and [example.text for example in both] == one * 2
    chosen = np.zeros(180, dtype=bool)
    chosen[[3, 89, 90, 101]] = True
    assert [example.text for example in both.where(chosen)] == [one[3], one[89], one[0], one[11]]
    assert [example.text for example in both.where(chosen).where(np.array([False, True, False, True]))] == [
        one[89],
        one[11],
    ]
    assert np.array_equal(both.where(chosen).keys(), row_keys(both.where(chosen)))


def test_a_pool_and_gold_rows_are_tokenised_in_order_and_once(labels: LabelDir, tmp_path: Path) -> None:
    gold = Gold(train_rows()[:3], [1, 0, 1], np.zeros((3, 2), dtype=np.float32))
    data = TrainingData(LabelledPool((labels, labels)).where(np.arange(180) >= 90).labelled, gold)
    given = {"max_length": 16, "task": find_task("classification")}
    rows = tokenized(tmp_path / "rows.arrow", data.rows("all"), tokenizer(), **given)
    assert rows["row"] == list(range(93)) and rows["labels"][-3:] == [1, 0, 1]
    assert rows["teacher_logits"][:90] == [logits.tolist() for _, logits in labels]
    written = (tmp_path / "rows.arrow").stat().st_mtime_ns
    assert tokenized(tmp_path / "rows.arrow", data.rows("all"), tokenizer(), **given)[:] == rows[:]
    assert (tmp_path / "rows.arrow").stat().st_mtime_ns == written


def test_a_student_learns_from_so_many_rows(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    gold = {"train": train_rows(), "validation": validation_rows()}
    made = taught(teacher, tmp_path / "few", labels=[labels], rows=30, **gold)
    notes = made.manifest.notes
    assert (notes["pool_rows"], notes["planned_steps"]) == (30, steps_for(30 + len(train_rows()), TRAINING))
    source = pool_file(tmp_path / "pool.txt")
    fresh = taught(teacher, tmp_path / "fresh", unlabeled=source, rows=30, **gold)
    weights, others = state(fresh.path), state(made.path)
    assert all(torch.equal(weights[key], others[key]) for key in weights)


def test_agreement_takes_the_teachers_prediction_for_gold(labels: LabelDir) -> None:
    logits = {example.text: values for example, values in labels}
    for row in agreement_rows(LabelledPool((labels,)), default()).rows:
        assert row.label == logits[row.example.text].argmax() and row.logits is None


def test_a_gold_row_that_the_pool_holds_teaches_once(teacher: Path, tmp_path: Path) -> None:
    shared = [Example(row.text) for row in train_rows()]
    source = pool_file(tmp_path / "pool.txt", [*pool_rows(60), *shared])
    made = taught(teacher, tmp_path / "student", unlabeled=source, train=train_rows(), validation=validation_rows())
    notes = made.manifest.notes
    assert (notes["pool_rows"], notes["planned_steps"]) == (60, steps_for(60 + 40, TRAINING))


@pytest.mark.parametrize(
    ("losses", "signal", "wanted"),
    [
        ((Choice("logit-mse"), Choice("kl")), FunctionType, {"logits", "exact", "classes"}),
        ((Choice("kl"), Choice("hidden-cosine")), LiveTeacher, {"logits", "classes", "hidden"}),
        ((Choice("hard-label"),), FunctionType, {"labels"}),
    ],
)
def test_the_teacher_runs_live_only_where_a_loss_needs_it(
    losses: tuple[Choice, ...], signal: type, wanted: set[str], tmp_path: Path
) -> None:
    assert needs_of(losses) == wanted
    part, rows = StepRange("all", Phase(losses), 1), Dataset.from_dict({"input_ids": [[2, 3]]})
    run = TrainingRun(tmp_path, TRAINING, default(), Compute("cpu"))
    assert type(phase_signal(part, classifier("bert"), rows, collator(0), run, tmp_path)) is signal


def test_a_live_teacher_gives_cached_logits_and_hidden_states() -> None:
    from compress.models.batch import Batch

    model = classifier("bert").train()
    ids = torch.tensor([[5, 6, 7]])
    cached = torch.tensor([[9.0, -9.0]])
    outputs = LiveTeacher(model)(Batch(ids, torch.ones_like(ids)), cached)
    assert torch.equal(outputs.logits, cached) and not outputs.hidden[-1].requires_grad
    with torch.no_grad():
        expected = model.eval()(ids, output_hidden_states=True).hidden_states
    assert len(outputs.hidden) == 3 and torch.equal(outputs.hidden[-1], expected[-1])


# Stopped


def metrics(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_the_lines_of_a_training_say_loss_terms_rate_speed_and_validation(
    teacher: Path, labels: LabelDir, tmp_path: Path
) -> None:
    losses = (Choice("kl", 0.5), Choice("hard-label", 0.25))
    recipe = replace(BILSTM, phases=(Phase(losses),), training=replace(TRAINING, max_steps=6, evaluations=3))
    made = taught(teacher, tmp_path / "out", recipe, labels=[labels], train=train_rows(), validation=validation_rows())
    lines = metrics(made.path)
    assert "metrics.jsonl" in made.manifest.files
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    for line in steps:
        assert line["loss"] == pytest.approx(line["loss/kl"] + line["loss/hard-label"], rel=1e-4)
        assert line["rows_per_second"] > 0
    rates = [line["learning_rate"] for line in steps]
    assert 0 < rates[-1] < rates[-2] < max(rates) <= TRAINING.learning_rate
    scores = {line["step"]: line["validation"] for line in lines if "validation" in line}
    assert scores.keys() == {2, 4, 6} and max(scores.values()) == pytest.approx(made.manifest.metrics[0]["value"])


@pytest.mark.parametrize(("patience", "steps"), [(0, 12), (1, 4), (3, 8)])
def test_a_training_without_patience_runs_to_the_end(
    patience: int, steps: int, teacher: Path, labels: LabelDir, tmp_path: Path
) -> None:
    still = replace(TRAINING, evaluations=6, learning_rate=1e-9, patience=patience)
    made = taught(
        teacher, tmp_path / "student", replace(BILSTM, training=still), labels=[labels], validation=validation_rows()
    )
    assert (made.manifest.notes["steps"], made.manifest.notes["best_step"]) == (steps, 2)


def test_patience_counts_on_where_a_training_was_stopped(
    teacher: Path, labels: LabelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compress.training.trainer import DistillationTrainer

    original = DistillationTrainer.compute_loss
    steps: list[int] = []

    def stopping(self: Any, *given: Any, **named: Any) -> Any:
        steps.append(self.state.global_step)
        if steps.count(5) == 1 and steps[-1] == 5:  # after one evaluation without a better score
            raise KeyboardInterrupt
        return original(self, *given, **named)

    monkeypatch.setattr(DistillationTrainer, "compute_loss", stopping)
    recipe = replace(BILSTM, training=replace(TRAINING, evaluations=6, learning_rate=1e-9, patience=3))
    options: dict[str, Any] = {"labels": [labels], "validation": validation_rows()}
    with pytest.raises(KeyboardInterrupt):
        taught(teacher, tmp_path / "student", recipe, **options)
    made = taught(teacher, tmp_path / "student", recipe, **options)
    assert steps[6] == 4 and made.manifest.notes["steps"] == 8


@pytest.mark.parametrize("training", [TRAINING, replace(TRAINING, evaluations=6, patience=1, learning_rate=1e-9)])
def test_a_training_stopped_after_its_last_step_takes_no_more(
    training: Training, teacher: Path, labels: LabelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compress.training.trainer import DistillationTrainer

    options: dict[str, Any] = {"labels": [labels], "train": train_rows(), "validation": validation_rows()}
    recipe = replace(BILSTM, training=training)
    whole = taught(teacher, tmp_path / "whole", recipe, **options)
    release = DistillationTrainer.release

    def stopping(self: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DistillationTrainer, "release", stopping)  # the first thing after the training
    with pytest.raises(KeyboardInterrupt):
        taught(teacher, tmp_path / "student", recipe, **options)
    monkeypatch.setattr(DistillationTrainer, "release", release)
    resumed = taught(teacher, tmp_path / "student", recipe, **options)
    for note in ("steps", "planned_steps", "best_step", "best_score"):
        assert resumed.manifest.notes[note] == whole.manifest.notes[note]
    assert [line["step"] for line in metrics(resumed.path)] == [line["step"] for line in metrics(whole.path)]
    weights = state(resumed.path)
    for key, tensor in state(whole.path).items():
        torch.testing.assert_close(weights[key], tensor, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("recipe", [BILSTM, TRANSFORMER])
def test_a_resumed_training_ends_with_the_same_weights(
    recipe: StudentRecipe, teacher: Path, labels: LabelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compress.training.trainer import DistillationTrainer

    options: dict[str, Any] = {"labels": [labels], "train": train_rows(), "validation": validation_rows()}
    recipe = replace(recipe, training=replace(TRAINING, evaluations=4))
    undisturbed = taught(teacher, tmp_path / "whole", recipe, **options).path
    whole = state(undisturbed)
    steps: list[int] = []
    original = DistillationTrainer.compute_loss

    def stopping(self: Any, *given: Any, **named: Any) -> Any:
        steps.append(self.state.global_step)
        if len(steps) == 13:
            raise KeyboardInterrupt
        return original(self, *given, **named)

    monkeypatch.setattr(DistillationTrainer, "compute_loss", stopping)
    with pytest.raises(KeyboardInterrupt):
        taught(teacher, tmp_path / "student", recipe, **options)
    working = tmp_path / ".student.partial"
    assert not (tmp_path / "student").exists()
    (broken,) = working.rglob("checkpoint-10")
    assert last_whole_checkpoint(broken.parent) == broken
    resumed = taught(teacher, tmp_path / "student", recipe, **options)
    assert steps[13] == 10  # not from the start
    weights = state(resumed.path)
    for key in whole:
        torch.testing.assert_close(weights[key], whole[key], atol=1e-6, rtol=1e-5)
    for ours, theirs in zip(metrics(resumed.path), metrics(undisturbed), strict=True):
        assert ours.keys() == theirs.keys()
        speed = {"rows_per_second"}
        assert [ours[key] for key in ours.keys() - speed] == pytest.approx(
            [theirs[key] for key in ours.keys() - speed], rel=1e-3, abs=1e-5
        )
    assert names(tmp_path) == {"whole", "student"}


def test_a_checkpoint_that_was_cut_short_is_not_used(tmp_path: Path) -> None:
    for step in (4, 12, 8):
        (tmp_path / f"checkpoint-{step}").mkdir()
        TrainerState(global_step=step).save_to_json(str(tmp_path / f"checkpoint-{step}" / "trainer_state.json"))
        if step < 12:
            seal(tmp_path / f"checkpoint-{step}")
    assert last_whole_checkpoint(tmp_path) == tmp_path / "checkpoint-8"
    assert names(tmp_path) == {"checkpoint-4", "checkpoint-8"}
    assert last_whole_checkpoint(tmp_path / "none") is None


# Refused


def overlap(rows: list[Example]) -> list[Example]:
    return [replace(row, text=row.text.upper() + " !") for row in rows]


@pytest.mark.parametrize("role", ["train", "pool"])
def test_rows_in_two_roles_are_refused_or_dropped(role: str, teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    shared = [Example(row.text, None, "positive") for row in pool_rows()[:3]] if role == "pool" else train_rows()[:3]
    options: dict[str, Any] = {
        "labels": [labels],
        "train": train_rows(),
        "validation": validation_rows() + overlap(shared),
    }
    with pytest.raises(CompressError, match="drop-overlap"):
        taught(teacher, tmp_path / "student", **options)
    assert names(tmp_path) == set()
    made = taught(teacher, tmp_path / "student", overlap="drop", **options)
    rows = {entry["role"]: entry["rows"] for entry in made.manifest.data}
    left_out = {entry["role"]: entry.get("left_out", {}).get("also_in") for entry in made.manifest.data}
    assert left_out["train" if role == "train" else "unlabeled"] == {"validation": 3} and not left_out["validation"]
    dropped = sum(row.text in {s.text for s in shared} for row in train_rows())
    assert rows["train"] == 40 - (dropped if role == "train" else 0) and rows["validation"] == 19


def other_teacher(given: dict[str, Any], folder: Path) -> None:
    given["teacher"] = write(folder / "other", classifier("bert", seed=5))


def another_task(model: Callable[[], Any], student: str) -> Callable[[dict[str, Any], Path], None]:
    return lambda given, folder: given.update(teacher=write(folder / "other", model()), student=student)


def set_option(**options: Any) -> Callable[[dict[str, Any], Path], None]:
    return lambda given, folder: given.update(options)


GOLD = Choice("hard-label")
ALL_GOLD = replace(BILSTM, phases=(Phase((GOLD,), text="gold"),))
REFUSED: list[tuple[Any, str]] = [
    (other_teacher, "was labelled by another teacher"),
    (another_task(lambda: classifier("bert", labels=("score",)), "pd"), r"compares classes \(the loss kl\)"),
    (another_task(tagger, "bert-48"), "in two vocabularies .*, and other tags words"),
    (set_option(labels=[]), "distill needs text: give --unlabeled FILE"),
    (set_option(labels=[], student=ALL_GOLD, train=train_rows()), "selected by labelled rows; give --validation FILE"),
    (lambda given, folder: given.update(unlabeled=pool_file(folder / "p.txt")), "exclude each other; give one"),
    (
        lambda given, folder: given.update(unlabeled=pool_file(folder / "p.txt"), variants=given.pop("labels")),
        "variants are",
    ),
    (set_option(control=True), "--control trains on gold labels alone"),
    (set_option(student="bilsm"), "Did you mean 'bilstm'"),
    (set_option(student=replace(BILSTM, phases=(Phase((GOLD,)),))), "there are none; give --train FILE"),
    (set_option(metric="acuracy", validation=validation_rows()), "Did you mean 'accuracy'"),
    (set_option(device="tpu"), "device = 'tpu' must be one of 'auto', 'cpu' or 'cuda'"),
    (set_option(validation=[Example("x y", None, "great")]), "which the model does not know"),
    (set_option(train=[Example("x y", None, "great")]), "which the model does not know"),
    (
        set_option(student=replace(BILSTM, phases=(Phase((Choice("hidden-cosine"),)),))),
        "hidden states, and this student has none",
    ),
    (
        set_option(student=replace(TRANSFORMER, architecture=Choice("transformer", options={"hidden_size": 16}))),
        "needs equal widths; the student has 16 and the teacher 32",
    ),
    (set_option(student=replace(TRANSFORMER, architecture=Choice("transformer", options={"depth": 9}))), "depth = 9"),
    (
        set_option(student=replace(BILSTM, phases=(replace(BILSTM.phases[0], modifier=Choice("fake-quantization")),))),
        "fake-quantization is for transformers, and the student is a 'compress-bilstm'",
    ),
    (
        set_option(student=replace(BILSTM, phases=(replace(BILSTM.phases[0], by_layer="stacked"),))),
        "trains layer after layer, and this student has no layers",
    ),
    (
        set_option(student=replace(BILSTM, phases=(replace(BILSTM.phases[0], frozen=("layers", "head")),))),
        "frozen names 'head', which this student does not have apart",
    ),
]


def test_a_recipe_of_gold_rows_needs_no_other_text(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    gold = {"train": train_rows(), "validation": validation_rows()}
    made = taught(teacher, tmp_path / "alone", ALL_GOLD, **gold)
    assert made.manifest.notes["planned_steps"] == steps_for(40, TRAINING)
    assert [entry["role"] for entry in made.manifest.data] == ["train", "validation"]
    control = taught(teacher, tmp_path / "control", ALL_GOLD, train=train_rows(), control=True)
    assert control.manifest.notes["control"]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_cannot_be_distilled(change: Any, message: str, teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    """Whatever it is, it is known before any work is begun, which would be in the way of the corrected command."""
    given: dict[str, Any] = {"teacher": teacher, "student": BILSTM, "labels": [labels], "device": "cpu", "threads": 1}
    change(given, tmp_path)
    with pytest.raises(CompressError, match=message):
        distilled(output=tmp_path / "student", **given)
    assert not [path for path in tmp_path.iterdir() if "student" in path.name]


def test_a_pool_too_small_to_hold_rows_out(teacher: Path, tmp_path: Path) -> None:
    source = pool_file(tmp_path / "pool.txt", pool_rows(2))
    with pytest.raises(CompressError, match="too few different ones to hold some out; give --validation FILE"):
        taught(teacher, tmp_path / "student", unlabeled=source)


def test_more_rows_asked_for_than_there_are(teacher: Path, tmp_path: Path) -> None:
    source = pool_file(tmp_path / "pool.txt")
    assert taught(teacher, tmp_path / "student", unlabeled=source, rows=10_000_000).is_classifier


def test_a_pruned_teacher_teaches_a_bilstm_but_gives_no_layers(tmp_path: Path) -> None:
    teacher = write(tmp_path / "pruned", pruned("bert"))
    source = pool_file(tmp_path / "pool.txt")
    assert taught(teacher, tmp_path / "bilstm", unlabeled=source).is_classifier
    with pytest.raises(CompressError, match="use the model it was pruned from"):
        taught(teacher, tmp_path / "transformer", TRANSFORMER, unlabeled=source)


def test_training_that_diverges_says_so(teacher: Path, labels: LabelDir, tmp_path: Path) -> None:
    wild = replace(BILSTM, training=replace(TRAINING, learning_rate=1e18, max_gradient_norm=0.0))
    with pytest.raises(CompressError, match="training diverged.*lower training.learning_rate"):
        taught(teacher, tmp_path / "student", wild, labels=[labels])
    assert not (tmp_path / "student").exists()


@pytest.mark.parametrize("taught_classes", [{"positive"}, {"negative", "positive"}])
def test_a_student_that_is_no_better_than_one_class_is_named(
    teacher: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, taught_classes: set[str]
) -> None:
    recipe = replace(ALL_GOLD, training=replace(TRAINING, epochs=30.0, evaluations=30))
    rows = [row for row in train_rows() if row.label in taught_classes]
    others = [replace(row, text=f"{row.text} again") for row in train_rows()]
    made = taught(teacher, tmp_path / "student", recipe, train=rows, validation=others, seed=1)
    lines = map(json.loads, (made.path / "metrics.jsonl").read_text().splitlines())
    scores = [line["validation"] for line in lines if "validation" in line]
    said = [record.message for record in caplog.records if "one answer for all rows" in record.message]
    assert scores[0] == 0.5  # at first every student does
    assert (max(scores) == 0.5) == (len(taught_classes) == 1) == (len(said) == 1)
    assert all("lower training.learning_rate" in one and one.endswith("--metric macro-f1") for one in said)


def test_the_metric_that_selects_already_is_not_advised(
    teacher: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row for row in train_rows() if row.label == "positive"]
    others = [replace(row, text=f"{row.text} again") for row in train_rows()]
    taught(teacher, tmp_path / "student", ALL_GOLD, train=rows, validation=others, metric="macro-f1", seed=1)
    (said,) = [record.message for record in caplog.records if "one answer for all rows" in record.message]
    assert said.endswith("or train for more steps")


def test_tasks_whose_constant_answers_score_have_a_mean_over_classes() -> None:
    found = {
        name: [metric.name for metric in task.metrics if metric.name.endswith("macro-f1")]
        for name, task in everything().items()
    }
    assert found.pop("regression") == [] and found.pop("entities") == ["entity-macro-f1"]
    assert set(map(tuple, found.values())) == {("macro-f1",)}


@pytest.mark.parametrize(
    ("task", "labels", "metric", "least"),
    [
        ("classification", [0, 1, 1, 2], None, 0.5),
        ("classification", [0, 1, 1, 2], "macro-f1", 2 / 9),  # 2/3 of one class of three
        ("classification", [0, 0, 0, 1, 1], "f1", 4 / 7),  # of the last class, which is not the most frequent one
        ("classification", [1, 1], None, -math.inf),  # one class, which is right
        ("tagging", [0, -100, 1, 1, -100], None, 2 / 3),
        ("regression", [0.0, 1.0], None, -math.inf),
    ],
)
def test_what_one_class_for_all_rows_scores(task: str, labels: list[float], metric: str | None, least: float) -> None:
    names = ("a", "b") if metric == "f1" else ("a", "b", "c")
    found = find_task(task).constant_score(np.array(labels), names, metric)
    assert found == pytest.approx(least)


def test_weights_that_give_no_numbers_are_not_selected() -> None:
    from compress.training.trainer import _score
    from compress.training.training_data import Selection

    logits, labels = np.array([[2.0, 1.0], [0.0, 1.0]], dtype=np.float32), np.array([0, 1])
    prediction = SimpleNamespace(predictions=logits, label_ids=labels)
    judged: Any = {
        "task": find_task("classification"),
        "labels": ("a", "b"),
        "selection": Selection((), "validation", "accuracy"),
    }
    assert _score(prediction, **judged) == {"score": 1.0}
    logits[1, 0] = np.nan
    assert _score(prediction, **judged) == {"score": -math.inf}


def test_a_training_resumed_in_epoch_four_reads_the_same_batches(
    teacher: Path, labels: LabelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compress.training.trainer import DistillationTrainer

    options: dict[str, Any] = {"labels": [labels], "train": train_rows(), "validation": validation_rows()}
    recipe = replace(BILSTM, training=replace(TRAINING, epochs=4.0, max_steps=0, evaluations=12))
    read: dict[int, list[int]] = {}
    stop_at, taught_rows = [-1], [0]
    original = DistillationTrainer.compute_loss

    def watching(self: Any, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        step = self.state.global_step
        if step == stop_at[0]:
            raise KeyboardInterrupt
        read[step], taught_rows[0] = inputs["input_ids"].sum(dim=1).tolist(), len(self.train_dataset)
        return original(self, model, inputs, *given, **named)

    monkeypatch.setattr(DistillationTrainer, "compute_loss", watching)
    taught(teacher, tmp_path / "whole", recipe, **options)
    undisturbed = dict(read)
    epoch = math.ceil(taught_rows[0] / TRAINING.batch_size)
    assert 3 * epoch < len(undisturbed) - 2
    assert undisturbed[0] != undisturbed[epoch] != undisturbed[2 * epoch]  # epochs differ
    stop_at[0] = len(undisturbed) - 2
    with pytest.raises(KeyboardInterrupt):
        taught(teacher, tmp_path / "student", recipe, **options)
    read.clear()
    stop_at[0] = -1
    taught(teacher, tmp_path / "student", recipe, **options)
    assert 3 * epoch < min(read) < len(undisturbed) - 2  # resumed within the fourth epoch
    assert read == {step: rows for step, rows in undisturbed.items() if step in read}


def test_without_an_output_the_student_lies_in_the_cache_and_is_made_once(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    texts = [row.text for row in pool_rows()]
    asked: dict[str, Any] = {"unlabeled": texts, "validation": validation_rows(), "device": "cpu", "threads": 1}
    made = compress.distill(teacher, BILSTM, **asked)
    assert made.path.is_relative_to(tmp_path / "cache") and made.name.startswith("tiny-bilstm-")
    monkeypatch.setattr(compress.training.distill, "fit", None)
    assert compress.distill(teacher, BILSTM, **asked).path == made.path
    with pytest.raises(TypeError):  # another request is trained
        compress.distill(teacher, BILSTM, **asked, seed=1)
