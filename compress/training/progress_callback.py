"""How far a training is, step by step, and how well its model does."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerState

from compress.progress import Advance, logger


class ProgressCallback(TrainerCallback):
    """Advances by every optimiser step, says how well the model does, and chooses the threads again where it is due."""

    def __init__(self, title: str, advance: Advance, choose_threads: Callable[[], None]) -> None:
        self.title, self.advance, self.choose_threads = title, advance, choose_threads

    def on_step_end(self, *given: Any, **named: Any) -> None:
        self.advance(1)
        self.choose_threads()

    def on_save(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.is_world_process_zero:  # an evaluation comes before each checkpoint
            logger.info("%s: %s", self.title, standing(state))


def standing(state: TrainerState) -> str:
    """Return how far a training is and how well its model does: ``step 400 of 2,000: validation 0.8812 (best)``."""
    known: dict[str, float] = {key: value for entry in state.log_history for key, value in entry.items()}
    said = f"step {state.global_step:,} of {state.max_steps:,}"
    if "eval_score" in known:
        best = " (best)" if state.best_global_step == state.global_step else ""
        return f"{said}: validation {known['eval_score']:.4f}{best}"
    return f"{said}: loss {known['loss']:.4f}" if "loss" in known else said
