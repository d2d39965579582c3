"""Where the time of a training goes: batches, passes, the optimiser, evaluation, checkpoints.

    python benchmarks/speed/training_profile.py --teacher DIR --unlabeled FILE --validation FILE -o RESULTS.jsonl
        [--student minilm-3 ...] [--precision float32 ...] [--steps 188] [--batch-size 32] [--rows 8192]

Each student is trained by ``compress distill`` itself, on one thread, with one evaluation and one checkpoint at the
end: as many steps as lie between two of the eight evaluations of 1,500. The text is labelled before. Times are CPU time
of the process, so that other programs hardly count.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

from accelerate import Accelerator

from compress import recipes
from compress.data import open_source
from compress.files import write_json_lines
from compress.inference.compute import Compute
from compress.requests.labelling import label
from compress.requests.training import distill
from compress.training import trainer
from compress.training.teacher_signal import LiveTeacher
from compress.training.trainer import RowAdamW

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import provenance, read_options, read_rows  # noqa: I001

WHOLE = "training"
PARTS: dict[str, tuple[Any, str]] = {
    WHOLE: (trainer.DistillationTrainer, "train"),
    "batches": (trainer.DistillationTrainer, "get_batch_samples"),
    "student's pass and losses": (trainer.DistillationTrainer, "compute_loss"),
    "teacher's pass": (LiveTeacher, "__call__"),  # within compute_loss
    "backward pass": (Accelerator, "backward"),
    "clipping": (trainer, "clip_gradients"),
    "optimiser": (RowAdamW, "step"),
    "evaluation": (trainer.DistillationTrainer, "evaluate"),
    "checkpoint": (trainer.DistillationTrainer, "_save_checkpoint"),
}


def main() -> None:
    options = read_options(
        __doc__,
        teacher=str,
        unlabeled=str,
        validation=str,
        student=["minilm-3", "distilbert-half", "bilstm", "cnn"],
        precision=["float32", "bfloat16"],
        rows=8192,
        steps=188,
        batch_size=32,
    )
    compute, lines = Compute(threads=1), []
    with tempfile.TemporaryDirectory() as scratch:
        text = open_source(options.unlabeled, role="unlabeled", labelled=False).sample(options.rows)
        labels = label(options.teacher, text, Path(scratch, "labels"), device=compute.device, threads=compute.threads)
        validation = read_rows(options.validation, "validation")
        data: dict[str, Any] = {"labels": [labels], "validation": validation, "threads": 1}
        for student in options.student:
            for precision in options.precision:
                recipe = recipes.load_recipe("students", student)
                steps = {"min_steps": options.steps, "max_steps": options.steps, "batch_size": options.batch_size}
                training = replace(recipe.training, **steps, evaluations=1, precision=precision)
                with timed_parts() as seconds:
                    place = Path(scratch, f"{student}-{precision}")
                    distill(options.teacher, replace(recipe, training=training), place, **data)
                about = {"recipe": student, "precision": precision, "steps": options.steps}
                sizes = {"batch_size": options.batch_size, "validation_rows": len(validation), "threads": 1}
                found = {"seconds": seconds, "shares": shares(seconds), "step_ms": step_ms(seconds, options.steps)}
                lines.append({"study": "training-profile", **about, **sizes, **found, **provenance()})
                print(about, {part: f"{share:.1%}" for part, share in shares(seconds).items()}, flush=True)
    write_json_lines(options.output, lines)


@contextmanager
def timed_parts() -> Iterator[dict[str, float]]:
    """Add up the CPU seconds of each part of the trainings within the block."""
    seconds = dict.fromkeys(PARTS, 0.0)
    trains = False  # parts also run outside of trainings

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            nonlocal trains
            if not (trains or part == WHOLE):
                return function(*given, **named)
            trains, started = True, time.process_time()
            try:
                return function(*given, **named)
            finally:
                seconds[part] += time.process_time() - started
                trains = part != WHOLE

        return call

    with ExitStack() as patches:
        for part, (owner, name) in PARTS.items():
            patches.enter_context(mock.patch.object(owner, name, timed(part, getattr(owner, name))))
        yield seconds


def step_ms(seconds: dict[str, float], steps: int) -> float:
    """Return the milliseconds of a step, without evaluations and checkpoints."""
    return 1000 * (seconds[WHOLE] - seconds["evaluation"] - seconds["checkpoint"]) / steps


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """Return the share of the training that each part has, without what another part has within it, and the rest."""
    alone = {part: spent for part, spent in seconds.items() if part != WHOLE}
    alone["student's pass and losses"] -= alone["teacher's pass"]
    alone["rest"] = seconds[WHOLE] - sum(alone.values())
    return {part: spent / seconds[WHOLE] for part, spent in alone.items()}


if __name__ == "__main__":
    main()
