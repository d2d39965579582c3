"""Calibration stage: scale a classifier's logits so that its probabilities are right, and find when to accept them.

A temperature, or a scale and shift of each class, is fitted on validation rows and put into the model itself
(:mod:`compress.calibration.scaling`). What it does is judged by cross-validation: every row by what was fitted on other
rows. ``accept_at`` asks for the confidence from which predictions are right that often; ``compress predict`` then says
of each whether it is accepted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from compress.calibration.scaling import (
    CERTAINTY,
    Calibrated,
    accept_from,
    best_calibration,
    calibrations,
    last_layer,
    levels,
    loss_change,
    rescale_graph,
    rescale_torch,
    rows_needed,
)
from compress.data import describe_rows, row_key, row_keys
from compress.errors import refuse
from compress.evaluation.metrics import (
    ACCURACY,
    BINS,
    Array,
    bootstrap,
    calibration_error,
    calibration_interval,
    interval,
    probabilities,
    score,
)
from compress.files import read_json_table
from compress.inference.predict import check_label_meaning
from compress.inference.runners import load_runner
from compress.models.fitted_rows import check_unseen
from compress.models.loading import copy_client_files
from compress.models.model_dir import Model
from compress.progress import logger
from compress.reporting.calibration_page import calibration_page
from compress.reporting.pages import write_study
from compress.requests.compression import Calibrate

FOLDER, CALIBRATION_NAME = "calibration", "calibration.json"
PAGE = f"{FOLDER}/report.html"
COMPARED_ROWS, TOLERANCE = 64, 1e-4  # of what was written with what it should give
FEWEST_ROWS = 20


def calibrate(request: Calibrate) -> Model:
    """Write a model with calibrated probabilities, and figures and a page about them in its folder ``calibration``.

    Raises:
        CompressError: no classifier, a model of packed weights, too few rows, or no confidence that is certainly right
            as often as asked.
    """
    source, validation = Model.open(request.model), request.read("validation")
    acceptance = request.accept_at and {"right": request.accept_at, "by": request.accept_by}
    refuse(
        (bool(source.task.no_calibration), f"{source.path} is made for {source.task}; {source.task.no_calibration}"),
        (
            source.is_packed,
            f"{source.path} has packed weights, which cannot be scaled; calibrate the model that it was packed from",
        ),
    )
    encoded = source.task.gold(validation, source.labels, "validation")
    # A copy with the same label says nothing new; annotators who disagree do.
    different = {(row_key(row), label): row for row, label in zip(reversed(validation), reversed(encoded), strict=True)}
    rows, gold = [*different.values()][::-1], np.array([label for _, label in different][::-1])
    refuse(
        (
            len(rows) < FEWEST_ROWS,
            f"calibration needs {FEWEST_ROWS} labelled rows or more, better some hundreds, and --validation has "
            f"{len(rows)} different ones",
        )
    )
    if copies := len(validation) - len(rows):
        logger.info("validation: %d of %d rows repeat a text with its label and are left out", copies, len(validation))
    for own in (rows, validation):  # without copies and with them, as others may have read the file
        check_unseen([source], own)
    network = None if source.is_onnx else source.load()
    shifts = network is None or last_layer(network).bias is not None

    with request.begin(
        {"model": source},
        data=describe_rows({"validation": validation}),
        keep=False,
        model=source,
        validation=validation,
    ) as stage:
        with request.progress("Predicting", len(rows)) as advance:
            logits = load_runner(source, request.compute).logits(rows, advance).astype(float)
        check_label_meaning(logits.argmax(axis=1), gold, source.labels, "validation")
        with request.progress("Calibrating", None):
            found = calibrations(logits, gold, row_keys(rows), shifts=shifts)
            chosen = best_calibration(found)
        content: dict[str, Any] = {
            "model": source.name,
            "model_sha256": source.sha256,
            "rows": len(rows),
            "labels": list(source.labels),
            "method": chosen.name,
            "temperature": chosen.scaling.temperature,
            "before": _quality(found[0], gold),
            "after": _quality(chosen, gold),
            "methods": [
                {
                    "name": one.name,
                    "temperature": one.scaling.temperature,
                    "loss": float(one.losses.mean()),
                    "change": _figure(*loss_change(one, found[0])),
                }
                for one in found
            ],
            "coverage": [asdict(level) for level in levels(*_confidence(chosen, gold)[:2])],
            "acceptance": acceptance and _accepted(acceptance, chosen, gold, source.labels),
        }
        notes = {**source.manifest.notes, "calibration": chosen.name, "temperature": chosen.scaling.temperature}
        notes.pop("acceptance", None)
        notes |= {"acceptance": content["acceptance"]} if acceptance else {}
        described = {
            "recipe": {"acceptance": acceptance},
            "data": (*source.manifest.data, *stage.manifest.data),
            "seeds": source.manifest.seeds,
            "metrics": tuple(
                {"name": name, "value": content["after"][key]["value"], "split": "validation", "rows": len(rows)}
                for name, key in (("accuracy", "accuracy"), ("calibration error, out of fold", "calibration_error"))
            ),
            "notes": notes,
        }
        # No client reads this folder, and no later stage copies it.
        write_study(content, calibration_page, stage.working / FOLDER / CALIBRATION_NAME)
        if network is None:
            copy_client_files(source.path, stage.working)
            rescale_graph(source.path, stage.working, chosen.scaling)
            architecture = source.manifest.architecture or {"model_type": source.config.get("model_type")}
            stage.finish(architecture=architecture, **described)
        else:
            rescale_torch(network, chosen.scaling)
            stage.write_model(network, source.tokenizer, **described)
        some = rows[:COMPARED_ROWS]
        written = load_runner(Model.open(stage.working), request.compute).logits(some)
        expected = chosen.scaling.apply(logits[: len(some)])
        if np.abs(expected - written).max() > TOLERANCE * max(1.0, np.abs(expected).max()):
            raise RuntimeError("the model written to disk does not give the calibrated logits")
    return Model.open(stage.output)


def calibration_verdict(model: Model) -> Sequence[str]:
    """Return what was done to the probabilities of a calibrated model and what is accepted, a sentence each."""
    return calibration_page(read_json_table(model.path / FOLDER / CALIBRATION_NAME)).verdict


def _quality(one: Calibrated, gold: Array) -> dict[str, Any]:
    """Return loss, calibration error and accuracy of out-of-fold probabilities, and the bins of their diagram."""
    confidence, correct, predicted = _confidence(one, gold)
    classes = one.logits.shape[1]
    loss = bootstrap((one.losses,), lambda drawn: np.asarray(drawn.mean(axis=-1)))
    accuracy = score(predicted, gold, metric=ACCURACY, classes=classes)
    error = calibration_error(confidence, correct)
    return {
        "loss": _figure(float(one.losses.mean()), *loss),
        "calibration_error": _figure(error, *calibration_interval(confidence, correct)),
        "accuracy": _figure(accuracy, *interval(predicted, gold, metric=ACCURACY, classes=classes)),
        "confidence": float(confidence.mean()),
        "bins": _bins(confidence, correct),
    }


def _confidence(one: Calibrated, gold: Array) -> tuple[Array, Array, Array]:
    """Return the confidence of each prediction ``[N]``, whether it is right, and the predicted class."""
    predicted = one.logits.argmax(axis=1)
    return probabilities(one.logits).max(axis=1), predicted == gold, predicted


def _bins(confidence: Array, correct: Array) -> list[dict[str, Any]]:
    """Return bins of equally many rows in the order of their confidence, with Wilson's interval of the share right."""
    order = np.argsort(confidence, kind="stable")
    found = []
    for own in np.array_split(order, min(BINS, len(order) // 5)):
        right = correct[own].astype(int)
        low, high = interval(right, np.ones_like(right), metric=ACCURACY, classes=2)
        share = float(right.mean())
        found.append(
            {"rows": len(own), "confidence": float(confidence[own].mean()), "right": share, "low": low, "high": high}
        )
    return found


def _accepted(acceptance: Mapping[str, Any], one: Calibrated, gold: Array, labels: Sequence[str]) -> dict[str, Any]:
    """Return the thresholds, overall and of each class; those of a class that is never accepted are null.

    Raises:
        CompressError: nothing is accepted.
    """
    confidence, correct, predicted = _confidence(one, gold)
    right = acceptance["right"]
    overall = accept_from(confidence, correct, right)
    owns = {label: predicted == number for number, label in enumerate(labels)}
    classes = {label: accept_from(confidence[own], correct[own], right) for label, own in owns.items()}
    by_class = acceptance["by"] == "class"
    found = any(classes.values()) if by_class else bool(overall)
    percent, least = f"{100 * right:g}%", rows_needed(right)
    best = max(level.at_least for level in levels(confidence, correct))
    refuse(
        (
            not found and by_class and overall,
            f"no class of {len(labels):,} has enough validation rows to be certain that {percent} are right: "
            f"{least:,} without an error at the least; leave out --accept-by class, or give more rows",
        ),
        (
            not found,
            f"no confidence is certain to be right {percent} of the time on these {len(gold):,} validation rows: at "
            f"most {100 * best:.1f}% is; give more rows, {least:,} without an error at the least, or a lower "
            "--accept-at",
        ),
    )
    return {
        **acceptance,
        "certainty": CERTAINTY,
        "threshold": overall and overall.threshold,
        "thresholds": {label: level and level.threshold for label, level in classes.items()},
        "overall": overall and asdict(overall),
        "classes": {label: level and asdict(level) for label, level in classes.items()},
        "accepted_by_class": sum(level.rows for level in classes.values() if level) / len(gold),
    }


def _figure(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}
