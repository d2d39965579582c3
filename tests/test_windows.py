"""Documents that are read by windows, through every stage, on tiny models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compress
from compress.benchmarking.benchmark import benchmark
from compress.cli import execute
from compress.data import Example
from compress.data.windows import WINDOWS_KEY, WindowRows, Windows
from compress.errors import CompressError
from compress.inference.batching import BATCH_ROWS, logits_of, open_runtime
from compress.inference.compute import Compute
from compress.inference.native import runs_natively
from compress.inference.predict import load
from compress.inference.runners import LoadedModel, load_runner
from compress.labelling.label import teacher_logits
from compress.labelling.label_dir import LabelDir
from compress.models.manifest import NATIVE_NAME
from compress.recipes import BenchmarkSettings
from compress.requests.compression import export
from compress.requests.labelling import label
from compress.tasks import default
from compress.training.training_data import TrainingRow, tokenized
from tests.support.tagging import sentences, tagger
from tests.support.tiny import classifier, cnn, onnx_directory, torch_directory, write
from tests.support.training_data import (
    TRAINING,
    TRANSFORMER,
    distilled,
    finetuned,
    pool_rows,
    train_rows,
    validation_rows,
)

CPU = Compute("cpu", 1)
SHORT = ["a good film", "dull"]
LONG = ["good film " * 50, "the plot is bad and the end is slow " * 20, *SHORT]


def by_hand(directory: Any, windows: Windows, texts: list[str]) -> np.ndarray:
    """Return the pooled logits of documents, each window of which runs alone."""
    run, tokens = open_runtime(directory.path, threads=1), directory.plain_tokenizer
    found = []
    for text in texts:
        rows = [*WindowRows.of_texts(windows, tokens, [Example(text)])]
        single = [{**{k: ids[None] for k, ids in row.items()}} for row in rows]
        logits = [run({"attention_mask": np.ones_like(one["input_ids"]), **one})[0] for one in single]
        found.append(windows.pool(np.array(logits), [len(rows)])[0])
    return np.array(found)


@pytest.mark.parametrize("pooling", ["mean", "max", "attention"])
@pytest.mark.parametrize("directory", [torch_directory, onnx_directory])
def test_logits_are_those_of_single_windows_pooled(directory: Any, pooling: str) -> None:
    model, windows = directory("bert"), Windows(16, 5, pooling)
    expected = by_hand(model, windows, LONG)
    opened = load(model, compute=CPU).with_windows(str(windows))
    assert opened.runner.logits([*map(Example, LONG)]) == pytest.approx(expected, abs=1e-5)
    runner = opened.runner
    prepared = runner.run(runner.prepare([*map(Example, LONG)]))  # as a benchmark runs them
    assert prepared == pytest.approx(expected, abs=1e-5)


def test_texts_of_one_window_have_the_bits_that_they_have_without() -> None:
    model = load(torch_directory("bert"), compute=CPU)
    examples = [*map(Example, SHORT)]
    assert (model.with_windows("32,8,mean").runner.logits(examples) == model.runner.logits(examples)).all()


def test_batches_hold_windows_whatever_the_documents() -> None:
    sizes, done = list[tuple[int, int]](), list[int]()

    def run(arrays: dict[str, np.ndarray]) -> np.ndarray:
        sizes.append(arrays["input_ids"].shape)
        return np.zeros((len(arrays["input_ids"]), 2), np.float32)

    tokens, documents = torch_directory("bert").plain_tokenizer, [Example("good film " * 2000), Example("dull")] * 3
    logits_of(documents, run, tokens, max_length=0, windows=Windows(16, 7), advance=done.append)
    assert max(sizes)[0] == BATCH_ROWS and max(width for _, width in sizes) == 16
    assert sum(rows for rows, _ in sizes) == 3 * (1 + (4000 - 14 + 6) // 7 + 1) and sum(done) == len(documents)


def test_a_document_that_is_read_whole_is_not_called_cut(capsys: pytest.CaptureFixture[str]) -> None:
    model = load(torch_directory("bert"), compute=CPU)
    assert model.predict(LONG[0])["truncated"] and "truncated" not in model.with_windows("16,8").predict(LONG[0])
    given = ["predict", "--model", str(model.path), "--device", "cpu", LONG[0]]
    assert execute([*given, "--windows", "16,8,max"]) == 0
    out = capsys.readouterr()
    assert "truncated" not in out.out and "cut" not in out.err
    assert execute([*given, "--windows", "16,8,medium"]) == 2
    assert "windows '16,8,medium' are not SIZE,STRIDE,POOLING" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("windows", "said"),
    [("65,8", "windows of 65 tokens are more than the 64 that"), ("16,17,max", "a stride of 17 leaves tokens")],
)
def test_windows_that_a_model_cannot_read_are_refused(windows: str, said: str) -> None:
    with pytest.raises(CompressError, match=said):
        torch_directory("bert").with_windows(windows)


def test_pairs_and_taggers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="^windows are of one text, and these rows are pairs"):
        load(torch_directory("bert"), compute=CPU).with_windows("16,8").predict(("good", "film"))
    tags = compress.load(write(tmp_path / "tagger", tagger()))
    with pytest.raises(CompressError, match="tags words, and windows are of whole texts; leave the windows out"):
        tags.with_windows("16,8")


def test_labels_are_the_pooled_logits_and_say_so(tmp_path: Path) -> None:
    model, windows = torch_directory("bert"), Windows(16, 8, "max")
    made = label(model, LONG, tmp_path / "labels", windows="16,8,max", device="cpu", threads=1)
    assert made.manifest.notes["windows"] == "16,8,max" and "truncated" not in made.manifest.notes
    (found,) = [logits for _, logits in LabelDir.open(made.path).shards.rows_at(np.array([0]))]
    assert found == pytest.approx(by_hand(model, windows, LONG[:1])[0], abs=1e-5)
    direct = teacher_logits(model.with_windows(windows), [*map(Example, LONG)], compute=CPU)
    assert direct[0] == pytest.approx(found, abs=1e-5)
    with pytest.raises(
        CompressError, match="bert reads documents whole, by windows of 16,8,max, and --max-length cuts"
    ):
        label(model, LONG, tmp_path / "other", windows="16,8,max", max_length=16)
    assert not (tmp_path / "other").exists()


def test_an_export_keeps_its_windows_wherever_it_is_opened(tmp_path: Path) -> None:
    model, windows = torch_directory("bert"), Windows(16, 8, "mean")
    made = export(model, tmp_path / "onnx", windows="16,8,mean")
    assert json.loads((made.path / "config.json").read_text())[WINDOWS_KEY] == "16,8,mean"
    again = compress.load(tmp_path / "onnx")
    assert again.windows == windows and again.max_length == 0
    expected = by_hand(model, windows, LONG)
    assert load_runner(again, CPU).logits([*map(Example, LONG)]) == pytest.approx(expected, abs=1e-4)


def test_no_native_container_answers_in_the_place_of_windows(tmp_path: Path) -> None:
    source = write(tmp_path / "cnn", cnn())
    made = export(source, tmp_path / "onnx", windows="16,8,mean")
    assert not (made.path / NATIVE_NAME).exists() and "by windows of 16,8,mean" in made.manifest.notes["native"]
    for form in ("native", "c", "wasm"):
        with pytest.raises(CompressError, match="reads documents by windows of 16,8,mean, and the native library does"):
            export(source, tmp_path / form, format=form, windows="16,8,mean")
    plain = export(source, tmp_path / "plain")
    assert runs_natively(plain) and not runs_natively(plain.with_windows("16,8"))
    assert isinstance(plain.with_windows("16,8").runner, LoadedModel)
    native = export(source, tmp_path / "native", format="native")
    with pytest.raises(CompressError, match="is a native model, which reads no windows; use an ONNX or torch one"):
        native.with_windows("16,8")


def test_a_benchmark_measures_the_teacher_by_its_windows(tmp_path: Path) -> None:
    rows = [Example(text, None, name) for text, name in zip(LONG * 3, ["negative", "positive"] * 6, strict=True)]
    settings = BenchmarkSettings(rounds=3, batch_sizes=(2,), lengths=(16, 100), windows="16,8,mean")
    teacher = torch_directory("bert")
    student = export(teacher, tmp_path / "onnx", windows="16,8,mean")
    lines = benchmark(teacher, [student], rows, settings)
    (own,) = [line for line in lines if line.kind == "teacher" and line.runtime == "torch" and line.length is None]
    one, long = [line for line in lines if line.kind == "teacher" and line.runtime == "torch" and line.length]
    assert own.max_length == 0 and own.flops_per_row
    assert long.flops_per_row == pytest.approx(12 * one.flops_per_row)
    assert (
        own.predictions == teacher.task.predictions(by_hand(teacher, Windows(16, 8), [r.text for r in rows])).tolist()
    )
    assert {line.truncated_rows for line in lines} == {0} and {line.agreement for line in lines} == {1.0}


def test_wrong_windows_of_a_benchmark_are_refused() -> None:
    with pytest.raises(CompressError, match=r"^windows '16' are not SIZE,STRIDE,POOLING"):
        BenchmarkSettings(windows="16")


def test_windows_in_a_foreign_config_are_checked(tmp_path: Path) -> None:
    directory = write(tmp_path / "model", classifier("bert"))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, WINDOWS_KEY: "all of it"}))
    with pytest.raises(CompressError, match="compress_windows in the config.json of .*model: windows 'all of it' are"):
        compress.load(directory)


def long_rows(rows: list[Example]) -> list[Example]:
    """Return rows of several windows, each with its word at the end."""
    return [Example(f"{'the plot and the story with its actor ' * 4}{row.text}", None, row.label) for row in rows]


FINETUNED = replace(TRAINING, batch_size=8, max_length=0)


def test_a_fine_tuned_model_reads_by_its_windows_wherever_it_is_opened(tmp_path: Path) -> None:
    train, validation = long_rows(train_rows()), long_rows(validation_rows())
    made = finetuned(
        torch_directory("bert"),
        tmp_path / "teacher",
        train=train,
        validation=validation,
        training=FINETUNED,
        windows="16,8,max",
    )
    assert made.config[WINDOWS_KEY] == "16,8,max" and made.windows == Windows(16, 8, "max")
    assert "truncated" not in made.manifest.notes and made.manifest.recipe["training"]["max_length"] == 0
    logits = by_hand(made, Windows(16, 8, "max"), [row.text for row in validation])
    gold = made.task.gold(validation, made.labels, "validation")
    (score,) = made.manifest.metrics  # of whole documents, pooled
    assert score["rows"] == len(validation)
    assert score["value"] == pytest.approx((made.task.predictions(logits) == np.array(gold)).mean())
    others = [replace(row, text=f"{row.text} zebra") for row in train]
    calibrated = compress.calibrate(made, tmp_path / "calibrated", validation=others, device="cpu")
    assert calibrated.windows == made.windows
    int8 = compress.quantize(made, tmp_path / "int8", validation=others, threads=1)
    assert int8.windows == made.windows and "truncated" not in int8.manifest.notes
    pruned = compress.prune(made, tmp_path / "pruned", train=train, heads="1", device="cpu", threads=1, measure=False)
    assert pruned.windows == made.windows and "truncated" not in pruned.manifest.notes


def test_windows_train_as_rows_of_their_document(tmp_path: Path) -> None:
    tokens, rows = (
        torch_directory("bert").tokenizer,
        [TrainingRow(Example(text), label=1) for text in [*SHORT, LONG[0]]],
    )
    found = tokenized(
        tmp_path / "rows.arrow", rows, tokens, max_length=16, task=default(), windows=Windows(16, 14), most_windows=5
    )
    assert found["document"][:] == [0, 1, 2, 2, 2, 2, 2] and found["row"][:] == [*range(7)]
    assert found["labels"][:] == [1] * 7 and not any(found["truncated"][:])
    (row, *_) = WindowRows.of_texts(Windows(16, 14), tokens, [Example(SHORT[0])])
    assert found["input_ids"][0] == row["input_ids"].tolist()


def test_a_student_learns_pooled_logits_and_has_no_windows_but_its_own(tmp_path: Path) -> None:
    teacher = torch_directory("bert")
    pool = [row.text for row in long_rows(pool_rows(40))]
    labels = label(teacher, pool, tmp_path / "labels", windows="16,8,mean", device="cpu", threads=1)
    given: dict[str, Any] = {"labels": [labels.path], "train": long_rows(train_rows()[:16])}
    student = distilled(teacher, replace(TRANSFORMER, training=FINETUNED), tmp_path / "plain", **given)
    assert student.windows is None and WINDOWS_KEY not in student.config
    own = distilled(
        teacher, replace(TRANSFORMER, training=FINETUNED), tmp_path / "windows", windows="32,16,attention", **given
    )
    assert own.windows == Windows(32, 16, "attention")
    again = distilled(own, replace(TRANSFORMER, training=FINETUNED), tmp_path / "next", unlabeled=pool)
    assert again.windows is None


@pytest.mark.parametrize("command", ["finetune", "distill"])
def test_windows_and_a_length_exclude_each_other(command: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text,label\na,b\n")
    given = {"finetune": {"train": file, "validation": file}, "distill": {"student": "bilstm", "unlabeled": file}}
    with pytest.raises(CompressError, match="^--windows reads documents whole, and --max-length cuts them"):
        getattr(compress, command)(
            teacher="x", output=tmp_path / "new", windows="16,8", max_length=16, **given[command]
        )


def test_training_refuses_windows_that_do_not_fit(tmp_path: Path) -> None:
    rows: dict[str, Any] = {"train": train_rows(), "validation": validation_rows()}
    with pytest.raises(CompressError, match="windows of 65 tokens are more than the 64 that"):
        finetuned(torch_directory("bert"), tmp_path / "new", windows="65,8", **rows)
    with pytest.raises(CompressError, match="tags words, and windows are of whole texts"):
        words: dict[str, Any] = {"train": sentences(), "validation": sentences(20, seed=9)}
        finetuned(torch_directory("bert"), tmp_path / "new", windows="16,8", overlap="drop", **words)
    assert not (tmp_path / "new").exists()
