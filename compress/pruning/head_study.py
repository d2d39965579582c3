"""Stage: what the heads of a model are worth: by criterion, one by one, alone in a layer, and fewer and fewer of them.

Michel et al. 2019, "Are Sixteen Heads Really Better than One?" (arXiv:1905.10650), sections 3 and 4. Rows of train
score the heads; what comes of it is measured on rows of validation.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compress import plugins
from compress.data import Example, check_roles, describe_rows, encode_gold
from compress.data.tokenization import maximum_length
from compress.errors import CompressError
from compress.evaluation.metrics import find_metric
from compress.models.model_dir import ModelDir
from compress.models.output_dir import write_atomically
from compress.models.stage import Stage
from compress.progress import Progress, silent
from compress.pruning.importance import check_rows, scoring_batches, scoring_rows
from compress.pruning.masked_evaluation import Evaluations, JudgingRows
from compress.pruning.removal_path import MEASURE, removal_path, score
from compress.pruning.scoring import Values
from compress.recipes import Pruning
from compress.surgery.unit_masks import Masks, unmasked
from compress.training.training_data import Gold

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from compress.models.batch import Batch


logger = logging.getLogger("compress")

STUDY_NAME = "heads.json"
CRITERIA = ("gradient", "taylor", "magnitude", "confidence", "oracle", "random")
RANDOM_ORDERS = 5


@dataclass(frozen=True)
class Removal:
    """A model with some heads masked: ``points`` against the whole one with its interval, and McNemar's p."""

    layer: int
    head: int
    value: float
    points: float
    low: float
    high: float
    mcnemar_p: float | None


@dataclass(frozen=True)
class Step:
    """A point of the evolution: so many heads removed in an order, and what that costs."""

    order: str
    seed: int
    heads_removed: int
    share_removed: float
    value: float
    points: float
    low: float
    high: float


