"""Whole documents by windows, against cutting them: one model as it is, paired intervals on the same documents.

    python benchmarks/long_documents.py --model DIR --data FILE -o benchmarks/results/long-documents.jsonl
        [--exclude FILE] [--rows 2000] [--threads 1] [--readings 128 256 512 256,128,mean ...] [--work FOLDER]

A reading is a number of tokens that documents are cut to, or windows. Each line has the accuracy of one reading and its
difference from that of cutting to as many tokens as the model reads, on all documents and on those that are longer.
The data are a table with the columns text and label; the file of --exclude names ids (its second column) to leave out.
Labels 0 and 1 are the first and the second class of the model. One pass of the windows serves all poolings. A hundred
documents are read at a time; what is in the folder of --work is not read again.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from script import columns, provenance, read_options, replace_line

from compress.data import Example
from compress.data.tokenization import maximum_length
from compress.data.windows import Windows, whole_rows
from compress.evaluation.metrics import ACCURACY, interval, paired_difference
from compress.inference.batching import Run, logits_of, open_runtime
from compress.models.model_dir import Model

PART_ROWS = 100
READINGS = ["128", "256", *(f"{size},{size // 2},{how}" for size in (256, 512) for how in ("mean", "max", "attention"))]


def read_table(data: Path, exclude: Path | None) -> list[dict[str, str]]:
    """Return the rows of a table without those that are named."""
    csv.field_size_limit(sys.maxsize)
    named = exclude.read_text(encoding="utf-8").splitlines() if exclude else []
    left_out = {line.split("\t")[1] for line in named if "\t" in line and not line.startswith("#")}
    with (gzip.open if data.suffix == ".gz" else open)(data, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row for row in rows if row["id"] not in left_out]


def read_documents(data: Path, exclude: Path | None, rows: int) -> list[Example]:
    """Return documents that are drawn evenly from a table."""
    table = read_table(data, exclude)
    drawn = random.Random(0).sample(table, min(rows, len(table)))
    return [Example(row["text"], None, row["label"]) for row in drawn]


class Remembered:
    """A run function that answers batches that it has seen without running them again, and the seconds of its runs."""

    def __init__(self, run: Run) -> None:
        self.run, self.known, self.seconds = run, dict[bytes, tuple[np.ndarray, float]](), 0.0

    def __call__(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        key = arrays["input_ids"].tobytes()
        if key not in self.known:
            begun = time.process_time()
            self.known[key] = self.run(arrays), time.process_time() - begun
        logits, seconds = self.known[key]
        self.seconds += seconds
        return logits


def measured(predicted: np.ndarray, cut: np.ndarray, gold: np.ndarray) -> dict[str, Any]:
    """Return the accuracy of predictions and their difference from those of cut documents, in points."""
    options: dict[str, Any] = {"metric": ACCURACY, "classes": 2}
    change = paired_difference(predicted, cut, gold, **options)
    return {
        "rows": len(gold),
        "accuracy": round(100 * float((predicted == gold).mean()), 2),
        "interval": [round(100 * one, 2) for one in interval(predicted, gold, **options)],
        "points": round(change.points, 2),
        "points_interval": [round(change.low, 2), round(change.high, 2)],
    }


def main() -> None:
    options = read_options(
        __doc__, model=Path, data=Path, exclude=None, rows=2000, threads=1, readings=READINGS, work=None, output=Path
    )
    model = Model.open(options.model)
    tokenizer, longest = model.plain_tokenizer, maximum_length(model.plain_tokenizer, model.config)
    documents = read_documents(options.data, options.exclude and Path(options.exclude), options.rows)
    gold = np.array([int(str(row.label)) for row in documents])
    long = np.array([len(ids) > longest for ids in whole_rows(tokenizer, documents)["input_ids"]])
    run = open_runtime(model.path, threads=options.threads)
    readings = [*dict.fromkeys([str(longest), *options.readings])]
    parts = list[dict[str, tuple[list[int], float]]]()
    for begin in range(0, len(documents), PART_ROWS):
        kept = Path(options.work or "") / f"{begin}.json"
        part = json.loads(kept.read_text()) if options.work and kept.is_file() else {}
        memory = Remembered(run)
        for reading in readings:
            if reading not in part:
                windows = Windows.read(reading) if "," in reading else None
                cutting: dict[str, Any] = {"max_length": 0 if windows else int(reading), "windows": windows}
                memory.seconds = 0.0
                logits = logits_of(documents[begin : begin + PART_ROWS], memory, tokenizer, **cutting)
                part[reading] = model.task.predictions(logits).tolist(), memory.seconds
        if options.work:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(part))
        parts.append(part)
    predictions, lines = dict[str, np.ndarray](), []
    for reading in readings:
        predictions[reading] = np.concatenate([part[reading][0] for part in parts])
        cut, found = predictions[str(longest)], predictions[reading]
        line = {
            "reading": reading,
            "model": model.name,
            "seconds": round(sum(part[reading][1] for part in parts), 1),
            "all": measured(found, cut, gold),
            "longer": measured(found[long], cut[long], gold[long]),
            **provenance(),
        }
        replace_line(options.output, line, "reading", "model")
        lines.append(line)
        print(json.dumps({name: line[name] for name in ("reading", "seconds", "all", "longer")}), flush=True)
    table = [
        [
            line["reading"],
            *("{accuracy} {points:+} {points_interval}".format(**line[rows]) for rows in ("all", "longer")),
        ]
        for line in lines
    ]
    print(columns(["reading", f"all {len(gold):,}", f"longer than {longest}: {int(long.sum()):,}"], table))


if __name__ == "__main__":
    main()
