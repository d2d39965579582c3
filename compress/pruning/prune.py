"""Stage: take from a model what it can do without, for real, and win back what was lost.

Vocabulary, layers, heads and neurons, and hidden width go in this order, in one command, and one recovery ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress import plugins
from compress.data import Example, check_roles, content_sha256, describe_rows, encode_gold, row_key
from compress.errors import CompressError
from compress.evaluation.metrics import find_metric
from compress.exporting.export import export, exporter_for
from compress.labelling.label import teacher_logits
from compress.labelling.label_dir import LabelDir, open_labels
from compress.models.manifest import Manifest
from compress.models.model_dir import ModelDir, parent_entry
from compress.models.output_dir import empty, writing
from compress.progress import Progress, silent
from compress.pruning.importance import check_rows, scoring_rows
from compress.pruning.recovery import RECOVERY, Recovery, check_labels, check_noise, selection_for
from compress.pruning.removal_steps import Removals
from compress.pruning.step_timing import Stopwatch, TooNoisy
from compress.recipes import Pruning, Training
from compress.training.training_data import Gold, Pool, TrainingData

if TYPE_CHECKING:
    from transformers import PreTrainedModel


BATCH_SIZES = (1, 32)  # at which each removal is timed


def prune(
    model: ModelDir | str | Path,
    pruning: Pruning,
    output: str | Path,
    *,
    train: Sequence[Example],
    validation: Sequence[Example] = (),
    vocabulary: Iterable[Example] | None = None,
    labels: Sequence[LabelDir | str | Path] = (),
    training: Training = RECOVERY,
    measure: bool = True,
    drop_overlap: bool = False,
    metric: str | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int = 0,
    force: bool = False,
    quiet: bool = True,
    progress: Progress = silent,
) -> ModelDir:
    """Remove structure from a model and return the smaller one.

    ``report.html`` in its directory, and ``pruning.json`` with the same figures, say after each removal how many
    weights and operations are left, how fast that is in each runtime, and what it costs; ``pruning_curve.csv`` is the
    metric step by step.

    Args:
        pruning: what to remove, and how it is chosen.
        train: gold rows; some of them, drawn at random, score what may go.
        validation: gold rows that judge and select; without any the scoring rows judge, which flatters, and it is said.
        vocabulary: text whose word pieces stay, and no others; it is read twice. None keeps all.
        labels: text for the recovery, labelled by the unpruned model or its teacher; the texts of ``train`` are always
            learned from.
        measure: time the model after each removal.
        threads: processor threads; speeds are measured on one, or as many as are said.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    import torch

    from compress.inference.compute import resolve_device
    from compress.models.saving import describe_architecture, write_model
    from compress.surgery.remove_vocabulary import check_tokenizer

    source = ModelDir.open(model)
    pruning.check()
    if not (pruning.removes_units or pruning.layers or pruning.hidden or vocabulary is not None):
        raise CompressError(
            "nothing to remove; say what with --heads 60%, --ffn 40%, --layers 2, --hidden 25% or --vocabulary FILE, "
            "or how far to go with --max-accuracy-drop 1.0 or --speedup 1.5"
        )
    if pruning.max_accuracy_drop and not validation:
        raise CompressError(
            "--max-accuracy-drop is judged on rows that the model was not fitted on; give them with --validation FILE"
        )
    plugins.find("criteria", pruning.criterion)
    label_dirs = open_labels(labels)
    check_labels(source, label_dirs, pruning.recover, bool(validation))
    check_rows(train)
    for role, given in (("train", train), ("validation", validation)):
        encode_gold(given, source.labels, task=source.task, name=role)  # rows are counted as they were given
    pool: Any = Pool(label_dirs) if label_dirs else None
    roles = {"train": train, "unlabeled": pool, "validation": validation}
    checked = check_roles({role: rows for role, rows in roles.items() if rows}, drop_overlap=drop_overlap)
    train = checked.sets["train"]  # type: ignore[assignment]
    sample = scoring_rows(train, pruning.examples, seed)
    if pool is not None:
        pool = checked.sets["unlabeled"].without(frozenset(map(row_key, train)))  # type: ignore[union-attr]
    chosen_metric = find_metric(metric, task=source.task, classes=len(source.labels))
    torch_device = resolve_device(device)
    if threads:
        torch.set_num_threads(threads)
    gold = {
        role: Gold(rows, encode_gold(rows, source.labels, task=source.task, name=role))
        for role, rows in (("sample", sample), ("train", train), ("validation", validation))
    }
    data = describe_rows({"train": train, "validation": validation})
    corpus = {"vocabulary": content_sha256(vocabulary)} if vocabulary is not None else {}
    request = {
        "stage": "prune",
        "model": source.sha256,
        **asdict(pruning),
        **corpus,
        "training": asdict(training),
        "data": data,
        "labels": [directory.manifest.files for directory in label_dirs],
        "seed": seed,
        "metric": chosen_metric.name,
        **({"threads": threads} if pruning.speedup else {}),
    }
    whole: Any = source.load()
    _check_model(whole, pruning)
    if vocabulary is not None:
        check_tokenizer(source.load_tokenizer())
    whole.to(torch_device)
    with writing(output, request, force=force) as working:
        fitting = {"task": source.task, "seed": seed, "device": torch_device, "threads": threads, "quiet": quiet}
        recovery = Recovery(
            pruning,
            training,
            cache(lambda: _lessons(source, pool, gold, torch_device, threads)),
            selection_for(pool, gold["validation"], chosen_metric.name, source.task),
            fitting,
        )
        stopwatch = Stopwatch(
            gold["validation"].examples or sample,
            ("torch", *(("onnxruntime",) if exporter_for(source) else ())),
            threads or 1,
            _opened_by,
        )
        removals = Removals(
            source, pruning, gold, chosen_metric, working, recovery, stopwatch, torch_device, seed, progress
        )
        try:
            state, decided = removals.carry_out(whole, vocabulary)
        except TooNoisy:
            raise
        except CompressError:
            empty(working)  # something else is to be asked for, under the same name
            raise
        notes: dict[str, Any] = {}
        if pruning.recover:
            notes["recovery"] = recovery.recover(state, working).noted
        with progress("Timing", None):
            speeds = stopwatch.speeds(state, BATCH_SIZES) if measure else []
        found = removals.report(state, decided, speeds, Path(output).name)
        manifest = Manifest(
            stage="prune",
            name=Path(output).name,
            task=source.task,
            labels=source.labels,
            architecture=describe_architecture(state.model),
            parents=(parent_entry("unpruned", source),),
            recipe={**asdict(pruning), "training": asdict(training)},
            data=(
                *(source.manifest.data if source.manifest else ()),
                *data,
                *(entry for directory in label_dirs for entry in directory.manifest.data),
            ),
            metrics=(state.metric_entry,),
            notes={**found, **notes},
            seeds={"seed": seed},
        )
        write_model(state.model, state.tokenizer, manifest, working)
    return ModelDir.open(output)


