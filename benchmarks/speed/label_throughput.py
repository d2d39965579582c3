"""How many examples a second `compress label` does, beside transformers' own pipeline, in one interleaved run.

    python benchmarks/speed/label_throughput.py --teacher DIR --unlabeled FILE [--rows 2048] [--rounds 5]
        [-o results.jsonl]

Every round labels the same rows, drawn anew, with each candidate in a random order: the pipeline at its default batch
size, at each of several larger ones, the label stage (tokenising, running, and writing the shard), and its runtime
alone on batches that are ready. bfloat16 is compared where the hardware computes in it. The ratio is the median over
rounds with its bootstrap interval. Start-up of both (loading, exporting) is left out and shown apart.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from compress.data import Example, open_source
from compress.files import write_json_lines
from compress.host import has_bfloat16
from compress.inference.batching import Run, logits_of
from compress.inference.compute import Compute
from compress.inference.speedup_intervals import speedup, throughput
from compress.labelling.label import Plan, plan_for, start_runtime
from compress.labelling.label_dir import read_shard, write_shard
from compress.models.model_dir import Model
from compress.tasks import default

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import in_turns, milliseconds, provenance, read_options, said  # noqa: I001

PIPELINE_BATCHES = (1, 8, 16, 32, 64, 128)
BFLOAT16 = "compress label, bfloat16"
# Returns what is timed on the rows.
Candidate = Callable[[list[Example]], Callable[[], object]]


def main() -> None:
    arguments = read_options(__doc__, None, teacher=str, unlabeled=str, rows=2048, rounds=5, seed=0)
    model = Model.open(arguments.teacher)
    source = open_source(arguments.unlabeled, role="unlabeled", labelled=False)
    source = source.sample(arguments.rows * arguments.rounds)
    pool = list(source)
    random.Random(arguments.seed).shuffle(pool)
    with tempfile.TemporaryDirectory() as scratch:
        candidates, startup_s = _contenders(model, Path(scratch))
        samples: dict[str, list[list[float]]] = {name: [] for name in candidates}
        for candidate in candidates.values():
            candidate(pool[: arguments.rows])()  # warm-up
        rounding = {}
        if BFLOAT16 in candidates:
            classes = len(model.labels)
            exact, rounded = (read_shard(Path(scratch), number, classes, task=default())[1] for number in (0, 1))
            rounding = {
                "bfloat16_largest_logit_difference": float(abs(exact - rounded).max()),
                "bfloat16_agreement": float((exact.argmax(axis=1) == rounded.argmax(axis=1)).mean()),
            }
            print(rounding, flush=True)
        for number, name in in_turns(candidates, arguments.rounds, arguments.seed):
            rows = pool[number * arguments.rows : (number + 1) * arguments.rows]
            samples[name].append([milliseconds(candidates[name](rows))])
            print(f"round {number + 1}: {name}: {1000 * len(rows) / samples[name][-1][0]:,.0f} examples/s", flush=True)
    lines = []
    for name, rounds in samples.items():
        ratio = speedup(rounds, samples["compress label"], seed=arguments.seed)
        line = {
            "study": "label-throughput",
            "model": model.name,
            "recipe": name,
            "rows_per_round": arguments.rows,
            "rounds": arguments.rounds,
            "examples_per_second": throughput(rounds, arguments.rows).value,
            "compress_label_is_faster_by": ratio._asdict(),
            **rounding,
            "startup_s": startup_s.get(name),
            "data": source.name,
            **provenance(),
            "seed": arguments.seed,
        }
        if rounding:
            faster = speedup(rounds, samples[BFLOAT16], seed=arguments.seed)
            line["compress_label_bfloat16_is_faster_by"] = faster._asdict()
        lines.append(line)
        faster = said(line["compress_label_is_faster_by"])
        print(f"{name:28} {line['examples_per_second']:8,.0f} examples/s; compress label is {faster}")
    if arguments.output:
        write_json_lines(Path(arguments.output), lines)


def _contenders(model: Model, scratch: Path) -> tuple[dict[str, Candidate], dict[str, float]]:
    """Return what labels rows, by name, and how many seconds each took to start."""
    from transformers import pipeline

    started = time.perf_counter()
    stock = pipeline("text-classification", model=str(model.path), device="cpu", top_k=None)
    startup_s = {"pipeline, batch 1 (default)": time.perf_counter() - started}
    started = time.perf_counter()
    tokenizer = model.tokenizer
    plan = plan_for(model, tokenizer, compute=Compute(device="cpu", threads=0), max_length=0)
    run = start_runtime(plan, model, scratch)
    startup_s["compress label"] = time.perf_counter() - started

    def labelling(plan: Plan, run: Run, number: int) -> Candidate:
        def label(rows: list[Example]) -> None:
            logits = logits_of(rows, run, tokenizer, max_length=plan.max_length, batch_rows=plan.batch_rows)
            write_shard(scratch, number, rows, logits, {}, default())

        return lambda rows: partial(label, rows)

    def ready_batches(rows: list[Example]) -> Callable[[], object]:
        batches: list[dict[str, np.ndarray]] = []

        def collect(arrays: dict[str, np.ndarray]) -> np.ndarray:
            batches.append(arrays)
            return np.zeros((len(arrays["input_ids"]), 1))

        logits_of(rows, collect, tokenizer, max_length=plan.max_length, batch_rows=plan.batch_rows)
        return lambda: [run(arrays) for arrays in batches]

    candidates: dict[str, Candidate] = {"compress label": labelling(plan, run, 0), "its runtime alone": ready_batches}
    if has_bfloat16():
        started = time.perf_counter()
        half = replace(plan, runtime="torch", precision="bfloat16")
        candidates[BFLOAT16] = labelling(half, start_runtime(half, model, scratch), 1)
        startup_s[BFLOAT16] = time.perf_counter() - started

    def stock_pipeline(batch_size: int) -> Candidate:
        def label(rows: list[Example]) -> None:
            stock([row.text for row in rows], batch_size=batch_size, truncation=True)

        return lambda rows: partial(label, rows)

    for size in PIPELINE_BATCHES:
        candidates[f"pipeline, batch {size}" + (" (default)" if size == 1 else "")] = stock_pipeline(size)
    return candidates, startup_s


if __name__ == "__main__":
    main()
