"""What ``compress prune`` takes away: decided once, cut in turn, judged each time, and written down."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.data import Example
from compress.data.tokenization import maximum_length
from compress.evaluation.metrics import Metric
from compress.inference.side_by_side import Speed
from compress.inference.timing import Ratio
from compress.models.model_dir import ModelDir
from compress.models.output_dir import WORK_FOLDER, write_atomically
from compress.progress import Progress
from compress.pruning.importance import scoring_batches
from compress.pruning.masked_evaluation import JudgingRows
from compress.pruning.recovery import Recovery
from compress.pruning.step_timing import Stopwatch
from compress.recipes import Pruning
from compress.training.training_data import Gold

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from compress.models.batch import Batch
    from compress.pruning.pruned_state import Shrinking
    from compress.surgery.unit_masks import Masks


CURVE_NAME = "pruning_curve.csv"
REPORT_NAME = "pruning.json"
ON_TRAIN = "train (the scoring rows)"


@dataclass(frozen=True)
class Removals:
    """A pruning under way: what was asked for, on what it is judged, how it is timed and recovers."""

    source: ModelDir
    pruning: Pruning
    gold: Mapping[str, Gold]
    metric: Metric
    working: Path
    recovery: Recovery
    stopwatch: Stopwatch
    device: str
    seed: int
    progress: Progress

    @property
    def folder(self) -> Path:
        return self.working / WORK_FOLDER

    def carry_out(
        self, whole: PreTrainedModel, vocabulary: Iterable[Example] | None
    ) -> tuple[Shrinking, dict[str, Any]]:
        """Remove everything that was asked for, in place, and judge each removal; return also what was decided."""
        from compress.pruning.pruned_state import Shrinking, reloadable
        from compress.pruning.scoring import Values
        from compress.pruning.targets import choose_layers_to_remove, choose_positions, choose_units
        from compress.surgery.unit_masks import masks_from_json

        pruning, tokenizer = self.pruning, self.source.load_tokenizer()
        judged = "validation" if self.gold["validation"].examples else "sample"
        rows = JudgingRows(
            self.gold[judged],
            self.metric,
            len(self.source.labels),
            maximum_length(tokenizer, self.source.config),
            self.source.task,
            "validation" if judged == "validation" else ON_TRAIN,
        )
        state = Shrinking(whole, tokenizer, rows, self.folder / "cuts")
        found: dict[str, Any] = {}
        if vocabulary is not None:
            found["vocabulary"] = state.keep_vocabulary(vocabulary)
        if pruning.layers:
            with self.progress("Removing layers", None):
                found["layers"] = self._decided(
                    "layers", lambda: choose_layers_to_remove(state.model, self._batches(state), pruning)
                )
            state.remove_layers([step["layer"] for step in found["layers"]])
        if pruning.schedule == "cubic":
            state.remove_units(self.recovery.mask(state, self.folder / "masking"))
        elif pruning.removes_units:
            decision = self._decided(
                "units",
                lambda: choose_units(
                    self._batches(state),
                    state.judge("path"),
                    state.reference,
                    pruning,
                    self._speedup_of(state),
                    seed=self.seed,
                    values=Values(self.folder / "values.jsonl"),
                    progress=self.progress,
                ),
            )
            found |= {key: value for key, value in decision.items() if key != "masks"}
            state.remove_units(masks_from_json(decision["masks"]))
        if pruning.hidden:
            with self.progress("Scoring hidden width", None):
                positions = self._decided(
                    "hidden", lambda: choose_positions(state.model, self._batches(state), pruning)
                )
            state.remove_hidden(positions)
        state.model = reloadable(state.model)
        return state, found

    def _batches(self, state: Shrinking) -> list[Batch]:
        """Return the scoring rows as the model reads them now."""
        sample = self.gold["sample"]
        return list(
            scoring_batches(
                sample.examples,
                sample.labels,
                state.tokenizer,
                max_length=state.rows.max_length,
                task=self.source.task,
                device=self.device,
            )
        )

    def _decided(self, name: str, decide: Callable[[], Any]) -> Any:
        """Return what was decided, JSON values; a command that is repeated remembers it."""
        path = self.folder / f"{name}.json"
        if not path.is_file():
            write_atomically(path, json.dumps(decide()) + "\n")
        return json.loads(path.read_text(encoding="utf-8"))

    def _speedup_of(self, state: Shrinking) -> Callable[[Masks], Ratio]:
        """Return what measures how fast the model is without some units, against the whole one."""
        candidates = self.folder / "candidates"
        shutil.rmtree(candidates, ignore_errors=True)  # of a start that was stopped
        numbers = itertools.count()
        return lambda masks: self.stopwatch.speedup(
            state.directories[0], state.without(masks, candidates / str(next(numbers))), self.pruning.speedup_batch_size
        )

    def report(
        self, state: Shrinking, decided: Mapping[str, Any], speeds: Sequence[Speed], name: str
    ) -> dict[str, Any]:
        """Write pages, tables and pictures, and return what the manifest notes of them."""
        from compress.reporting.charts.pruning_curve import curve_csv
        from compress.reporting.pruning_page import removed, write_report

        curve = list(decided.get("curve", ()))
        if curve and state.cuts[-1].removal == "recovery":
            stopped = next(point for point in curve if point["chosen"])
            won = {key: getattr(state.cuts[-1], key) for key in ("value", "points", "low", "high")}
            curve.append({**stopped, **won, "recovered": True})
        content = {
            "name": name,
            "model": self.source.name,
            "model_sha256": self.source.sha256,
            "metric": self.metric.name,
            "split": state.rows.split,
            "rows": len(state.rows.gold.examples),
            "schedule": self.pruning.schedule,
            "criterion": "gradual-pruning" if self.pruning.schedule == "cubic" else self.pruning.criterion,
            "cuts": [asdict(cut) for cut in state.cuts],
            "speeds": [asdict(speed) for speed in speeds],
            **({"max_accuracy_drop": self.pruning.max_accuracy_drop} if self.pruning.max_accuracy_drop else {}),
            **decided,
            "curve": curve,
        }
        write_atomically(self.working / REPORT_NAME, json.dumps(content, indent=1) + "\n")
        write_report(content, self.working)
        if curve:
            write_atomically(self.working / CURVE_NAME, curve_csv(curve))
        return {
            "removed": removed(content["cuts"]),
            # A target may leave heads or neurons as they are.
            "shapes": [{"removal": c.removal, "config": c.config} for c in state.cuts if c.removed or not c.of],
        }
