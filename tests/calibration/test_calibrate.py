"""compress calibrate: a model directory with probabilities that are right, thresholds, figures and a page."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compress.benchmarking.candidates import open_candidates
from compress.calibration.calibrate import CALIBRATION_NAME, FOLDER, calibration_verdict
from compress.cli import execute
from compress.data import Example, describe_rows
from compress.errors import CompressError
from compress.evaluation.metrics import probabilities
from compress.inference.batching import logits_of, open_runtime
from compress.inference.compute import Compute
from compress.inference.predict import load
from compress.models.manifest import ONNX_NAME, Manifest
from compress.models.model_dir import Model, check_unseen
from compress.models.output_dir import finish
from compress.requests.compression import calibrate, export, quantize
from tests.support.tiny import GOOD, LABELS, PLAIN, classifier, onnx_directory, torch_directory, write
from tests.support.training_data import labelled_file

CPU = Compute("cpu", threads=1)
PLACE: dict[str, Any] = {"device": "cpu", "threads": 1}
TEMPERATURE = 3.0  # by which the tiny models are too confident


def texts(count: int) -> list[Example]:
    return [Example(f"{GOOD[i % 8]} {PLAIN[i % 15]} {PLAIN[i * 7 % 15]} {i}") for i in range(count)]


def rows_for(model: Model, count: int = 400, seed: int = 0) -> list[Example]:
    """Return rows whose labels are drawn from the model's probabilities at another temperature."""
    rows, rng = texts(count), np.random.default_rng(seed)
    found = probabilities(model_logits(model, rows) / TEMPERATURE)
    labels = (found.cumsum(axis=1) < rng.random((count, 1))).sum(axis=1)
    return [Example(row.text, None, model.labels[label]) for row, label in zip(rows, labels, strict=True)]


def model_logits(model: Model, rows: list[Example]) -> np.ndarray:
    run = open_runtime(model.path, threads=1)
    return logits_of(rows, run, model.tokenizer, max_length=64).astype(float)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.open(write(tmp_path_factory.mktemp("confident") / "model", _confident()))


def _confident() -> Any:
    model: Any = classifier("bert")
    model.classifier.weight.data *= 4
    return model


@pytest.fixture(scope="module", params=["torch", "onnx"])
def calibrated(
    request: pytest.FixtureRequest, teacher: Model, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, Model]:
    """Return a model and what calibration made of it."""
    folder = tmp_path_factory.mktemp(request.param)
    source = teacher if request.param == "torch" else export(teacher, folder / "onnx")
    made = calibrate(source, folder / "out", validation=rows_for(source), accept_at=0.8, **PLACE)
    return source, made


def content(made: Model) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made.path / FOLDER / CALIBRATION_NAME).read_text())
    return found


def test_every_client_gets_calibrated_logits(calibrated: tuple[Model, Model]) -> None:
    source, made = calibrated
    rows, found = texts(30), made.manifest.notes
    assert found["calibration"] == "temperature" and found["temperature"] == pytest.approx(TEMPERATURE, rel=0.25)
    assert model_logits(made, rows) == pytest.approx(model_logits(source, rows) / found["temperature"], abs=1e-4)


def test_probabilities_are_nearer_to_the_labels(calibrated: tuple[Model, Model]) -> None:
    found = content(calibrated[1])
    before, after = found["before"], found["after"]
    assert found["methods"][1]["change"]["high"] < 0
    assert after["calibration_error"]["value"] < before["calibration_error"]["value"] / 2
    assert after["accuracy"] == before["accuracy"]  # a temperature changes no prediction
    assert sum(one["rows"] for one in after["bins"]) == found["rows"] == 400


