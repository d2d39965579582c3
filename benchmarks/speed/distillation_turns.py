"""One turn of distillation_speed.py: a few training steps, ours or TextBrewer's, on the same text."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrainerCallback

from compress import plugins
from compress.data import Example, open_source
from compress.data.tokenization import maximum_length
from compress.errors import CompressError
from compress.inference.batching import Run, logits_of
from compress.inference.compute import Compute, fast_float32
from compress.labelling.label import Plan, plan_for, start_runtime
from compress.models.batch import Batch, Outputs
from compress.models.model_dir import Model
from compress.recipes import Choice, Training, needs_of
from compress.training.teacher_signal import (
    LIVE,
    LiveTeacher,
    TeacherSignal,
    cached_first_states,
    cached_teacher,
    write_first_states,
)
from compress.training.trainer import DistillationTrainer, Objective, TrainingRun
from compress.training.training_data import EpochSampler, Masker, TrainingRow, collator, tokenized

DEPTH, WARM_UP, TEMPERATURE, MASKING = 3, 2, 2.0, 0.15
TRAINING = Training(batch_size=32, precision="float32", max_length=128)
NO_TEACHER, CACHED, FIRST, LIVE_TEACHER, PASS_FOR_EACH = (
    "none",
    "cached logits",
    "cached first states",
    "live",
    "live, a pass for each loss",
)
# As a training multiplies matrices; with PyTorch's own choice of a library; in bfloat16.
FLOAT32, UNCHANGED, BFLOAT16 = "float32", "float32 as PyTorch multiplies it", "bfloat16"
CLIENT = Path(__file__).with_name("textbrewer_client.py")


@dataclass(frozen=True)
class Candidate:
    """A way to learn: the losses, how the teacher's outputs come about, and how matrices are multiplied.

    ``request`` is for TextBrewer: its matches, what its models return and their attention. ``opponents`` are those of
    ours that a candidate of TextBrewer is compared with.
    """

    losses: tuple[str, ...]
    teacher: str
    library: str = "compress"
    request: Mapping[str, Any] = field(default_factory=dict)
    opponents: tuple[str, ...] = ()
    arithmetic: str = FLOAT32

    @property
    def name(self) -> str:
        parts = [" + ".join(self.losses), self.teacher, self.arithmetic, self.library]
        return ", ".join(part for part in parts if part not in (FLOAT32, "compress"))


@dataclass(frozen=True)
class TrainingPlan:
    """What one round trains on: the texts, their rows, these rows as finished batches, and first states."""

    examples: list[Example]
    rows: Dataset
    batches: Path
    first_states: Path
    seed: int


@dataclass
class Ours:
    """Our side: a student that every turn trains further, its teacher, and text that the teacher has labelled."""

    model: Model
    teacher: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    student: PreTrainedModel
    student_folder: Path
    pool: list[Example]
    logits: np.ndarray
    plan: Plan
    run: Run
    steps: int
    source_name: str
    scratch: Path
    tokens_median: float = 0.0

    @classmethod
    def prepare(
        cls, teacher: str, unlabeled: str, *, rounds: int, steps: int, threads: int, seed: int, scratch: Path
    ) -> Ours:
        """Open the teacher, start a student from its layers, and label enough text for all rounds.

        Raises:
            CompressError: there is less text than that.
        """
        model = Model.open(teacher)
        tokenizer = model.tokenizer
        wanted = rounds * TRAINING.batch_size * (WARM_UP + steps)
        source = open_source(unlabeled, role="unlabeled", labelled=False).sample(wanted)
        pool = list(source)
        if len(pool) < wanted:
            raise CompressError(f"{unlabeled} has {len(pool)} rows and {wanted} are needed; use fewer --rounds")
        random.Random(seed).shuffle(pool)
        plan = plan_for(
            model, tokenizer, compute=Compute(device="cpu", threads=threads), max_length=TRAINING.max_length
        )
        run = start_runtime(plan, model, scratch)
        logits = logits_of(pool, run, tokenizer, max_length=plan.max_length)
        loaded: Any = model.load()
        start = plugins.find("architectures", "transformer").function
        student: Any = start(loaded, tokenizer, pool, depth=DEPTH, start="spread")
        folder = scratch / "student"
        student.save_pretrained(folder)
        return cls(model, loaded, tokenizer, student, folder, pool, logits, plan, run, steps, source.name, scratch)

    @property
    def depths(self) -> tuple[int, int]:
        return self.student.config.num_hidden_layers, self.teacher.config.num_hidden_layers

    def training_plan(self, number: int) -> TrainingPlan:
        """Return the text of one round, which no other round has."""
        size = TRAINING.batch_size * (WARM_UP + self.steps)
        chosen = slice(number * size, (number + 1) * size)
        examples, logits = self.pool[chosen], self.logits[chosen]
        length = min(TRAINING.max_length, maximum_length(self.tokenizer, self.model.config))
        written = tokenized(
            self.scratch / f"rows-{number}.arrow",
            (TrainingRow(e, z, int(z.argmax())) for e, z in zip(examples, logits, strict=True)),
            self.tokenizer,
            max_length=length,
            task=self.model.task,
        )
        rows = written
        lengths = np.asarray(rows.with_format("numpy")["length"])
        self.tokens_median = float(np.median(lengths))
        batches = self.scratch / f"batches-{number}.npz"
        np.savez(batches, **self._batches(rows, lengths, number))  # type: ignore[arg-type]
        first_states = self.scratch / f"first-{number}.npy"
        write_first_states(first_states, rows, self.teacher, self.collate, device="cpu", precision=TRAINING.precision)
        return TrainingPlan(examples, rows, batches, first_states, seed=number)

    @property
    def collate(self) -> Callable[..., dict[str, Tensor]]:
        return collator(self.tokenizer.pad_token_id or 0)

    def _batches(self, rows: Dataset, lengths: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Return what our trainer will read in its first epoch, for another library: ``[B, T]`` by number and name."""
        order = list(EpochSampler(TRAINING.batch_size, lengths, seed=seed))
        names = ("input_ids", "attention_mask", "token_type_ids")
        found = {}
        for index in range(len(order) // TRAINING.batch_size):
            chosen = order[index * TRAINING.batch_size : (index + 1) * TRAINING.batch_size]
            batch = self.collate([rows[row] for row in chosen])
            found.update({f"{index}/{name}": batch[name].numpy() for name in names if name in batch})
        return found

    def train(self, candidate: Candidate, training_plan: TrainingPlan) -> float:
        """Train for some steps and return their mean milliseconds."""
        losses = tuple(Choice(name) for name in candidate.losses)
        masker = Masker(self.tokenizer, MASKING) if "targets" in needs_of(losses) else None
        compute = Compute("cpu", seed=training_plan.seed)
        precision = BFLOAT16 if candidate.arithmetic == BFLOAT16 else FLOAT32
        training = replace(TRAINING, precision=precision)  # type: ignore[arg-type]
        trainer = DistillationTrainer(
            self.student,
            training_plan.rows,
            Objective(losses, self._signal(candidate, losses, training_plan, precision), self.teacher, masker),
            TrainingRun(self.scratch / "checkpoints", training, self.model.task, compute),
            steps=WARM_UP + self.steps,
            collate=self.collate,
        )
        watch = Stopwatch()
        trainer.add_callback(watch)
        with nullcontext() if candidate.arithmetic == UNCHANGED else fast_float32():
            trainer.train()
        trainer.release()
        return 1000 * (watch.ends[-1] - watch.ends[WARM_UP - 1]) / self.steps

    def _signal(
        self, candidate: Candidate, losses: Sequence[Choice], training_plan: TrainingPlan, precision: str
    ) -> TeacherSignal:
        if candidate.teacher == FIRST:
            return partial(cached_first_states, np.load(training_plan.first_states, mmap_mode="r"))
        if candidate.teacher in {NO_TEACHER, CACHED}:
            return cached_teacher
        live = LiveTeacher(self.teacher, needs_of(losses) & LIVE, precision)

        def without_cache(batch: Batch, cached_logits: Tensor | None) -> Outputs:
            if candidate.teacher == PASS_FOR_EACH:
                for _ in losses[1:]:
                    live(batch, None)
            return live(batch, None)

        return without_cache

    def label(self, training_plan: TrainingPlan) -> float:
        """Return the milliseconds that labelling takes for one batch of text."""
        started = time.perf_counter()
        logits_of(
            training_plan.examples,
            self.run,
            self.tokenizer,
            max_length=self.plan.max_length,
            batch_rows=self.plan.batch_rows,
        )
        return 1000 * (time.perf_counter() - started) * TRAINING.batch_size / len(training_plan.examples)


class Stopwatch(TrainerCallback):
    """Notes when each step ends, and keeps the trainer from saving at the end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.ends.append(time.perf_counter())
        control.should_save = False


class Competitor:
    """TextBrewer in a process of its own; see textbrewer_client.py."""

    def __init__(self, python: Path, student: Path, teacher: Path, threads: int, scratch: Path) -> None:
        self.errors = scratch / "textbrewer.log"
        command = [str(python), str(CLIENT), str(student), str(teacher), str(threads), str(scratch / "textbrewer")]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )
        self.versions = self._answer()

    def __enter__(self) -> Competitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    def train(self, candidate: Candidate, training_plan: TrainingPlan) -> float:
        """Train for the same steps and return their mean milliseconds."""
        request = {
            **candidate.request,
            "batches": str(training_plan.batches),
            "warm_up": WARM_UP,
            "temperature": TEMPERATURE,
            "learning_rate": TRAINING.learning_rate,
            "weight_decay": TRAINING.weight_decay,
            "max_gradient_norm": TRAINING.max_gradient_norm,
        }
        asked: IO[str] = self.process.stdin  # type: ignore[assignment]
        print(json.dumps(request), file=asked, flush=True)
        return float(self._answer()["step_ms"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"TextBrewer ended:\n{self.errors.read_text()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer
