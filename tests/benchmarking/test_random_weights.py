"""Pruning steps: the shapes between the removals of a pruned model, built with random weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compress.benchmarking.benchmark import benchmark
from compress.benchmarking.candidates import (
    Candidate,
    Entry,
    build_pruning_steps,
    open_candidates,
    plan_pruning_steps,
    pruning_step,
)
from compress.benchmarking.lockfile import lock_path, read_lock
from compress.benchmarking.results.files import Results, results_of
from compress.benchmarking.rounds import workloads_of
from compress.benchmarking.worker import WorkerRun, Workload, groups_of
from compress.cli import execute
from compress.data import Example
from compress.errors import CompressError
from compress.models.manifest import Manifest
from compress.models.model_dir import Model, removals_of
from compress.pruning import prune as prune_module
from compress.recipes import BenchmarkSettings
from compress.reporting.speedup_breakdown import waterfalls
from compress.requests.compression import prune
from tests.support.tiny import PLAIN, classifier, examples, torch_directory, write
from tests.support.training_data import train_rows, validation_rows

ROWS = [Example(f"{row.text} {PLAIN[index % 15]} zebra", None, row.label) for index, row in enumerate(examples(20))]


def small(teacher: Path, output: Path, **options: Any) -> Model:
    given = {"train": train_rows(), "validation": validation_rows(), "device": "cpu", "threads": 1}
    return prune(teacher, output, measure=False, **given, **options)


@pytest.fixture(scope="module")
def half(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Word pieces, a layer of two, a head of four and half of the neurons are gone."""
    pruning = {"heads": "1", "ffn": "50%", "layers": "1", "multiple": 8, "step": 1.0}
    corpus = [Example(row.text) for row in validation_rows()[:6]]
    return small(teacher, tmp_path_factory.mktemp("pruned") / "half", **pruning, vocabulary=corpus)