def test_predict_says_what_is_accepted(calibrated: tuple[Model, Model], capsys: Any) -> None:
    source, made = calibrated
    threshold = made.manifest.notes["acceptance"]["threshold"]
    rows = texts(60)
    confidence = probabilities(model_logits(made, rows)).max(axis=1)
    predictions = load(made, compute=CPU).predict(rows, probabilities=True)
    assert [one["accepted"] for one in predictions] == [value >= threshold for value in confidence]
    assert {one["accepted"] for one in predictions} == {True, False}
    for one in predictions:
        assert list(one["probabilities"]) == list(LABELS) and sum(one["probabilities"].values()) == pytest.approx(1)
        assert one["probabilities"][one["label"]] == one["probability"] == max(one["probabilities"].values())
    assert "accepted" not in load(source, compute=CPU).predict(rows)[0]
    assert execute(["predict", "--model", str(made.path), "--probabilities", "a good film"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"label", "probability", "accepted", "probabilities", "text"}


def test_accepted_predictions_are_right_as_often_as_asked(calibrated: tuple[Model, Model]) -> None:
    source, made = calibrated
    new = rows_for(source, 3000, seed=9)
    predictions = load(made, compute=CPU).predict(new)
    accepted = [one["label"] == row.label for one, row in zip(predictions, new, strict=True) if one["accepted"]]
    assert len(accepted) > 100 and np.mean(accepted) > 0.8


def test_the_page_and_the_terminal_say_the_same(calibrated: tuple[Model, Model]) -> None:
    made = calibrated[1]
    page = (made.path / FOLDER / "report.md").read_text()
    told = calibration_verdict(made)
    assert "lowers the loss" in told[0] and "Accepted are predictions of a confidence of" in told[2]
    assert all(line.split("(")[0] in page for line in told)
    assert {"reliability.svg", "coverage.svg", "methods.csv", "classes.csv"} <= {
        file.name for file in (made.path / FOLDER).iterdir()
    }


def test_the_manifest_says_what_it_was_made_of(calibrated: tuple[Model, Model], teacher: Model) -> None:
    source, made = calibrated
    assert made.manifest.stage == "calibrate"
    assert [(entry["role"], entry["rows"]) for entry in made.manifest.data][-1] == ("validation", 400)
    assert made.manifest.parents[0]["sha256"] == source.sha256
    assert made.parameters == teacher.parameters or made.is_onnx
    found = open_candidates(teacher, [source, made] if source.is_onnx else [made], [])
    assert [one.kind for one in found] == ["teacher", *["model"] * (len(found) - 1)]


def test_graphs_made_of_calibrated_models_are_calibrated(calibrated: tuple[Model, Model], tmp_path: Path) -> None:
    made = calibrated[1]
    if not made.is_onnx:
        graph = export(made, tmp_path / "graph")
        assert model_logits(graph, texts(9)) == pytest.approx(model_logits(made, texts(9)), abs=1e-4)
        assert "acceptance" not in graph.manifest.notes  # of other logits than those that were judged


def test_each_class_has_a_threshold_of_its_own(teacher: Model, tmp_path: Path) -> None:
    rows = rows_for(teacher)
    made = calibrate(teacher, tmp_path / "out", validation=rows, accept_at=0.8, accept_by="class", **PLACE)
    thresholds = made.manifest.notes["acceptance"]["thresholds"]
    found = content(made)["acceptance"]["classes"]
    confidence = probabilities(model_logits(made, rows))
    for one, row in zip(load(made, compute=CPU).predict(rows), confidence, strict=True):
        limit = thresholds[one["label"]]
        assert one["accepted"] is (limit is not None and bool(row.max() >= limit))
    assert any(level and level["at_least"] >= 0.8 for level in found.values())


def test_a_class_that_is_never_certain_is_never_accepted(teacher: Model, tmp_path: Path) -> None:
    predicted = load(teacher, compute=CPU).predict(texts(200))
    rows = [Example(row.text, None, one["label"]) for row, one in zip(texts(200), predicted, strict=True)]
    always = max(LABELS, key=[row.label for row in rows].count)
    other = next(label for label in LABELS if label != always)
    kept = [row for row in rows if row.label == always] + [row for row in rows if row.label == other][:3]
    made = calibrate(teacher, tmp_path / "out", validation=kept, accept_at=0.9, accept_by="class", **PLACE)
    assert made.manifest.notes["acceptance"]["thresholds"][other] is None
    assert {one["accepted"] for one in load(made, compute=CPU).predict(rows) if one["label"] == other} == {False}
    assert "never" in (made.path / FOLDER / "report.md").read_text()


def test_a_calibrated_model_is_left_as_it_is(tmp_path: Path, teacher: Model) -> None:
    rows = texts(400)
    found = probabilities(model_logits(teacher, rows))
    # As often right as it says, but for rounding: every tenth label goes by the other.
    order, labels = np.argsort(found[:, 0]), np.zeros(400, int)
    labels[order] = np.floor(np.cumsum(found[order][:, 1]) + 0.5) - np.floor(
        np.concatenate([[0.0], np.cumsum(found[order][:, 1])[:-1]]) + 0.5
    )
    gold = [Example(row.text, None, LABELS[label]) for row, label in zip(rows, labels, strict=True)]
    made = calibrate(teacher, tmp_path / "out", validation=gold, **PLACE)
    assert made.manifest.notes["temperature"] == pytest.approx(1, abs=0.1)
    assert "acceptance" not in made.manifest.notes


def test_calibrating_again_refers_to_the_first(calibrated: tuple[Model, Model], tmp_path: Path) -> None:
    source, made = calibrated
    again = calibrate(made, tmp_path / "again", validation=rows_for(source, seed=3), **PLACE)
    assert again.manifest.notes["temperature"] == pytest.approx(1, abs=0.3)
    assert "acceptance" not in again.manifest.notes  # which was of the other logits


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "too few rows": ({"rows": 19}, "20 labelled rows or more"),
    "never so often": (
        {"accept_at": 0.999},
        "no confidence is certain to be right 99.9%.*lower --accept-at",
    ),
    "no class so often": ({"accept_at": 0.985, "accept_by": "class"}, "no class of 2|no confidence is certain"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_impossible_requests_write_nothing(name: str, teacher: Model, tmp_path: Path) -> None:
    given, says = FAULTS[name]
    rows = rows_for(teacher)[: given.get("rows", 400)]
    with pytest.raises(CompressError, match=says):
        calibrate(
            teacher,
            tmp_path / "out",
            validation=rows,
            **{name: value for name, value in given.items() if name.startswith("accept")},
            **PLACE,
        )
    assert not [*tmp_path.iterdir()]


def test_models_without_probabilities_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "scores", classifier("bert", labels=("score",)))
    with pytest.raises(CompressError, match="made for regression; only classifiers"):
        calibrate(tmp_path / "scores", tmp_path / "out", validation=[], **PLACE)
    with pytest.raises(CompressError, match="has no probabilities of its labels"):
        load(tmp_path / "scores", compute=CPU).predict(["a film"], probabilities=True)


@pytest.mark.parametrize("role", ["train", "unlabeled"])
def test_rows_that_it_was_trained_on_are_refused(role: str, teacher: Model, tmp_path: Path) -> None:
    rows = rows_for(teacher, 60)
    trained = shutil.copytree(teacher.path, tmp_path / "trained")
    fitted = rows if role == "train" else [Example(row.text) for row in rows]
    finish(
        trained, Manifest(stage="finetune", name="trained", labels=LABELS, data=tuple(describe_rows({role: fitted})))
    )
    with pytest.raises(CompressError, match=f"are the {role} rows of .*trained"):
        calibrate(trained, tmp_path / "out", validation=rows, **PLACE)


def test_copies_of_rows_are_part_of_what_was_read(teacher: Model, tmp_path: Path) -> None:
    rows = rows_for(teacher)
    repeated = [*rows, rows[0]]
    made = calibrate(teacher, tmp_path / "made", validation=repeated, **PLACE)
    with pytest.raises(CompressError, match="are the validation rows of"):
        check_unseen([made], repeated, seen=("validation",))
    for name, fitted in (("as it is", repeated), ("without copies", rows)):
        trained = shutil.copytree(teacher.path, tmp_path / name)
        data = tuple(describe_rows({"train": fitted}))
        finish(trained, Manifest(stage="finetune", name=name, labels=LABELS, data=data))
        with pytest.raises(CompressError, match=f"are the train rows of .*{name}"):
            calibrate(trained, tmp_path / "out", validation=repeated, **PLACE)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--accept-at", "100%"], "is no share between 0% and 100%"),
        (["--accept-at", "95"], "is no share between 0% and 100%"),
        (["--accept-at", "1.2.3"], "is no share between 0% and 100%"),
        (["--accept-by", "class"], "--accept-by changes nothing without --accept-at SHARE; add it"),
    ],
)
def test_mistyped_options_are_refused(words: list[str], says: str, tmp_path: Path, capsys: Any) -> None:
    file = labelled_file(tmp_path / "rows.csv", [Example("a", None, "positive")])
    model = str(torch_directory("bert").path)
    asked = ["calibrate", "--model", model, "--validation", str(file), "-o", str(tmp_path / "out"), *words]
    assert execute(asked) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_manifests_with_other_thresholds_are_refused(calibrated: tuple[Model, Model], tmp_path: Path) -> None:
    for noted in (
        {"by": "overall"},
        {"by": "class", "thresholds": {"negative": 0.5}},
        [],
        {"by": "overall", "threshold": "0.5"},
        {"by": "overall", "threshold": 10**400},
        {"by": "overall", "threshold": 1.5},
    ):
        place = tmp_path / "edited"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(calibrated[1].path, place)
        raw = json.loads((place / "compress.json").read_text())
        raw["notes"]["acceptance"] = noted
        (place / "compress.json").write_text(json.dumps(raw))
        with pytest.raises(CompressError, match="no thresholds that 'compress calibrate' writes"):
            load(place, compute=CPU)


