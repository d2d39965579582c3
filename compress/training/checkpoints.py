"""Checkpoints of a training: which one is whole, and whether the training ended with it."""

import json
import shutil
from pathlib import Path


def was_last(checkpoint: Path) -> bool:
    """Tell whether a training ended with a checkpoint, because of its steps or because it stopped improving."""
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    return bool(state["stateful_callbacks"]["TrainerControl"]["args"]["should_training_stop"])


def last_whole_checkpoint(directory: Path) -> Path | None:
    """Return the newest checkpoint that was written to its end; remove one that was cut short.

    ``trainer_state.json`` is the last file the Trainer writes, so a checkpoint without a readable one is not whole.
    """
    for checkpoint in sorted(directory.glob("checkpoint-*"), key=lambda path: -int(path.name.rsplit("-", 1)[1])):
        try:
            json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
            return checkpoint
        except (FileNotFoundError, ValueError):  # not what the disk or its rights say: the checkpoint may be whole
            shutil.rmtree(checkpoint)
    return None
