"""Execute a pruning plan: choose and remove the vocabulary, layers, heads, neurons and hidden size, in this order."""

import itertools
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compress.data import Example
from compress.inference.compute import Compute
from compress.inference.speed_statistics import Interval
from compress.models.output_dir import write_atomically
from compress.progress import Progress
from compress.pruning.choose_units import choose_units
from compress.pruning.importance import scoring_batches
from compress.pruning.layer_and_width_scores import choose_removed_layers, hidden_importance
from compress.pruning.plan import PruningPlan, log_amounts, plan_units
from compress.pruning.pruned_state import PrunedState
from compress.pruning.recovery import Recovery
from compress.pruning.scoring import Values
from compress.pruning.step_timing import StepTimer
from compress.surgery.unit_masks import Masks, masks_from_json
from compress.training.training_data import Gold


@dataclass(frozen=True)
class PlanExecution:
    """A plan, the model to prune, and what decides what the plan leaves open.

    Args:
        sample: the scoring rows.
        recovery: trains the model while the cubic schedule masks heads and neurons.
        folder: keeps each decision, so that a resumed run does not score again.
    """

    plan: PruningPlan
    state: PrunedState
    sample: Gold
    timer: StepTimer
    recovery: Recovery
    compute: Compute
    folder: Path
    progress: Progress

    def run(self, corpus: Iterable[Example] | None) -> dict[str, Any]:
        """Remove everything in place, evaluate each step, and return the decisions.

        Args:
            corpus: text whose subword tokens are kept; None keeps all.
        """
        plan, state, rows = self.plan, self.state, self.state.rows
        found: dict[str, Any] = {}
        if corpus is not None:
            found["vocabulary"] = state.remove_vocabulary(corpus)
        batches = list(
            scoring_batches(
                self.sample.examples,
                self.sample.labels,
                state.tokenizer,
                max_length=rows.max_length,
                task=rows.task,
                device=self.compute.device,
            )
        )
        if plan.layers:
            with self.progress("Removing layers", None):
                found["layers"] = self._decided(
                    "layers", lambda: list(map(asdict, choose_removed_layers(state.model, batches, plan.layers)))
                )
            state.remove_layers([step["layer"] for step in found["layers"]])
        units = plan_units(state.model, plan.config) if plan.layers and plan.units else plan.units
        log_amounts(state.model, units, plan.config)
        if plan.config.schedule == "cubic":
            state.remove_units(self.recovery.mask_gradually(state, units, self.folder / "masking"))
        elif units:
            decision = self._decided(
                "units",
                lambda: choose_units(
                    state.evaluation("path"),
                    batches,
                    units,
                    plan.config,
                    self._speedup(),
                    seed=self.compute.seed,
                    values=Values(self.folder / "values.jsonl"),
                    progress=self.progress,
                ),
            )
            masks = masks_from_json(decision.pop("masks"))
            found |= decision
            state.remove_units(masks)
        if plan.hidden:
            with self.progress("Scoring hidden width", None):
                scored = self._decided(
                    "hidden",
                    lambda: hidden_importance(state.model, batches).argsort(stable=True)[: plan.hidden].tolist(),
                )
            state.remove_hidden(sorted(scored))
        return found

    def _decided(self, name: str, decide: Callable[[], Any]) -> Any:
        """Return a decision as JSON values; a resumed run reads the one of the first run."""
        path = self.folder / f"{name}.json"
        if not path.is_file():
            write_atomically(path, json.dumps(decide()) + "\n")
        return json.loads(path.read_text(encoding="utf-8"))

    def _speedup(self) -> Callable[[Masks], Interval]:
        """Return a function that measures the speed-up of the model without masked heads and neurons."""
        candidates = self.folder / "candidates"
        shutil.rmtree(candidates, ignore_errors=True)  # of a run that was stopped
        numbers = itertools.count()
        return lambda masks: self.timer.speedup(
            self.state.directories[0],
            self.state.save_without(masks, candidates / str(next(numbers))),
            self.plan.config.speedup_batch_size,
        )
