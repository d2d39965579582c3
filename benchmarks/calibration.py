"""Do probabilities need calibration, and does what ``compress calibrate`` promises hold on new rows?

    python benchmarks/calibration.py MODEL ... --set NAME --validation FILE --test FILE [--accept-at 0.95] --work DIR
        -o RESULTS.jsonl [--threads 1]

Every model is calibrated on the validation rows, and measured on the test rows before and after.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from script import provenance, read_options, read_rows, replace_line

from compress.data import Example, content_sha256, row_key
from compress.errors import CompressError
from compress.evaluation.metrics import (
    ACCURACY,
    bootstrap,
    calibration_error,
    calibration_interval,
    interval,
    probabilities,
)
from compress.inference.compute import Compute
from compress.inference.predict import acceptance_thresholds
from compress.inference.runners import load_runner
from compress.models.model_dir import Model
from compress.requests.compression import calibrate


def main() -> None:
    given = {"accept_at": 0.95, "threads": 1}
    options = read_options(__doc__, positional=("models", "+"), set=str, validation=Path, test=Path, work=Path, **given)
    test = read_rows(options.test, "test")
    tested = set(map(row_key, test))
    validation = [row for row in read_rows(options.validation, "validation") if row_key(row) not in tested]
    for path in map(Path, options.models):
        line = {
            "set": options.set,
            "validation_rows": len(validation),
            "test_rows": len(test),
            "test_sha256": content_sha256(test),
            "model": path.name,
            **measure(Model.open(path), validation, test, options),
            **provenance(),
        }
        replace_line(options.output, line, "set", "model")
        print(f"{line['model']}: {line['method']}, temperature {line['temperature']:.3g}", flush=True)


def measure(
    model: Model, validation: list[Example], test: list[Example], options: argparse.Namespace
) -> dict[str, Any]:
    """Return what calibration changes on the test rows, and how often accepted predictions are right there."""
    compute = Compute("cpu", options.threads)
    output, accept_at = options.work / f"{options.set}-{model.path.name}", options.accept_at
    given = {"validation": validation, "device": "cpu", "threads": options.threads, "force": True}
    try:
        made = calibrate(model, output, accept_at=accept_at, **given)
    except CompressError as error:
        if "no confidence is certain" not in str(error):
            raise
        accept_at = None
        made = calibrate(model, output, **given)
    gold = np.array(model.task.gold(test, model.labels, "test"))
    logits = [load_runner(one, compute).logits(test).astype(float) for one in (model, made)]
    losses = [model.task.surprise(one, gold) for one in logits]
    change = losses[1] - losses[0]
    confidence, predicted = probabilities(logits[1]).max(axis=1), logits[1].argmax(axis=1)
    found = {
        "model_sha256": model.sha256,
        "method": made.manifest.notes["calibration"],
        "temperature": made.manifest.notes["temperature"],
        "accuracy": [float((one.argmax(axis=1) == gold).mean()) for one in logits],
        "confidence": [float(probabilities(one).max(axis=1).mean()) for one in logits],
        "calibration_error": [error_of(one, gold) for one in logits],
        "loss": [float(one.mean()) for one in losses],
        "loss_change": [
            float(change.mean()),
            *(bootstrap((change,), lambda drawn: np.asarray(drawn.mean(axis=-1))) if change.any() else (0.0, 0.0)),
        ],
        "acceptance": accept_at and {"right": accept_at, "by": "overall"},
        "asked": options.accept_at,
    }
    thresholds = acceptance_thresholds(made)
    if thresholds is not None:
        accepted = confidence >= np.array(thresholds)[predicted]
        right = (predicted == gold)[accepted].astype(int)
        found["accepted"] = float(accepted.mean())
        found["right"] = [float(right.mean()), *interval(right, np.ones_like(right), metric=ACCURACY, classes=2)]
    return found


def error_of(logits: np.ndarray, gold: np.ndarray) -> list[float]:
    """Return the calibration error with its interval."""
    confidence, correct = probabilities(logits).max(axis=1), logits.argmax(axis=1) == gold
    return [calibration_error(confidence, correct), *calibration_interval(confidence, correct)]


if __name__ == "__main__":
    main()
