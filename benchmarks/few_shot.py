"""What 20 labelled rows an intent give: heads on sentence encoders beside plain fine-tuning.

    python benchmarks/few_shot.py --data-root DIR --work DIR -o RESULTS.jsonl [--only banking77 clinc150]
        [--model minilm-l6 mpnet-base] [--way frozen ...] [--seeds 5] [--threads 1] [--device cpu]

Of every intent 20 training rows are drawn, anew for each seed, without those of the test set. ``frozen`` and
``contrastive`` are the two ways of ``compress finetune --few-shot``; ``chosen`` is of each draw the one that
cross-validation prefers, which is what that command makes. ``plain`` is ``compress finetune`` on the same rows; five
more an intent choose its checkpoint, which the others go without. The test is the whole test set; of CLINC150 the
intents in scope. Intervals are over draws and test rows, those of differences paired.

What was answered lies in the working folder, and the same command goes on; models are deleted. A line takes the place
of the one of the same set, model and way; all ways that have been made for all seeds are written.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from script import provenance, read_options, read_rows, replace_line

from compress.data import Example, row_key
from compress.evaluation.metrics import percentiles
from compress.files import write_json_lines
from compress.inference.compute import Compute
from compress.inference.predict import load
from compress.models.model_dir import Model
from compress.progress import for_terminal
from compress.requests.training import finetune
from compress.studies.data import find_set

ROWS, VALIDATION_ROWS = 20, 5  # of an intent
SETS = {"banking77": "banking77", "clinc150": "clinc150/data_full"}
MADE = ["frozen", "contrastive", "plain"]
RESAMPLES = 2000


def main() -> None:
    options = read_options(
        __doc__,
        data_root=Path,
        work=Path,
        only=([*SETS],),
        model=(["minilm-l6", "mpnet-base"],),
        way=(MADE,),
        seeds=5,
        threads=1,
        device=("cpu", "auto"),
    )
    options.work.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        files = {split: find_set(options.data_root, SETS[name], split) for split in ("train", "test")}
        train, test = ([row for row in read_rows(file, role) if row.label != "oos"] for role, file in files.items())
        for model in options.model:
            answers = {way: places(name, model, way, options) for way in MADE}
            for way in options.way:
                for seed, place in enumerate(answers[way]):
                    if not place.is_file():
                        rows = draw(train, test, seed)
                        write_json_lines(place, [answered(place, model, way, rows, test, options)])
            found = {way: [*map(read, own)] for way, own in answers.items() if all(place.is_file() for place in own)}
            for line in judged(found):
                sizes = {"rows_a_class": ROWS, "classes": len({row.label for row in train}), "rows": len(test)}
                made = {"set": name, "model": model, **line, **sizes, **provenance()}
                replace_line(options.output, made, "set", "model", "way")


def places(name: str, model: str, way: str, options: argparse.Namespace) -> list[Path]:
    """Return of each draw the file of what a model answered."""
    return [options.work / f"{name}-{model}-{way}-{seed}.jsonl" for seed in range(options.seeds)]


def read(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return found


def draw(train: Sequence[Example], test: Sequence[Example], seed: int) -> tuple[list[Example], list[Example]]:
    """Return the rows of a draw, and others that choose a checkpoint; none has the words of a test row or another."""
    seen, by_intent = {row_key(row) for row in test}, defaultdict(list)
    for row in train:
        if row_key(row) not in seen:
            seen.add(row_key(row))
            by_intent[row.label].append(row)
    drawn, validation = list[Example](), list[Example]()
    for intent in sorted(by_intent):
        some = random.Random(seed).sample(by_intent[intent], ROWS + VALIDATION_ROWS)
        drawn += some[:ROWS]
        validation += some[ROWS:]
    return drawn, validation


def answered(
    place: Path,
    model: str,
    way: str,
    rows: tuple[list[Example], list[Example]],
    test: Sequence[Example],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Make a model, and return which test rows it has right ``[N]`` and what its manifest says of the making."""
    folder, seed = place.with_suffix(""), int(place.stem.rpartition("-")[2])
    train, validation = rows
    given: dict[str, Any] = {"validation": validation} if way == "plain" else {"few_shot": way}
    shared: dict[str, Any] = {"device": options.device, "threads": options.threads, "seed": seed}
    begun = time.monotonic()
    made = (
        folder if folder.is_dir() else finetune(model, folder, train=train, **given, **shared, progress=for_terminal())
    )
    seconds = time.monotonic() - begun
    opened = load(made, compute=Compute(options.device, options.threads))
    found = opened.predict([row.text for row in test])
    right = [int(one["label"] == row.label) for one, row in zip(found, test, strict=True)]
    manifest = Model.open(folder).manifest
    shutil.rmtree(folder)
    return {"right": right, "seconds": seconds, "score": manifest.metrics[0]["value"], "notes": manifest.notes}


def judged(found: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield the accuracy of each way, of the chosen one and their differences to plain fine-tuning, with intervals."""
    if not found:
        return
    if {"frozen", "contrastive"} <= found.keys():
        pairs = zip(found["frozen"], found["contrastive"], strict=True)
        found = {**found, "chosen": [max(pair, key=lambda one: one["score"]) for pair in pairs]}
    generator = np.random.default_rng(0)
    right = {way: np.array([one["right"] for one in own], float) for way, own in found.items()}  # [S, N]
    seeds, rows = next(iter(right.values())).shape
    drawn = [(generator.integers(0, seeds, seeds), generator.integers(0, rows, rows)) for _ in range(RESAMPLES)]

    def interval(values: np.ndarray) -> dict[str, float]:
        low, high = percentiles(np.array([values[some].mean(axis=0)[of].mean() for some, of in drawn]))
        return {"value": float(values.mean()), "low": low, "high": high}

    for way, own in right.items():
        line: dict[str, Any] = {"way": way, "seeds": seeds, "accuracy": interval(own)}
        line["by_seed"] = own.mean(axis=1).tolist()
        if "plain" in right:
            line["to_plain"] = interval(own - right["plain"])
        line["seconds"] = [round(one["seconds"], 1) for one in found[way]]
        if way == "chosen":
            line["encoders"] = [one["notes"]["few_shot"]["encoder"] for one in found[way]]
            tried = zip(found["frozen"], found["contrastive"], strict=True)
            line["seconds"] = [round(sum(one["seconds"] for one in pair), 1) for pair in tried]
        yield line


if __name__ == "__main__":
    main()
