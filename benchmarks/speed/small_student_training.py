"""How many training steps a second the students cnn and ngram do, and what updating only the rows read brings.

    python benchmarks/speed/small_student_training.py --teacher DIR --unlabeled FILE -o RESULTS.jsonl
        [--rounds 5] [--steps 20] [--threads 1]

Candidates train on the same batches of real text, a turn each round in an order drawn anew, each turn in a process of
its own so that none finds memory that another kept. A step is forwards, the loss on given logits, backwards, clipping
and the optimiser. "dense" gives embeddings dense gradients. Times are CPU time on one thread, else wall time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from compress import plugins, recipes
from compress.data import Example, open_source
from compress.data.tokenization import encode, pad
from compress.files import write_json_lines
from compress.inference.speedup_intervals import speedup
from compress.models.model_dir import Model
from compress.training.trainer import RowAdamW, clip_gradients, sparse_gradients

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import in_turns, milliseconds, provenance, read_options, said  # noqa: I001

STUDENTS = ("cnn", "ngram")
WAYS = ("as it is", "dense")
WARM_UP, BATCH_ROWS, CORPUS_ROWS = 4, 128, 20_000


def main() -> None:
    # A turn is a candidate and a seed: what the process of a turn does.
    given = {"rounds": 5, "steps": 20, "threads": 1, "turn": None}
    arguments = read_options(__doc__, hidden="turn", teacher=str, unlabeled=str, **given)
    if arguments.turn:
        print(json.dumps(turn(arguments, *json.loads(arguments.turn))))
        return
    samples: dict[tuple[str, str], list[list[float]]] = {one: [] for one in itertools.product(STUDENTS, WAYS)}
    for number, (student, name) in in_turns(samples, arguments.rounds):
        taking = [sys.executable, *sys.argv, "--turn", json.dumps([student, name, number])]
        done = subprocess.run(taking, capture_output=True, text=True, check=True)
        samples[student, name].append(json.loads(done.stdout.splitlines()[-1]))
        print(f"round {number + 1}: {student}, {name}: {min(samples[student, name][-1]):.1f} ms", flush=True)
    lines = []
    for (student, name), rounds in samples.items():
        ratio = speedup(rounds, samples[student, "as it is"])
        line = {
            "study": "small-student-training",
            "recipe": student,
            "without": name,
            "step_ms": rounds,
            "as_it_is_is_faster_by": ratio._asdict(),
            "threads": arguments.threads,
            **provenance(),
        }
        lines.append(line)
        print(f"{student:8} {name:16} as it is {said(line['as_it_is_is_faster_by'])}")
    write_json_lines(arguments.output, lines)


def turn(arguments: argparse.Namespace, student: str, name: str, seed: int) -> list[float]:
    """Train some steps and return the milliseconds of each."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(seed)
    source = open_source(arguments.unlabeled, role="unlabeled", labelled=False)
    texts = list(itertools.islice(source, CORPUS_ROWS))
    directory = Model.open(arguments.teacher)
    tokenizer, teacher = directory.tokenizer, directory.load()
    recipe = recipes.load_recipe("students", student)
    build = plugins.find("architectures", recipe.architecture.name).function
    model = build(teacher, tokenizer, texts, **recipe.architecture.options).train()
    sparse_gradients(model, on=name != "dense")
    optimizer = RowAdamW(model.parameters(), lr=recipe.training.learning_rate, weight_decay=0.0, fused=True)
    rows = random.Random(seed).sample(texts, BATCH_ROWS * (WARM_UP + arguments.steps))
    batches = [_batch(tokenizer, rows[start : start + BATCH_ROWS]) for start in range(0, len(rows), BATCH_ROWS)]
    goals = torch.randn(BATCH_ROWS, len(directory.labels))
    clock = time.process_time if arguments.threads == 1 else time.perf_counter

    def step(batch: dict[str, torch.Tensor]) -> None:
        torch.nn.functional.mse_loss(model(**batch).logits, goals).backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return [round(milliseconds(partial(step, batch), clock), 2) for batch in batches][WARM_UP:]


def _batch(tokenizer: Any, rows: list[Example]) -> dict[str, torch.Tensor]:
    tokens = encode(tokenizer, rows, 128)
    padded = pad([{"input_ids": ids} for ids in tokens["input_ids"]], tokenizer.pad_token_id or 0)
    return {name: torch.from_numpy(values) for name, values in padded.items()}


if __name__ == "__main__":
    main()
