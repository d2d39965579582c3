"""Stage: score a model's attention heads, remove the least important ones for real, and recover what was lost."""

from __future__ import annotations

import csv
import io
import json
import logging
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.artifact import Manifest, ModelDir, parent_entry
from compress.data import Example, check_roles, describe_rows, encode_gold, row_key
from compress.errors import CompressError
from compress.heads import heads_to_remove
from compress.importance import Judge, check_scoring, choose_heads
from compress.labels import LabelDir, open_labels
from compress.metrics import find_metric
from compress.output import WORK_FOLDER, write_atomically, writing
from compress.progress import Progress, silent
from compress.recipes import Choice, Phase, Training
from compress.tokens import maximum_length
from compress.transfer import Gold, Lessons, Pool, Selection, agreement_rows

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from compress.training import Outcome

logger = logging.getLogger("compress")

MASKED_TOLERANCE = 1e-5
CURVE_NAME = "pruning_curve.csv"
PICTURE_NAME = "pruning_curve.svg"
DECISION_NAME = "removed_heads.json"
RECOVERY = Training(epochs=1.0, learning_rate=5e-5, evaluations=8, patience=4)
RECOVERY_PHASES = (Phase((Choice("logit-mse"),)),)


def prune_heads(
    model: ModelDir | str | Path,
    heads: str,
    output: str | Path,
    *,
    train: Sequence[Example],
    validation: Sequence[Example] = (),
    criterion: str = "gradient",
    examples: int = 1024,
    step: float = 0.1,
    normalise: bool = True,
    recover: float = 0.0,
    labels: Sequence[LabelDir | str | Path] = (),
    training: Training = RECOVERY,
    drop_overlap: bool = False,
    metric: str | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int = 0,
    force: bool = False,
    quiet: bool = True,
    progress: Progress = silent,
) -> ModelDir:
    """Remove attention heads by importance and return the smaller model.

    Heads go in steps of ``step`` of the original number; importance is computed again after each (Michel et al. 2019,
    section 4.1). The metric after every step is the curve in ``pruning_curve.csv`` and ``pruning_curve.svg``.

    Args:
        heads: how many to *remove*: ``60%``, ``0.6``, or a count such as ``40``.
        train: gold rows; ``examples`` of them, drawn at random, score the heads.
        validation: gold rows for the curve and to select the recovered checkpoint; without any the curve is drawn on
            the scoring rows, which flatters, and says so.
        recover: epochs of distillation from the unpruned model afterwards, on ``labels`` (its own, or its teacher's)
            and the texts of ``train``.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    import torch

    from compress.device import resolve_device
    from compress.gates import masked
    from compress.modeling.pruned import to_pruned
    from compress.saving import describe_architecture, write_model
    from compress.slicing import remove_heads
    from compress.units import kept_heads, units_of

    source = model if isinstance(model, ModelDir) else ModelDir.open(model)
    label_dirs = open_labels(labels)
    _check_request(source, label_dirs, recover)
    check_scoring(train, examples, step)
    if recover and not validation and not label_dirs:
        raise CompressError(
            "--recover needs rows to select the checkpoint by; give --validation FILE, or --labels DIR"
        )
    pool: Any = Pool(label_dirs) if label_dirs else None
    roles = {"train": train, "unlabeled": pool, "validation": validation}
    checked = check_roles({role: rows for role, rows in roles.items() if rows}, drop_overlap=drop_overlap)
    train = checked.sets["train"]  # type: ignore[assignment]
    if pool is not None:
        pool = checked.sets["unlabeled"].without(frozenset(map(row_key, train)))  # type: ignore[union-attr]
    chosen_metric = find_metric(metric, task=source.task, classes=len(source.labels)).name
    torch_device = resolve_device(device)
    if threads:
        torch.set_num_threads(threads)
    whole: Any = source.load()
    whole.to(torch_device)
    before = [units.count for units in units_of(whole)]
    count = heads_to_remove(heads, before)
    sample = random.Random(seed).sample(list(train), min(examples, len(train)))
    gold = {
        role: Gold(rows, encode_gold(rows, source.labels, task=source.task, name=role))
        for role, rows in (("sample", sample), ("train", train), ("validation", validation))
    }
    data = describe_rows({"train": train, "validation": validation})
    request = {
        "stage": "prune", "model": source.sha256, "heads": heads, "criterion": criterion, "examples": examples,
        "step": step, "normalise": normalise, "recover": recover, "training": asdict(training), "data": data,
        "labels": [directory.manifest.files for directory in label_dirs], "seed": seed, "metric": chosen_metric,
    }  # fmt: skip
    logger.info("removing %d of %d heads, %d stay", count, sum(before), sum(before) - count)
    tokenizer = source.load_tokenizer()
    max_length = min(training.max_length, maximum_length(tokenizer, source.config))
    judge = Judge.of(gold, tokenizer, task=source.task, metric=chosen_metric, max_length=max_length)
    with writing(output, request, force=force) as working:
        decided = working / WORK_FOLDER / DECISION_NAME
        if not decided.is_file():
            decision = choose_heads(
                whole, tokenizer, gold["sample"], judge, count, criterion=criterion, normalise=normalise,
                step=max(1, round(step * sum(before))), max_length=max_length, seed=seed, progress=progress,
            )  # fmt: skip
            write_atomically(decided, json.dumps(decision, indent=1) + "\n")
        decision = json.loads(decided.read_text(encoding="utf-8"))
        numbers = kept_heads(whole)
        masks = [
            torch.tensor([float(head in kept) for head in now])
            for now, kept in zip(numbers, decision["kept"], strict=True)
        ]
        with masked(whole, masks):
            masked_logits = judge.logits(whole)
        smaller: Any = source.load()
        smaller.to(torch_device)
        remove_heads(smaller, {i: [p for p, on in enumerate(mask.tolist()) if not on] for i, mask in enumerate(masks)})
        smaller = to_pruned(smaller).eval()
        _check_sliced(masked_logits, judge.logits(smaller))
        curve = decision["curve"]
        notes: dict[str, Any] = {
            "recipe": f"prune-{heads}", "heads_removed": count, "heads_kept": sum(before) - count,
            "criterion": criterion,
        }  # fmt: skip
        if recover:
            outcome = _recover(
                source, smaller, tokenizer, pool, gold, recover, training, working, chosen_metric,
                seed=seed, device=torch_device, threads=threads, quiet=quiet,
            )  # fmt: skip
            notes |= {"recovery": asdict(outcome)}
            curve = [*curve, judge.point(count, sum(before), smaller, recovered=True)]
        _write_curve(working, curve, Path(output).name)
        value = curve[-1]["value"]
        manifest = Manifest(
            stage="prune",
            name=Path(output).name,
            task=source.task,
            labels=source.labels,
            architecture=describe_architecture(smaller),
            parents=(parent_entry("unpruned", source),),
            recipe={
                key: request[key]
                for key in ("heads", "criterion", "examples", "step", "normalise", "recover", "training")
            },
            data=(
                *_inherited(source),
                *data,
                *(e for directory in label_dirs for e in directory.manifest.data),
            ),
            metrics=({"name": chosen_metric, "value": value, "split": judge.split, "rows": len(judge.gold.examples)},),
            notes=notes,
            seeds={"seed": seed},
        )
        write_model(smaller, tokenizer, manifest, working)
    return ModelDir.open(output)


def _recover(
    source: ModelDir,
    smaller: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    pool: Pool | None,
    gold: dict[str, Gold],
    epochs: float,
    training: Training,
    working: Path,
    metric: str,
    **settings: Any,
) -> Outcome:
    """Train the pruned model to say what the unpruned one says."""
    from dataclasses import replace

    from compress.label import teacher_logits
    from compress.phases import Teachers, fit

    if gold["validation"].examples:
        selection = Selection(list(gold["validation"].rows()), "validation", metric)
    elif pool is not None:
        selection = agreement_rows(pool, source.task)
    else:
        raise CompressError("--recover needs rows to select the checkpoint by; give --validation FILE, or --labels DIR")
    own = [directory for directory in pool.labels if directory.teacher_sha256 == source.sha256] if pool else []
    logits = teacher_logits(
        source, gold["train"].examples, labels=own, device=settings["device"], threads=settings["threads"]
    )
    taught = Gold(gold["train"].examples, gold["train"].labels, logits)
    (outcome,) = fit(
        smaller, tokenizer, Lessons(pool, taught, hold_out=not gold["validation"].examples), selection,
        phases=RECOVERY_PHASES, teachers=Teachers(), training=replace(training, epochs=epochs), task=source.task,
        working=working, **settings,
    )  # fmt: skip
    return outcome


def _check_sliced(masked: np.ndarray, sliced: np.ndarray) -> None:
    import numpy as np

    scale = max(1.0, float(np.nanmax(np.abs(masked))))  # a word that is not answered has no logits
    difference = float(np.nanmax(np.abs(masked - sliced)))
    if difference > MASKED_TOLERANCE * scale:
        raise RuntimeError(f"slicing changed the logits by {difference:.2g} against masking; nothing was written")


def _write_curve(working: Path, curve: Sequence[dict[str, Any]], name: str) -> None:
    from compress.reporting.curves import draw_curve

    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(curve[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(curve)
    write_atomically(working / CURVE_NAME, buffer.getvalue())
    rows = [{key: str(value) for key, value in point.items()} for point in curve]
    picture = draw_curve(name, curve[0]["metric"], rows).picture
    write_atomically(working / PICTURE_NAME, picture.wide)


def _inherited(source: ModelDir) -> tuple[dict[str, Any], ...]:
    return source.manifest.data if source.manifest else ()


def _check_request(source: ModelDir, label_dirs: Sequence[LabelDir], recover: float) -> None:
    if recover < 0:
        raise CompressError(f"--recover {recover} is below 0; give a number of epochs such as 1")
    if not label_dirs:
        return
    if not recover:
        raise CompressError("--labels is for recovery, which was not asked for; add --recover 1")
    parents = source.manifest.parents if source.manifest else ()
    known = {source.sha256, *(str(parent["sha256"]) for parent in parents)}
    for directory in label_dirs:
        if directory.teacher_sha256 not in known:
            raise CompressError(
                f"{directory.path} was labelled by {directory.manifest.parents[0]['name']}, which is neither "
                f"{source.name} nor its teacher; label the text again with 'compress label --teacher ...'"
            )
