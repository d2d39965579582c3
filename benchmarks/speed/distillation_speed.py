"""How many training steps a second with each loss, beside TextBrewer's on the same student, batches and machine.

    python benchmarks/speed/distillation_speed.py --teacher DIR --unlabeled FILE -o RESULTS.jsonl
        [--rounds 5] [--steps 8] [--threads 0] [-- PIP OPTIONS]

A step is all of it: fetching and padding a batch, the student forwards, the teacher's signal, the losses, backwards,
clipping, AdamW, with the memory and the matrix products of a real training on the CPU. Some candidates train in
bfloat16 too, and in float32 as PyTorch multiplies it unless told otherwise. Every round draws new text and lets every
candidate train on it, in an order drawn anew; ratios are medians over rounds with their bootstrap interval. The first
two steps of a turn warm up; checkpoints and evaluation are left out. The student is three layers of the teacher's own
width. TextBrewer computes in float32 as PyTorch does it.

TextBrewer's GeneralDistiller runs the teacher in every step, in a process and an environment of its own
($COMPRESS_COMPETITORS, made here if it is not there). It gets finished batches, where our steps read and pad theirs,
and the fused AdamW that is our default. Its attention loss compares the probabilities that transformers returns, for
which the models must run in "eager" attention;
ours compares the scores before the softmax, from queries and keys. Ours with
cached logits is given without and with the time to label the text once.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrainerCallback

from compress import plugins
from compress.data import Example, open_source
from compress.data.tokenization import maximum_length
from compress.errors import CompressError
from compress.files import write_json_lines
from compress.inference.batching import Run, logits_of
from compress.inference.compute import Compute, fast_float32
from compress.inference.speedup_intervals import Interval, speedup
from compress.inference.threads import available_cores
from compress.labelling.label import Plan, plan_for, start_runtime
from compress.models.batch import Batch, Outputs
from compress.models.model_dir import Model
from compress.recipes import Choice, Training, needs_of
from compress.training.losses._common import layer_map
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

sys.path.append(str(Path(__file__).resolve().parents[1]))
from competitor_environments import python_of  # noqa: I001
from script import in_turns, provenance, read_options, said  # noqa: I001

DEPTH, WARM_UP, TEMPERATURE, MASKING = 3, 2, 2.0, 0.15
TRAINING = Training(batch_size=32, precision="float32", max_length=128)
NO_TEACHER, CACHED, FIRST, LIVE_TEACHER = "none", "cached logits", "cached first states", "live"
PASS_FOR_EACH = "live, a pass for each loss"
# As a training multiplies matrices; with PyTorch's own choice of a library; in bfloat16.
FLOAT32, UNCHANGED, BFLOAT16 = "float32", "float32 as PyTorch multiplies it", "bfloat16"
CLIENT = Path(__file__).with_name("textbrewer_client.py")
LEFT_OUT = {
    "mixed-vocabulary": "reads text in two vocabularies, which this student has not",
    "shared-projection": "is for a student of another width",
}
TOGETHER = ("kl", "hidden-mse", "attention-mse", "relations")
IN_EACH_ARITHMETIC = (
    (("kl",), CACHED),
    (("kl",), LIVE_TEACHER),
    (("kl", "hidden-mse"), LIVE_TEACHER),
    (("kl", "attention-mse"), LIVE_TEACHER),
)
LABELLING = "compress label"


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


def main() -> None:
    given = {"rounds": 5, "steps": 8, "threads": 0, "seed": 0}
    options = read_options(__doc__, positional=("pip_options", "*"), teacher=str, unlabeled=str, **given)
    python = python_of("textbrewer", options.pip_options)
    threads = options.threads or len(available_cores())
    torch.set_num_threads(threads)
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as scratch:
        ours = Ours.prepare(
            options.teacher,
            options.unlabeled,
            rounds=options.rounds,
            steps=options.steps,
            threads=threads,
            seed=options.seed,
            scratch=Path(scratch),
        )
        with Competitor(python, ours.student_folder, ours.model.path, threads, Path(scratch)) as competitor:
            everyone = [*candidates(), *textbrewer_candidates(ours.depths)]
            step_ms = take_turns(ours, competitor, everyone, options.rounds, options.seed)
            peer_versions = competitor.versions
    loads.append(os.getloadavg()[0])
    common = {
        "study": "distillation-speed",
        "teacher_model": ours.model.name,
        "data": ours.source_name,
        "batch_size": TRAINING.batch_size,
        "steps": options.steps,
        "rounds": options.rounds,
        "threads": threads,
        "tokens_median": ours.tokens_median,
        "precision": TRAINING.precision,
        "seed": options.seed,
        "load_average": loads,
        "left_out": LEFT_OUT,
        **provenance(),
        "peer_versions": peer_versions,
    }
    lines = [{**line, **common} for line in results(everyone, step_ms, options.seed)]
    write_json_lines(options.output, lines)
    for line in lines:
        show(line)


def candidates() -> list[Candidate]:
    """Return every loss alone, with each way its teacher can come about, and the sets of losses that are compared."""
    found = []
    for name in plugins.names("losses"):
        if name in LEFT_OUT:
            continue
        wanted = needs_of([Choice(name)])
        if wanted & {"hidden", "attention"}:
            teachers: tuple[str, ...] = (LIVE_TEACHER,)
        elif "first" in wanted:
            teachers = (FIRST, LIVE_TEACHER)
        elif "logits" in wanted:
            teachers = (CACHED, LIVE_TEACHER) if name == "kl" else (CACHED,)
        else:
            teachers = (NO_TEACHER,)
        found += [Candidate((name,), teacher) for teacher in teachers]
    found += [Candidate(TOGETHER, LIVE_TEACHER), Candidate(TOGETHER, PASS_FOR_EACH)]
    found += [Candidate(*one) for one in IN_EACH_ARITHMETIC if len(one[0]) > 1]
    return found + [
        Candidate(*one, arithmetic=arithmetic) for one in IN_EACH_ARITHMETIC for arithmetic in (UNCHANGED, BFLOAT16)
    ]


def in_each(name: str) -> tuple[str, ...]:
    """Return the names of one of ours in each arithmetic; TextBrewer computes in float32 as PyTorch multiplies it."""
    return f"{name}, {UNCHANGED}", name, f"{name}, {BFLOAT16}"


def textbrewer_candidates(depths: tuple[int, int]) -> list[Candidate]:
    """Return TextBrewer's counterparts, given the layers of the student and of the teacher."""

    def matches(feature: str, loss: str, *, first: int) -> list[dict[str, Any]]:
        """Number layers from ``first``: hidden states begin with the embeddings, attention with the first layer."""
        return [
            {"layer_S": ours - 1 + first, "layer_T": theirs - 1 + first, "feature": feature, "loss": loss, "weight": 1}
            for ours, theirs in layer_map(*depths)
        ]

    hidden, attention = matches("hidden", "hidden_mse", first=1), matches("attention", "attention_mse", first=0)
    requests = {
        ("kl",): {"matches": [], "outputs": {}, "attention": "sdpa"},
        ("kl", "hidden-mse"): {"matches": hidden, "outputs": {"output_hidden_states": True}, "attention": "sdpa"},
        ("kl", "attention-mse"): {"matches": attention, "outputs": {"output_attentions": True}, "attention": "eager"},
    }
    found = []
    for losses, request in requests.items():
        teachers = [teacher for known, teacher in IN_EACH_ARITHMETIC if known == losses]
        opponents = [name for teacher in teachers for name in in_each(f"{' + '.join(losses)}, {teacher}")]
        found.append(Candidate(losses, LIVE_TEACHER, "TextBrewer", request, tuple(opponents)))
    return found