def head_study(
    model: ModelDir | str | Path,
    output: str | Path,
    *,
    train: Sequence[Example],
    validation: Sequence[Example],
    criteria: Sequence[str] = CRITERIA,
    examples: int = 1024,
    step: float = 0.1,
    normalise: bool = True,
    drop_overlap: bool = False,
    metric: str | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int = 0,
    force: bool = False,
    quiet: bool = True,
    progress: Progress = silent,
) -> Path:
    """Write ``heads.json``, tables and pictures about the heads of a model, and return the directory.

    Args:
        train: gold rows; ``examples`` of them, drawn at random, score the heads by every one of the ``criteria``.
        validation: gold rows on which single heads are removed, layers keep one head only, and the evolution is drawn.
        step: share of the heads between two points of the evolution.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    import torch

    from compress.inference.compute import resolve_device
    from compress.models.prunable_units import heads_per_layer
    from compress.reporting.heads_page import write_report
    from compress.surgery.unit_masks import masks_reach_logits

    source = ModelDir.open(model)
    for name in criteria:
        plugins.find("criteria", name)
    pruning = Pruning(examples=examples, step=step, normalise=normalise)
    if faults := pruning.scoring_faults():
        raise CompressError("; ".join(faults))
    check_rows(train)
    if not validation:
        raise CompressError("there are no rows to measure on; give labelled rows with --validation FILE")
    for role, given in (("train", train), ("validation", validation)):
        encode_gold(given, source.labels, task=source.task, name=role)  # rows are counted as they were given
    checked = check_roles({"train": train, "validation": validation}, drop_overlap=drop_overlap)
    train = checked.sets["train"]  # type: ignore[assignment]
    chosen = find_metric(metric, task=source.task, classes=len(source.labels))
    torch_device = resolve_device(device)
    if threads:
        torch.set_num_threads(threads)
    whole: Any = source.load()
    whole.to(torch_device)
    if not masks_reach_logits(whole):
        raise CompressError(
            f"masks on the heads of a {whole.config.model_type!r} model do not reach its logits; it cannot be studied"
        )
    sample = scoring_rows(train, examples, seed)
    data = describe_rows({"train": train, "validation": validation})
    recipe = {"criteria": list(criteria), "examples": examples, "step": step}
    settings = {**recipe, "normalise": normalise, "metric": chosen.name, "measure": MEASURE}
    tokenizer = source.load_tokenizer()
    max_length = maximum_length(tokenizer, source.config)
    gold = {
        role: Gold(rows, encode_gold(rows, source.labels, task=source.task, name=role))
        for role, rows in (("train", sample), ("validation", validation))
    }
    batches = list(
        scoring_batches(
            sample, gold["train"].labels, tokenizer, max_length=max_length, task=source.task, device=str(torch_device)
        )
    )
    parents = {"model": source}
    with Stage.begin("heads", output, parents=parents, settings=settings, data=data, seed=seed, force=force) as stage:
        known = stage.scratch
        values = Values(known / "values.jsonl")
        rows = JudgingRows(gold["validation"], chosen, len(source.labels), max_length, source.task)
        judging = Evaluations(whole, tokenizer, rows, known / "judging")
        heads = heads_per_layer(whole)
        with progress("Scoring heads", len(criteria)) as advance:
            scores = {}
            for name in criteria:
                scores[name] = _scores(known, name, whole, batches, seed, values)
                advance(1)
        with progress("Removing single heads", sum(heads)) as advance:
            ablation = list(_single(judging, heads, advance))
        with progress("Keeping single heads", sum(heads)) as advance:
            alone = list(_alone(judging, batches, heads, values, advance))
        with progress("Removing more and more", 2 + RANDOM_ORDERS) as advance:
            evolution: list[Step] = []
            for order, number in (("gradient", 0), ("oracle", 0), *(("random", n) for n in range(RANDOM_ORDERS))):
                fixed = _scores(known, order, whole, batches, seed, values) if order == "oracle" else None
                by_gradient = order == "gradient"
                going = replace(pruning, criterion=order, normalise=normalise and by_gradient, recompute=by_gradient)
                evolution += _evolution(judging, batches, heads, going, seed + number, fixed)
                advance(1)
        low, high = judging.interval()
        study = {
            "model": source.name,
            "model_sha256": source.sha256,
            "heads_per_layer": heads,
            "metric": chosen.name,
            "value": judging.value(),
            "low": low,
            "high": high,
            "validation_rows": len(validation),
            "scoring_rows": len(sample),
            "seed": seed,
            "normalise": normalise,
            "measure": MEASURE,
            "criteria": {
                name: [row[:count].tolist() for row, count in zip(found, heads, strict=True)]
                for name, found in scores.items()
            },
            "correlations": list(_correlations(scores, heads, seed)),
            "ablation": [asdict(one) for one in ablation],
            "one_head": [asdict(one) for one in alone],
            "evolution": [asdict(one) for one in evolution],
        }
        write_atomically(stage.working / STUDY_NAME, json.dumps(study, indent=1) + "\n")
        write_report(study, stage.working)
        stage.finish(kind="heads", recipe=recipe)
    return Path(output)


def _scores(folder: Path, name: str, model: PreTrainedModel, batches: list[Batch], seed: int, values: Values) -> Tensor:
    """Return the scores of a criterion, kept in a file once they are known."""
    import torch

    path = folder / f"scores-{name}.json"
    if not path.is_file():
        found = score(model, batches, unmasked(model), "heads", name, seed=seed, values=values)
        write_atomically(path, json.dumps(found.tolist()))
    return torch.tensor(json.loads(path.read_text(encoding="utf-8")))


def _single(judging: Evaluations, heads: Sequence[int], advance: Any) -> Iterator[Removal]:
    """Yield what the model is without each head (Michel et al. 2019, section 3.2)."""
    for layer, count in enumerate(heads):
        for head in range(count):
            masks = unmasked(judging.model)
            masks["heads"][layer][head] = 0.0
            yield _removal(judging, layer, head, masks)
            advance(1)


def _alone(
    judging: Evaluations, batches: list[Batch], heads: Sequence[int], values: Values, advance: Any
) -> Iterator[Removal]:
    """Yield for each layer what the model is with its best head alone there (section 3.3).

    The best head is the one of the lowest loss on the scoring rows: on the rows that judge it, the best of many would
    look too good.
    """
    for layer, count in enumerate(heads):
        found = []
        for head in range(count):
            found.append(values.of(judging.model, _only(judging.model, layer, head), batches, MEASURE))
            advance(1)
        best = int(np.argmax(found))
        yield _removal(judging, layer, best, _only(judging.model, layer, best))


def _removal(judging: Evaluations, layer: int, head: int, masks: Masks) -> Removal:
    found = judging.difference(masks)
    return Removal(layer, head, judging.value(masks), found.points, found.low, found.high, found.mcnemar_p)


def _only(model: PreTrainedModel, layer: int, head: int) -> Masks:
    masks = unmasked(model)
    masks["heads"][layer].zero_()
    masks["heads"][layer][head] = 1.0
    return masks


def _evolution(
    judging: Evaluations,
    batches: list[Batch],
    heads: Sequence[int],
    pruning: Pruning,
    seed: int,
    fixed: Tensor | None,
) -> Iterator[Step]:
    """Yield what is left as heads go in an order, until each layer has one (section 4.2)."""
    total = sum(heads)
    path = removal_path(
        judging.model,
        batches,
        {"heads": total - len(heads)},
        pruning,
        seed=seed,
        fixed=None if fixed is None else {"heads": fixed},
    )
    for removed, masks in ((0, unmasked(judging.model)), *((step.removed["heads"], step.masks) for step in path)):
        found = judging.difference(masks)
        yield Step(
            pruning.criterion,
            seed,
            removed,
            round(removed / total, 4),
            judging.value(masks),
            found.points,
            found.low,
            found.high,
        )


def _correlations(scores: dict[str, Tensor], heads: Sequence[int], seed: int) -> Iterator[dict[str, Any]]:
    """Yield Spearman's rank correlation of every two criteria, with its bootstrap interval over heads."""
    from compress.evaluation.metrics import METRICS, bootstrap

    flat = {
        name: np.concatenate([row[:count].numpy() for row, count in zip(found, heads, strict=True)]).astype(float)
        for name, found in scores.items()
    }
    spearman = METRICS["spearman"].statistic
    for first, second in combinations(flat, 2):
        columns = (flat[first], flat[second])
        if min(np.ptp(column) for column in columns) == 0:
            continue  # all heads score alike, so that there is no order
        low, high = bootstrap(columns, lambda a, b: spearman(a, b, 1), seed=seed)
        value = float(spearman(*columns, 1))
        yield {"first": first, "second": second, "spearman": value, "low": float(low), "high": float(high)}
