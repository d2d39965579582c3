"""The pruning stage as a whole: all removals in one command, tasks, long texts, threads and permissions."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from compress.data import Example
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.labelling.label import choose_runtime
from compress.models.model_dir import Model
from compress.requests.compression import prune
from tests.support.labelling import label
from tests.support.pruning import content, curve, pruned
from tests.support.tiny import LABELS, bilstm, classifier, load, write
from tests.support.training_data import TRAINING, pool_file, train_rows, validation_rows


def test_all_removals_in_one_command_and_one_recovery(teacher: Path, tmp_path: Path) -> None:
    corpus = [Example(row.text) for row in validation_rows()[:6]]
    labels = label(teacher, pool_file(tmp_path / "pool.txt"), tmp_path / "labels", compute=Compute(threads=1))
    made = pruned(
        teacher,
        tmp_path / "small",
        "1",
        ffn="50%",
        layers="1",
        hidden="25%",
        multiple=8,
        vocabulary=corpus,
        validation=validation_rows()[:6],
        recover=1.0,
        labels=[labels],
        training=TRAINING,
        measure=True,
    )
    small, tokenizer = load(made.path)
    architecture = made.manifest.architecture
    assert architecture["layers"] == 1 and architecture["hidden_size"] == 24
    assert architecture["heads_per_layer"] == [3] and architecture["ffn_per_layer"] == [32]
    assert small.config.vocab_size == len(tokenizer) < len(load(teacher)[1])
    found = content(made)
    assert [cut["removal"] for cut in found["cuts"]] == [
        "nothing",
        "vocabulary",
        "layers",
        "heads",
        "neurons",
        "hidden",
        "recovery",
    ]
    assert found["cuts"][1]["points"] == 0.0  # the corpus covers the rows that judge
    assert found["vocabulary"]["fallbacks"]["words_changed"] == 0 == found["vocabulary"]["fallbacks"]["word_share"]
    assert {(s["runtime"], s["batch_size"]) for s in found["speeds"]} == {
        ("torch", 1),
        ("torch", 32),
        ("onnxruntime", 1),
        ("onnxruntime", 32),
    }
    assert [s["name"] for s in found["speeds"][:6]] == ["nothing", "vocabulary", "layers", "heads", "neurons", "hidden"]
    assert all(s["speedup"] == 1 for s in found["speeds"] if s["name"] == "nothing")
    removed = made.manifest.notes["removed"]
    rest = "1 of 2 layers, 1 of 4 heads, 32 of 64 neurons, 8 of 32 hidden dimensions"
    assert re.fullmatch(rf"\d+ of \d+ word pieces, {rest}", removed)
    page = (made.path / "report.md").read_text()
    assert removed in page.replace("\\", "") and "feed-forward neurons" in page
    assert re.search(r"0 of \d+ words of these rows \(0%\), in 0 of 6 texts, are read as other pieces", page)
    assert "These rows also chose the best checkpoint: report on others" in page
    for shape in made.manifest.notes["shapes"]:
        assert "id2label" not in shape["config"]


def test_a_model_without_a_graph_is_timed_in_torch_alone(tmp_path: Path) -> None:
    angles = {"rope_type": "dynamic", "factor": 4.0}
    model = classifier("modernbert", rope_parameters={"full_attention": angles, "sliding_attention": angles})
    made = pruned(write(tmp_path / "whole", model, "modernbert"), tmp_path / "small", measure=True)
    assert {speed["runtime"] for speed in content(made)["speeds"]} == {"torch"}
    assert choose_runtime(made, "cpu") == ("torch", "cpu")


def test_a_regression_of_pairs_can_be_pruned_and_timed(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", classifier("bert", labels=("score",)))
    rows, held = (
        [replace(row, label=f"{index / 4:.2f}", text_pair="a good film") for index, row in enumerate(labelled)]
        for labelled in (train_rows(), validation_rows())
    )
    made = pruned(whole, tmp_path / "small", train=rows, validation=held, measure=True)
    assert {(speed["name"], speed["runtime"]) for speed in content(made)["speeds"]} == {
        (name, runtime) for name in ("nothing", "heads") for runtime in ("torch", "onnxruntime")
    }
    assert {row["metric"] for row in curve(made.path)} == {"pearson"} and made.task == "regression"


def test_texts_longer_than_the_model_can_read_are_cut(teacher: Path, tmp_path: Path) -> None:
    rows = [replace(row, text=f"{row.text} " + "film " * 90) for row in train_rows()]
    made = pruned(teacher, tmp_path / "small", train=rows, recover=1.0, training=replace(TRAINING, max_length=128))
    assert made.manifest.notes["removed"] == "3 of 8 heads"


def test_long_texts_are_scored_and_judged_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from compress.pruning.criteria import gradient

    lengths: list[int] = []
    original = gradient.importance

    def spied(model: Any, batches: list[Any], masks: Any, **options: Any) -> torch.Tensor:
        lengths.extend(batch.input_ids.shape[1] for batch in batches)
        return original(model, batches, masks, **options)

    monkeypatch.setattr(gradient, "importance", spied)
    whole = write(tmp_path / "whole", classifier("bert", max_position_embeddings=300))
    settings = whole / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": 300}))
    ends = ("bad", "good")
    long = [Example(f"{'the film ' * (80 - row)}{ends[row % 2]}", None, LABELS[row % 2]) for row in range(6)]
    found = content(pruned(whole, tmp_path / "small", "2", train=long[:4], validation=long[4:], step=1.0))
    assert lengths == [163] and found["cuts"][0]["tokens"] == 154  # of 155 and 153


def test_timing_leaves_the_threads_of_the_process_alone(teacher: Path, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        prune(teacher, tmp_path / "small", train=train_rows(), validation=validation_rows(), device="cpu", layers="1")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_bilstm_loses_its_vocabulary_only(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", bilstm())
    corpus = [Example(row.text) for row in validation_rows()[:4]]
    made = pruned(whole, tmp_path / "small", "", vocabulary=corpus)
    assert made.parameters < Model.open(whole).parameters and "word pieces" in (made.path / "report.md").read_text()
    with pytest.raises(CompressError, match="the layers of a 'compress-bilstm' model are not known"):
        pruned(whole, tmp_path / "other", "", layers="1")


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_who_may_read_what_was_made_is_what_the_umask_says(umask: int, teacher: Path, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        made = pruned(teacher, tmp_path / "small", "3")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in made.path.iterdir()} == {0o666 & ~umask}