def test_int8_models_are_calibrated(tmp_path: Path) -> None:
    int8 = quantize(onnx_directory("bert"), tmp_path / "int8")
    rows = rows_for(int8, 200)
    rows[::3] = [Example(f"{row.text} {'very ' * 20}slow", None, row.label) for row in rows[::3]]  # of other batches
    made = calibrate(int8, tmp_path / "out", validation=rows, **PLACE)
    assert (made.path / ONNX_NAME).is_file()
    assert Manifest.read(made.path / "compress.json").notes["precision"] == "int8"


def test_copies_count_once(teacher: Model, tmp_path: Path) -> None:
    rows = rows_for(teacher, 30)
    with pytest.raises(CompressError, match="20 labelled rows or more.* has 12 different ones"):
        calibrate(teacher, tmp_path / "out", validation=rows[:12] * 10, **PLACE)


def test_copies_of_other_labels_count_too(teacher: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of two annotators of whom one is always wrong, half of the labels are predicted right at most."""
    rows = rows_for(teacher, 60)
    other = dict(zip(LABELS, reversed(LABELS), strict=True))
    disagreeing = [Example(row.text, None, other[str(row.label)]) for row in rows]
    caplog.set_level(logging.INFO)
    made = calibrate(teacher, tmp_path / "out", validation=[*rows, *disagreeing, *rows[:7]], **PLACE)
    found = {one["name"]: one for one in made.manifest.metrics}["accuracy"]
    assert (found["value"], found["rows"]) == (0.5, 120)
    assert "7 of 127 rows repeat a text with its label and are left out" in caplog.text


def test_labels_of_something_else_are_refused(teacher: Model, tmp_path: Path) -> None:
    rows = texts(100)
    found = load(teacher, compute=CPU).predict(rows)
    other = dict(zip(LABELS, reversed(LABELS), strict=True))
    wrong = [Example(row.text, None, other[one["label"]]) for row, one in zip(rows, found, strict=True)]
    with pytest.raises(CompressError, match="predicts 0.0% of validation right, less than by chance with 2 classes"):
        calibrate(teacher, tmp_path / "out", validation=wrong, **PLACE)
    assert not [*tmp_path.iterdir()]