@pytest.fixture(scope="module")
def measured(teacher: Path, half: Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    output = tmp_path_factory.mktemp("results") / "r.jsonl"
    lines = benchmark(
        teacher,
        [half],
        ROWS,
        BenchmarkSettings(
            pruning_steps=True, runtimes=("onnxruntime",), rounds=3, batch_sizes=(1, 4), padded_teacher=False
        ),
        output=output,
    )
    return output, lines


def test_every_shape_but_the_last_is_measured_in_each_runtime(measured: tuple[Path, list[Any]]) -> None:
    output, lines = measured
    assert Results.open(output) == lines
    found = [one for one in lines if one.kind == "pruning-step"]
    names = [
        "half: fewer word pieces",
        "half: fewer word pieces and layers",
        "half: fewer word pieces, layers and heads",
    ]
    assert [(x.model, x.runtime, x.batch_size) for x in found] == [
        (name, "onnxruntime", size) for name in names for size in (1, 4)
    ]
    assert [x.removals for x in found[::2]] == [
        ["vocabulary"],
        ["vocabulary", "layers"],
        ["vocabulary", "layers", "heads"],
    ]
    pruned = next(x for x in lines if x.model == "half")
    assert pruned.removals == ["vocabulary", "layers", "heads", "neurons"] and pruned.metric is not None
    teacher = next(x for x in lines if x.kind == "teacher")
    assert not teacher.removals
    for one in found:
        assert one.parents == [pruned.model_sha256, teacher.model_sha256]
        assert one.tokenizer_sha256 == pruned.tokenizer_sha256 != teacher.tokenizer_sha256
        assert one.metric is one.metric_name is one.agreement is None and not one.predictions
        assert [len(batches) for batches in one.latency_ms] == [
            len(batches) for batches in next(x for x in lines if x.batch_size == one.batch_size).latency_ms
        ]
        assert one.speedup > 0 and one.speedup_same_runtime > 0 and one.stage == one.recipe == ""
    whole, shallow, narrow = found[::2]
    assert (whole.heads_per_layer, whole.ffn_per_layer) == ([4, 4], [64, 64])
    assert (shallow.heads_per_layer, shallow.ffn_per_layer) == ([4], [64])
    assert (narrow.heads_per_layer, narrow.ffn_per_layer) == ([3], [64])
    assert teacher.parameters > whole.parameters > shallow.parameters > narrow.parameters
    assert narrow.parameters > pruned.parameters
    assert narrow.flops_per_row > pruned.flops_per_row


def test_the_waterfall_has_a_step_for_every_removal(measured: tuple[Path, list[Any]]) -> None:
    lines = measured[1]
    (best,) = [row for row in results_of(lines) if row.small_batch.title == "half in onnxruntime"]
    for found in waterfalls(best, lines):
        assert [step.name for step in found.steps] == [
            "runtime: torch → onnxruntime",
            "smaller vocabulary",
            "layers removed",
            "heads removed",
            "feed-forward neurons removed",
        ]
        assert found.steps[-1].after == "half in onnxruntime, 1 thread"


def test_the_lock_repeats_it(measured: tuple[Path, list[Any]]) -> None:
    lock = read_lock(lock_path(measured[0]))
    assert lock.settings.pruning_steps is True
    assert [model.kind for model in lock.models] == ["teacher", "model"]  # pruning steps are made anew
    assert sum(figure.kind == "pruning-step" for figure in lock.figures) == 6


def candidates(model: Model, teacher: Path) -> list[Candidate]:
    return open_candidates(teacher, [model], [])


def test_a_shape_is_the_same_every_time_and_no_other_models(half: Model, teacher: Path, tmp_path: Path) -> None:
    planned = plan_pruning_steps(candidates(half, teacher))
    once, again = (build_pruning_steps(planned[2:], tmp_path / folder)[0] for folder in ("a", "b"))
    assert once.model.sha256 == again.model.sha256
    assert once.model.labels == half.labels and once.model.config["model_type"] == half.config["model_type"]
    step, config = planned[2]
    named = replace(step, name="other")
    assert build_pruning_steps([(named, config)], tmp_path / "c")[0].model.sha256 != once.model.sha256


@pytest.mark.parametrize("family", ["distilbert", "modernbert"])
def test_shapes_have_the_models_classes_and_recorded_sizes(family: str, tmp_path: Path) -> None:
    teacher = write(tmp_path / "whole", classifier(family), family)
    pruned = small(teacher, tmp_path / "less", heads="3", ffn="50%", hidden="25%", multiple=8, step=1.0)
    planned = plan_pruning_steps(candidates(pruned, teacher))
    assert [one.removals for one, _ in planned] == [("heads",), ("heads", "neurons")]
    built = build_pruning_steps(planned, tmp_path)
    cuts = json.loads((pruned.path / "pruning.json").read_text())["cuts"]
    assert [one.model.parameters for one in built] == [cut["parameters"] for cut in cuts[1:3]]
    for one, cut in zip(built, cuts[1:], strict=False):
        assert one.model.manifest.architecture == cut["architecture"]
        assert one.model.load().config.architectures == Model.open(pruned.path).load().config.architectures


def test_taggers_stay_taggers(tmp_path: Path) -> None:
    from transformers import AutoConfig, BertForTokenClassification

    tags = ("NOUN", "VERB", "X")
    config = torch_directory("bert").load().config.to_diff_dict()
    config = {key: value for key, value in config.items() if key not in {"id2label", "label2id", "problem_type"}}
    labelled = AutoConfig.for_model(**config, id2label=dict(enumerate(tags)))
    tagger = Model.open(write(tmp_path / "tagger", BertForTokenClassification(labelled)))
    candidate = Candidate(tagger, "tagger", "model")
    (built,) = build_pruning_steps([(pruning_step(candidate, ("layers",)), config)], tmp_path)
    assert built.model.task == "tagging" and built.model.labels == tags and built.name == "tagger: fewer layers"


def noted(model: Model, shapes: Any) -> Model:
    return Model(model.path, Manifest(stage="prune", notes={"shapes": shapes}))


def test_recovery_and_the_whole_are_no_removals() -> None:
    shapes = [{"removal": name, "config": {}} for name in ("nothing", "layers", "heads", "recovery")]
    assert removals_of(noted(torch_directory("bert"), shapes)) == ("layers", "heads")
    assert removals_of(torch_directory("bert")) == ()


def test_a_target_that_leaves_neurons_alone_does_not_count_them(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = prune_module.choose_units

    def choose(*arguments: Any, **options: Any) -> Any:
        chosen = original(*arguments, **options)
        chosen["masks"]["neurons"] = [[1] * len(row) for row in chosen["masks"]["neurons"]]
        return chosen

    monkeypatch.setattr(prune_module, "choose_units", choose)
    made = small(teacher, tmp_path / "heads", heads="3", ffn="50%", multiple=8, step=1.0)
    assert made.manifest.architecture["ffn_per_layer"] == [64, 64]
    assert removals_of(made) == ("heads",)


def test_without_two_removals_there_is_nothing_to_take_apart(teacher: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.jsonl"
    with pytest.raises(CompressError, match="--pruning-steps takes two or more removals.*or leave it out"):
        benchmark(teacher, [], ROWS, BenchmarkSettings(pruning_steps=True), output=output)
    data = tmp_path / "data.csv"
    data.write_text("text,label\n" + "".join(f"{row.text},{row.label}\n" for row in ROWS))
    given = ["benchmark", "--teacher", str(teacher), "--model", str(teacher), "--data", str(data)]
    assert execute([*given, "--pruning-steps", "-o", str(output)]) == 2 and not output.exists()


@pytest.mark.parametrize(
    "shapes",
    [{"layers": {}}, ["layers"], [{"removal": "roof", "config": {}}], [{"removal": "layers", "config": "bert"}]],
)
def test_a_manifest_that_no_prune_wrote_is_refused_first(shapes: Any) -> None:
    with pytest.raises(CompressError, match="notes shapes that no 'compress prune' writes"):
        open_candidates(torch_directory("bert"), [noted(torch_directory("pruned-bert"), shapes)], [])


@pytest.mark.parametrize("config", [{}, {"model_type": "no-such-model"}, {"model_type": "bert", "hidden_size": "x"}])
def test_a_shape_that_cannot_be_built_is_the_manifests_fault(config: dict[str, Any], tmp_path: Path) -> None:
    shapes = [{"removal": name, "config": config} for name in ("layers", "heads")]
    opened = open_candidates(torch_directory("bert"), [noted(torch_directory("pruned-bert"), shapes)], [])
    with pytest.raises(
        CompressError, match="fewer layers cannot be built from the manifest.*leave --pruning-steps out"
    ):
        build_pruning_steps(plan_pruning_steps(opened), tmp_path)


def test_pruning_steps_share_group_and_lengths_of_their_model() -> None:
    model = torch_directory("bert")
    teacher, one, other = (
        Candidate(model, name, kind) for name, kind in (("t", "teacher"), ("a", "model"), ("b", "model"))
    )
    shape = replace(one, name="a: fewer layers", kind="pruning-step", step_of="a")
    entries = [Entry(candidate, "torch", model, "torch", "cpu") for candidate in (teacher, one, other, shape)]
    groups = [[entry.candidate.name for entry in group] for group in groups_of(entries, 1)]
    assert groups == [["t", "a", "a: fewer layers"], ["t", "b"]]
    settings = BenchmarkSettings(batch_sizes=(1, 4), lengths=(16,), padded_teacher=False)
    loaded = {"tokenizer_inside": False, "max_length": 512}
    runs = [WorkerRun(entry, 1, None, loaded) for entry in (entries[3], entries[1])]  # type: ignore[arg-type]
    at = [workloads_of(run, settings) for run in runs]
    assert at == [[Workload(1), Workload(4)], [Workload(1), Workload(4), Workload(1, 16), Workload(4, 16)]]