def _lessons(source: ModelDir, pool: Pool | None, gold: Mapping[str, Gold], device: str, threads: int) -> TrainingData:
    """Return the rows that are learned from: the pool, and train with the logits of the whole model."""
    own = [directory for directory in pool.labels if directory.teacher_sha256 == source.sha256] if pool else []
    logits = teacher_logits(source, gold["train"].examples, labels=own, device=device, threads=threads)
    return TrainingData(pool, replace(gold["train"], logits=logits), hold_out=not gold["validation"].examples)


def _check_model(model: PreTrainedModel, pruning: Pruning) -> None:
    """Refuse a model that cannot give what is asked for, before anything is written.

    Which layers go is not known yet; the first that can go stand for them.
    """
    from compress.models.attention import has_heads
    from compress.pruning.targets import amounts_of, layers_to_remove, positions_to_remove
    from compress.surgery.remove_hidden import members, remove_hidden
    from compress.surgery.remove_layers import removable_layers, remove_layers
    from compress.surgery.unit_masks import masks_reach_logits

    if pruning.recovery == "relations" and not has_heads(model):
        raise CompressError(
            f"--recovery relations reads queries, keys and values, which compress does not know where to find in a "
            f"{model.config.model_type!r} model; use --recovery logits or hidden"
        )
    smaller = deepcopy(model)
    if pruning.layers:
        count = layers_to_remove(model, pruning)
        remove_layers(smaller, removable_layers(model)[:count])
    for part in amounts_of(smaller, pruning) if pruning.removes_units else ():
        if not masks_reach_logits(model, part):
            raise CompressError(
                f"masks on the {part} of a {model.config.model_type!r} model do not reach its logits; it cannot be "
                "pruned"
            )
    if pruning.schedule == "cubic" and not pruning.layers:
        check_noise(model)
    if pruning.hidden:
        members(model)
        remove_hidden(smaller, range(positions_to_remove(model, pruning)))


def _opened_by(runtime: str, directory: Path) -> Path:
    """Return the directory that a runtime opens: of ONNX, the export of a torch directory."""
    if runtime == "torch":
        return directory
    target = directory.with_name(f"{directory.name}-onnx")
    if not target.is_dir():
        export(ModelDir.open(directory, verify=False), target)
    return target
