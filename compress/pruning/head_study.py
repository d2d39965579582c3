"""Head study: score heads by criteria, and evaluate the model with heads masked one by one, alone, and cumulatively.

Michel et al. 2019, "Are Sixteen Heads Really Better than One?" (arXiv:1905.10650), sections 3 and 4. Rows of train
score the heads; rows of validation evaluate.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compress import plugins
from compress.evaluation.metrics import SPEARMAN, bootstrap
from compress.inference.compute import resolve_device
from compress.inference.threads import using_threads
from compress.models.batch import Batch
from compress.models.components import Part, heads_per_layer, units_of
from compress.models.manifest import cached_json
from compress.models.model_dir import Model
from compress.progress import Advance, each
from compress.pruning.choose_units import MEASURE, removal_path, score_units
from compress.pruning.evaluation import MaskedEvaluation, split_rows
from compress.pruning.scoring import Values
from compress.recipes import Pruning
from compress.reporting.pages import write_study
from compress.reporting.pruning_page import heads_page
from compress.requests.compression import HeadStudy
from compress.surgery.unit_masks import Masks, unmasked

STUDY_NAME = "heads.json"
CRITERIA = ("gradient", "taylor", "magnitude", "confidence", "oracle", "random")
RANDOM_ORDERS = 5


def head_study(request: HeadStudy) -> Path:
    """Write ``heads.json``, tables and pictures about the heads of a model, and return the directory.

    Raises:
        CompressError: for anything about the request that the user can correct.
    """
    source, data, criteria = Model.open(request.model), request.labelled, request.criteria or CRITERIA
    for name in criteria:
        plugins.find("criteria", name)
    pruning = Pruning(examples=request.examples, step=request.step, normalise=request.normalise)
    rows = split_rows(source, data, examples=request.examples, seed=request.seed)
    device = resolve_device(request.device)
    whole, tokenizer = source.load(plain=True), source.tokenizer
    units_of(whole)  # refuses a model without known heads
    whole.to(device)  # type: ignore[arg-type]
    recipe = {"criteria": list(criteria), "examples": request.examples, "step": request.step}
    shown = {"metric": rows.evaluation.metric.name, "normalise": request.normalise, "measure": MEASURE}
    opened: dict[str, Any] = {"train": data.train, "validation": data.validation, **recipe, **shown}
    with (
        using_threads(request.threads),
        request.begin({"model": source}, data=rows.described, **opened) as stage,
    ):
        folder = stage.scratch
        evaluation = MaskedEvaluation(whole, tokenizer, rows.evaluation, folder / "judging")
        evaluation.check()
        batches = rows.batches(tokenizer, device)
        heads = HeadEvaluations(evaluation, batches, request.seed, Values(folder / "values"), folder)
        counts = heads.counts
        with request.progress("Scoring heads", len(criteria)) as advance:
            scores = {name: heads.scores(name) for name in each(criteria, advance)}
        with request.progress("Removing single heads", sum(counts)) as advance:
            ablation = [heads.with_masked(*place, alone=False) for place in each(heads.places, advance)]
        with request.progress("Keeping single heads", sum(counts)) as advance:
            alone = heads.best_alone(advance)
        orders = [("gradient", 0), ("oracle", 0), *(("random", number) for number in range(RANDOM_ORDERS))]
        with request.progress("Removing more and more", len(orders)) as advance:
            evolution = [point for order in each(orders, advance) for point in heads.evolution(*order, pruning)]
        low, high = evaluation.interval()
        content = {
            "model": source.name,
            "model_sha256": source.sha256,
            "heads_per_layer": counts,
            "value": evaluation.value(),
            "low": low,
            "high": high,
            "validation_rows": len(rows.validation.examples),
            "scoring_rows": len(rows.sample.examples),
            "seed": request.seed,
            **shown,
            "criteria": {name: [row.tolist() for row in heads.by_layer(found)] for name, found in scores.items()},
            "correlations": list(heads.correlations(scores)),
            "ablation": ablation,
            "one_head": alone,
            "evolution": evolution,
        }
        write_study(content, heads_page, stage.working / STUDY_NAME)
        stage.finish(kind="heads", recipe=recipe)
    return stage.output


@dataclass(frozen=True)
class HeadEvaluations:
    """The tables of a head study, as JSON values.

    ``batches`` score and ``evaluation`` evaluates; ``values`` and ``folder`` keep what is known for a resumed run.
    """

    evaluation: MaskedEvaluation
    batches: list[Batch]
    seed: int
    values: Values
    folder: Path

    @cached_property
    def counts(self) -> list[int]:
        return heads_per_layer(self.evaluation.model)

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(layer, head) for layer, count in enumerate(self.counts) for head in range(count)]

    def by_layer(self, scores: Tensor) -> list[Tensor]:
        return [row[:count] for row, count in zip(scores, self.counts, strict=True)]

    def scores(self, criterion: str) -> Tensor:
        model = self.evaluation.model
        found = cached_json(
            self.folder / f"scores-{criterion}.json",
            lambda: score_units(
                model, self.batches, unmasked(model), "heads", criterion, seed=self.seed, values=self.values
            ).tolist(),
        )
        return torch.tensor(found)

    def with_masked(self, layer: int, head: int, *, alone: bool) -> dict[str, Any]:
        """Return the metric without a head (Michel et al. 2019, section 3.2), or with it alone in its layer."""
        masks = self._masks(layer, head, alone)
        difference = asdict(self.evaluation.difference(masks))
        return {"layer": layer, "head": head, "value": self.evaluation.value(masks), **difference}

    def best_alone(self, advance: Advance) -> list[dict[str, Any]]:
        """Return for each layer the metric with its best head alone there (section 3.3).

        The best head has the lowest loss on the scoring rows: the best of many on the evaluation rows would look too
        good.
        """
        model = self.evaluation.model
        values = {
            (layer, head): self.values.of(model, self._masks(layer, head, alone=True), self.batches, MEASURE)
            for layer, head in each(self.places, advance)
        }
        best = [
            max(range(count), key=lambda head: values[layer, head])  # noqa: B023
            for layer, count in enumerate(self.counts)
        ]
        return [self.with_masked(layer, head, alone=True) for layer, head in enumerate(best)]

    def evolution(self, order: str, number: int, pruning: Pruning) -> Iterator[dict[str, Any]]:
        """Yield the metric as heads are removed in the order of a criterion, until each layer has one (section 4.2)."""
        model, total, seed = self.evaluation.model, sum(self.counts), self.seed + number
        gradient = order == "gradient"
        pruning = replace(pruning, criterion=order, normalise=pruning.normalise and gradient, recompute=gradient)

        def score(masks: Masks) -> dict[Part, Tensor]:
            if order == "oracle":
                return {"heads": self.scores(order)}
            return {"heads": score_units(model, self.batches, masks, "heads", order, seed=seed)}

        for step in removal_path(model, {"heads": total - len(self.counts)}, pruning, score):
            removed = step.removed["heads"]
            removal = {"heads_removed": removed, "share_removed": round(removed / total, 4)}
            yield {"order": order, "seed": seed, **removal, **self.evaluation.effect(step.masks)}

    def correlations(self, scores: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
        """Yield Spearman's rank correlation of every two criteria, with its bootstrap interval over heads."""
        flat = {name: torch.cat(self.by_layer(found)).numpy().astype(float) for name, found in scores.items()}
        spearman = SPEARMAN.statistic
        for first, second in combinations(flat, 2):
            columns = (flat[first], flat[second])
            if min(np.ptp(column) for column in columns) == 0:
                continue  # equal scores have no order
            low, high = bootstrap(columns, lambda a, b: spearman(a, b, 1), seed=self.seed)
            interval = {"spearman": float(spearman(*columns, 1)), "low": low, "high": high}
            yield {"first": first, "second": second, **interval}

    def _masks(self, layer: int, head: int, alone: bool) -> Masks:
        masks = unmasked(self.evaluation.model)
        masks["heads"][layer][:] = 0.0 if alone else 1.0
        masks["heads"][layer][head] = 1.0 if alone else 0.0
        return masks
