"""Pruning end to end: heads that go are gone from the weights, and the curve says what each step cost."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from compress.data import Example
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.inference.predict import predictor
from compress.labelling.label import label
from compress.models.model_dir import ModelDir, load
from compress.models.prunable_units import ffn_widths, heads_per_layer, kept_heads
from compress.pruning import scoring as scoring_module
from compress.pruning import step_timing as step_timing_module
from compress.pruning import targets as targets_module
from compress.pruning.prune import PruningData, prune
from compress.recipes import Pruning
from compress.reporting.pruning_page import view
from compress.surgery.unit_masks import mask_hooks
from compress.training import phases as phases_module
from compress.training.trainer import EpochSampler
from tests.support.tiny import LABELS, PRUNABLE, bilstm, classifier, onnx_directory, physical_layers, write
from tests.support.training_data import TRAINING, pool_file, state, train_rows, validation_rows

pytestmark = pytest.mark.usefixtures("on_torch")
# A head of a model of width 32 with 4 heads: 8 rows of q, k and v with their biases, 8 columns of the output.
PER_HEAD = 3 * (8 * 32 + 8) + 32 * 8
# Queries and keys read the bottleneck of 16, values the whole width.
PER_MOBILEBERT_HEAD = 2 * (4 * 16 + 4) + (4 * 32 + 4) + 16 * 4


SETTINGS: tuple[Any, ...] = (Pruning, PruningData, Compute)


def pruned(model: Path, output: Path, heads: str = "3", **options: Any) -> ModelDir:
    given: dict[str, Any] = {"train": train_rows(), "validation": validation_rows(), "device": "cpu", "threads": 1}
    given |= {"heads": heads, "measure": False, **options}
    named = [{f.name: given.pop(f.name) for f in fields(kind) if f.name in given} for kind in SETTINGS]
    pruning, data, compute = (kind(**chosen) for kind, chosen in zip(SETTINGS, named, strict=True))
    return prune(model, pruning, output, data=data, compute=compute, **given)


def curve(directory: Path) -> list[dict[str, str]]:
    with (directory / "pruning_curve.csv").open(newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.mark.parametrize("family", PRUNABLE)
def test_the_weights_of_the_heads_are_gone(family: str, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", classifier(family), family)
    made = pruned(whole, tmp_path / "small")
    assert made.manifest is not None
    heads = made.manifest.architecture["heads_per_layer"]
    assert sum(heads) == 4 * physical_layers(family) - 3 and min(heads) >= 1
    one = {"mobilebert": PER_MOBILEBERT_HEAD, "modernbert": 4 * 8 * 32}.get(family, PER_HEAD)  # ModernBERT: no biases
    assert made.manifest.architecture["layers"] == 2 and made.manifest.architecture["hidden_size"] == 32
    assert ModelDir.open(whole).parameters - made.parameters == 3 * one
    stored = sum(tensor.numel() for tensor in state(made.path).values())
    assert stored == made.parameters


def test_uneven_heads_are_sliced_where_the_mask_was(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", "5")
    small, tokenizer = load(made.path)
    whole, _ = load(teacher)
    kept = kept_heads(small)
    assert heads_per_layer(small) == [len(heads) for heads in kept] and sum(map(len, kept)) == 3
    inputs = tokenizer([row.text for row in train_rows()], padding=True, return_tensors="pt")
    with torch.no_grad(), mask_hooks(whole) as hooks:
        hooks.mask([[float(head in layer) for head in range(4)] for layer in kept])
        assert (whole(**inputs).logits - small(**inputs).logits).abs().max() <= 1e-5


def test_the_least_important_heads_go(teacher: Path, tmp_path: Path) -> None:
    """In one step without normalisation: the lowest scores of all, by a reference outside of this stage."""
    from compress.pruning.importance import head_importance

    made = pruned(teacher, tmp_path / "small", "3", step=1.0, normalise=False)
    model, tokenizer = load(teacher)
    scores = head_importance(model, [(r.text, r.label or "") for r in train_rows()], tokenizer=tokenizer)
    lowest = np.argsort(scores.flatten().numpy())[:3]
    kept = kept_heads(load(made.path)[0])
    assert {4 * layer + head for layer, heads in enumerate(kept) for head in heads} == set(range(8)) - set(lowest)


def test_scores_are_computed_again_after_every_step(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compress.pruning.criteria import gradient

    masked: list[int] = []
    original = gradient.importance

    def spied(model: Any, batches: Any, masks: Any, **options: Any) -> torch.Tensor:
        masked.append(sum(int((mask == 0).sum()) for mask in masks))
        return original(model, batches, masks, **options)

    monkeypatch.setattr(gradient, "importance", spied)
    pruned(teacher, tmp_path / "small", "5", step=0.25)
    assert masked == [0, 2, 4]


def test_the_curve_as_csv_and_picture(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", "60%", step=0.25)
    rows = curve(made.path)
    assert [int(row["heads_removed"]) for row in rows] == [0, 2, 4, 5]
    assert [int(row["heads_kept"]) for row in rows] == [8, 6, 4, 3]
    assert {row["split"] for row in rows} == {"validation"} and {row["rows"] for row in rows} == {"16"}
    assert {row["metric"] for row in rows} == {"accuracy"} and {row["recovered"] for row in rows} == {"False"}

    def accuracy(directory: Path) -> float:
        answers = predictor(directory, device="cpu", threads=1)(validation_rows())
        return sum(a["label"] == row.label for a, row in zip(answers, validation_rows(), strict=True)) / 16

    assert float(rows[0]["value"]) == accuracy(teacher)
    assert float(rows[-1]["value"]) == accuracy(made.path)
    picture = ElementTree.parse(made.path / "pruning_curve.svg").getroot()
    assert picture.tag.endswith("svg")


def test_without_validation_the_curve_says_that_it_is_drawn_on_train(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", validation=[], examples=10)
    assert {row["split"] for row in curve(made.path)} == {"train (the scoring rows)"}
    assert {row["rows"] for row in curve(made.path)} == {"10"}
    assert made.manifest is not None and made.manifest.metrics[0]["split"] == "train (the scoring rows)"


def test_the_manifest(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", "60%", examples=20, seed=4)
    manifest = made.manifest
    assert manifest is not None
    assert manifest.parents == ({"role": "unpruned", "name": "tiny-bert", "sha256": ModelDir.open(teacher).sha256},)
    assert {"heads": "60%", "criterion": "gradient", "examples": 20, "step": 0.1, "normalise": True}.items() <= (
        manifest.recipe.items()
    )
    assert manifest.notes["removed"] == "5 of 8 heads"
    assert manifest.seeds == {"seed": 4} and manifest.labels == ("negative", "positive")
    assert [(d["role"], d["rows"]) for d in manifest.data] == [("train", 40), ("validation", 16)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small"]
    json.loads((made.path / "config.json").read_text())


def test_recovery_changes_the_weights_but_not_the_heads(teacher: Path, tmp_path: Path) -> None:
    labels = label(teacher, pool_file(tmp_path / "pool.txt"), tmp_path / "labels", threads=1)
    plain = pruned(teacher, tmp_path / "plain")
    made = pruned(teacher, tmp_path / "small", recover=2.0, labels=[labels], training=replace(TRAINING, epochs=9.0))
    assert kept_heads(load(made.path)[0]) == kept_heads(load(plain.path)[0])
    assert not torch.equal(state(made.path)["classifier.weight"], state(plain.path)["classifier.weight"])
    rows = curve(made.path)
    assert [row["recovered"] for row in rows[-2:]] == ["False", "True"]
    assert made.manifest is not None
    assert made.manifest.notes["recovery"]["planned_steps"] == 17  # 2 * (90 + 40) / 16
    assert ("unlabeled", 90) in [(d["role"], d["rows"]) for d in made.manifest.data]
    assert not {".work", "checkpoints"} & {path.name for path in made.path.iterdir()}


def test_recovery_brings_the_pruned_model_nearer_to_the_whole_one(teacher: Path, tmp_path: Path) -> None:
    labels = label(teacher, pool_file(tmp_path / "pool.txt"), tmp_path / "labels", threads=1)
    plain = pruned(teacher, tmp_path / "plain", "4")
    longer = replace(TRAINING, learning_rate=2e-3, evaluations=1)
    made = pruned(teacher, tmp_path / "small", "4", recover=10.0, labels=[labels], training=longer)

    def distance(directory: Path) -> float:
        model, tokenizer = load(directory)
        inputs = tokenizer([e.text for e, _ in labels], padding=True, return_tensors="pt")
        with torch.no_grad():
            return float((model(**inputs).logits - torch.tensor(np.stack([z for _, z in labels]))).pow(2).mean())

    assert distance(made.path) < 0.7 * distance(plain.path)


def test_a_pruned_model_can_be_pruned_again(teacher: Path, tmp_path: Path) -> None:
    once = pruned(teacher, tmp_path / "once", "3")
    twice = pruned(once.path, tmp_path / "twice", "2")
    first, second = kept_heads(load(once.path)[0]), kept_heads(load(twice.path)[0])
    assert all(set(later) <= set(earlier) for earlier, later in zip(first, second, strict=True))
    assert sum(map(len, second)) == 3 and once.parameters - twice.parameters == 2 * PER_HEAD
    assert twice.manifest is not None and twice.manifest.parents[0]["sha256"] == once.sha256


def test_a_regression_can_be_pruned(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", classifier("bert", labels=("score",)))
    rows = [replace(row, label=f"{index / 4:.2f}") for index, row in enumerate(train_rows())]
    held = [replace(row, label=f"{index / 4:.2f}") for index, row in enumerate(validation_rows())]
    made = pruned(whole, tmp_path / "small", train=rows, validation=held)
    assert {row["metric"] for row in curve(made.path)} == {"pearson"} and made.task == "regression"


def test_texts_longer_than_the_model_can_read_are_cut(teacher: Path, tmp_path: Path) -> None:
    rows = [replace(row, text=f"{row.text} " + "film " * 90) for row in train_rows()]
    made = pruned(teacher, tmp_path / "small", train=rows, recover=1.0, training=replace(TRAINING, max_length=128))
    assert made.manifest is not None and made.manifest.notes["removed"] == "3 of 8 heads"


def test_random_is_a_criterion(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", criterion="random")
    assert made.manifest is not None and made.manifest.recipe["criterion"] == "random"


def test_a_stopped_recovery_keeps_the_decision(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"recover": 1.0, "training": TRAINING}

    def stop(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(phases_module, "fit", stop)
        with pytest.raises(KeyboardInterrupt):
            pruned(teacher, tmp_path / "small", **options)
    assert not (tmp_path / "small").exists()
    monkeypatch.setattr(targets_module, "removal_path", stop)  # would be scored again
    assert pruned(teacher, tmp_path / "small", **options).manifest is not None


@pytest.mark.parametrize(
    ("heads", "options", "message"),
    [
        ("7", {}, "each of its 2 layers keeps at least one"),
        ("160%", {}, "is not between 0% and 100%"),
        ("abc", {}, "neither a share nor a count"),
        ("2", {"criterion": "gradeint"}, "Did you mean 'gradient'"),
        ("2", {"examples": 0}, "--examples 0 is not a number of rows"),
        ("2", {"step": 0.0}, "--step 0.0 is not a share"),
        ("2", {"step": 1.5}, "--step 1.5 is not a share"),
        ("2", {"recover": -1.0}, "--recover -1.0 is not a number of epochs"),
        ("2", {"recover": 1.0, "validation": []}, "--recover needs rows to select the checkpoint by"),
        ("2", {"train": []}, "no rows to score the heads on"),
        ("2", {"train": [Example("a b", None, "great")]}, "which the model does not know"),
        ("2", {"validation": train_rows()[:4]}, "drop-overlap"),
        ("2", {"metric": "pearson"}, "pearson"),
    ],
)
def test_what_cannot_be_pruned(
    heads: str, options: dict[str, Any], message: str, teacher: Path, tmp_path: Path
) -> None:
    with pytest.raises(CompressError, match=message):
        pruned(teacher, tmp_path / "out", heads, **options)
    assert list(tmp_path.iterdir()) == []


def test_labels_without_recovery_or_of_another_teacher(teacher: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", classifier("bert", seed=9))
    labels = label(other, pool_file(tmp_path / "pool.txt"), tmp_path / "labels", threads=1)
    with pytest.raises(CompressError, match="--labels is for recovery"):
        pruned(teacher, tmp_path / "out", labels=[labels])
    with pytest.raises(CompressError, match="which is neither tiny-bert nor its teacher"):
        pruned(teacher, tmp_path / "out", labels=[labels], recover=1.0)


def test_a_model_without_heads_and_an_onnx_model(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="heads of a 'compress-bilstm' model are not known to compress"):
        pruned(write(tmp_path / "bilstm", bilstm()), tmp_path / "out")
    with pytest.raises(CompressError, match="is an ONNX model"):
        pruned(onnx_directory("bert").path, tmp_path / "out")


# Everything else that can be removed


def content(made: ModelDir) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made.path / "pruning.json").read_text())
    return found


def test_neurons_are_removed_in_multiples_uneven_over_the_layers(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", "", ffn="45%", multiple=8, step=0.5, normalise=False)
    widths = load(made.path)[0].config.ffn_per_layer
    assert sum(widths) == 72 and all(width % 8 == 0 for width in widths)  # 70.4 stay of 128
    assert made.manifest is not None and made.manifest.notes["removed"] == "56 of 128 neurons"
    assert ModelDir.open(teacher).parameters - made.parameters == 56 * (32 + 1 + 32)
    rows = curve(made.path)
    assert [int(row["neurons_removed"]) for row in rows] == [0, 56]  # 45% is the nearest to half a step
    assert [row["chosen"] for row in rows] == ["False", "True"]


def test_the_least_important_neurons_go(teacher: Path, tmp_path: Path) -> None:
    """By a reference outside of this stage, in one step."""
    from compress.pruning.importance import head_importance

    made = pruned(teacher, tmp_path / "small", "", ffn="25%", multiple=1, step=1.0, normalise=False)
    model, tokenizer = load(teacher)
    rows = [(r.text, r.label or "") for r in train_rows()]
    scores = head_importance(model, rows, tokenizer=tokenizer, part="neurons")
    lowest = set(np.argsort(scores.flatten().numpy(), kind="stable")[:32].tolist())
    small = load(made.path)[0]
    for layer in range(2):
        stay = [neuron for neuron in range(64) if 64 * layer + neuron not in lowest]
        whole, cut = (one.bert.encoder.layer[layer].intermediate.dense.weight for one in (model, small))
        assert torch.equal(whole[stay], cut)


@pytest.mark.parametrize("family", [family for family in PRUNABLE if family != "mobilebert"])
def test_heads_and_neurons_go_together(family: str, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", classifier(family), family)
    made = pruned(whole, tmp_path / "small", "25%", ffn="50%", multiple=16, step=0.5)
    architecture = made.manifest.architecture if made.manifest else {}
    layers = physical_layers(family)
    assert sum(architecture["heads_per_layer"]) == 3 * layers and sum(architecture["ffn_per_layer"]) == 32 * layers
    cuts = content(made)["cuts"]
    assert [cut["removal"] for cut in cuts] == ["nothing", "heads", "neurons"]
    assert cuts[0]["parameters"] > cuts[1]["parameters"] > cuts[2]["parameters"] == made.parameters
    if cuts[0]["flops"] is not None:
        assert cuts[0]["flops"] > cuts[1]["flops"] > cuts[2]["flops"]


def test_all_removals_in_one_command_and_one_recovery(teacher: Path, tmp_path: Path) -> None:
    corpus = [Example(row.text) for row in validation_rows()[:6]]
    labels = label(teacher, pool_file(tmp_path / "pool.txt"), tmp_path / "labels", threads=1)
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
    assert made.manifest is not None
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


def test_the_layer_that_is_missed_least_goes(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", "", layers="1")
    model, tokenizer = load(teacher)
    losses = []
    for gone in range(2):
        shallow = deepcopy(model)
        del shallow.bert.encoder.layer[gone]
        inputs = tokenizer([row.text for row in train_rows()], padding=True, return_tensors="pt")
        gold = torch.tensor([["negative", "positive"].index(row.label or "") for row in train_rows()])
        with torch.no_grad():
            losses.append(float(torch.nn.functional.cross_entropy(shallow(**inputs).logits, gold)))
    small = load(made.path)[0]
    assert small.config.kept_layers == [1 - int(np.argmin(losses))]
    assert type(small).__name__ == "BertForSequenceClassification"  # a stock class holds it
    assert content(made)["layers"][0]["loss"] == pytest.approx(min(losses), rel=1e-4)
    assert not (made.path / "pruning_curve.csv").exists()


def test_a_limit_of_accuracy_stops_the_path_where_the_interval_falls_below_it(teacher: Path, tmp_path: Path) -> None:
    path = [float(row["low"]) for row in curve(pruned(teacher, tmp_path / "far", "6", step=0.125).path)]
    limit = -(path[1] + min(path)) / 2  # some step, and not the first, goes beyond it
    made = pruned(teacher, tmp_path / "small", "max", step=0.125, max_accuracy_drop=limit)
    rows = curve(made.path)
    taken = [row["chosen"] for row in rows].index("True")
    lows = [float(row["low"]) for row in rows]
    assert lows == path[: len(lows)] and len(lows) == taken + 2
    assert min(lows[: taken + 1]) >= -limit > lows[taken + 1]
    assert sum(heads_per_layer(load(made.path)[0])) == int(rows[taken]["heads_kept"]) < 8


def test_a_limit_that_no_step_keeps_is_said(teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match=r"drop 0.1 allows nothing: the first step is .* 16 rows of val"):
        pruned(teacher, tmp_path / "small", "", max_accuracy_drop=0.1)
    assert not (tmp_path / "small").exists()


def timed(monkeypatch: pytest.MonkeyPatch, latency: Any) -> list[Path]:
    """Let a model be as fast as ``latency`` of its heads and neurons says; return what was timed."""
    asked: list[Path] = []

    def fake(directories: dict[str, Path], rows: Any, *, runtime: str, threads: int, batch_sizes: Any) -> list[Any]:
        found = []
        for name, place in directories.items():
            model, _ = load(place)
            value = latency(sum(heads_per_layer(model)), sum(ffn_widths(model)))
            ratio = latency(8, 128) / value
            found.append(step_timing_module.Speed(name, runtime, threads, batch_sizes[0], value, ratio, ratio, ratio))
        asked.append(place)
        return found

    monkeypatch.setattr(step_timing_module, "time_side_by_side", fake)
    monkeypatch.setattr(step_timing_module, "directory_for", lambda runtime, directory: directory)
    return asked


def test_a_speed_is_reached_with_the_fewest_removals(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = timed(monkeypatch, lambda heads, neurons: 10.0 + heads + neurons / 4)  # 50 at first
    made = pruned(teacher, tmp_path / "small", "", speedup=1.5, step=0.125, multiple=8)
    model, _ = load(made.path)
    heads, neurons = sum(heads_per_layer(model)), sum(ffn_widths(model))
    rows = curve(made.path)
    reached = [50 / (10 + int(row["heads_kept"]) + int(row["neurons_kept"]) / 4) >= 1.5 for row in rows]
    taken = reached.index(True)
    assert (heads, neurons) == (int(rows[taken]["heads_kept"]), int(rows[taken]["neurons_kept"]))
    assert rows[taken]["chosen"] == "True" and 1 <= len(asked) <= 4


def test_a_speed_out_of_reach_is_said(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, lambda heads, neurons: 10.0 + heads)
    with pytest.raises(CompressError, match=r"--speedup 3 is out of reach: .* x1.50 \(1.50 to 1.50\) as fast here at"):
        pruned(teacher, tmp_path / "small", "max", speedup=3.0)


def test_a_speed_is_measured_again_on_a_busy_host_and_refused_on_one_that_stays_busy(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, lambda heads, neurons: 10.0 + heads + neurons / 4)
    quiet, busy, asked = step_timing_module.time_side_by_side, 2, []

    def disturbed(*given: Any, **named: Any) -> list[Any]:
        asked.append(1)
        found = quiet(*given, **named)
        return [replace(speed, speedup=9.0, low=1.0, high=9.0) if len(asked) <= busy else speed for speed in found]

    monkeypatch.setattr(step_timing_module, "time_side_by_side", disturbed)
    calm = pruned(teacher, tmp_path / "calm", "", speedup=1.5, step=0.125, multiple=8)
    assert content(calm)["target"]["low"] >= 1.5, "the two disturbed turns decided nothing"
    busy, before = 99, len(asked)
    with pytest.raises(CompressError, match=r"too busy to tell how fast .* x9.00, but from 1.00 to 9.00, in"):
        pruned(teacher, tmp_path / "small", "", speedup=1.5, step=0.125, multiple=8)
    assert len(asked) == before + 3
    busy = 0
    again = pruned(teacher, tmp_path / "small", "", speedup=1.5, step=0.125, multiple=8)
    assert heads_per_layer(load(again.path)[0]) == heads_per_layer(load(calm.path)[0])


def test_cubic_schedule_masks_during_recovery(teacher: Path, tmp_path: Path) -> None:
    longer = replace(TRAINING, max_steps=20, learning_rate=1e-3)
    made = pruned(
        teacher,
        tmp_path / "small",
        "50%",
        ffn="50%",
        multiple=8,
        schedule="cubic",
        recover=9.0,
        training=longer,
        hidden="25%",
    )
    model, _ = load(made.path)
    assert sum(heads_per_layer(model)) == 4 and sum(ffn_widths(model)) == 64 and model.config.hidden_size == 24
    assert made.manifest is not None and made.manifest.notes["recovery"]["planned_steps"] == 8  # 12 masked the units
    assert [cut["removal"] for cut in content(made)["cuts"]] == ["nothing", "heads", "neurons", "hidden", "recovery"]
    assert not (made.path / "pruning_curve.csv").exists() and not (made.path / ".work").exists()


def test_cubic_schedule_has_a_constant_rate_and_its_own_row_order(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, rates, read = phases_module.train, list[str](), list[list[int]]()

    def spied(*given: Any, **named: Any) -> Any:
        rates.append(named["training"].schedule)
        read.append([])
        return original(*given, **named)

    def recorded(self: EpochSampler) -> Iterator[int]:
        rows = list(in_order(self))
        read[-1] += rows
        return iter(rows)

    in_order = EpochSampler.__iter__
    monkeypatch.setattr(phases_module, "train", spied)
    monkeypatch.setattr(EpochSampler, "__iter__", recorded)
    pruned(teacher, tmp_path / "small", "50%", schedule="cubic", recover=1.0, training=TRAINING)
    assert rates == ["constant", "linear"]
    assert sorted(read[0]) == sorted(read[1]) and read[0][:8] != read[1][:8]


def test_a_stopped_recovery_keeps_the_masks(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"schedule": "cubic", "recover": 9.0, "training": replace(TRAINING, max_steps=10)}
    straight = pruned(teacher, tmp_path / "straight", **options)
    original, calls = phases_module.fit, list[int]()

    def stopped(*given: Any, **named: Any) -> Any:
        calls.append(named["training"].max_steps)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*given, **named)

    monkeypatch.setattr(phases_module, "fit", stopped)
    with pytest.raises(KeyboardInterrupt):
        pruned(teacher, tmp_path / "small", **options)
    again = pruned(teacher, tmp_path / "small", **options)
    assert calls == [6, 4, 4]
    weights = state(straight.path)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in state(again.path).items())


def test_what_is_left_learns_what_the_next_layers_were_fed_with(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = []
    original = phases_module.fit

    def spied(*given: Any, **named: Any) -> Any:
        maps.append(named["phases"][0].losses[1].options)
        return original(*given, **named)

    monkeypatch.setattr(phases_module, "fit", spied)
    whole = write(tmp_path / "whole", classifier("bert", layers=4))
    made = pruned(whole, tmp_path / "small", "", layers="2", recover=1.0, recovery="hidden", training=TRAINING)
    assert made.manifest is not None
    kept = made.manifest.architecture["kept_layers"]
    assert maps == [{"layers": f"{kept[1]},4"}] and len(kept) == 2


def test_an_oracle_that_was_stopped_goes_on_behind_the_last_evaluation(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, asked = scoring_module.value_of, []

    def counted(*arguments: Any) -> float:
        if len(asked) == 11:  # in the second scoring; the first has 9
            monkeypatch.setattr(scoring_module, "value_of", original)
            raise KeyboardInterrupt
        asked.append(1)
        return float(original(*arguments))

    monkeypatch.setattr(scoring_module, "value_of", counted)
    with pytest.raises(KeyboardInterrupt):
        pruned(teacher, tmp_path / "small", "4", criterion="oracle", step=0.25)
    values = tmp_path / ".small.partial" / ".work" / "values.jsonl"
    known = values.read_text().splitlines()
    assert len(known) == 11
    later = []
    monkeypatch.setattr(scoring_module, "value_of", lambda *given: later.append(1) or original(*given))
    made = pruned(teacher, tmp_path / "small", "4", criterion="oracle", step=0.25)
    assert len(later) == (1 + 8) + (1 + 6) - 11
    once = pruned(teacher, tmp_path / "once", "4", criterion="oracle", step=0.25)
    assert kept_heads(load(made.path)[0]) == kept_heads(load(once.path)[0])


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


@pytest.mark.parametrize("recovery", ["hidden", "relations"])
def test_recovery_learns_from_the_inside_too(
    recovery: str, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    original = phases_module.fit

    def spied(*given: Any, **named: Any) -> Any:
        losses.append([choice.name for choice in named["phases"][0].losses])
        return original(*given, **named)

    monkeypatch.setattr(phases_module, "fit", spied)
    corpus = [Example(row.text) for row in train_rows()]
    made = pruned(
        teacher,
        tmp_path / "small",
        "3",
        hidden="25%",
        recover=1.0,
        recovery=recovery,
        training=TRAINING,
        vocabulary=corpus,
    )
    assert losses == [["logit-mse", {"hidden": "hidden-mse", "relations": "relations"}[recovery]]]
    assert made.manifest is not None and made.manifest.notes["recovery"]["steps"] > 0


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("albert", {"layers": "1"}, "an ALBERT has one layer"),
        ("mobilebert", {"ffn": "50%"}, "several feed-forward networks"),
        ("mobilebert", {"hidden": "50%"}, "a mobilebert cannot be made narrower"),
        ("bert", {"layers": "2"}, "removes 2 of the model's 2 layers, but one must stay"),
        ("bert", {"layers": "max"}, "--layers max has no end"),
        ("bert", {"heads": "max"}, "--heads max has no end; give an amount, or --max-accuracy-drop"),
        ("bert", {"ffn": "90%"}, "keeps at least 32; give at most 64"),
        ("bert", {"ffn": "50%", "criterion": "oracle"}, "--criterion oracle scores heads only"),
        ("bert", {}, "nothing to remove"),
        ("bert", {"speedup": 0.5}, "--speedup 0.5 must be above 1"),
        ("bert", {"max_accuracy_drop": -1.0}, "must be above 0 points"),
        ("bert", {"max_accuracy_drop": 1.0, "speedup": 2.0}, "two ends of one path"),
        ("bert", {"heads": "2", "schedule": "cubic"}, "add --recover EPOCHS"),
        ("bert", {"layers": "1", "schedule": "cubic", "recover": 1.0}, "give --heads or --ffn"),
        ("bert", {"heads": "3", "keep_heads": 3}, "removes 3 of the model's 8 heads, but each of its 2 layers keeps"),
        ("bert", {"heads": "2", "multiple": 0}, "--multiple 0 must be 1 or more"),
    ],
)
def test_what_else_cannot_be_pruned(family: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", classifier(family), family)
    with pytest.raises(CompressError, match=message):
        pruned(whole, tmp_path / "out", **{"heads": "", **options})
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_timing_leaves_the_threads_of_the_process_alone(teacher: Path, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        prune(
            teacher,
            Pruning(layers="1"),
            tmp_path / "small",
            data=PruningData(train_rows(), validation_rows()),
            compute=Compute("cpu"),
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_every_layer_comes_down_to_one_width_and_the_model_stays_stock(teacher: Path, tmp_path: Path) -> None:
    made = pruned(teacher, tmp_path / "small", "", ffn="45%", multiple=8, scope="layer")
    small = load(made.path)[0]
    assert small.config.intermediate_size == 32 and ffn_widths(small) == [32, 32]  # 35.2 of 64 stay of each
    assert type(small).__name__ == "BertForSequenceClassification"


def test_a_speed_that_is_there_already_costs_nothing_more(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, lambda heads, neurons: float(heads))
    made = pruned(teacher, tmp_path / "small", "max", layers="1", speedup=1.9)
    assert heads_per_layer(load(made.path)[0]) == [4]
    assert made.manifest is not None and made.manifest.notes["removed"].startswith("1 of 2 layers, 0 of 4 heads")
    assert content(made)["target"]["value"] == 2.0
    assert "Asked for ×1.90 at batch size 1; when it was decided, ×2.00" in (made.path / "report.md").read_text()


def test_another_target_may_be_asked_for_after_one_that_is_out_of_reach(teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="allows nothing"):
        pruned(teacher, tmp_path / "small", "", max_accuracy_drop=0.1)
    assert list(tmp_path.iterdir()) == []
    assert pruned(teacher, tmp_path / "small", "max", max_accuracy_drop=99.0).manifest is not None


def test_layers_that_already_cost_too_much_are_blamed_themselves(teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="is broken before any head or neuron goes: the layers"):
        pruned(teacher, tmp_path / "small", "max", layers="1", max_accuracy_drop=0.1)


def test_the_page_numbers_layers_as_they_were_in_the_model_it_began_with(teacher: Path, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", classifier("bert", layers=3))
    once = pruned(whole, tmp_path / "once", "", layers="1")
    twice = pruned(once.path, tmp_path / "twice", "2")
    with (twice.path / "heads-left.csv").open(newline="") as handle:
        rows = list(csv.reader(handle))[1:]
    heads = heads_per_layer(load(twice.path)[0])
    assert [[int(float(value)) for value in row[1:]] for row in rows] == [[4, left] for left in heads]


def test_heads_that_went_while_training_are_judged_as_they_were_trained(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model that was trained has its neurons masked too, so that both cuts are the same model."""
    longer = replace(TRAINING, max_steps=10)
    made = pruned(
        teacher, tmp_path / "small", "4", ffn="50%", multiple=8, schedule="cubic", recover=9.0, training=longer
    )
    _, heads, neurons, _ = content(made)["cuts"]
    assert heads["value"] == neurons["value"] and heads["trained"] and neurons["trained"]
    assert "weights trained" in (made.path / "report.md").read_text()
    assert content(made)["criterion"] == "gradual-pruning"


