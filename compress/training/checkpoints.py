"""Checkpoints of a training: which one is whole, and whether the training ended with it."""

import json
from pathlib import Path
from typing import Any

from transformers import TrainerState
from transformers.trainer_utils import rotate_checkpoints

from compress.models.resumption import is_whole, seal


def was_last(checkpoint: Path) -> bool:
    """Tell whether a training ended with a checkpoint, because of its steps or because it stopped improving."""
    return bool(_state(checkpoint)["stateful_callbacks"]["TrainerControl"]["args"]["should_training_stop"])


def last_whole_checkpoint(directory: Path) -> Path | None:
    """Return the newest checkpoint from which a training can go on; delete those that are cut short or damaged.

    The best one so far must be there too: the training ends with the better of it and what follows.
    """
    whole = {step_of(path): path for path in directory.glob("checkpoint-*") if is_whole(path)}
    newest_first = (whole[step] for step in sorted(whole, reverse=True))
    return next((path for path in newest_first if _best_step(path) in {None, *whole}), None)


def finish_checkpoint(directory: Path, state: TrainerState) -> None:
    """Note the hashes of the checkpoint that was just written, then delete older ones but for the best."""
    seal(directory / f"checkpoint-{state.global_step}")
    rotate_checkpoints(str(directory), save_total_limit=2, best_model_checkpoint=state.best_model_checkpoint)


def step_of(checkpoint: Path) -> int:
    """Return the optimiser step after which a checkpoint was written."""
    return int(checkpoint.name.rsplit("-", 1)[1])


def _best_step(checkpoint: Path) -> int | None:
    step: int | None = _state(checkpoint)["best_global_step"]
    return step


def _state(checkpoint: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    return state
