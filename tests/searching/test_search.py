"""The whole search on tiny models: what it writes, that it goes on after a stop, and what it refuses."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import compress
from compress.cascades import cascade as cascade_stage
from compress.cli import execute
from compress.data import Example, describe_rows
from compress.errors import CompressError
from compress.inference.runners import Speed
from compress.models.manifest import Manifest
from compress.models.model_dir import CascadeDir, Model, open_model
from compress.models.output_dir import finish
from compress.pruning.prune import RECOVERY
from compress.requests import FileList
from compress.requests.compression import cascade
from compress.requests.training import Search, SearchResult
from compress.searching import making, space
from compress.searching import search as search_module
from compress.searching.exploration import Exploration
from compress.searching.search import Joined
from compress.searching.space import Family, Shape
from compress.searching.trials import LAST, RUNGS, SearchBudget, ShapeTiming, TrainedRung, Trial, ValidationScore
from tests.cascades.test_cascade import labelled, members, texts
from tests.support.tagging import tagger
from tests.support.tiny import GOOD, LABELS, classifier, write
from tests.support.training_data import labelled_file, pool_file, pool_rows, train_rows, validation_rows

STUDENT = """
description = "tiny"
[architecture]
name = "{name}"
[[phases]]
losses = [{{ name = "logit-mse" }}]
[training]
epochs = 3.0
batch_size = 16
learning_rate = 5e-3
evaluations = 2
precision = "float32"
max_length = 32
"""
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "bilstm": {"embedding_size": (8, 16), "hidden_size": (4, 8), "dense_size": (8,)},
    "ngram": {"embedding_size": (8, 16), "buckets": (50, 100), "dense_size": (8,)},
}


def test_rows() -> list[Example]:
    return [Example(f"tests {word} {index}", None, LABELS[index % 2]) for index, word in enumerate(GOOD * 3)]


test_rows.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture(scope="module", autouse=True)
def tiny_space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Search among students that take no time; timing decides nothing here."""
    folder = tmp_path_factory.mktemp("recipes")
    families = {}
    for name, options in OPTIONS.items():
        (folder / f"{name}.toml").write_text(STUDENT.format(name=name))
        families[name] = Family(str(folder / f"{name}.toml"), options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space, "FAMILIES", families)
        yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each kind of work was done."""
    counted: Counter[str] = Counter()
    places = [(making, "distill"), (search_module, "label"), (making, "build_student"), (search_module, "benchmark")]
    for module, name in places:
        monkeypatch.setattr(module, name, counting(getattr(module, name), name, counted))
    return counted


def counting(original: Any, name: str, counted: Counter[str]) -> Any:
    """Return a function that counts how often it ended well, and else does the same."""

    def call(*arguments: Any, **named: Any) -> Any:
        made = original(*arguments, **named)
        counted[name] += 1
        return made

    return call


def stopping(original: Any, name: str, counted: Counter[str], nth: int) -> Any:
    """Return a function that is interrupted when it is called for the nth time, and else does the same."""

    def call(*arguments: Any, **named: Any) -> Any:
        if counted[name] + 1 == nth:
            raise KeyboardInterrupt
        return original(*arguments, **named)

    return call


def data(folder: Path, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"train": train_rows(), "validation": validation_rows(), **changes}
    return {"unlabeled": given.pop("unlabeled", None) or pool_file(folder / "pool.txt"), **given}


def searched(teacher: Any, output: Path, rows: dict[str, Any], **options: Any) -> dict[str, Any]:
    options = {"trials": None if "time_limit" in options else 3, "device": "cpu", "threads": 1, **options}
    return compress.search(teacher, output, **rows, **options).content


@pytest.fixture(scope="module")
def finished(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    searched(teacher, folder / "found", data(folder, test=test_rows()), min_speedup=1e-3)
    return folder / "found"


def test_the_best_is_a_model_that_predicts(finished: Path) -> None:
    found = json.loads((finished / "search.json").read_text())
    best = Model.open(finished / "best")
    row = next(row for row in found["trials"] if row["trial"] == found["winner"])
    assert row["ended"] == "done" and best.is_onnx and best.name == "best"
    assert best.manifest.stage == ("quantize" if row["precision"] == "int8" else "export")
    assert best.manifest.metrics[0]["value"] == row["value"] and best.manifest.notes["checked"] is True
    rows = validation_rows()
    predicted = SearchResult(finished).best.predict([example.text for example in rows])
    right = [one["label"] == example.label for one, example in zip(predicted, rows, strict=True)]
    assert sum(right) / len(right) == pytest.approx(row["value"])


def test_without_an_output_a_search_lies_in_the_cache_and_without_a_winner_says_so(
    finished: Path, tmp_path: Path
) -> None:
    found = Search.open_made(None, finished)  # type: ignore[arg-type]
    assert found == SearchResult(finished) and found.content["met"] is True
    (tmp_path / "search.json").write_text("{}")
    with pytest.raises(CompressError, match="no student met the budget; .*report.html says what was tried"):
        _ = SearchResult(tmp_path).best


def test_every_file_of_the_directory_is_there_and_says_the_same(finished: Path) -> None:
    found = json.loads((finished / "search.json").read_text())
    manifest = Manifest.read(finished / "compress.json")
    assert manifest.kind == manifest.stage == "search" and manifest.notes["met"] is True
    assert set(manifest.files) >= {"search.json", "front.jsonl", "trials.jsonl", "report.html", "best.toml"}
    assert set(manifest.files) >= {"best/model.onnx", "best/compress.json", "results.jsonl"}
    trials, front = (
        [json.loads(line) for line in (finished / name).read_text().splitlines()]
        for name in ("trials.jsonl", "front.jsonl")
    )
    assert trials == found["trials"] and [row["trial"] for row in front] == found["front"]
    assert all(len(row["rungs"]) <= 3 and row["ended"] for row in trials)
    steps = [row["rungs"][-1]["steps"] for row in trials if row["ended"] == "done"]
    assert steps and steps[0] == max(rung["steps"] for row in trials for rung in row["rungs"])
    page = (finished / "report.html").read_text()
    assert "compress distill" in page and "optimistic by selection" in page and "24 test rows" in page
    assert "--student" in page and "best.toml" in page
    with pytest.raises(CompressError, match="is what a search found; its model is .*best"):
        Model.open(finished)


def test_the_claim_is_that_of_the_benchmark(finished: Path) -> None:
    found = json.loads((finished / "search.json").read_text())
    lines = [json.loads(line) for line in (finished / "results.jsonl").read_text().splitlines()]
    line = next(line for line in lines if line["model"] == "best")
    assert found["test"]["points"] == line["difference_points"] and found["test"]["speedup"]["value"] == line["speedup"]
    assert found["test"]["rows"] == len(test_rows()) and line["data"] == "test"


@pytest.mark.parametrize(("family", "last"), [("student", 0), ("student", LAST), ("pruned", 0), ("pruned", LAST)])
def test_the_commands_make_the_winner_again(
    family: str, last: int, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if family == "pruned":
        monkeypatch.setitem(vars(RECOVERY), "min_steps", 18)
        options = {"layers": ("", "50%"), "heads": ("25%", "50%"), "ffn": ("", "50%")}
        monkeypatch.setattr(space, "FAMILIES", {space.PRUNED: Family("", options)})
    if last == 0:  # as where there is no time for more
        for name in ("_train_committed", "_next_rung", "_train_winner"):
            monkeypatch.setattr(Exploration, name, lambda *_: None)
    monkeypatch.chdir(tmp_path)
    trials = "1" if family == "pruned" else "2"
    words = ["search", "--teacher", str(teacher), *typed_files(tmp_path), "--trials", trials, "--seed", "3"]
    assert execute([*words, "--device", "cpu", "--threads", "1", "-o", "found"]) == 0
    found = json.loads(Path("found/search.json").read_text())
    winner = next(row for row in found["trials"] if row["trial"] == found["winner"])
    assert winner["rungs"][-1]["share"] == RUNGS[last]
    assert ("--rows" in found["again"]) == (family == "student" and last == 0)
    for command in found["again"].split(" && "):
        program, *options = shlex.split(command)
        assert program == "compress" and execute(options) == 0
    texts = [example.text for example in [*validation_rows(), *pool_rows()]]
    assert compress.load("best").predict(texts) == compress.load("found/best").predict(texts)
    notes = Manifest.read(Path("student/compress.json")).notes
    assert notes.get("recovery", notes)["steps"] == winner["steps"]
    assert family == "student" or winner["steps"] == 18 * RUNGS[last]
    assert ("compress prune" in found["again"]) == (family == "pruned") != Path("found/best.toml").exists()


def test_a_cascade_that_is_faster_is_the_result(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = members(tmp_path)
    stopwatch = {model.name: time_ms for model, time_ms in zip(models, (0.1, 0.5, 2.0), strict=True)}
    monkeypatch.setattr(
        cascade_stage,
        "time_side_by_side",
        lambda directories, *_, **__: [Speed(name, "", 1, 1, stopwatch[name], 1, 1, 1) for name in directories],
    )
    rows = labelled(models[-1], texts(400))
    made = cascade(models, tmp_path / "cascade", validation=rows, device="cpu", threads=1)

    def join(explored: Exploration, folder: Path, winner: Trial | None) -> Joined:
        timing = ShapeTiming(0.2, 50.0, 50.0, 50.0, made.size_bytes, 10.0)
        return Joined(made, explored.judged[:1], timing, ValidationScore(0.9, 1.0, 0.5, 1.5))

    monkeypatch.setattr(search_module, "join", join)
    found = searched(teacher, tmp_path / "found", data(tmp_path, test=test_rows()), trials=1, max_accuracy_drop=100.0)
    best = open_model(tmp_path / "found" / "best")
    assert best.name == "best" and isinstance(best, CascadeDir) and best.thresholds == made.thresholds
    assert found["met"] and found["cascade"]["members"] == list(made.member_names)
    lines = [json.loads(line) for line in (tmp_path / "found" / "results.jsonl").read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"teacher", "cascade"} and found["test"]["rows"] == len(test_rows())
    assert "Faster is a cascade, which is DIR/best" in (tmp_path / "found" / "report.html").read_text()
    assert sorted(path.name for path in (tmp_path / "found").glob("*.toml")) == ["best-1.toml"]


def test_a_cascade_is_made_again_beside_the_teacher_it_was_chosen_against(tmp_path: Path) -> None:
    trials = [
        Trial(number, Shape("ngram", {"buckets": size}, "int8"), ShapeTiming()) for number, size in ((1, 50), (2, 100))
    ]
    score = ValidationScore(0.9, 0.0, 0.0, 0.0)
    for trial in trials:
        trial.add(TrainedRung(LAST, 9, 1.0, 1.0, 1000, score))
    trainer = SimpleNamespace(recipe=lambda shape, rung: (shape.recipe(), None), validation=SimpleNamespace(threads=1))
    asked = Search(
        "t", unlabeled=FileList(("s3://key:secret@b/pool.txt",)), train="a", validation="v", device="cuda", threads=2
    )
    stage: Any = SimpleNamespace(working=tmp_path, output=Path("found"))
    explored: Any = SimpleNamespace(trainer=trainer, budget=SearchBudget(max_accuracy_drop=0.0))
    joined: Any = SimpleNamespace(model=SimpleNamespace(member_names=["one", "two"]))
    said = search_module.making_again(asked, explored, trials, joined, stage).split(" && ")
    assert [command.split()[1] for command in said] == ["distill", "quantize"] * 2 + ["quantize", "cascade"]
    assert "secret" not in said[0] and "--student found/best-1.toml" in said[0]
    assert said[-1] == (
        "compress cascade --model model-1 --model model-2 --model teacher-int8 --output best --validation v "
        "--max-accuracy-drop 0 --device cpu --threads 1"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-1.toml", "best-2.toml"]


def test_the_text_is_labelled_once_and_a_shape_is_built_once(
    teacher: Path, tmp_path: Path, calls: Counter[str]
) -> None:
    found = searched(teacher, tmp_path / "found", data(tmp_path), trials=4)
    shapes_built = {(row["family"], json.dumps(row["options"])) for row in found["trials"]}
    assert calls["label"] == 2 and calls["build_student"] == len(shapes_built)  # the pool, and the gold rows
    assert calls["distill"] == len({(*key, r["share"]) for row in found["trials"] for r in row["rungs"]
                                    for key in [(row["family"], json.dumps(row["options"]))]})  # fmt: skip
    assert not calls["benchmark"] and found["test"] is None
    assert "There is no unbiased figure" in (tmp_path / "found" / "report.md").read_text()


def test_a_shape_that_misses_the_budget_is_never_trained(
    teacher: Path, tmp_path: Path, calls: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    files = typed_files(tmp_path)
    command = ["search", "--teacher", str(teacher), *files, "--trials", "1", "--min-speedup", "1e7"]
    assert execute([*command, "--device", "cpu", "--threads", "1", "-o", str(tmp_path / "found")]) == 1
    said = capsys.readouterr().out
    assert "None was trained. In speed and size the closest is " in said and "where ×10,000,000 was asked" in said
    assert not calls["distill"] and not (tmp_path / "found" / "best").exists()
    found = json.loads((tmp_path / "found" / "search.json").read_text())
    assert found["winner"] is None and not found["front"] and len(found["trials"]) == 10
    assert found["closest"] == max(found["trials"], key=lambda row: row["speedup"])["trial"]
    assert all(row["ended"].startswith("too slow: ×") for row in found["trials"])


def test_a_budget_that_no_student_meets_names_the_closest(teacher: Path, tmp_path: Path) -> None:
    rows = data(tmp_path, validation=[replace(row, label=LABELS[1]) for row in validation_rows()[:7]])
    with fixed_predictions():
        found = searched(teacher, tmp_path / "found", rows, trials=1, max_accuracy_drop=0.0)
    assert found["winner"] is None and found["closest"] == 1 and found["front"] == [1]
    assert not (tmp_path / "found" / "best.toml").exists()
    said = (tmp_path / "found" / "report.md").read_text()
    assert "No student met it. The closest is" in said
    assert Manifest.read(tmp_path / "found" / "compress.json").notes["met"] is False


@contextmanager
def fixed_predictions() -> Iterator[None]:
    """Let the teacher be right on all rows and every student wrong."""
    from compress.searching.making import ValidationRows

    def predicted(self: ValidationRows, directory: Path) -> Any:
        return self.gold if directory == self.teacher.path else 1 - self.gold

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ValidationRows, "predicted", predicted)
        yield


def test_stopped_again_and_again_a_search_goes_on_and_repeats_nothing(
    teacher: Path, tmp_path: Path, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = data(tmp_path, test=test_rows())
    places = [(search_module, "label", (1, 2)), (making, "build_student", (1,)), (making, "distill", (1, 3, 6)),
              (search_module, "benchmark", (1,))]  # fmt: skip
    for module, stopped, when in places:
        original = getattr(module, stopped)
        for nth in when:
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(module, stopped, stopping(original, stopped, calls, nth))
                searched(teacher, tmp_path / "found", rows, trials=4)
            assert not (tmp_path / "found").exists()
    found = searched(teacher, tmp_path / "found", rows, trials=4)
    trained = {(row["family"], json.dumps(row["options"]), r["share"]) for row in found["trials"] for r in row["rungs"]}
    assert calls["label"] == 2 and calls["distill"] == len(trained) and calls["benchmark"] == 1
    assert calls["build_student"] == len({name[:2] for name in trained})
    assert not (tmp_path / ".found.partial").exists() and not (tmp_path / "found" / ".work").exists()


def test_a_time_limit_ends_it(teacher: Path, tmp_path: Path) -> None:
    found = searched(teacher, tmp_path / "found", data(tmp_path), time_limit=4.0)
    assert 0 < len(found["trials"]) < 12 and found["seconds"] < 30
    assert found["winner"] is not None


def test_a_lower_rung_reads_no_more_text_than_its_steps(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "few.toml").write_text(STUDENT.format(name="ngram"))
    monkeypatch.setattr(space, "FAMILIES", {"ngram": Family(str(tmp_path / "few.toml"), OPTIONS["ngram"])})
    original, read = making.distill, []

    def distill(*arguments: Any, **named: Any) -> Any:
        made = original(*arguments, **named)
        read.append((made.manifest.notes["steps"], made.manifest.notes["pool_rows"]))
        return made

    monkeypatch.setattr(making, "distill", distill)
    searched(teacher, tmp_path / "found", data(tmp_path), trials=2)
    assert read[:2] == [(3, 3 * 16), (25, 90)]  # the committed one, whole
    assert read[2:4] == [(3, 3 * 16), (9, 90)]


def test_text_that_is_all_of_the_gold_rows_is_refused(teacher: Path, tmp_path: Path) -> None:
    pool = pool_file(tmp_path / "pool.txt", train_rows())
    with pytest.raises(CompressError, match="all rows of pool.txt are rows of train too"):
        searched(teacher, tmp_path / "found", data(tmp_path, unlabeled=pool))


def test_a_regression_is_searched_too(tmp_path: Path) -> None:
    teacher = write(tmp_path / "regression", classifier("bert", labels=("score",), problem_type="regression"))
    scored = [replace(row, label=str(index % 5)) for index, row in enumerate(train_rows())]
    held = [replace(row, label=str(index % 5)) for index, row in enumerate(validation_rows())]
    found = searched(teacher, tmp_path / "found", data(tmp_path, train=scored, validation=held), trials=1)
    assert found["metric"] == "pearson" and found["winner"] == 1
    assert "score" in compress.load(tmp_path / "found" / "best").predict(["a good film"])[0]


def typed_files(folder: Path) -> list[str]:
    pool_file(folder / "pool.txt")
    train = labelled_file(folder / "train.csv", train_rows())
    validation = labelled_file(folder / "validation.csv", validation_rows())
    return ["--unlabeled", str(folder / "pool.txt"), "--train", str(train), "--validation", str(validation)]


def test_the_command_prints_the_verdict_and_the_command_again(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = typed_files(tmp_path)
    words = ["search", "--teacher", str(teacher), *files, "--trials", "1", "--seed", "3", "--max-accuracy-drop", "100"]
    assert execute([*words, "--device", "cpu", "--threads", "1", "-o", str(tmp_path / "found")]) == 0
    said = capsys.readouterr()
    assert "The fastest student within the budget: " in said.out and "There is no unbiased figure" in said.out
    assert "certainly within 100 points" in said.out and f"model: {tmp_path / 'found' / 'best'}" in said.out
    assert "1 shapes timed" not in said.out and "1: training, rung 3 of 3" in said.err
    again = json.loads((tmp_path / "found" / "search.json").read_text())["again"]
    assert again.startswith("compress distill --teacher ") and "--seed 3" in again and files[1] in again
    assert execute([*words, "-o", str(tmp_path / "found")]) == 2
    assert "already exists; choose another -o or replace it with --force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"train": []}, {}, "a search needs labelled rows of train; give --train FILE"),
        ({"validation": []}, {}, "a search needs labelled rows of validation; give --validation FILE"),
        ({"validation": train_rows()}, {}, "All 40 rows of train also occur in validation"),
        ({"test": validation_rows()}, {}, "also occur in test"),
        ({"test": [Example("new text", None, "great")]}, {}, "which the model does not know"),
        ({"metric": "pearson"}, {}, "metric 'pearson' does not fit classification"),
        ({}, {"min_speedup": -1.0, "trials": 0}, "min_speedup = -1.0 must be above 0; trials = 0 must be at least 1"),
    ],
)
def test_what_cannot_be_searched(
    changes: dict[str, Any], options: dict[str, Any], message: str, teacher: Path, tmp_path: Path
) -> None:
    with pytest.raises(CompressError, match=message):
        searched(teacher, tmp_path / "found", data(tmp_path, **changes), **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pool.txt"]


@pytest.mark.parametrize("role", ["validation", "test"])
def test_rows_that_the_teacher_has_seen_are_refused_before_the_work(role: str, tmp_path: Path) -> None:
    rows = {"validation": validation_rows(), "test": test_rows()}
    teacher = write(tmp_path / "model", classifier("bert"))
    finish(teacher, Manifest(stage="finetune", labels=LABELS, data=tuple(describe_rows({"train": rows[role]}))))
    with pytest.raises(
        CompressError, match=f"the {role} rows are the train rows of .*; give rows that no model has seen with --{role}"
    ):
        searched(teacher, tmp_path / "found", data(tmp_path, **rows))
    assert not (tmp_path / ".found.partial").exists()


def test_taggers_and_graphs_are_refused(teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="tags words, and a search compares classifiers"):
        searched(write(tmp_path / "tagger", tagger()), tmp_path / "found", data(tmp_path))
    compress.export(teacher, tmp_path / "onnx")
    with pytest.raises(CompressError, match="is an ONNX model, from which no student starts"):
        searched(tmp_path / "onnx", tmp_path / "found", data(tmp_path))


@pytest.mark.parametrize("given", ["2", "2d", "-1h", "0s", "9999h", "h", "nan"])
def test_a_time_limit_that_is_no_time(given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "--teacher", "t", *typed_files(tmp_path), "-o", str(tmp_path / "found"), f"--time-limit={given}"]
    assert execute(words) == 2
    assert f"{given!r} is no time of at most 720h; give one such as 30s, 15m or 2h" in capsys.readouterr().err
