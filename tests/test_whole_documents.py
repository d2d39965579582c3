"""Students without positions that read whole documents, through every stage, on tiny models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from compress.benchmarking.benchmark import benchmark
from compress.cli import execute
from compress.data import Example
from compress.errors import CompressError
from compress.inference.native import NativeRunner
from compress.inference.predict import load
from compress.models.batch import Batch
from compress.models.manifest import NATIVE_NAME
from compress.models.model_dir import Model
from compress.recipes import BenchmarkSettings, Choice, Phase
from compress.requests.compression import export, quantize
from compress.requests.labelling import label
from compress.training import teacher_signal
from compress.training.teacher_signal import ActivationRecorder, within_tokens
from tests.support.tiny import cnn, torch_directory
from tests.support.training_data import BILSTM, TRAINING, distilled, pool_rows, train_rows, validation_rows

LENGTH = 9000
NGRAM: dict[str, Any] = {"embedding_size": 16, "buckets": 50, "dense_size": 8, "minimum_count": 1}
CNN: dict[str, Any] = {"embedding_size": 16, "filters": 8, "dense_size": 8, "minimum_count": 1}
STUDENTS = {"ngram": NGRAM, "cnn": CNN}
DOCUMENT = "the plot is good and the end is slow " * 150  # 1,350 tokens, of which the teacher reads 64


def recipe(name: str, **training: Any) -> Any:
    options = Choice(name, options=STUDENTS[name])
    return replace(BILSTM, architecture=options, name=f"tiny-{name}", training=replace(TRAINING, **training))


def documents(rows: list[Example]) -> list[Example]:
    """Return rows whose word is at the end of a text that is longer than the teacher reads."""
    return [replace(row, text=f"{'the plot and the story with its actor ' * 12}{row.text}") for row in rows]


@pytest.mark.parametrize("name", STUDENTS)
def test_a_student_reads_what_its_teacher_does_not(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, pool = torch_directory("bert"), [row.text for row in documents(pool_rows(40))]
    labels = label(teacher, pool, tmp_path / "labels", windows="32,16,max", device="cpu", threads=1)
    given: dict[str, Any] = {"labels": [labels.path], "validation": documents(validation_rows())}
    student = distilled(teacher, recipe(name), tmp_path / "student", max_length=LENGTH, **given)
    assert student.max_length == LENGTH and "truncated" not in student.manifest.notes
    exported = export(student, tmp_path / "onnx")
    int8 = quantize(exported, tmp_path / "int8")
    native = export(int8, tmp_path / "native", format="native")
    plain = distilled(teacher, recipe(name), tmp_path / "plain", **given)
    assert plain.max_length == 32 and plain.manifest.notes["truncated"]
    logits = load(student.path).predict_proba([DOCUMENT])
    for model in (student, exported, int8, native):
        opened = load(model.path)
        assert opened.max_length == LENGTH
        assert "truncated" not in opened.predict(DOCUMENT)
        assert opened.predict_proba([DOCUMENT]) == pytest.approx(logits, abs=0.02)
        cut = opened.predict(8 * DOCUMENT)
        assert cut["unread_tokens"] == 8 * 1350 + 2 - LENGTH
    assert (exported.path / NATIVE_NAME).is_file() and isinstance(load(int8.path).runner, NativeRunner)
    assert json.loads((exported.path / "config.json").read_text())["max_position_embeddings"] == LENGTH
    capsys.readouterr()
    assert execute(["predict", "--model", str(int8.path), DOCUMENT]) == 0
    assert "cut" not in (said := capsys.readouterr()).err and "truncated" not in said.out


def test_a_benchmark_measures_teacher_and_student_by_what_each_reads(tmp_path: Path) -> None:
    teacher = torch_directory("bert")
    given: dict[str, Any] = {"unlabeled": [row.text for row in documents(pool_rows(40))]}
    student = distilled(teacher, recipe("cnn"), tmp_path / "student", max_length=LENGTH, **given)
    rows = documents(train_rows()[:12])
    lines = benchmark(teacher, [student], rows, BenchmarkSettings(rounds=3, batch_sizes=(1,), padded_teacher=False))
    read = {line.kind: (line.max_length, line.truncated_rows) for line in lines if line.runtime == "torch"}
    assert read == {"teacher": (64, 12), "model": (LENGTH, 0)}


def test_windows_of_a_student_are_other_than_whole_documents(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="--windows reads documents whole, and --max-length cuts them; leave one"):
        distilled(
            torch_directory("bert"), recipe("cnn"), tmp_path / "new", unlabeled=["a"], windows="16,8", max_length=LENGTH
        )


@pytest.mark.parametrize("given", [4, 2**20 + 1])
def test_lengths_out_of_range_are_refused(given: int, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match=f"^max_length = {given} must be at (least 8|most 1048576)"):
        distilled(torch_directory("bert"), recipe("cnn"), tmp_path / "new", unlabeled=["a"], max_length=given)
    with pytest.raises(CompressError, match=f"max_length = {given} must be at least 8 and at most 1,048,576, or 0"):
        replace(TRAINING, max_length=given)


def test_a_teacher_that_runs_in_training_reads_the_rows_too(tmp_path: Path) -> None:
    student = replace(recipe("cnn"), phases=(Phase((Choice("logit-mse"),), masking=0.15),))
    given: dict[str, Any] = {"unlabeled": [row.text for row in pool_rows(40)], "validation": validation_rows()}
    with pytest.raises(CompressError, match="its teacher reads 64 tokens: give --max-length 64 or less"):
        distilled(torch_directory("bert"), student, tmp_path / "new", max_length=LENGTH, **given)
    assert not (tmp_path / "new").exists()


def test_a_transformer_reads_no_more_than_its_positions(tmp_path: Path) -> None:
    student = replace(BILSTM, architecture=Choice("transformer", options={"depth": 1}), name="tiny-transformer")
    given: dict[str, Any] = {"unlabeled": [row.text for row in pool_rows(40)], "validation": validation_rows()}
    with pytest.raises(CompressError, match=f"--max-length {LENGTH} is more than the 64 tokens that the student 'tiny"):
        distilled(torch_directory("bert"), student, tmp_path / "new", max_length=LENGTH, **given)
    assert not (tmp_path / "new").exists()


def test_siamese_documents_have_no_container(tmp_path: Path) -> None:
    network = cnn(pairs="siamese", max_position_embeddings=LENGTH)
    tokens = torch_directory("cnn").tokenizer
    tokens.model_max_length = LENGTH
    network.save_pretrained(tmp_path / "torch")
    tokens.save_pretrained(tmp_path / "torch")
    made = export(tmp_path / "torch", tmp_path / "onnx")
    assert made.max_length == LENGTH and not (made.path / NATIVE_NAME).exists()
    said = "it reads more than 8192 tokens, which no tagger and no siamese network does here"
    assert said in made.manifest.notes["native"]
    with pytest.raises(CompressError, match=f"cannot run in the native library: .*{said}; .*or use ONNX"):
        export(tmp_path / "torch", tmp_path / "native", format="native")


def test_batches_of_documents_are_run_in_parts() -> None:
    assert [part.tolist() for part in within_tokens(torch.tensor([3, 90, 5, 1, 4]), 10)] == [[3, 0], [4, 2], [1]]
    assert [part.tolist() for part in within_tokens(torch.tensor([200]), 10)] == [[0]]
    assert [len(part) for part in within_tokens(torch.full((8,), 5), 10)] == [2, 2, 2, 2]


@pytest.mark.parametrize("network", ["cnn", "ngram"])
def test_parts_have_the_logits_and_gradients_of_the_batch(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model.open(torch_directory(network).path).load()
    lengths = torch.tensor([40, 3, 17, 64, 8])
    mask = (torch.arange(64) < lengths[:, None]).long()
    ids = torch.randint(5, model.config.tokenizer_size, (5, 64)) * mask
    batch = Batch(input_ids=ids, attention_mask=mask)
    found = []
    for most in (2**17, 70):
        monkeypatch.setattr(teacher_signal, "NETWORK_TOKENS", most)
        model.zero_grad()
        recorder = ActivationRecorder(model, frozenset())
        assert len(recorder._parts(batch)) == (0 if most > 70 else 3)
        logits, _ = recorder(batch)
        logits.square().sum().backward()
        found.append([logits.detach(), *(one.grad.clone() for one in model.parameters() if one.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
