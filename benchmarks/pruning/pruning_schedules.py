"""When to decide which heads and neurons go: once before the recovery, step by step during it, or by learned scores?

    python benchmarks/pruning/pruning_schedules.py --teacher DIR --train FILE --validation FILE --work DIR
        -o RESULTS.jsonl [--arms once once-in-two gradual movement random]
        [--shares 0.6 0.8] [--seeds 0] [--steps 400] [--tune]

Every arm starts from the teacher, gives the same share of heads and of neurons away, and is taught the same rows in as
many steps of the same batch, by the mean squared error to the teacher's logits; each row is read once. ``once`` decides
by the gradients of 1,024 of these rows, in turns of 10% of the heads and of the neurons, and then recovers at a falling
rate. The others learn at a constant rate for 60% of the steps and at a falling one in the rest. ``once-in-two`` decides
as ``once`` does; ``gradual`` decides during the first phase by the modifier ``gradual-pruning``, ``random`` by its
schedule with random scores, ``movement`` by learned scores (below), and these are sliced between the two.

Differences between arms are paired over the validation rows. ``--tune`` measures on a slice of train instead, which no
arm reads either: the default settings of ``movement`` were chosen there, with 150 steps. Finished arms are kept in the
working folder.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compress.data import Example
from compress.data.overlap import grouped_split
from compress.evaluation.metrics import agreement, interval, paired_difference
from compress.files import write_atomically, write_json_lines
from compress.inference.batching import logits_of
from compress.inference.compute import Compute, resolve_precision
from compress.inference.torch_run import TorchRun
from compress.labelling.label import teacher_logits
from compress.models.components import Part, units_of
from compress.models.model_dir import Model
from compress.pruning.criteria.gradient import importance
from compress.pruning.scoring import scoring_batches
from compress.recipes import Choice, Training
from compress.surgery.remove import remove_heads, remove_neurons
from compress.surgery.unit_masks import mask_hooks, mask_lowest, normalised
from compress.tasks import find_task
from compress.training.modifiers.gradual_pruning import STATE, attach, masked_share
from compress.training.teacher_signal import cached_teacher
from compress.training.trainer import Objective, TrainingRun, train
from compress.training.training_data import TrainingRow, collator, tokenized

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import provenance, read_options, read_rows  # noqa: I001

ARMS = ("once", "once-in-two", "gradual", "movement", "random")
COMPARED = ("once", "once-in-two", "gradual")  # with whom the others are
PARTS: tuple[Part, ...] = ("heads", "neurons")
WIDTHS = {"heads": {"keep": 1, "multiple": 1}, "neurons": {"keep": 32, "multiple": 32}}
LOSSES = (Choice("logit-mse"),)
TRAINING = Training(batch_size=32, learning_rate=1e-4, evaluations=1, max_length=64)
FIRST_PHASE = replace(TRAINING, schedule="constant")
TUNED_ON, SCORED, TURN, FIRST_SHARE = 0.05, 1024, 0.1, 0.6
Masks = dict[Part, list[Tensor]]


class MovementPruning:
    """Learned scores of units, the lowest of which are masked for now: they may come back.

    Sanh et al. 2020, "Movement Pruning: Adaptive Sparsity by Fine-Tuning" (arXiv:2005.07683), section 3, with a head or
    a neuron as the block (Lagunas et al. 2021, arXiv:2109.04838). Scores get the gradient of the mask, straight
    through, and an optimiser of their own; how many are masked follows the cubic schedule. ``penalty`` pulls all scores
    down, as the regulariser of the soft version does.
    """

    def __init__(self, student: Any, counts: dict[Part, int], *, until: float, optimiser: str, penalty: float) -> None:
        self.counts, self.until, self.penalty, self.done = counts, until, penalty, 0.0
        self.stack = ExitStack()
        self.hooks = {part: self.stack.enter_context(mask_hooks(student, part)) for part in counts}
        self.scores = {
            part: [torch.zeros(units, requires_grad=True) for units in hooks.counts]
            for part, hooks in self.hooks.items()
        }
        learned = [score for scores in self.scores.values() for score in scores]
        # Without weight decay the order of the scores does not depend on the rate, with either optimiser.
        kinds: dict[str, Any] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        self.optimiser = kinds[optimiser](learned, lr=1e-2)
        self._close()

    @property
    def masks(self) -> Masks:
        share = masked_share(min(1.0, self.done / self.until))
        return {
            part: mask_lowest(
                torch.stack([score.detach() for score in scores]),
                [torch.ones(len(score)) for score in scores],
                round(share * self.counts[part]),
                **WIDTHS[part],
            )
            for part, scores in self.scores.items()
        }

    def step(self, done: float) -> None:
        self.done = done
        for scores in self.scores.values():
            for score in scores:
                if score.grad is not None and self.penalty:
                    score.grad += self.penalty
        self.optimiser.step()
        self.optimiser.zero_grad()
        self._close()

    def detach(self) -> None:
        self.done = 1.0
        self.stack.close()

    def _close(self) -> None:
        for part, masks in self.masks.items():
            pairs = zip(masks, self.scores[part], strict=True)
            self.hooks[part].masks = [mask + score - score.detach() for mask, score in pairs]


class RandomScores:
    """Gradual pruning that chooses by lot."""

    def __init__(self, student: Any, seed: int, **options: Any) -> None:
        self.attached = attach(student, None, **options)
        generator = torch.Generator().manual_seed(seed)
        named = student.get_submodule(STATE).named_buffers()
        self.totals = [
            (totals, torch.rand(totals.shape, generator=generator)) for name, totals in named if name.endswith("totals")
        ]

    @property
    def masks(self) -> Masks:
        return self.attached.masks

    def step(self, done: float) -> None:
        for totals, lots in self.totals:
            totals.copy_(lots)
        self.attached.step(done)

    def detach(self) -> None:
        self.step(1.0)
        self.attached.detach()


@dataclass(frozen=True)
class Study:
    """What all arms of a seed have in common: the teacher, the rows taught with its logits, the rows measured."""

    teacher: Model
    taught: list[Example]
    gold: list[int]
    logits: np.ndarray
    measured: list[Example]
    answers: np.ndarray
    theirs: np.ndarray
    work: Path
    seed: int

    @classmethod
    def of(cls, options: argparse.Namespace, seed: int) -> Study:
        teacher = Model.open(options.teacher)
        work = options.work / f"{'tune' if options.tune else 'final'}-{seed}-{options.steps}"
        rest, tuning = grouped_split(read_rows(options.train, "train"), TUNED_ON, seed=0)
        measured = tuning if options.tune else read_rows(options.validation, "validation")
        taught = random.Random(seed).sample(rest, options.steps * TRAINING.batch_size)
        kept = work / "logits.npz"
        if not kept.is_file():
            work.mkdir(parents=True, exist_ok=True)
            asked = {"compute": Compute(device="cpu", threads=1), "max_length": 64}
            both = {"taught": taught, "measured": measured}
            np.savez(kept, **{name: teacher_logits(teacher, rows, **asked) for name, rows in both.items()})
        logits = np.load(kept)
        return cls(
            teacher,
            taught,
            gold_of(taught, teacher),
            logits["taught"],
            measured,
            np.asarray(gold_of(measured, teacher)),
            find_task("classification").predictions(logits["measured"]),
            work,
            seed,
        )

    def predict(self, model: Any) -> np.ndarray:
        run = TorchRun(model.eval())
        logits = logits_of(self.measured, run, self.teacher.tokenizer, max_length=TRAINING.max_length)
        return find_task("classification").predictions(logits)

    def accuracy(self, predicted: np.ndarray) -> float:
        return float((predicted == self.answers).mean())

    def train(self, model: Any, rows: slice, training: Training, modifier: Any = None) -> None:
        """Teach some of the rows, each once."""
        tokenizer = self.teacher.tokenizer
        logits, gold = self.logits[rows], self.gold[rows]
        given = [TrainingRow(*row) for row in zip(self.taught[rows], logits, gold, strict=True)]
        folder = self.work / "training"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        asked = {"max_length": TRAINING.max_length, "task": find_task("classification")}
        written = tokenized(folder / "rows.arrow", iter(given), tokenizer, **asked)
        train(
            model,
            written,
            Objective(LOSSES, cached_teacher, modifier=modifier),
            TrainingRun(folder / "checkpoints", training, find_task("classification"), Compute("cpu", 1, self.seed)),
            steps=len(given) // training.batch_size,
            collate=collator(tokenizer.pad_token_id or 0),
        )
        shutil.rmtree(folder)


def gold_of(examples: Sequence[Example], teacher: Model) -> list[int]:
    return [int(label) for label in find_task("classification").gold(examples, teacher.labels, "rows")]  # type: ignore[call-overload]


def main() -> None:
    given = {"arms": (list(ARMS),), "shares": [0.6, 0.8], "seeds": [0], "steps": 400, "tune": False}
    given |= {"optimiser": ("adam", "sgd"), "penalty": 1e-4}  # of movement's scores
    options = read_options(__doc__, teacher=Path, train=Path, validation=Path, work=Path, **given)
    torch.set_num_threads(1)
    common = {
        "study": "pruning-schedules",
        "teacher": options.teacher.name,
        "data": options.validation.name,
        "tune": options.tune,
        "training": asdict(TRAINING),
        "precision": resolve_precision(TRAINING.precision, "cpu"),
        "losses": [choice.name for choice in LOSSES],
        **provenance(),
    }
    lines: list[dict[str, Any]] = []
    for seed in options.seeds:
        study = Study.of(options, seed)
        for share in options.shares:
            for arm in options.arms:
                line = measured(study, arm, share, options)
                lines.append({**line, **common})
                write_json_lines(options.output, lines)
                points = {other: round(one["points"], 2) for other, one in line["difference"].items()}
                print(f"{arm} {share:.0%} seed {seed}: {line['accuracy']:.4f}, points to {points}", flush=True)


def measured(study: Study, arm: str, share: float, options: argparse.Namespace) -> dict[str, Any]:
    """Return the line of an arm, which is run unless the working folder has it."""
    settings = f"-{options.optimiser}-{options.penalty:g}" if arm == "movement" else ""
    kept = study.work / f"{arm}{settings}-{share:g}.json"
    if not kept.is_file():
        write_atomically(kept, json.dumps(ran(study, arm, share, options)))
    line: dict[str, Any] = json.loads(kept.read_text())
    predicted = np.asarray(line.pop("predicted"))
    metric: dict[str, Any] = {
        "metric": find_task("classification").metric("accuracy"),
        "classes": len(study.teacher.labels),
    }
    others = {other: study.work / f"{other}-{share:g}.json" for other in COMPARED if other != arm}
    return {
        **line,
        "rows": len(study.answers),
        "interval": interval(predicted, study.answers, **metric),
        "teacher_accuracy": study.accuracy(study.theirs),
        "difference": {
            other: asdict(paired_difference(predicted, predicted_in(path), study.answers, **metric))
            for other, path in others.items()
            if path.is_file()
        },
    }


def predicted_in(path: Path) -> np.ndarray:
    return np.asarray(json.loads(path.read_text())["predicted"])


def ran(study: Study, arm: str, share: float, options: argparse.Namespace) -> dict[str, Any]:
    """Prune and recover a copy of the teacher."""
    started = time.process_time()
    model: Any = study.teacher.load()
    counts = {part: round(share * sum(units.count for units in units_of(model, part))) for part in PARTS}
    first = 0 if arm == "once" else round(FIRST_SHARE * options.steps)
    rows = slice(0, first * TRAINING.batch_size)
    if arm in {"once", "once-in-two"}:
        masks = decided_once(study, model, counts)
    else:
        # A phase of its own: its last tenth learns without what is masked, before the units are really cut off.
        gradual = {**counts, "until": 0.9, "updates": 10}
        if arm == "gradual":
            modifier: Any = attach(model, None, **gradual)
        elif arm == "random":
            modifier = RandomScores(model, study.seed, **gradual)
        else:
            modifier = MovementPruning(model, counts, until=0.9, optimiser=options.optimiser, penalty=options.penalty)
        study.train(model, rows, FIRST_PHASE, modifier)
        modifier.detach()
        masks = modifier.masks
    for part, remove in (("heads", remove_heads), ("neurons", remove_neurons)):
        remove(model, {layer: (mask == 0).nonzero().flatten().tolist() for layer, mask in enumerate(masks[part])})
    before = study.accuracy(study.predict(model))
    if arm == "once-in-two":
        study.train(model, rows, FIRST_PHASE)
    study.train(model, slice(rows.stop, None), TRAINING)
    predicted = study.predict(model)
    return {
        "arm": arm,
        "share": share,
        "seed": study.seed,
        "steps": options.steps,
        "first_phase_steps": first,
        **({"optimiser": options.optimiser, "penalty": options.penalty} if arm == "movement" else {}),
        **{f"{part}_kept": [int(mask.sum()) for mask in masks[part]] for part in PARTS},
        "accuracy": study.accuracy(predicted),
        "accuracy_when_sliced": before,
        "agreement": agreement(predicted, study.theirs),
        "processor_seconds": round(time.process_time() - started, 1),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "predicted": predicted.tolist(),
    }


def decided_once(study: Study, model: Any, counts: dict[Part, int]) -> Masks:
    """Mask heads and neurons in turns, scored again before each with all that is masked."""
    batches = list(
        scoring_batches(
            study.taught[:SCORED],
            study.gold[:SCORED],
            study.teacher.tokenizer,
            max_length=TRAINING.max_length,
            task=find_task("classification"),
            device="cpu",
        )
    )
    masks: Masks = {part: [torch.ones(units.count) for units in units_of(model, part)] for part in PARTS}
    total = {part: sum(map(len, masks[part])) for part in PARTS}
    turn = 0
    while turn * TURN < max(counts[part] / total[part] for part in PARTS):
        turn += 1
        for part, other in (PARTS, PARTS[::-1]):
            masked = total[part] - int(sum(mask.sum() for mask in masks[part]))
            wanted = min(counts[part], round(turn * TURN * total[part]))
            with mask_hooks(model, other) as hooks:
                hooks.mask(masks[other])
                scores = importance(model, batches, masks[part], part=part)
            masks[part] = mask_lowest(normalised(scores), masks[part], max(0, wanted - masked), **WIDTHS[part])
    return masks


if __name__ == "__main__":
    main()
