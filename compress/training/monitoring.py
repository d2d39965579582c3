"""What a training says while it runs: ``metrics.jsonl``, progress, and experiment trackers."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from compress.errors import CompressError
from compress.files import write_json_lines
from compress.inference import processes
from compress.models.manifest import METRICS_NAME
from compress.models.output_dir import work_title
from compress.models.training_log import read_training
from compress.progress import logger
from compress.recipes import Choice

POINTS = 100  # lines of one training, beside those of its evaluations
TENSORBOARD_FOLDER = "runs"  # the default of TensorBoard's own writer; transformers' is deleted with the checkpoints
_TERM = "loss/"
# What lines keep of the Trainer's history, beside the terms of the loss, and what they call it.
_KEPT = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "rows_per_second": "rows_per_second",
    "eval_score": "validation",
}


class Monitor(TrainerCallback):
    """Sums loss terms, rows and seconds, writes them as lines, and shows how far the training is.

    The lines are the Trainer's own history, which its checkpoints hold, and are written anew with each: a resumed
    training replaces what was written of steps that are done again.

    Args:
        path: file to write.
        losses: of the training, in their order.
        title: of the training, for :meth:`on_save`.
    """

    def __init__(self, path: Path, losses: Sequence[Choice], title: str = "") -> None:
        self.path, self.title = path, title
        self.advance: Callable[[int], None] = lambda steps: None
        self.choose_threads: Callable[[], None] = lambda: None
        self.names = [loss.name for loss in losses]
        if len({*self.names}) < len(self.names):
            self.names = [f"{number}-{name}" for number, name in enumerate(self.names, 1)]
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
        self.advance(1)
        self.choose_threads()

    def since_last(self) -> dict[str, Any]:
        """Return the mean terms, and the rows a second of steps alone, without evaluations and checkpoints."""
        if self.terms is None:
            return {}
        rows = processes.total(self.terms.new_tensor(self.rows, dtype=torch.float64)).item()
        means = (processes.total(self.terms) / processes.active() / max(self.steps, 1)).tolist()
        terms = {f"{_TERM}{name}": mean for name, mean in zip(self.names, means, strict=True)}
        found = {"rows_per_second": rows / max(self.seconds, 1e-9), **terms}
        self.terms, self.steps, self.rows, self.seconds = None, 0, 0, 0.0
        return found

    def on_log(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.is_world_process_zero:
            write_json_lines(self.path, filter(None, map(_line, state.log_history)))

    def on_save(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Say how far it is, after the evaluation: ``step 400 of 2,000: validation 0.8812 (best)``."""
        known: dict[str, float] = {key: value for entry in state.log_history for key, value in entry.items()}
        said = f": loss {known['loss']:.4f}" if "loss" in known else ""
        if "eval_score" in known:
            best = " (best)" if state.best_global_step == state.global_step else ""
            said = f": validation {known['eval_score']:.4f}{best}"
        if state.is_world_process_zero:
            logger.info("%s: step %s of %s%s", self.title, f"{state.global_step:,}", f"{state.max_steps:,}", said)


def _line(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a line says of an entry of the Trainer's history; None for its summary at the end."""
    said = {_KEPT.get(key, key): value for key, value in entry.items() if key in _KEPT or _TERM in key}
    # JSON has no NaN.
    rounded = {key: float(f"{value:.6g}") if math.isfinite(value) else None for key, value in said.items()}
    return {"step": entry["step"], **rounded} if said else None


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


@contextmanager
def reporting(trainer: Trainer, tracker: str | None, begun: int) -> Iterator[None]:
    """Report what the block trains as a run named after the output and the phase; None reports nothing.

    Args:
        begun: steps that a resumed training has behind it; TensorBoard shows what is done again once.
    """
    if tracker is None:
        yield
        return
    trainer.args.run_name = work_title(Path(trainer.args.output_dir or ""))
    trainer.args.project = "compress"  # of trackio alone; others have a variable for it
    callback: Any = INTEGRATION_TO_CALLBACK[tracker]()
    if tracker == "tensorboard" and trainer.is_world_process_zero():
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(os.environ.get("TENSORBOARD_LOGGING_DIR", TENSORBOARD_FOLDER)).expanduser()
        callback.tb_writer = SummaryWriter(str(folder / trainer.args.run_name), purge_step=begun + 1)
    if tracker == "mlflow":  # its file store cannot keep loss as a file and as the folder of its terms
        log = callback.on_log
        callback.on_log = lambda *given, logs, **named: log(
            *given, logs={key.replace("/", "_"): value for key, value in logs.items()}, **named
        )
    ours = tracker != "wandb" or callback._wandb.run is None
    trainer.add_callback(callback)
    try:
        yield
    finally:
        # Also after an error, else the next training of a study would report to this one's run.
        if tracker != "wandb":
            callback.on_train_end(trainer.args, trainer.state, trainer.control)
        elif ours:  # the integration leaves its run open
            callback._wandb.finish()
