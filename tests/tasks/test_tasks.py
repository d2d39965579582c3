"""Every task of the folder goes through every stage, and nothing outside the folder names a task."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModel

import compress
from compress import tasks
from compress.cli import execute
from compress.data import open_source, read_examples
from compress.models.model_dir import Model
from tests.support.samples import write_sample
from tests.support.tiny import classifier, write
from tests.support.training_data import TINY_STUDENT, TRAINING, finetuned

PACKAGE = Path(compress.__file__).parent
NAMED = re.compile(rf"""["']({"|".join(tasks.everything())})["']""")


def test_at_most_five_lines_outside_the_folder_name_a_task() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not path.is_relative_to(PACKAGE / "tasks") and "_recipes" not in path.parts
        for line in path.read_text("utf-8").splitlines()
        if NAMED.search(line)
    ]
    assert len(found) <= 5, "\n".join(found)


def test_a_task_is_found_by_its_name_and_stays_one_in_another_process() -> None:
    assert tasks.find_task("classification") is tasks.default()
    with pytest.raises(compress.CompressError, match="Did you mean 'tagging'"):
        tasks.find_task("taging")
    for task in tasks.everything().values():
        copy = pickle.loads(pickle.dumps(task))
        assert copy == task and type(copy) is type(task) and str(task) == task


@pytest.mark.parametrize("name", tasks.everything())
def test_the_parts_of_a_task_fit_each_other(name: str, tmp_path: Path) -> None:
    task = tasks.find_task(name)
    rows = read_examples(open_source(write_sample(name, 40, 0, tmp_path), role="train", labelled=True))
    assert tasks.of_rows(rows) is task
    labels = task.new_labels(rows[:30], rows[30:])
    architecture = task.auto_class.replace("AutoModel", "Bert")
    config = {"architectures": [architecture], **task.head_settings(labels)}
    task = tasks.of_config(config)
    assert task == name
    gold = task.gold(rows, labels, "train")
    assert len(gold) == len(rows)
    column = task.column(gold)
    counts = task.answer_counts(rows)
    assert len(column) == (sum(counts) if counts else len(rows))
    logits = np.random.default_rng(0).normal(size=(len(column), len(labels))).astype(np.float32)
    by_row = task.by_row(logits, rows)
    assert len(by_row) == len(rows)
    stacked = task.stacked([*by_row])
    assert all(np.array_equal(one, other) for one, other in zip(stacked, by_row, strict=True))
    predicted = task.predictions(logits, task.clusters(rows, task.metric(None, labels)))
    assert predicted.shape == column.shape and task.differ(logits, -logits) and not task.differ(logits, logits)
    assert np.array_equal(task.column(task.pseudo_labels([*by_row])), predicted)
    assert [metric.name for metric in task.metrics] == [task.metric(one.name).name for one in task.metrics]
    assert -1 <= task.evaluate(logits, column, labels, clusters=task.clusters(rows, task.metric(None, labels))) <= 1
    chances = task.probabilities(logits)
    change, lost, won = task.flips(predicted, column, column, chances, chances)
    assert change.shape == lost.shape == won.shape == column.shape and not won.any()
    assert task.prior(column, len(labels)).shape == (len(labels),)
    mean = task.mean_logits(np.stack([logits, logits]), np.array([0.5, 0.5]))
    assert np.array_equal(task.predictions(mean), task.predictions(logits)) or not task.has_classes
    assert len([*task.described(rows, logits, labels)]) == len(rows)


def test_lowest_losses_are_those_of_the_labels() -> None:
    torch = pytest.importorskip("torch")
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, tasks.NO_LABEL])
    total, known = tasks.find_task("classification").hard_loss(logits, labels)
    assert known.tolist() == [True, False] and total == pytest.approx(np.log1p(np.exp(-2.0)))
    assert tasks.find_task("classification").losses(logits, labels.clamp(min=0))[0] == pytest.approx(float(total))
    scores, gold = torch.tensor([[1.0], [5.0]]), torch.tensor([3.0, float("nan")])
    total, known = tasks.find_task("regression").hard_loss(scores, gold)
    assert known.tolist() == [True, False] and total == 4.0
    assert tasks.find_task("regression").losses(scores, torch.tensor([3.0, 5.0])).tolist() == [4.0, 0.0]


@pytest.mark.parametrize("name", tasks.everything())
def test_every_stage_takes_the_task_or_refuses_it_in_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tasks.find_task(name)
    train, validation, test, pool = (
        write_sample(name, count, seed, tmp_path) for seed, count in enumerate((120, 60, 60, 60))
    )

    def run(stage: str, *given: object, output: str = "", refused: str = "") -> Any:
        target = ["-o", tmp_path / output] if output else []
        code = execute([stage, *map(str, (*given, *target))])
        said = capsys.readouterr()
        assert code == (2 if refused else 0), f"{stage}: {said.err}"
        assert refused in said.err
        return said.out if refused or not output else Model.open(tmp_path / output) if given else None

    encoder = write(tmp_path / "encoder", classifier("bert"))
    body: Any = AutoModel.from_pretrained(encoder)
    body.save_pretrained(encoder)
    read = {
        role: read_examples(open_source(path, role=role, labelled=True))
        for role, path in (("train", train), ("validation", validation))
    }
    teacher = finetuned(encoder, tmp_path / "teacher", training=TRAINING, **read)
    assert teacher.task == task
    labelled = ("--validation", validation, "--threads", 1)
    run("label", "--teacher", teacher.path, "--unlabeled", pool, "--threads", 1, "-o", tmp_path / "labels")
    (tmp_path / "student.toml").write_text(TINY_STUDENT)
    learned = ("--teacher", teacher.path, "--student", tmp_path / "student.toml", "--train", train)
    student = run("distill", *learned, "--labels", tmp_path / "labels", *labelled, output="student")
    control = run("distill", *learned, "--labels", tmp_path / "labels", "--control", *labelled, output="control")
    given = ("--model", teacher.path, "--train", train, *labelled)
    pruned = run("prune", *given, "--heads", 1, "--no-measure", "--device", "cpu", output="pruned")
    exported = run("export", "--model", pruned.path, output="exported")
    small = run("quantize", "--model", pruned.path, "--validation", validation, output="small")
    for model in (student, control, pruned, exported, small):
        assert model.task == task and model.labels == teacher.labels
        assert model.config.get(tasks.LEGAL_TAGS) == teacher.config.get(tasks.LEGAL_TAGS)
    run("calibrate", "--model", student.path, *labelled, output="calibrated", refused=task.no_calibration)
    both = ("--model", student.path, "--model", teacher.path, "--max-accuracy-drop", 0, *labelled)
    run("cascade", *both, "-o", tmp_path / "cascade", refused=task.no_cascade or "no cascade is faster")
    if task.no_search:
        inputs = ("--unlabeled", pool, "--train", train, *labelled)
        run("search", "--teacher", teacher.path, *inputs, "-o", tmp_path / "search", refused=task.no_search)
    results = tmp_path / "results.jsonl"
    measured = (
        "--model",
        student.path,
        "--model",
        small.path,
        "--control",
        control.path,
        "--rounds",
        3,
        "--batch-size",
        2,
    )
    run("benchmark", "--teacher", teacher.path, *measured, "--data", test, "--train", train, "-o", results)
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert {line["model"] for line in lines if line["kind"] == "baseline"} == {*task.baselines}
    assert all(line["metric_name"] == task.metrics[0].name for line in lines)
    run("report", results, "--texts", test, "-o", tmp_path / "report")
    run("check", results, "--max-size", "1GB", "--json", tmp_path / "verdict.json")
    for model in (teacher, small):
        predictions = run("predict", "--model", model.path, "-q", "a good film", "a dull plot")
        assert len(predictions.splitlines()) == 2 and json.loads(predictions.splitlines()[0])["text"] == "a good film"
