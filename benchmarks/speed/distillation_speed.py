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

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distillation_turns import (
    BFLOAT16,
    CACHED,
    FIRST,
    LIVE_TEACHER,
    NO_TEACHER,
    PASS_FOR_EACH,
    TRAINING,
    UNCHANGED,
    Candidate,
    Competitor,
    Ours,
    TrainingPlan,
)

from compress import plugins
from compress.benchmarking.results.files import provenance
from compress.files import write_json_lines
from compress.inference.speedup_intervals import Interval, speedup
from compress.inference.threads import available_cores
from compress.progress import quiet_libraries
from compress.recipes import Choice, needs_of
from compress.training.losses._common import layer_map

sys.path.append(str(Path(__file__).resolve().parents[1]))
from competitor_environments import textbrewer_python  # noqa: I001

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True, help="model directory")
    parser.add_argument("--unlabeled", required=True, help="file of texts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="that are timed in each turn")
    parser.add_argument("--threads", type=int, default=0, help="default: all cores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", required=True, type=Path, help="JSON lines to write")
    parser.add_argument("pip_options", nargs="*", metavar="PIP OPTIONS")
    options = parser.parse_args()
    python = textbrewer_python(options.pip_options)
    if python is None:
        return 1
    quiet_libraries()
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
    return 0


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

    alone = Candidate(
        ("kl",),
        LIVE_TEACHER,
        "TextBrewer",
        {"matches": [], "outputs": {}, "attention": "sdpa"},
        tuple(name for _, teacher in IN_EACH_ARITHMETIC[:2] for name in in_each(f"kl, {teacher}")),
    )
    hidden = Candidate(
        ("kl", "hidden-mse"),
        LIVE_TEACHER,
        "TextBrewer",
        {
            "matches": matches("hidden", "hidden_mse", first=1),
            "outputs": {"output_hidden_states": True},
            "attention": "sdpa",
        },
        in_each(f"kl + hidden-mse, {LIVE_TEACHER}"),
    )
    attention = Candidate(
        ("kl", "attention-mse"),
        LIVE_TEACHER,
        "TextBrewer",
        {
            "matches": matches("attention", "attention_mse", first=0),
            "outputs": {"output_attentions": True},
            "attention": "eager",
        },
        in_each(f"kl + attention-mse, {LIVE_TEACHER}"),
    )
    return [alone, hidden, attention]


def take_turns(
    ours: Ours, competitor: Competitor, everyone: Sequence[Candidate], rounds: int, seed: int
) -> dict[str, list[float]]:
    """Return the mean milliseconds of a step of every candidate, and of labelling one batch, one value a round."""
    generator = random.Random(seed)
    turns: dict[str, Callable[[TrainingPlan], float]] = {LABELLING: ours.label}
    for candidate in everyone:
        turn = ours.train if candidate.library == "compress" else competitor.train
        turns[candidate.name] = partial(turn, candidate)
    step_ms: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds):
        training_plan = ours.training_plan(number)
        for name in generator.sample(sorted(turns), len(turns)):
            step_ms[name].append(turns[name](training_plan))
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
    share = line["speed_to_cached_logits"]
    print(
        f"{line['name']:60} {line['steps_per_second']:6.2f} steps/s, x{share['value']:.2f} of kl with cached logits "
        f"({share['low']:.2f} to {share['high']:.2f})"
    )
    for name in ("faster_than_unchanged", "faster_than_a_pass_for_each", "faster_than_one_by_one"):
        if name in line:
            print(f"    {name}: x{line[name]['value']:.2f} ({line[name]['low']:.2f} to {line[name]['high']:.2f})")
    for name, ratio in line.get("ours_is_faster_by", {}).items():
        print(f"    ours ({name}) is x{ratio['value']:.2f} as fast ({ratio['low']:.2f} to {ratio['high']:.2f})")


if __name__ == "__main__":
    raise SystemExit(main())