def test_a_bilstm_loses_its_vocabulary_only(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", bilstm())
    corpus = [Example(row.text) for row in validation_rows()[:4]]
    made = pruned(whole, tmp_path / "small", "", vocabulary=corpus)
    assert made.parameters < ModelDir.open(whole).parameters and "word pieces" in (made.path / "report.md").read_text()
    with pytest.raises(CompressError, match="the layers of a 'compress-bilstm' model are not known"):
        pruned(whole, tmp_path / "other", "", layers="1")


def test_a_speed_of_a_busy_host_is_not_shown_as_one(teacher: Path, tmp_path: Path) -> None:
    found = content(pruned(teacher, tmp_path / "small", "3", ffn="50%", multiple=8))
    ratios = {"nothing": (1.0, 1.0, 1.0), "heads": (1.3, 1.0, 1.9), "neurons": (1.8, 1.7, 1.9)}
    found["speeds"] = [
        {
            "name": name,
            "runtime": "torch",
            "threads": 1,
            "batch_size": 1,
            "latency_ms": 2.0,
            "speedup": value,
            "low": low,
            "high": high,
        }
        for name, (value, low, high) in ratios.items()
    ]
    page = view(found)
    told = "Batch size 1: ×1.80 (×1.70 to ×1.90) in torch, each against the unpruned model"
    assert any(sentence.startswith(told) for sentence in page.verdict)
    figure = page.figures[0]
    assert [row[3].text for row in figure.rows] == ["×1.00", "too noisy", "×1.80"]
    assert "heads and feed-forward neurons" in figure.picture.wide and "×1.30" not in figure.picture.wide
    found["speeds"][-1]["low"] = 1.0
    assert any("Batch size 1: too noisy (×1.00 to ×1.90) in torch" in sentence for sentence in view(found).verdict)


def test_layers_that_lose_nothing_are_not_drawn(teacher: Path, tmp_path: Path) -> None:
    found = content(pruned(teacher, tmp_path / "small", "3"))
    assert [figure.title for figure in view(found).figures][1:] == ["Step by step", "Heads that are left"]


@pytest.mark.parametrize("role", ["train", "validation"])
def test_a_label_that_the_model_does_not_know_is_named_by_its_row(role: str, teacher: Path, tmp_path: Path) -> None:
    rows = {"train": train_rows(), "validation": validation_rows()}[role]
    rows[6] = replace(rows[6], label="great")
    with pytest.raises(CompressError, match=f"Row 7 of {role} has the label 'great', which the model does not know"):
        pruned(teacher, tmp_path / "out", "2", **{role: rows})


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_who_may_read_what_was_made_is_what_the_umask_says(umask: int, teacher: Path, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        made = pruned(teacher, tmp_path / "small", "3")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in made.path.iterdir()} == {0o666 & ~umask}


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("bert", {"heads": "max", "max_accuracy_drop": 5.0, "validation": []}, "give them with --validation FILE"),
        ("bert", {"heads": "max", "speedup": 1.5, "hidden": "25%"}, "--hidden would change what a target has decided"),
        ("bert", {"heads": "2", "schedule": "cubic", "recover": 1.0, "scope": "layer"}, "--scope would change nothing"),
        ("bert", {"heads": "2", "criterion": "fisher"}, "unknown criterion 'fisher'"),
        ("bert", {"layers": "1", "recovery": "hidden"}, "--recovery changes nothing without --recover EPOCHS"),
        ("bert", {"layers": "1", "speedup_batch_size": 7}, "--speedup-batch-size changes nothing without --speedup"),
        ("bert", {"layers": "1", "criterion": "oracle"}, "--criterion changes nothing without --heads, --ffn or a t"),
        ("bert", {"layers": "1", "recompute": False}, "--no-recompute changes nothing without --heads, --ffn"),
        ("bert", {"heads": "2", "scope": "layer", "normalise": False}, "--no-normalise changes nothing without --scop"),
        ("bert", {"ffn": "50%", "keep_heads": 2}, "--keep-heads changes nothing without --heads"),
        ("bert", {"heads": "2", "multiple": 8}, "--multiple changes nothing without --ffn"),
        ("bert", {"heads": "2", "recover": float("nan")}, "--recover nan is not a number of epochs"),
        ("bert", {"heads": "2", "recover": float("inf")}, "--recover inf is not a number of epochs"),
        ("bert", {"max_accuracy_drop": float("nan")}, "--max-accuracy-drop nan must be above 0 points"),
        ("bert", {"ffn": "3", "multiple": 8}, "--ffn 3 of 128 neurons would remove none: .* of 8; ask for 5 or more"),
        ("bert", {"ffn": "8", "multiple": 16, "scope": "layer"}, "none: all layers come down to one .*; ask for 16 or"),
        ("bert", {"vocabulary": [Example(" ")], "heads": ""}, "the corpus has no text that the tokenizer knows"),
        ("bert", {"layers": "1", "heads": "4"}, "removes 4 of the model's 4 heads"),
        ("bert", {"heads": "50%", "keep_heads": 5}, "--heads 50%: every layer keeps 5 heads, and none has more"),
        ("bert", {"hidden": "1"}, "--hidden 1 of 32 hidden dimensions would remove none: .* of 8; ask for 4 or more"),
        ("bert", {"layers": "1.5"}, "give a share such as 60% or 0.6, or a count such as 2$"),
        ("electra", {"hidden": "50%"}, "is the width of this model's embeddings"),
        ("deberta-v2", {"heads": "2", "recover": 1.0, "recovery": "relations"}, "--recovery relations reads queries"),
        ("modernbert", {"heads": "2", "recover": 1.0, "schedule": "cubic"}, "begin at zero for a model without"),
    ],
)
def test_combinations_that_cannot_be(family: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", classifier(family), family)
    with pytest.raises(CompressError, match=message):
        pruned(whole, tmp_path / "out", **{"heads": "", **options})
    assert list(tmp_path.iterdir()) == [whole], "another request finds nothing in its way"
