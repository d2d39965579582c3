"""compress cascade: a directory of models that predicts and is measured as one, and that other stages refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compress import replay
from compress.benchmarking.benchmark import benchmark
from compress.benchmarking.candidates import open_candidates
from compress.benchmarking.worker_main import RequestHandler, write_rows
from compress.cascades import cascade as stage
from compress.cascades.cascade import cascade_verdict
from compress.cli import execute
from compress.data import Example, describe_rows
from compress.errors import CompressError, Unavailable
from compress.evaluation.metrics import confidence
from compress.inference import native
from compress.inference.compute import Compute
from compress.inference.native import NativeRunner
from compress.inference.predict import load
from compress.inference.runners import NATIVE, Speed, load_runner, serving_runtime
from compress.models.manifest import Manifest
from compress.models.model_dir import CASCADE_NAME, MEMBERS, CascadeDir, Model, open_model
from compress.models.output_dir import finish
from compress.recipes import BenchmarkSettings
from compress.requests.compression import cascade, export, quantize
from compress.requests.measuring import report
from tests.support.tiny import GOOD, LABELS, PLAIN, classifier, cnn, write
from tests.support.training_data import labelled_file

CPU = Compute("cpu", threads=1)
PLACE: dict[str, Any] = {"device": "cpu", "threads": 1}
LATENCIES_MS = {"fast": 0.1, "middle": 0.5, "exact": 2.0}


def texts(count: int, kind: str = "row") -> list[Example]:
    return [Example(f"{GOOD[i % 8]} {PLAIN[i % 15]} {PLAIN[i * 7 % 15]} {kind} {i}") for i in range(count)]


def members(folder: Path) -> list[Model]:
    """Write a model and two whose logits differ a little from it, so that they are unsure where they differ."""
    made = []
    for name, noise in (("fast", 0.1), ("middle", 0.03), ("exact", 0.0)):
        model: Any = classifier("bert")
        torch.manual_seed(7)
        with torch.no_grad():
            model.classifier.weight.add_(noise * torch.randn_like(model.classifier.weight))
            model.classifier.weight.mul_(4)
        write(folder / f"{name}-torch", model)
        made.append(export(folder / f"{name}-torch", folder / name))
        finish(made[-1].path, Manifest(stage="export", name=name, labels=LABELS))
    return [Model.open(folder / name) for name in ("fast", "middle", "exact")]


def labelled(model: Model, rows: list[Example]) -> list[Example]:
    """Give rows the labels that a model predicts."""
    found = load(model, compute=CPU).predict(rows)
    return [Example(row.text, None, one["label"]) for row, one in zip(rows, found, strict=True)]


@pytest.fixture(scope="module", autouse=True)
def without_stopwatch() -> Any:
    """Take the stopwatch away: models of one shape take as long."""

    def times(directories: Mapping[str, Path], rows: Any, **options: Any) -> list[Speed]:
        return [Speed(name, "onnxruntime", 1, 1, LATENCIES_MS[name], 1.0, 1.0, 1.0) for name in directories]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "time_side_by_side", times)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    return members(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def made(models: list[Model], tmp_path_factory: pytest.TempPathFactory) -> CascadeDir:
    rows = {"validation": labelled(models[-1], texts(400)), "test": labelled(models[-1], texts(200, "test"))}
    return cascade(models, tmp_path_factory.mktemp("cascade") / "joined", **rows, **PLACE)


def content(made: CascadeDir) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made.path / stage.FOLDER / stage.CONTENT_NAME).read_text())
    return found


def test_each_row_is_answered_by_the_first_that_is_sure(models: list[Model], made: CascadeDir) -> None:
    rows = texts(150, "new")
    names = list(made.member_names)
    assert len(names) > 1 and len(made.thresholds) == len(names) - 1
    logits = {model.name: load_runner(model, CPU).logits(rows) for model in models}
    probabilities = {name: torch.tensor(own).double().softmax(1).numpy() for name, own in logits.items()}
    expected = []
    for row in range(len(rows)):
        sure = zip(names, (*made.thresholds, 0.0), strict=True)
        name = next(name for name, threshold in sure if probabilities[name][row].max() >= threshold)
        expected.append(LABELS[int(probabilities[name][row].argmax())])
    assert [one["label"] for one in load(made.path, compute=CPU).predict(rows)] == expected
    assert {one["label"] for one in load(made.path, compute=CPU).predict(rows)} == set(LABELS)


def test_members_that_the_native_library_runs_answer_in_it(
    models: list[Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("compress.inference.native._core")
    rows = texts(64)
    first = export(write(tmp_path / "torch", cnn(labels=LABELS)), tmp_path / "fast")
    pair = [first, models[-1]]
    sure = confidence(load_runner(first, CPU).logits(rows))
    made = CascadeDir(tmp_path / "joined", Manifest(stage="cascade", labels=LABELS))
    for number, model in enumerate(pair, 1):
        shutil.copytree(model.path, made.path / MEMBERS / str(number))
    choice = {"members": ["fast", "exact"], "thresholds": [float(np.median(sure))]}
    (made.path / CASCADE_NAME).write_text(json.dumps(choice))
    monkeypatch.setattr(native, "native_core", absent)
    graphs = load(made, compute=CPU)
    assert not graphs.runner.tokenizer_inside
    monkeypatch.undo()
    joined = load(made, compute=CPU)
    assert isinstance(joined.runner.members[0], NativeRunner) and serving_runtime(made) == NATIVE
    given = [*(row.text for row in rows), "good " * 300]
    expected, found = graphs.predict(given), joined.predict(given)
    assert [one["label"] for one in found] == [one["label"] for one in expected]
    assert [one.get("unread_tokens") for one in found] == [one.get("unread_tokens") for one in expected]
    assert found[-1]["truncated"] and found[-1]["unread_tokens"] > 0
    for text, one, other in zip(given, found, expected, strict=True):
        assert joined.predict(text) == one and one["probability"] == pytest.approx(other["probability"], abs=2e-4)
    with pytest.raises(CompressError, match="neither a text"):
        joined.predict(["a film", 3])


def test_a_cascade_with_a_native_member_is_measured_by_its_texts(models: list[Model], tmp_path: Path) -> None:
    pytest.importorskip("compress.inference.native._core")
    last = export(write(tmp_path / "torch", cnn(labels=LABELS)), tmp_path / "fast")
    made = CascadeDir(tmp_path / "joined", Manifest(stage="cascade", labels=LABELS))
    for number, model in enumerate((models[-1], last), 1):
        shutil.copytree(model.path, made.path / MEMBERS / str(number))
    (made.path / CASCADE_NAME).write_text(json.dumps({"members": ["exact", "fast"], "thresholds": [0.9]}))
    finish(made.path, Manifest(stage="cascade", labels=LABELS))
    assert load(made, compute=CPU).runner.tokenizer_inside
    rows = [replace(row, label=LABELS[number % len(LABELS)]) for number, row in enumerate(texts(8))]
    settings = BenchmarkSettings(rounds=3, batch_sizes=(1,), lengths=(8,), padded_teacher=False)
    lines = benchmark(tmp_path / "torch", [made.path], rows, settings)
    (line,) = [line for line in lines if line.kind == "cascade"]
    assert (line.runtime, line.length, line.tokenizer_inside, line.tokenize_p50_ms) == (NATIVE, None, True, 0.0)
    write_rows(tmp_path, rows)
    handler = RequestHandler()
    settled = {
        "task": "classification",
        "head": {"id2label": dict(enumerate(LABELS))},
        "cores": (),
        "rows": str(tmp_path),
        "device": "cpu",
    }
    handler.load(folder="runtimes", plugin=NATIVE, directory=str(made.path), threads=2, **settled)
    assert handler.model.compute == Compute("cpu", 2)


def absent() -> Any:
    raise Unavailable("the native library was not built")


def test_what_it_says_is_what_it_does(made: CascadeDir, models: list[Model]) -> None:
    found = content(made)
    for role, rows in (("validation", texts(400)), ("test", texts(200, "test"))):
        gold = [row.label for row in labelled(models[-1], rows)]
        right = [one["label"] == label for one, label in zip(load(made).predict(rows), gold, strict=True)]
        assert found[role]["value"] == pytest.approx(np.mean(right), abs=0.006)  # a row at a threshold
    assert found["validation"]["low"] >= -1.0
    assert found["validation"]["speedup"] > 1 and sum(found["validation"]["answered"]) == pytest.approx(1)
    told = " ".join(cascade_verdict(made))
    assert (
        "These rows took no part in the choice" in told
        and "The rows chose it" in told
        and "interval on these rows is within 1 point. The rows" in told
        and "They neither confirm nor refute that it loses at most 1 point" in told
    )
    page = (made.path / stage.FOLDER / "report.md").read_text()
    assert "What speed costs" in page and "what is left" in page


def test_other_stages_refuse_it(made: CascadeDir, tmp_path: Path, capsys: Any) -> None:
    file = str(labelled_file(tmp_path / "rows.csv", labelled(made.members[-1], texts(30))))
    there = str(made.path)
    for words in (
        ["quantize", "--model", there],
        ["export", "--model", there],
        ["calibrate", "--model", there, "--validation", file],
        ["prune", "--model", there, "--train", file, "--heads", "1"],
        ["label", "--teacher", there, "--unlabeled", file],
        ["distill", "--teacher", there, "--student", "cnn", "--unlabeled", file],
        ["cascade", "--model", there, "--model", str(made.members[0].path), "--validation", file],
    ):
        assert execute([*words, "-o", str(tmp_path / "out")]) == 2, words
        assert "is a cascade of models" in capsys.readouterr().err
    for use in (quantize, export):
        with pytest.raises(CompressError, match="is a cascade of models"):
            use(made, tmp_path / "out")


def test_show_and_predict_take_it(made: CascadeDir, capsys: Any) -> None:
    assert execute(["show", str(made.path)]) == 0
    assert "made by compress cascade" in capsys.readouterr().out
    assert execute(["predict", "--model", str(made.path), "--probabilities", "a good film"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"label", "probability", "probabilities", "text"}


def test_it_is_measured_by_its_mean(made: CascadeDir, models: list[Model], tmp_path: Path) -> None:
    teacher = Model.open(models[-1].path.parent / "exact-torch")
    rows = labelled(models[-1], texts(60, "bench"))
    settings = BenchmarkSettings(rounds=3, batch_sizes=(1, 8), padded_teacher=False, time_limit=1)
    output = tmp_path / "results.jsonl"
    with pytest.raises(CompressError, match="is a cascade, which is no control; give it with --model"):
        open_candidates(teacher, [], [made.path])
    lines = benchmark(teacher, [made.path, models[0]], rows, settings, output=output)
    small, large = (line for line in lines if line.kind == "cascade")
    assert small.members == list(made.member_names) and sum(small.answered) == pytest.approx(1)
    assert small.runtime == "onnxruntime" and small.parameters == sum(one.parameters for one in made.members)
    reference = next(line for line in lines if line.is_reference)
    count = min(small.rounds, reference.rounds)
    spent = [np.sum(line.cost_ms[:count]) for line in (reference, small)]
    assert small.speedup == pytest.approx(spent[0] / spent[1], rel=1e-3)
    assert small.latency_mean_ms == pytest.approx(np.mean(small.latency_ms))
    mean = small.figure("latency_mean_ms")
    assert mean.low <= mean.value <= mean.high
    assert large.predictions == [] and len(small.predictions) == 60
    text = report([output], tmp_path / "report").with_name("report.md").read_text()
    assert "in the median" in text and "the tail is that of its last member" in text
    assert execute(["check", str(output), "--max-accuracy-drop", "99"]) == 0  # cascades are judged as models are
    found = replay(output.with_suffix(".lock.json"), rows, roots=[teacher.path.parent, made.path.parent])
    again = next(line for line in found.lines if line.kind == "cascade")
    assert again.model_sha256 == made.sha256 and again.predictions == small.predictions


def test_files_of_members_are_verified(made: CascadeDir, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.path, copy)
    assert open_model(copy).sha256 == made.sha256
    config = copy / "members" / "1" / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(CompressError, match="its hash differs"):
        open_model(copy)


@pytest.mark.parametrize("thresholds", [[], [1.5], ["0.5"], [0.5] * 9, {"a": 1}, None])
def test_damaged_thresholds_are_refused(thresholds: Any, made: CascadeDir, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.path, copy)
    (copy / "cascade.json").write_text(json.dumps({"members": ["a", "b"], "thresholds": thresholds}))
    with pytest.raises(CompressError, match="no names of 2 to 5 members"):
        open_model(copy, verify=False)


def test_missing_members_are_named(made: CascadeDir, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.path, copy)
    shutil.rmtree(copy / "members" / "1")
    with pytest.raises(CompressError, match="lacks members/1"):
        load(copy)


def test_members_have_to_fit(models: list[Model], tmp_path: Path) -> None:
    rows = labelled(models[-1], texts(40))

    def refused(given: list[Any], says: str) -> None:
        with pytest.raises(CompressError, match=says):
            cascade(given, tmp_path / "out", validation=rows, **PLACE)
        assert not (tmp_path / "out").exists()

    refused(models[:1], "2 to 5 members, not 1")
    refused(models * 2, "2 to 5 members, not 6")
    refused([models[0], models[0]], "one model is given twice")
    others = write(tmp_path / "others", classifier("bert", labels=("a", "b")))
    refused([export(others, tmp_path / "others-onnx"), models[-1]], "the same labels in the same order")
    refused([models[0].path.parent / "fast-torch", models[-1]], "fast-torch is a torch model and .*exact an ONNX one")
    plain = write(tmp_path / "plain", cnn(labels=LABELS))
    alone = export(plain, tmp_path / "alone", format="native")
    refused([alone, models[-1]], "alone is a native model and .*exact an ONNX one.*give the ONNX directories of all")
    refused([plain, alone], "plain is a torch model and .*alone a native one")
    scores = write(tmp_path / "scores", classifier("bert", labels=("score",)))
    refused([scores, scores], "made for regression; only classifiers")


def test_no_cascade_within_the_budget_writes_nothing(models: list[Model], tmp_path: Path) -> None:
    rows = labelled(models[-1], texts(60))
    with pytest.raises(CompressError, match="within 0.1 points.*give more rows, or a larger"):
        cascade(
            models,
            tmp_path / "out",
            validation=rows,
            max_accuracy_drop=0.1,
            **PLACE,
        )
    with pytest.raises(CompressError, match="within 1 point: it is the fastest of them alone"):
        cascade(models[::-1], tmp_path / "out", validation=rows, **PLACE)
    with pytest.raises(CompressError, match="average-precision ranks the probabilities of one; use --metric macro-f1"):
        cascade(models, tmp_path / "out", validation=rows, metric="mean-average-precision", **PLACE)
    assert not [*tmp_path.iterdir()]


def test_a_model_that_is_enough_alone_is_named(models: list[Model], tmp_path: Path) -> None:
    rows = labelled(models[-1], texts(300))
    with pytest.raises(CompressError, match="fast alone is within 100 points of exact.*use it"):
        cascade(models, tmp_path / "out", validation=rows, max_accuracy_drop=100, **PLACE)
    assert not [*tmp_path.iterdir()]


def test_rows_that_a_member_was_trained_on_are_refused(models: list[Model], tmp_path: Path) -> None:
    rows = labelled(models[-1], texts(60))
    trained = tmp_path / "trained"
    shutil.copytree(models[0].path, trained)
    finish(
        trained, Manifest(stage="distill", name="trained", labels=LABELS, data=tuple(describe_rows({"train": rows})))
    )
    with pytest.raises(CompressError, match="the validation rows are the train rows of .*trained"):
        cascade([trained, models[-1]], tmp_path / "out", validation=rows, **PLACE)
    with pytest.raises(CompressError, match="also occur in test.*--drop-overlap"):
        cascade(models, tmp_path / "out", validation=rows, test=rows[:30], **PLACE)


def test_torch_members_make_a_cascade(models: list[Model], tmp_path: Path) -> None:
    folder = models[0].path.parent
    given = [folder / "middle-torch", folder / "exact-torch"]
    rows = labelled(models[-1], texts(300))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            stage,
            "time_side_by_side",
            lambda found, rows, **options: [Speed(n, "torch", 1, 1, 1.0 + 9 * i, 1, 1, 1) for i, n in enumerate(found)],
        )
        made = cascade(given, tmp_path / "out", validation=rows, **PLACE)
    assert not made.is_onnx and made.member_names[-1] == "exact-torch"
    with pytest.raises(CompressError, match="is a cascade of models"):
        made.load()
    assert {one["label"] for one in load(made).predict(texts(50))} == set(LABELS)


def test_a_cascade_that_agrees_says_how_often(models: list[Model], tmp_path: Path) -> None:
    rows: dict[str, Any] = {role: [row.text for row in texts(400, role)] for role in ("validation", "test")}
    made = cascade(models, tmp_path / "joined", agree=0.9, **rows, **PLACE)
    assert len(made.members) == 2 and made.manifest.recipe["agree"] == 0.9
    told = " ".join(cascade_verdict(made))
    found, last = content(made), load(models[-1], compute=CPU)
    same = [
        one["label"] == other["label"]
        for one, other in zip(load(made).predict(rows["test"]), last.predict(rows["test"]), strict=True)
    ]
    assert found["test"]["value"] == pytest.approx(np.mean(same), abs=0.006) and 0.9 < found["test"]["value"] < 1
    assert f"Agreement {100 * found['test']['value']:.2f}% on 400 test rows" in told
    assert "With 95% certainty at least 90% of such answers are the same" in told and "By these rows alone" in told
    refused = {
        0.99: "no model before exact certainly .* give more rows, 368 without a difference",
        0.9999: "--validation has 400 rows, and 99.99% is not certain below 36,887 without a difference",
    }
    for agree, message in refused.items():
        with pytest.raises(CompressError, match=message):
            cascade(models, tmp_path / "other", agree=agree, **rows, **PLACE)
    assert not (tmp_path / "other").exists()


def test_rows_that_agree_need_no_labels_and_are_known_by_them(models: list[Model], tmp_path: Path) -> None:
    """Labels of another task are as good as none; those of the training rows say that these are some."""
    rows = [replace(row, label="other") for row in texts(400)]
    with_labels = labelled_file(tmp_path / "rows.csv", rows)
    (tmp_path / "rows.txt").write_text("\n".join(row.text for row in rows))
    made = [
        cascade(models, tmp_path / f"of-{file.suffix[1:]}", agree=0.9, validation=file, **PLACE)
        for file in (with_labels, tmp_path / "rows.txt")
    ]
    assert made[0].thresholds == made[1].thresholds
    seen = labelled(models[-1], texts(60))
    trained = tmp_path / "trained"
    shutil.copytree(models[0].path, trained)
    data = tuple(describe_rows({"train": seen}))
    finish(trained, Manifest(stage="distill", name="trained", labels=LABELS, data=data))
    file = labelled_file(tmp_path / "seen.csv", seen)
    with pytest.raises(CompressError, match="the validation rows are the train rows of .*trained"):
        cascade([trained, models[-1]], tmp_path / "out", validation=file, agree=0.9, **PLACE)
    with pytest.raises(CompressError, match="none.csv"):
        cascade(models, tmp_path / "out", validation=tmp_path / "none.csv", agree=0.9, **PLACE)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"agree": 1.0}, "must be a share from 0.5 to below 1"),
        ({"agree": 0.9, "max_accuracy_drop": 2.0}, "max_accuracy_drop has no effect"),
        ({"agree": 0.9, "metric": "macro-f1"}, "metric has no effect"),
    ],
)
def test_what_agree_takes(given: dict[str, Any], message: str, models: list[Model]) -> None:
    with pytest.raises(CompressError, match=message):
        cascade(models, validation=texts(40), **given)
