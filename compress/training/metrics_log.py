"""What a training does, as JSON lines: loss and its terms, learning rate and speed, and the validation score.

They are written while it trains, and lie in ``metrics.jsonl`` of the directory that it makes.
"""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from compress.errors import CompressError
from compress.inference import processes
from compress.models.manifest import METRICS_NAME
from compress.models.output_dir import write_json_lines
from compress.models.training_log import read_training
from compress.progress import logger
from compress.recipes import Choice

POINTS = 100  # lines of one training, beside those of its evaluations
_DIGITS = 6
_TERM = "loss/"
_KEPT = {"loss", "learning_rate", "rows_per_second", "eval_score"}  # of the Trainer's history, beside the loss's terms


class MetricsLog(TrainerCallback):
    """Sums what the steps since the last line say, and writes all lines anew with each.

    The lines are the Trainer's own history, which its checkpoints hold: a resumed training goes on from there, and
    what was written of steps that are done again is replaced.

    Args:
        path: file to write.
        losses: of the training, in their order.
    """

    def __init__(self, path: Path, losses: Sequence[Choice]) -> None:
        self.path = path
        self.names = [loss.name for loss in losses]
        if len({*self.names}) < len(self.names):
            self.names = [f"{number}-{name}" for number, name in enumerate(self.names, 1)]
        self._begin()

    def _begin(self) -> None:
        self.terms: Tensor | None = None
        self.steps, self.rows, self.seconds = 0, 0, 0.0

    def add(self, terms: Sequence[Tensor], rows: int) -> None:
        """Add a step's weighted terms, which stay on their device until a line is due, and its rows in this process."""
        self.rows += rows
        values = torch.stack([term.detach().float() for term in terms])
        self.terms = values if self.terms is None else self.terms + values

    def on_step_begin(self, *given: Any, **named: Any) -> None:
        self.begin = time.monotonic()

    def on_step_end(self, *given: Any, **named: Any) -> None:
        self.steps += 1
        self.seconds += time.monotonic() - self.begin

    def since_last(self) -> dict[str, Any]:
        """Return the mean terms, and the rows a second of steps alone, without evaluations and checkpoints."""
        found: dict[str, Any] = {}
        if self.terms is not None:
            rows = processes.total(self.terms.new_tensor(self.rows, dtype=torch.float64)).item()
            means = (processes.total(self.terms) / processes.active() / max(self.steps, 1)).tolist()
            found = {"rows_per_second": rows / max(self.seconds, 1e-9)}
            found |= {f"{_TERM}{name}": mean for name, mean in zip(self.names, means, strict=True)}
        self._begin()
        return found

    def on_log(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.is_world_process_zero:
            write_json_lines(self.path, filter(None, map(_line, state.log_history)))


def _line(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a line says of an entry of the Trainer's history; None for its summary at the end."""
    kept = {key: _rounded(value) for key, value in entry.items() if key in _KEPT or _TERM in key}
    said = {"validation" if key == "eval_score" else key: value for key, value in kept.items()}
    return {"step": entry["step"], **said} if said else None


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None  # JSON has no NaN


def join_logs(folders: Mapping[str, Path], output: Path) -> None:
    """Join the lines of a training's parts, each with the name of its part where there are several.

    A damaged log is said and left out: it is no reason to train again.
    """
    lines: list[dict[str, Any]] = []
    for name, folder in folders.items():
        part = {"phase": name} if len(folders) > 1 else {}
        try:
            lines += [{**part, **line} for line in read_training(folder).lines]
        except CompressError as error:
            logger.warning("%s", error)
    write_json_lines(output / METRICS_NAME, lines)
