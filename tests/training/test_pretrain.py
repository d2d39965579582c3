"""Pre-training end to end: an encoder and unlabelled text become a masked language model, which serves what follows."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

import compress
import compress.training.distill
from compress.cli import execute
from compress.data import Example
from compress.errors import CompressError
from compress.models.components import example_inputs
from compress.models.model_dir import Model
from compress.recipes import Choice, Phase, StudentRecipe, of_phases
from compress.training.architectures import checkpoint
from compress.training.augmenters.masked_lm import augmenter
from compress.training.losses._common import VocabularyHead
from compress.training.pretrain import HEAD_ONLY, check_form, general_part, masked_lm
from compress.training.trainer import DistillationTrainer
from tests.support.tiny import bilstm, classifier, onnx_directory, tokenizer, write
from tests.support.training_data import (
    TRAINING,
    distilled,
    finetuned,
    pool_file,
    pool_rows,
    state,
    stop_at,
    train_rows,
    validation_rows,
)

MLM = Phase((Choice("mlm"),), name="pre-training", text="pool", masking=0.15)
GENERAL = Phase((Choice("hidden-mse"),), name="general", text="pool", teacher="encoder")
SOFT = Phase((Choice("kl"),), name="soft labels", share=3.0)
STUDENT = StudentRecipe(
    description="a tiny student",
    architecture=Choice("transformer", options={"depth": 1}),
    phases=(MLM, SOFT),
    training=replace(TRAINING, epochs=8.0, learning_rate=1e-2, warmup_share=0.0),
    name="tiny-pd",
)
FAMILIES = ("albert", "bert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A body without a head, as the hub has them."""
    path = write(tmp_path_factory.mktemp("encoders") / "tiny-encoder", classifier("bert"))
    AutoModel.from_pretrained(path).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def made(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The student, pre-trained for long enough to have learned something."""
    folder = tmp_path_factory.mktemp("students")
    return trained(encoder, STUDENT, folder / "compact", folder, epochs=30.0)


def trained(encoder: Path, student: Any, output: Path, folder: Path, **options: Any) -> Model:
    pool = options.pop("unlabeled", None) or pool_file(folder / "pool.txt", sentences())
    options = {"device": "cpu", "threads": 1, "unlabeled": pool, **options}
    return compress.pretrain(encoder, output, student=student, **options)


def sentences() -> list[Example]:
    """Text of which every word follows from the one before it, so that a masked one can be guessed."""
    words = "the good film is very bright and moving with a funny story".split()
    return [Example(" ".join(words[(i + step) % 12] for step in range(5 + i % 7))) for i in range(240)]


# What it makes


def test_masked_tokens_are_learned(made: Model) -> None:
    accuracy, loss = made.manifest.metrics
    assert accuracy["name"] == "masked-token accuracy" and accuracy["split"] == "held-out text"
    assert loss["value"] < 0.7 * math.log(len(tokenizer())) and accuracy["value"] > 0.3
    assert accuracy["rows"] > 0 and accuracy["tokens"] > accuracy["rows"] / 2


def test_the_directory_is_an_ordinary_masked_language_model(made: Model, encoder: Path) -> None:
    script = (
        "import sys, json; from transformers import AutoModelForMaskedLM, AutoTokenizer; "
        f"model, found = AutoModelForMaskedLM.from_pretrained({str(made.path)!r}, output_loading_info=True); "
        f"AutoTokenizer.from_pretrained({str(made.path)!r}); tied = model.get_output_embeddings().weight "
        "is model.get_input_embeddings().weight; assert 'compress' not in sys.modules; "
        "print(json.dumps([type(model).__name__, tied, *(sorted(found[k]) for k in ('missing_keys', "
        "'unexpected_keys'))]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == ["BertForMaskedLM", True, [], []]
    assert sorted(path.name for path in made.path.parent.iterdir()) == ["compact", "pool.txt"]
    manifest = made.manifest
    assert manifest.stage == "pretrain" and manifest.task == "fill-mask" and manifest.labels == ()
    assert [(p["role"], p["name"]) for p in manifest.parents] == [("encoder", encoder.name)]
    assert [phase["name"] for phase in manifest.recipe["phases"]] == ["pre-training"]
    assert "id2label" not in made.config and made.config["num_hidden_layers"] == 1
    card = (made.path / "README.md").read_text(encoding="utf-8")
    assert "compress.load" not in card and execute(["show", str(made.path)]) == 0  # it predicts no classes
    assert "pipeline_tag: fill-mask" in card and "AutoModelForMaskedLM" in card and "Labels" not in card


@torch.no_grad()
def test_the_written_model_guesses_words_that_are_masked_by_hand(made: Model) -> None:
    model, tokens = AutoModelForMaskedLM.from_pretrained(made.path).eval(), made.tokenizer
    right = []
    for example in sentences()[:60]:
        ids = torch.tensor([tokens(example.text)["input_ids"]])
        for position in range(1, ids.shape[1] - 1):
            masked = ids.clone()
            masked[0, position] = tokens.mask_token_id
            right.append(int(model(masked).logits[0, position].argmax()) == ids[0, position])
    assert sum(right) / len(right) > 0.5  # by chance one in a hundred


def test_general_distillation_leaves_an_encoder(encoder: Path, tmp_path: Path) -> None:
    student = replace(STUDENT, phases=(GENERAL, SOFT))
    general = trained(encoder, student, tmp_path / "general", tmp_path)
    assert general.manifest.task == "feature-extraction" and general.manifest.metrics == ()
    model, found = AutoModel.from_pretrained(general.path, output_loading_info=True)
    assert type(model).__name__ == "BertModel" and not found["missing_keys"] and not found["unexpected_keys"]
    start = AutoModel.from_pretrained(encoder).state_dict()
    name = "encoder.layer.0.output.dense.weight"
    assert not torch.equal(model.state_dict()[name], start[name])


def test_the_head_of_vocabulary_kl_is_kept(encoder: Path, tmp_path: Path) -> None:
    loss = Choice("vocabulary-kl", options={"mlm": 0.4})
    student = replace(STUDENT, phases=(Phase((loss,), text="pool", teacher="encoder", masking=0.15),))
    kept = trained(encoder, student, tmp_path / "general", tmp_path)
    _, found = AutoModelForMaskedLM.from_pretrained(kept.path, output_loading_info=True)
    assert not found["missing_keys"]
    assert kept.manifest.metrics[1]["value"] < math.log(len(tokenizer()))


def test_a_head_of_an_earlier_phase_is_not_kept(encoder: Path, tmp_path: Path) -> None:
    """The body has moved on since."""
    student = replace(STUDENT, phases=(MLM, GENERAL))
    both = trained(encoder, student, tmp_path / "both", tmp_path, epochs=1.0)
    assert both.manifest.task == "feature-extraction"
    assert [part["steps"] > 0 for part in both.manifest.notes["step_ranges"]] == [True, True]


def test_head_only_keeps_the_encoder(encoder: Path, tmp_path: Path) -> None:
    student = replace(HEAD_ONLY, training=replace(STUDENT.training, epochs=20.0))
    made = trained(encoder, student, tmp_path / "head", tmp_path)
    body, written = state(encoder), state(made.path)
    kept = [name for name in body if not name.startswith("pooler")]
    assert kept and all(torch.equal(body[name], written[f"bert.{name}"]) for name in kept)
    assert made.manifest.metrics[1]["value"] < 0.9 * math.log(len(tokenizer()))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_its_own_head(family: str) -> None:
    student = classifier(family)
    head = VocabularyHead(student)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    whole = masked_lm(student, head)
    inputs = example_inputs(student)
    hidden = student(**inputs, output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(whole(**inputs).logits, head(hidden), rtol=1e-4, atol=1e-4)
    assert whole.get_output_embeddings().weight is whole.get_input_embeddings().weight


def test_students_without_such_a_head_are_refused() -> None:
    with pytest.raises(CompressError, match="'mobilebert' has a head of another form"):
        check_form(classifier("mobilebert"), with_head=True)
    check_form(classifier("mobilebert"), with_head=False)
    with pytest.raises(CompressError, match="'compress-bilstm'"):
        check_form(bilstm(), with_head=False)


# Going on after a stop


def test_a_stopped_run_ends_as_an_undisturbed_one(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = trained(encoder, STUDENT, tmp_path / "whole", tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(19, patch, DistillationTrainer, "training_step")
        trained(encoder, STUDENT, tmp_path / "stopped", tmp_path)
    assert not (tmp_path / "stopped").exists()
    with caplog.at_level("INFO", logger="compress"):
        resumed = trained(encoder, STUDENT, tmp_path / "stopped", tmp_path)
    assert "resuming after checkpoint-" in caplog.text
    first, second = state(whole.path), state(resumed.path)
    assert set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)
    assert resumed.manifest.metrics == whole.manifest.metrics


# What it serves


def test_it_is_fine_tuned_as_any_encoder(made: Model, tmp_path: Path) -> None:
    teacher = finetuned(
        made.path,
        tmp_path / "teacher",
        train=train_rows(),
        validation=validation_rows(),
        training=TRAINING,
        device="cpu",
        threads=1,
    )
    assert teacher.labels == ("negative", "positive")
    assert teacher.manifest.parents[0]["name"] == "compact"


def test_it_is_the_checkpoint_of_a_student(made: Model) -> None:
    built = checkpoint.build(classifier("bert"), tokenizer(), [], model=str(made.path))
    written = state(made.path)
    name = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(built.state_dict()[name], written[name])


def test_it_proposes_words(made: Model) -> None:
    vary = augmenter(made, made.tokenizer, [], model=str(made.path), probability=1.0, candidates=1, device="cpu")
    # After "film" comes "is", after "very" comes "bright": with one candidate that is never the word itself.
    text = vary(Example("the good story is very dull and moving"), random.Random(0)).text
    assert text != "the good story is very dull and moving" and len(text.split()) == 8


def test_it_is_an_encoder_to_pretrain_from(made: Model, tmp_path: Path) -> None:
    again = trained(made.path, STUDENT, tmp_path / "again", tmp_path, epochs=1.0)
    assert again.manifest.parents[0]["sha256"] == made.sha256


# Distillation that starts from it


@pytest.fixture
def taught(teacher: Path, tmp_path: Path) -> Iterator[Any]:
    def teach(student: StudentRecipe, **options: Any) -> Model:
        pool = pool_file(tmp_path / "pool.txt", pool_rows(64))
        return distilled(teacher, student, tmp_path / "student", unlabeled=pool, device="cpu", threads=1, **options)

    yield teach


def test_a_student_starts_from_it(made: Model, taught: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[dict[str, Any]] = []
    fit = compress.training.distill.fit

    def watched(model: Any, *inputs: Any, **named: Any) -> Any:
        begun.append({name: value.clone() for name, value in model.state_dict().items()})
        return fit(model, *inputs, **named)

    monkeypatch.setattr(compress.training.distill, "fit", watched)
    student = taught(replace(STUDENT, training=replace(TRAINING, epochs=4.0)), start=made.path)
    assert {p["role"]: p["name"] for p in student.manifest.parents} == {"teacher": "tiny-bert", "start": "compact"}
    assert [phase["name"] for phase in student.manifest.recipe["phases"]] == ["soft labels"]
    assert student.manifest.notes["planned_steps"] == 12  # 64 rows in 4 epochs of 4 steps, of which 3 of 4 shares
    written = state(made.path)
    body = [name for name in written if name.startswith("bert.")]
    assert len(body) > 10 and all(torch.equal(begun[0][name], written[name]) for name in body)


def test_phases_that_are_left_keep_their_steps(made: Model, taught: Any) -> None:
    """Also where the phase that is left reads gold rows alone."""
    phases = (STUDENT.phases[0], Phase((Choice("hard-label"),), text="gold", share=3.0))
    recipe = replace(STUDENT, phases=phases, training=replace(TRAINING, epochs=4.0))
    student = taught(recipe, start=made.path, train=train_rows(), validation=validation_rows())
    assert student.manifest.notes["planned_steps"] == 20  # 64 and 40 rows in 4 epochs of 6.5 steps, of which 3 shares


def test_another_shape_is_refused(made: Model, taught: Any, tmp_path: Path) -> None:
    deeper = replace(STUDENT, architecture=Choice("transformer", options={"depth": 2}))
    with pytest.raises(CompressError, match="another shape than this student .*layer.1.* is absent"):
        taught(deeper, start=made.path)
    assert not [path for path in tmp_path.iterdir() if "student" in path.name]  # nothing was begun


def test_another_family_is_refused(made: Model, taught: Any) -> None:
    other = replace(STUDENT, architecture=Choice("distilbert", options={"depth": 1}))
    with pytest.raises(CompressError, match="type is bert and not distilbert"):
        taught(other, start=made.path)


def test_only_what_pretrain_made_is_a_start(made: Model, teacher: Path, taught: Any) -> None:
    with pytest.raises(CompressError, match="was not made by 'compress pretrain'"):
        taught(STUDENT, start=teacher)
    with pytest.raises(CompressError, match="no phase of the student .* that --start leaves reads the encoder"):
        taught(STUDENT, start=made.path, encoder=teacher)
    with pytest.raises(CompressError, match="has gone through all phases"):
        taught(replace(STUDENT, phases=(MLM,)), start=made.path)


# What is refused, and how much is done


def test_the_phases_keep_their_part_of_the_steps() -> None:
    part = general_part(STUDENT)
    assert part.phases == (MLM,) and part.training.epochs == 2.0
    assert general_part(STUDENT, 5.0).training.epochs == 5.0
    capped = replace(STUDENT, training=replace(TRAINING, max_steps=9))
    assert of_phases(capped, (SOFT,)).training.max_steps == 7


@pytest.mark.parametrize(
    "phase",
    [
        replace(MLM, text="all"),
        replace(GENERAL, teacher="task"),
        replace(MLM, losses=(*MLM.losses, Choice("shared-projection"))),  # reads the teacher's weights
        Phase((Choice("kl"),), text="pool"),
        Phase((Choice("hard-label"),), text="gold"),
    ],
)
def test_phases_of_a_task_are_not_run(phase: Phase) -> None:
    with pytest.raises(CompressError, match="has no phase that comes before a task.*: .*pd"):
        general_part(replace(STUDENT, phases=(phase,)))


def test_what_cannot_be_read_is_refused(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="ONNX model, which cannot be trained"):
        trained(onnx_directory("bert").path, STUDENT, tmp_path / "out", tmp_path)
    with pytest.raises(CompressError, match="too few different ones to hold some out"):
        few = pool_file(tmp_path / "few.txt", [Example("a film")])
        trained(encoder, STUDENT, tmp_path / "out", tmp_path, unlabeled=few)
    with pytest.raises(CompressError, match="too few different ones to hold some out; give more text"):
        equal = pool_file(tmp_path / "equal.txt", [Example("text 3")])  # its key is among those that are held out
        trained(encoder, STUDENT, tmp_path / "out", tmp_path, unlabeled=equal)
    with pytest.raises(CompressError, match="epochs = 0 must be above 0"):
        trained(encoder, STUDENT, tmp_path / "out", tmp_path, epochs=0)
    without_mask = write(tmp_path / "without", classifier("xlm-roberta"), "xlm-roberta")
    settings = json.loads((without_mask / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["mask_token"] = None
    (without_mask / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(CompressError, match="has no mask token"):
        trained(without_mask, STUDENT, tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists() and not (tmp_path / ".out.partial").exists()


def test_the_command(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool_file(tmp_path / "pool.txt", sentences())
    (tmp_path / "empty.txt").write_text("\n\n", encoding="utf-8")
    common = ["pretrain", "--encoder", str(encoder), "-o", str(tmp_path / "out"), "--device", "cpu", "--threads", "1"]
    assert execute([*common, "--student", "pd", "--head-only", "--unlabeled", str(tmp_path / "pool.txt")]) == 2
    assert "leave one out" in capsys.readouterr().err
    assert execute([*common, "--head-only", "--unlabeled", str(tmp_path / "empty.txt")]) == 2
    assert "empty.txt is empty" in capsys.readouterr().err
    text = ["--unlabeled", str(tmp_path / "pool.txt"), "--rows", "100"]
    assert execute([*common, "--head-only", *text, "--epochs", "1"]) == 0
    assert "masked-token accuracy" in capsys.readouterr().out
    opened = Model.open(tmp_path / "out", classifier=False)
    assert opened.manifest.data[0]["rows"] == 100
    assert execute([*common, *text, "--epochs", "1", "--force"]) == 0
    before, after = state(encoder), state(tmp_path / "out")
    name = "encoder.layer.1.output.dense.weight"
    assert not torch.equal(before[name], after[f"bert.{name}"])
