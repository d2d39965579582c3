"""How far a training is, step by step, and how well its model does."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from compress.progress import Advance, logger


class ProgressCallback(TrainerCallback):
    """Advances by every optimiser step, says how well the model does, and chooses the threads again where it is due."""

    def __init__(self, title: str, advance: Advance, choose_threads: Callable[[], None]) -> None:
        self.title, self.advance, self.choose_threads = title, advance, choose_threads

    def on_step_end(self, *given: Any, **named: Any) -> None:
        self.advance(1)
        self.choose_threads()

    def on_save(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Say how far it is, after the evaluation: ``step 400 of 2,000: validation 0.8812 (best)``."""
        if not state.is_world_process_zero:
            return
        known: dict[str, float] = {key: value for entry in state.log_history for key, value in entry.items()}
        said = f": loss {known['loss']:.4f}" if "loss" in known else ""
        if "eval_score" in known:
            best = " (best)" if state.best_global_step == state.global_step else ""
            said = f": validation {known['eval_score']:.4f}{best}"
        logger.info("%s: step %s of %s%s", self.title, f"{state.global_step:,}", f"{state.max_steps:,}", said)
