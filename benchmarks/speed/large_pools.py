"""Label and distil pools of millions of rows: time, and the memory of all processes together.

    python benchmarks/speed/large_pools.py --tokenizer DIR --sentences FILE --validation FILE --work DIR
        -o RESULTS.jsonl [--rows 1000000 ...] [--student cnn] [--steps 300]

A row is the first half of one sentence and the second half of another, so that all rows differ. The teacher is one
layer of width 32 with random weights and the tokenizer of a model: labels say nothing, and cost what reading,
tokenising and writing do. The student takes so many steps. Memory is read twice a second from the system and added up
over the processes of a command: ``anonymous`` is what they hold, ``resident`` counts memory-mapped files too, which the
system takes back where it needs the memory. What lies in the working folder, but for students, is used again.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from compress.files import write_atomically
from compress.models.model_dir import Model

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import provenance, read_options, replace_line  # noqa: I001

STUDENT = """
description = "so many steps"
[architecture]
name = "{name}"
[[phases]]
losses = [{{ name = "kl" }}]
[training]
epochs = 1.0
max_steps = {steps}
batch_size = 128
evaluations = 1
weight_decay = 0.0
precision = "float32"
"""


def main() -> None:
    options = read_options(
        __doc__, tokenizer=Path, sentences=Path, validation=Path, work=Path, rows=[1_000_000], student="cnn", steps=300
    )
    options.work.mkdir(parents=True, exist_ok=True)
    student = options.work / "student.toml"
    student.write_text(STUDENT.format(name=options.student, steps=options.steps), encoding="utf-8")
    teacher = tiny_teacher(options.tokenizer, options.work / "teacher")
    for rows in options.rows:
        pool, labels, made = (options.work / f"{kind}-{rows}" for kind in ("pool.txt", "labels", "student"))
        if not pool.is_file():
            unfinished = options.work / f".{pool.name}"
            with unfinished.open("w", encoding="utf-8") as file:
                file.writelines(f"{row}\n" for row in distinct_rows(options.sentences, rows))
            unfinished.rename(pool)
        command = [sys.executable, "-m", "compress"]
        known = options.work / f"label-{rows}.json"  # of labels that an earlier start made
        if not known.is_file():
            figures = measured([*command, "label", "--teacher", teacher, "--unlabeled", pool, "-o", labels])
            write_atomically(known, json.dumps(figures))
        labelling = json.loads(known.read_text(encoding="utf-8"))
        given = ["--teacher", teacher, "--student", student, "--labels", labels, "--validation", options.validation]
        distilling = measured([*command, "distill", *given, "-o", made, "--force"])
        training_s = float(Model.open(made).manifest.notes["seconds"])
        line = {
            "study": "large-pools",
            "rows": rows,
            "pool_bytes": pool.stat().st_size,
            "label": labelling,
            "distill": {**distilling, "student": options.student, "steps": options.steps, "training_s": training_s},
            "before_training_s": round(distilling["seconds"] - training_s, 1),
            **provenance(),
        }
        replace_line(options.output, line, "rows")
        print(json.dumps({name: line[name] for name in ("rows", "label", "distill", "before_training_s")}), flush=True)


def tiny_teacher(tokenizer: Path, folder: Path) -> Path:
    """Write a classifier of one layer of width 32 with the tokenizer of another model."""
    if not folder.is_dir():
        torch.manual_seed(0)
        read = AutoTokenizer.from_pretrained(tokenizer)
        read.model_max_length = 128
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        config = BertConfig(vocab_size=len(read), max_position_embeddings=128, id2label={0: "0", 1: "1"}, **sizes)
        BertForSequenceClassification(config).save_pretrained(folder)
        read.save_pretrained(folder)
    return folder


def distinct_rows(sentences: Path, rows: int) -> Iterator[str]:
    """Yield so many rows, made of halves of sentences."""
    opened = gzip.open if sentences.suffix == ".gz" else open
    with opened(sentences, "rt", encoding="utf-8") as file:
        halves = [(words[: len(words) // 2], words[len(words) // 2 :]) for words in map(str.split, file) if words]
    known = set[int]()
    shift = 0
    while len(known) < rows:
        for number, (first, _) in enumerate(halves):
            row = " ".join([*first, *halves[(number + shift) % len(halves)][1]])
            if len(known) < rows and hash(row) not in known:
                known.add(hash(row))
                yield row
        shift = shift * 2 + 1


def measured(command: list[str | Path]) -> dict[str, float]:
    """Run a command; return its seconds, the cores that it kept busy, and its peak memory in MiB."""
    started, before = time.perf_counter(), os.times()
    process = subprocess.Popen([str(word) for word in command], env={**os.environ, "OMP_NUM_THREADS": "1"})
    peaks = {"VmRSS": 0, "RssAnon": 0}
    while process.poll() is None:
        now = memory_kib(process.pid)
        peaks = {name: max(peak, now[name]) for name, peak in peaks.items()}
        time.sleep(0.5)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    seconds, after = time.perf_counter() - started, os.times()
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    return {
        "seconds": round(seconds, 1),
        "processor_seconds": round(busy, 1),
        "peak_resident_mib": peaks["VmRSS"] // 1024,
        "peak_anonymous_mib": peaks["RssAnon"] // 1024,
    }


def memory_kib(parent: int) -> dict[str, int]:
    """Return the memory of a process and those that it started, added up."""
    total = {"VmRSS": 0, "RssAnon": 0}
    waiting = [parent]
    while waiting:
        process = waiting.pop()
        try:
            status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
            for task in Path(f"/proc/{process}/task").iterdir():
                waiting += map(int, (task / "children").read_text(encoding="utf-8").split())
        except OSError:  # it has ended
            continue
        for line in status.splitlines():
            name, _, value = line.partition(":")
            if name in total:
                total[name] += int(value.split()[0])
    return total


if __name__ == "__main__":
    main()