def take_turns(
    ours: Ours, competitor: Competitor, everyone: Sequence[Candidate], rounds: int, seed: int
) -> dict[str, list[float]]:
    """Return the mean milliseconds of a step of every candidate, and of labelling one batch, one value a round."""
    turns: dict[str, Callable[[TrainingPlan], float]] = {LABELLING: ours.label}
    for candidate in everyone:
        turn = ours.train if candidate.library == "compress" else competitor.train
        turns[candidate.name] = partial(turn, candidate)
    step_ms: dict[str, list[float]] = {name: [] for name in turns}
    plan_of = lru_cache(1)(ours.training_plan)
    for number, name in in_turns(turns, rounds, seed):
        step_ms[name].append(turns[name](plan_of(number)))
        print(f"round {number + 1}: {name}: {step_ms[name][-1]:,.0f} ms a step", flush=True)
    return step_ms


def results(everyone: Sequence[Candidate], step_ms: Mapping[str, list[float]], seed: int) -> list[dict[str, Any]]:
    """Return one line for each candidate, of which the speeds are ratios to others of the same rounds.

    ``speed_to_cached_logits`` is against our kl with cached logits, 0.5 is half as fast.
    ``faster_than_unchanged`` is against the same in float32 with PyTorch's own choice of a library for matrices.
    ``faster_than_a_pass_for_each`` and ``faster_than_one_by_one`` say what several losses gain from one pass of the
    teacher: against a pass for each, and against the sum of a step with each alone. ``ours_is_faster_by`` compares
    TextBrewer with ours, for cached logits also with the time to label the text, for one epoch over it and for two.
    """

    def faster(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
        ratio: Interval = speedup([[one] for one in slow], [[one] for one in fast], seed=seed)
        return ratio._asdict()

    labelling = np.array(step_ms[LABELLING])
    lines = []
    for candidate in everyone:
        own = step_ms[candidate.name]
        line: dict[str, Any] = {
            "name": candidate.name,
            "library": candidate.library,
            "losses": list(candidate.losses),
            "teacher": candidate.teacher,
            "arithmetic": candidate.arithmetic,
            "step_ms": own,
            "steps_per_second": float(np.median(1000 / np.array(own))),
            "speed_to_cached_logits": faster(step_ms[f"kl, {CACHED}"], own),
        }
        unchanged = Candidate(candidate.losses, candidate.teacher, arithmetic=UNCHANGED).name
        if unchanged in step_ms and candidate.library == "compress" and candidate.arithmetic != UNCHANGED:
            line["faster_than_unchanged"] = faster(step_ms[unchanged], own)
        if candidate.losses == TOGETHER and candidate.teacher == LIVE_TEACHER:
            alone = np.sum([step_ms[f"{name}, {LIVE_TEACHER}"] for name in TOGETHER], axis=0)
            line["faster_than_a_pass_for_each"] = faster(step_ms[Candidate(TOGETHER, PASS_FOR_EACH).name], own)
            line["faster_than_one_by_one"] = faster(alone.tolist(), own)
        for opponent in candidate.opponents:
            compared = line.setdefault("ours_is_faster_by", {})
            compared[opponent] = faster(own, step_ms[opponent])
            if opponent == f"kl, {CACHED}":
                for passes in (1, 2):
                    labelled = np.array(step_ms[opponent]) + labelling / passes
                    name = f"{opponent}, labelled for {passes} epoch{'s' * (passes > 1)}"
                    compared[name] = faster(own, labelled.tolist())
        lines.append(line)
    return lines


def show(line: Mapping[str, Any]) -> None:
    share = said(line["speed_to_cached_logits"])
    print(f"{line['name']:60} {line['steps_per_second']:6.2f} steps/s, {share} of kl with cached logits")
    for name in ("faster_than_unchanged", "faster_than_a_pass_for_each", "faster_than_one_by_one"):
        if name in line:
            print(f"    {name}: {said(line[name])}")
    for name, ratio in line.get("ours_is_faster_by", {}).items():
        print(f"    ours ({name}) is {said(ratio)} as fast")


if __name__ == "__main__":
    main()
