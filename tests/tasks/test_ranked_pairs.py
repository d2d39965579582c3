"""A cross-encoder with one score, its bi-encoder student and rankings by query, through every stage."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest

from compress.cli import execute
from compress.models.model_dir import Model
from tests.support.tiny import BAD, GOOD, PLAIN, classifier, write
from tests.support.training_data import TINY_STUDENT

STUDENT = TINY_STUDENT.replace("[architecture]\n", '[architecture]\npairs = "siamese"\n')


def ranked_file(path: Path, queries: int, seed: int, **changes: Any) -> Path:
    """Write passages of queries with a grade of relevance, and of every fifth query none that is relevant."""
    draw, words = random.Random(seed), [*GOOD, *BAD, *PLAIN]
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["qid", "query", "passage", "score"])
        for number in range(queries):
            query = " ".join(draw.sample(words, 3))
            for _ in range(4):
                passage = draw.sample(words, 5)
                grade = 0.0 if number % 5 == 4 else sum(word in GOOD for word in passage) / 2 - changes.get("less", 0)
                table.writerow([f"q{seed}-{number}", query, " ".join(passage), changes.get("score", grade)])
    return path


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    folder = write(tmp_path / "teacher", classifier("bert", labels=("LABEL_0",)))
    config = json.loads((folder / "config.json").read_text())
    config.pop("problem_type")
    noted = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}
    (folder / "config.json").write_text(json.dumps(config | noted))
    return folder


def test_rankings_of_a_cross_encoder_and_its_student(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, validation, test = (
        ranked_file(tmp_path / f"{name}.csv", count, seed)
        for seed, (name, count) in enumerate((("train", 30), ("validation", 15), ("test", 20)))
    )

    def run(*given: object, code: int = 0) -> str:
        found = execute([*map(str, given)])
        said = capsys.readouterr()
        assert found == code, said.err
        return said.err + said.out

    ranks = ("--metric", "ndcg@10", "--query-column", "qid")
    run("label", "--teacher", teacher, "--unlabeled", train, "--threads", 1, "-o", tmp_path / "labels")
    (tmp_path / "student.toml").write_text(STUDENT)
    learned = ("--teacher", teacher, "--student", tmp_path / "student.toml", "--labels", tmp_path / "labels")
    rows = ("--train", train, "--validation", validation, "--threads", 1)
    run("distill", *learned, *rows, *ranks, "-o", tmp_path / "student")
    student = Model.open(tmp_path / "student")
    assert student.task == "regression" and student.config["pairs"] == "siamese"
    assert [found["name"] for found in student.manifest.metrics] == ["ndcg@10"]
    run("distill", *learned, *rows, *ranks, "--control", "-o", tmp_path / "control")
    given = ("--model", student.path, "--validation", validation, "--max-accuracy-drop", 50, "--threads", 1)
    run("quantize", *given, *ranks, "-o", tmp_path / "int8")
    results = tmp_path / "results.jsonl"
    measured = ("--teacher", teacher, "--model", student.path, "--model", tmp_path / "int8", "--control")
    settings = ("--rounds", 3, "--batch-size", 2, "--slice-column", "qid")
    said = run(
        "benchmark", *measured, tmp_path / "control", "--data", test, "--train", train, *settings, *ranks, "-o", results
    )
    assert "ndcg@10 is the mean over 16 queries; 4 of 20 have no relevant row" in said
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert {line["metric_name"] for line in lines} == {"ndcg@10"}
    assert all(line["metric_queries"] == 16 and line["metric_rows"] == 80 for line in lines)
    assert all(0 < line["metric_low"] <= line["metric"] <= line["metric_high"] <= 1 for line in lines)
    baselines = {line["model"] for line in lines if line["kind"] == "baseline"}
    assert baselines == {"majority", "static-embedding", "tfidf", "bm25"}
    assert ["cosine" in one["name"] for one in lines[0]["left_out"]] == [True]
    parts = {part["slice"]: part for part in lines[0]["slices"]}
    assert parts["qid=q2-4"]["metric"] is None and 0 < parts["qid=q2-0"]["metric"] <= 1
    assert parts["qid=q2-0"]["metric_low"] is None
    report = run("report", results, "-o", tmp_path / "report")
    page = (tmp_path / "report" / "report.md").read_text()
    assert "on 16 queries" in page, report
    run("check", results, "--max-accuracy-drop", 100)
    assert "ndcg@10" in run("check", results, "--min-metric", 1, code=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--query-column", "question"), "has no column 'question'; it has qid, query, passage, score"),
        (("--query-column", "passage"), "different values in the column of queries, so that no query has two rows"),
        (
            ("--text-column", "passage", "--text-pair-column", "query"),
            "different first texts, so that no query has two",
        ),
    ],
)
def test_wrong_queries_are_refused_in_one_sentence(
    options: tuple[str, ...], said: str, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = ranked_file(tmp_path / "test.csv", 8, 0)
    given = ["benchmark", "--teacher", teacher, "--model", teacher, "--data", test, "--metric", "map", *options]
    assert execute([*map(str, given), "-o", str(tmp_path / "results.jsonl")]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "results.jsonl").exists()


def test_what_cannot_be_ranked_is_refused_before_training(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, wrong = ranked_file(tmp_path / "train.csv", 8, 0), ranked_file(tmp_path / "wrong.csv", 8, 1, less=0.5)
    (tmp_path / "student.toml").write_text(STUDENT)
    rows = ("--train", train, "--validation", wrong, "--metric", "ndcg", "--query-column", "qid")
    for stage in (("finetune",), ("distill", "--student", tmp_path / "student.toml", "--unlabeled", train)):
        assert execute([*map(str, (*stage, "--teacher", teacher, *rows, "-o", tmp_path / "out"))]) == 2
        said = capsys.readouterr().err
        assert "ndcg reads labels as relevance, 0 or more, and one is -0.5; correct it" in said and "step" not in said
    assert not [*tmp_path.glob("*out*")]
