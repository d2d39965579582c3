"""Calibration stage: scale a classifier's logits so that its probabilities are right, and find when to accept them.

A temperature, or a scale and shift of each class, is fitted on validation rows and put into the model itself. What it
does is judged by cross-validation: every row by what was fitted on other rows. ``accept_at`` asks for the confidence
from which predictions are right that often; ``compress predict`` then says of each whether it is accepted. Shapes: N
rows, C classes.

* *Temperature scaling* (Guo et al. 2017, arXiv:1706.04599, section 4.2) divides all logits by one number T.
* *Vector scaling* (section 4.2) has a scale and a shift of its own for every class.

Both maximise the likelihood of the gold labels times a prior. ln T is normal around 0 with standard deviation 1, and in
vector scaling the logarithms of the scales around -ln T, and the shifts around 0, with 0.5. From 500 rows on the prior
of T moves it by less than 1%. Without it, few rows that are all predicted right would have T = 0, and every class with
a handful of rows scales of its own, which is why Guo et al. found vector scaling to overfit with many classes.

The scale and shift go into the last linear layer of torch, or after the graph of ONNX: every client then computes
calibrated probabilities with the softmax that it always takes.

*Acceptance* is the confidence from which predictions are certainly right as often as asked
(:mod:`compress.evaluation.acceptance`).

*Decisions.* A class, or each label of several a text, may be given from where its F1 on validation rows is highest
(Lipton et al. 2014, "Optimal Thresholding of Classifiers to Maximize F1 Measure", arXiv:1402.1892), or where its recall
or its precision is certainly as asked. Its shift moves that point to where every client decides, a probability of 0.5,
or the highest of several, so that its probability says no more how often it is right. That the score of the kth of n
rows, from below, is a threshold of a recall of r has the probability that Beta(n - k + 1, k) is above r (Wilks 1941,
"Determination of sample sizes for setting tolerance limits"); of precision the bound is that of acceptance, at
thresholds among twice as many rows as are of the class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn
from transformers import PreTrainedModel

from compress.data import describe_rows, row_key, row_keys
from compress.errors import CompressError, did_you_mean, refuse, some_of
from compress.evaluation.acceptance import CERTAINTY, Level, accept_from, levels, rows_needed
from compress.evaluation.metrics import (
    ACCURACY,
    BINS,
    Array,
    bootstrap,
    calibration_error,
    calibration_interval,
    interval,
)
from compress.exporting.onnx_graph import write_graph
from compress.files import read_json_table
from compress.inference.native.write import write_native
from compress.inference.predict import check_label_meaning
from compress.inference.runners import load_runner
from compress.models.components import example_inputs
from compress.models.graph_files import copy_graph, graph_file
from compress.models.loading import copy_client_files
from compress.models.manifest import ONNX_NAME
from compress.models.model_dir import Model, check_unseen
from compress.progress import logger
from compress.reporting.calibration_page import calibration_page
from compress.reporting.pages import write_study
from compress.requests.compression import Calibrate, Decision
from compress.tasks import Task, default

FOLDER, CALIBRATION_NAME = "calibration", "calibration.json"
PAGE = f"{FOLDER}/report.html"
COMPARED_ROWS = 64  # of what was written with what it should give
CLASSES = default()
FEWEST_ROWS = 20
FEWEST_OF_LABEL = 10  # rows that have it, for a decision of its own
FOLDS = 10
TEMPERATURE_DEVIATION = 1.0
CLASS_DEVIATION = 0.5
LARGEST_LOG_TEMPERATURE = 5.0  # where a probability of 99.9% becomes one of 51%
TOLERANCE = 1e-4  # of the largest logit
UNCALIBRATED = "uncalibrated_logits"


@dataclass(frozen=True)
class Scaling:
    """``scale * logits + shift``: the scale of all classes ``[1]``, or of each ``[C]``; a shift of each, or none."""

    scale: Array
    shift: Array | None = None

    def apply(self, logits: Array) -> Array:
        """Return calibrated logits ``[N, C]``."""
        return logits * self.scale + (0.0 if self.shift is None else self.shift)

    @property
    def temperature(self) -> float:
        """What logits are divided by: T, or in vector scaling the geometric mean over classes."""
        return float(np.exp(-np.log(self.scale).mean()))


UNCHANGED = Scaling(np.ones(1))
_ROUNDING = 1e-4  # of a margin, in the arithmetic of runtimes


@dataclass(frozen=True)
class Calibrated:
    """A way to calibrate, and what it does to rows that it was not fitted on.

    Args:
        name: ``none``, ``temperature`` or ``vector``.
        scaling: fitted on all rows.
        logits: out-of-fold logits ``[N, C]``: each row's are scaled by what was fitted on the other folds.
        losses: negative log-likelihood of each row's gold label by them, in nats, ``[N]``.
    """

    name: str
    scaling: Scaling
    logits: Array
    losses: Array


def calibrations(
    logits: Array, gold: Array, keys: Array, *, shifts: bool = True, task: Task = CLASSES
) -> list[Calibrated]:
    """Return no calibration, temperature scaling and vector scaling, each judged by ten-fold cross-validation.

    Args:
        logits: ``[N, C]``.
        gold: class indices, or sets of labels, ``[N]``.
        keys: a number of each row ``[N]``; rows of the same key are in the same fold, so that no text is judged by what
            was fitted on its copy.
        shifts: whether the model can have a shift; without, there is no vector scaling.
    """
    folds, found = keys % FOLDS, [Calibrated("none", UNCHANGED, logits, task.surprise(logits, gold))]
    for name, fit in {"temperature": fit_temperature, "vector": fit_vector}.items():
        if name == "temperature" or shifts:
            scaled = np.empty_like(logits)
            for fold in np.unique(folds):
                held_out = folds == fold
                scaled[held_out] = fit(logits[~held_out], gold[~held_out], task).apply(logits[held_out])
            found.append(Calibrated(name, fit(logits, gold, task), scaled, task.surprise(scaled, gold)))
    return found


def best_calibration(candidates: Sequence[Calibrated]) -> Calibrated:
    """Return what is used: temperature scaling where it lowers the out-of-fold loss, vector scaling where certainly.

    One number is hardly ever worse than none. Vector scaling has 2C and may change predictions, so that the whole 95%
    interval of the paired difference has to be below 0.
    """
    best, *others = candidates
    for one in others:
        if one.losses.mean() < best.losses.mean() and (one.scaling.shift is None or loss_change(one, best)[2] < 0):
            best = one
    return best


def loss_change(one: Calibrated, other: Calibrated) -> tuple[float, float, float]:
    """Return by how much the mean loss of one is above the other's, in nats, with its paired 95% interval."""
    difference = one.losses - other.losses
    low, high = bootstrap((difference,), lambda drawn: np.asarray(drawn.mean(axis=-1)))
    return float(difference.mean()), low, high


def fit_temperature(logits: Array, gold: Array, task: Task = CLASSES) -> Scaling:
    """Return the most likely temperature for logits ``[N, C]`` and gold answers ``[N]``; 1 without any row."""
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        likelihood = task.surprise(logits * np.exp(-log_temperature), gold).sum()
        return float(likelihood + (log_temperature / TEMPERATURE_DEVIATION) ** 2 / 2)

    if not len(gold):
        return UNCHANGED
    bounds = (-LARGEST_LOG_TEMPERATURE, LARGEST_LOG_TEMPERATURE)
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return Scaling(np.exp([-found.x]))


def fit_vector(logits: Array, gold: Array, task: Task = CLASSES) -> Scaling:
    """Return the most likely scale and shift of every class for logits ``[N, C]`` and gold answers ``[N]``."""
    from scipy.optimize import minimize

    classes = logits.shape[1]
    is_gold = task.members(gold, classes)
    start = np.append(np.log(fit_temperature(logits, gold, task).scale), np.zeros(2 * classes))

    def loss(values: Array) -> tuple[float, Array]:
        (common,), own, shift = np.split(values, [1, 1 + classes])
        stretched = logits * np.exp(common + own)
        error = cast(Array, task.probabilities(stretched + shift)) - is_gold
        by_scale = (error * stretched).sum(axis=0)
        total = (
            task.surprise(stretched + shift, gold).sum()
            + (common / TEMPERATURE_DEVIATION) ** 2 / 2
            + ((own**2).sum() + (shift**2).sum()) / (2 * CLASS_DEVIATION**2)
        )
        gradient = [by_scale.sum(), *by_scale, *error.sum(axis=0)] + values / deviations**2
        return float(total), gradient

    deviations = np.array([TEMPERATURE_DEVIATION, *[CLASS_DEVIATION] * (2 * classes)])
    common, own, shift = np.split(minimize(loss, start, jac=True, method="L-BFGS-B").x, [1, 1 + classes])
    return Scaling(np.exp(common + own), shift)


def decided_by(
    decision: Decision, one: Calibrated, raw: Array, gold: Array, keys: Array, task: Task, labels: Sequence[str]
) -> Calibrated:
    """Return a calibration whose shifts move decisions; its logits are out of fold by F1, else what the model gives.

    Of each label, one of fewer than ``FEWEST_OF_LABEL`` rows keeps its 0.5.

    Args:
        raw: the logits ``[N, C]`` before calibration.

    Raises:
        CompressError: the class has too few rows, or no threshold is certain.
    """
    folds, by_fold = keys % FOLDS, decision.by == "f1"
    scaled = one.logits if by_fold else one.scaling.apply(raw)
    moved = scaled.copy()

    def cuts(rows: Array) -> Array:
        logits, of_gold = scaled[rows], gold[rows]
        if not decision.label:
            return best_f1_cuts(logits, task.members(of_gold, len(labels)))
        index = labels.index(decision.label)
        margins, held = task.margins(logits, index), task.held(of_gold, index)
        cut = best_f1_cuts(margins[:, None], held[:, None])[0] if by_fold else certain_cut(margins, held, decision)
        return np.asarray(np.eye(len(labels))[index] * cut)

    whole = cuts(np.ones(len(gold), bool))
    for fold in np.unique(folds) if by_fold else ():
        moved[folds == fold] -= cuts(folds != fold)
    shift = (0.0 if one.scaling.shift is None else one.scaling.shift) - whole
    return Calibrated(one.name, Scaling(one.scaling.scale, shift), moved if by_fold else scaled - whole, one.losses)


def certain_cut(margins: Array, held: Array, decision: Decision) -> float:
    """Return above which margin ``[N]`` a class, whose rows are ``held``, certainly has the recall or precision asked.

    Of recall it is the highest, of precision the one that gives most rows.

    Raises:
        CompressError: none is certain.
    """
    from scipy.stats import beta

    by, least, label = decision
    own, best = np.sort(margins[held]), None
    if by == "recall":
        bounds = beta.ppf(1 - CERTAINTY, np.arange(len(own), 0, -1), np.arange(1, len(own) + 1))
        sure = np.flatnonzero(bounds >= least)
        best, most = (own[sure[-1]] if len(sure) else None), max(bounds, default=0.0)
    else:
        first = np.argsort(-margins, kind="stable")[: 2 * len(own)]
        found = accept_from(margins[first], held[first], least)
        best = None if found is None else found.threshold
        most = max(level.at_least for level in levels(margins[first], held[first]))
    if best is None:
        raise CompressError(
            f"no threshold is certain to have a {by} of {100 * least:g}% for {label!r} on its {len(own):,} validation "
            f"rows: at most {100 * most:.1f}% is; give more, {rows_needed(least):,} without an error at the least, or "
            "ask for less"
        )
    below = margins[margins < best]
    gap = best - below.max() if len(below) else 2.0
    # A lower threshold has no lower recall, but of the precision between two rows nothing is known.
    return float(best - (gap / 2 if by == "recall" else min(gap / 2, _ROUNDING)))


def best_f1_cuts(logits: Array, held: Array) -> Array:
    """Return the logit of each label above which its F1 is highest, of logits and gold ``[N, C]``: ``[C]``."""
    cuts = np.zeros(logits.shape[1])
    for label in np.flatnonzero(held.sum(axis=0) >= FEWEST_OF_LABEL):
        order = np.argsort(-logits[:, label], kind="stable")
        falling, hits = logits[order, label], np.cumsum(held[order, label])
        f1 = 2 * hits / (np.arange(1, len(order) + 1) + hits[-1])
        f1[:-1][falling[:-1] == falling[1:]] = 0.0  # equal ones are given together
        best = int(f1.argmax())
        cuts[label] = falling[best : best + 2].mean() if best + 1 < len(order) else falling[-1] - 1.0
    return cuts


def last_layer(model: PreTrainedModel) -> nn.Linear:
    """Return the linear layer whose output are the logits.

    Raises:
        CompressError: there is none.
    """
    found: list[tuple[nn.Linear, torch.Tensor]] = []
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    hooks = [layer.register_forward_hook(lambda own, _, output: found.append((own, output))) for layer in layers]
    try:
        with torch.no_grad():
            logits = model(**example_inputs(model)).logits
    finally:
        for hook in hooks:
            hook.remove()
    # A decoder classifies every token, and its logits are rows of that.
    ends = [layer for layer, output in reversed(found) if output.shape[-1] == logits.shape[-1]]
    if not ends:
        raise CompressError(
            f"this {model.config.model_type!r} model has no linear layer that gives its logits, so that they cannot be "
            "scaled; turn it into ONNX with 'compress export' and calibrate that"
        )
    return ends[0]


def rescale_torch(model: PreTrainedModel, scaling: Scaling) -> None:
    """Scale the weights of the last layer of a torch model, in place.

    Raises:
        CompressError: its logits are not scaled by that.
    """
    layer, inputs = last_layer(model), example_inputs(model)
    scale = torch.as_tensor(scaling.scale, dtype=layer.weight.dtype)
    with torch.no_grad():
        expected = scaling.apply(model(**inputs).logits.double().numpy())
        layer.weight.mul_(scale[:, None])
        if layer.bias is not None:
            layer.bias.mul_(scale)
            if scaling.shift is not None:
                layer.bias.add_(torch.as_tensor(scaling.shift, dtype=layer.bias.dtype))
        found = model(**inputs).logits.double().numpy()
    if np.abs(found - expected).max() > TOLERANCE * max(1.0, np.abs(expected).max()):
        raise CompressError(
            f"the logits of this {model.config.model_type!r} model do not follow the weights of its last layer; turn "
            "it into ONNX with 'compress export' and calibrate that"
        )


def rescale_graph(source: Path, target: Path, scaling: Scaling) -> None:
    """Write the graph of a directory into another, with a multiplication, and an addition, after its logits."""
    if scaling is UNCHANGED:
        copy_graph(graph_file(source), target)
        return
    model = onnx.load(str(graph_file(source)))
    graph = model.graph
    output = next(value for value in graph.output if value.name == "logits")
    kind = helper.tensor_dtype_to_np_dtype(output.type.tensor_type.elem_type)
    known = {name for node in graph.node for name in node.output}
    name = UNCALIBRATED
    while name in known:  # calibrated before
        name = f"{name}_"
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [name if one == "logits" else one for one in names]
    for operator, values in (("Mul", scaling.scale), ("Add", scaling.shift)):
        if values is not None:
            constant = f"{name}_{operator.lower()}"
            graph.initializer.append(numpy_helper.from_array(values.astype(kind), constant))
            graph.node.append(helper.make_node(operator, [name, constant], [f"{constant}_output"]))
            name = f"{constant}_output"
    graph.node[-1].output[0] = "logits"
    write_graph(model, target / ONNX_NAME)


def calibrate(request: Calibrate) -> Model:
    """Write a model with calibrated probabilities, and figures and a page about them in its folder ``calibration``.

    Raises:
        CompressError: no classifier, a model of packed weights, too few rows, or no confidence that is certainly right
            as often as asked.
    """
    source, validation = Model.open(request.model), request.read("validation")
    task, decision = source.task, request.decision
    moves = decision.by != "probability"
    acceptance = request.accept_at and {"right": request.accept_at, "by": request.accept_by}
    refuse(
        (bool(source.task.no_calibration), f"{source.path} is made for {source.task}; {source.task.no_calibration}"),
        *(
            (
                asked and way not in known,
                f"{source.path} is made for {source.task}, which takes no --{option} {way}; use --{option} "
                f"{' or '.join(known)}{', or name a class, such as f1:CLASS' * (way == 'f1')}",
            )
            for asked, option, way, known in (
                (acceptance, "accept-by", request.accept_by, source.task.accepts_by),
                (not decision.label, "decide-by", decision.by, source.task.decides_by),
            )
        ),
        (
            source.is_packed,
            f"{source.path} has packed weights, which cannot be scaled; calibrate the model that it was packed from",
        ),
    )
    encoded = source.task.gold(validation, source.labels, "validation")
    # A copy with the same label says nothing new; annotators who disagree do.
    different = {(row_key(row), label): row for row, label in zip(reversed(validation), reversed(encoded), strict=True)}
    rows, gold = [*different.values()][::-1], task.column([label for _, label in different][::-1])
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
    label, of_label = decision.label, 0
    if label in source.labels:
        of_label = int(task.held(gold, source.labels.index(label)).sum())
    refuse(
        (
            moves and not shifts,
            f"the last layer of {source.path} has no bias to move a decision by; leave out --decide-by "
            f"{request.decide_by}",
        ),
        (
            label and label not in source.labels,
            f"--decide-by names {label!r}, and the classes are {some_of(source.labels)}."
            f"{did_you_mean(label, source.labels)}",
        ),
        (
            label and of_label < FEWEST_OF_LABEL,
            f"--decide-by {request.decide_by} needs {FEWEST_OF_LABEL} rows of {label!r} or more, and --validation has "
            f"{of_label}; give more",
        ),
    )

    with request.begin(
        {"model": source},
        data=describe_rows({"validation": validation}),
        keep=False,
        model=source,
        validation=validation,
    ) as stage:
        with request.progress("Predicting", len(rows)) as advance:
            logits = load_runner(source, request.compute).logits(rows, advance).astype(float)
        check_label_meaning(task.predictions(logits), gold, source.labels, "validation")
        with request.progress("Calibrating", None):
            keys = row_keys(rows)
            found = calibrations(logits, gold, keys, shifts=shifts, task=task)
            chosen = best_calibration(found)
            used = decided_by(decision, chosen, logits, gold, keys, task, source.labels) if moves else chosen
        content: dict[str, Any] = {
            "model": source.name,
            "model_sha256": source.sha256,
            "rows": len(rows),
            "labels": list(source.labels),
            "method": chosen.name,
            "temperature": chosen.scaling.temperature,
            "before": _quality(found[0], gold, task),
            "after": _quality(chosen, gold, task),
            "methods": [
                {
                    "name": one.name,
                    "temperature": one.scaling.temperature,
                    "loss": float(one.losses.mean()),
                    "change": _figure(*loss_change(one, found[0])),
                }
                for one in found
            ],
            "coverage": [asdict(level) for level in levels(*_confidence(used, gold, task)[:2])],
            "acceptance": acceptance and _accepted(acceptance, used, gold, source.labels, task),
            "decisions": _decided(decision, chosen, used, gold, source.labels, task) if moves else None,
        }
        notes = {**source.manifest.notes, "calibration": chosen.name, "temperature": chosen.scaling.temperature}
        for noted in ("acceptance", "decisions"):
            notes.pop(noted, None)
        notes |= {"decisions": content["decisions"]} if moves else {}
        notes |= {"acceptance": content["acceptance"]} if acceptance else {}
        described = {
            "recipe": {"acceptance": acceptance, "decide_by": request.decide_by},
            "data": (*source.manifest.data, *stage.manifest.data),
            "seeds": source.manifest.seeds,
            "metrics": tuple(
                {"name": name, "value": content["after"][key]["value"], "split": "validation", "rows": len(rows)}
                for name, key in (
                    (task.right_share, "accuracy"),
                    ("calibration error, out of fold", "calibration_error"),
                )
            ),
            "notes": notes,
        }
        # No client reads this folder, and no later stage copies it.
        write_study(content, calibration_page, stage.working / FOLDER / CALIBRATION_NAME)
        if network is None:
            copy_client_files(source.path, stage.working)
            rescale_graph(source.path, stage.working, used.scaling)
            described["notes"] = notes | write_native(stage.working)
            known = source.manifest.architecture or {"model_type": source.config.get("model_type")}
            stage.finish(architecture=known, **described)
        else:
            rescale_torch(network, used.scaling)
            stage.write_model(network, source.tokenizer, **described)
        some = rows[:COMPARED_ROWS]
        written = load_runner(Model.open(stage.working), request.compute).logits(some)
        expected = used.scaling.apply(logits[: len(some)])
        if np.abs(expected - written).max() > TOLERANCE * max(1.0, np.abs(expected).max()):
            raise RuntimeError("the model written to disk does not give the calibrated logits")
    return Model.open(stage.output)


def calibration_verdict(model: Model) -> Sequence[str]:
    """Return what was done to the probabilities of a calibrated model and what is accepted, a sentence each."""
    return calibration_page(read_json_table(model.path / FOLDER / CALIBRATION_NAME)).verdict


def _quality(one: Calibrated, gold: Array, task: Task) -> dict[str, Any]:
    """Return loss, calibration error and accuracy of out-of-fold probabilities, and the bins of their diagram."""
    predicted = task.predictions(one.logits)
    confidence, correct, sets = task.decisions(cast(Array, task.probabilities(one.logits)), predicted, gold)
    right = correct.astype(int)
    bins = []  # of equally many decisions in the order of their confidence, with the interval of the share right
    order = np.argsort(confidence, kind="stable")
    for own in map(np.sort, np.array_split(order, min(BINS, len(order) // 5))):
        low, high = _share_right(right[own], None if sets is None else sets[own])
        mean = {"rows": len(own), "confidence": float(confidence[own].mean()), "right": float(right[own].mean())}
        bins.append({**mean, "low": low, "high": high})
    loss = bootstrap((one.losses,), lambda drawn: np.asarray(drawn.mean(axis=-1)))
    return {
        "loss": _figure(float(one.losses.mean()), *loss),
        "calibration_error": _figure(
            calibration_error(confidence, correct), *calibration_interval(confidence, correct, sentences=sets)
        ),
        "accuracy": _figure(float(right.mean()), *_share_right(right, sets)),
        "confidence": float(confidence.mean()),
        "bins": bins,
    }


def _share_right(right: Array, sets: Array | None) -> tuple[float, float]:
    """Return Wilson's interval of a share, or where decisions are of ``sets`` that of sets drawn as a whole."""
    rows = None if sets is None else np.unique(sets, return_inverse=True)[1]
    return interval(right, np.ones_like(right), metric=ACCURACY, classes=2, sentences=rows)


def _confidence(one: Calibrated, gold: Array, task: Task) -> tuple[Array, Array, Array]:
    """Return the confidence of each prediction ``[N]``, whether it is right, and the prediction."""
    predicted = task.predictions(one.logits)
    return task.sureness(cast(Array, task.probabilities(one.logits))), predicted == gold, predicted


def _decided(
    decision: Decision, before: Calibrated, after: Calibrated, gold: Array, labels: Sequence[str], task: Task
) -> dict[str, Any]:
    """Return the probability, of two classes, from which labels are given now, and the metrics by it and by 0.5.

    Of a named class there are its recall and its precision too.
    """
    moved = (0.0 if before.scaling.shift is None else before.scaling.shift) - cast(Array, after.scaling.shift)
    compared = {
        metric.name: [task.score(one.logits, gold, metric) for one in (before, after)]
        for metric in task.metrics
        if not metric.of_probabilities and not (metric.of_last and len(labels) != 2)
    }
    thresholds = dict(zip(labels, np.round(1 / (1 + np.exp(-moved)), 4).tolist(), strict=True))
    if label := decision.label:
        thresholds, index = {label: thresholds[label]}, labels.index(label)
        held, given = (
            task.held(gold, index),
            [task.held(task.predictions(one.logits), index) for one in (before, after)],
        )
        hits = [int((held & one).sum()) for one in given]
        compared["recall"] = [hit / int(held.sum()) for hit in hits]
        compared["precision"] = [hit / max(int(one.sum()), 1) for hit, one in zip(hits, given, strict=True)]
    return {**decision._asdict(), "thresholds": thresholds, "metrics": compared}


def _accepted(
    acceptance: Mapping[str, Any], one: Calibrated, gold: Array, labels: Sequence[str], task: Task
) -> dict[str, Any]:
    """Return the thresholds, overall and of each class; those of a class that is never accepted are null.

    Raises:
        CompressError: nothing is accepted.
    """
    confidence, correct, predicted = _confidence(one, gold, task)
    right, chances = acceptance["right"], cast(Array, task.probabilities(one.logits))
    overall = accept_from(confidence, correct, right)
    classes, given = dict[str, Level | None](), 0
    for number, label in enumerate(labels):
        own = task.held(predicted, number)
        given += int(own.sum())
        classes[label] = accept_from(chances[own, number], task.held(gold, number)[own], right)
    by_class = acceptance["by"] == "class"
    found = any(classes.values()) if by_class else bool(overall)
    percent, least = f"{100 * right:g}%", rows_needed(right)
    best = max(level.at_least for level in levels(confidence, correct))
    more, overall_fits = f"{least:,} without an error at the least", "overall" in task.accepts_by
    refuse(
        (
            not given,
            f"none of the {len(labels):,} labels is given to any of these {len(gold):,} validation rows, so that none "
            "can be accepted; use --decide-by f1, or a model that was trained for longer",
        ),
        (
            not found and by_class and (overall or not overall_fits),
            f"no class of {len(labels):,} has enough validation rows to be certain that {percent} are right: {more}; "
            f"{'leave out --accept-by class' if overall_fits else 'lower --accept-at'}, or give more rows",
        ),
        (
            not found,
            f"no confidence is certain to be right {percent} of the time on these {len(gold):,} validation rows: at "
            f"most {100 * best:.1f}% is; give more rows, {more}, or a lower --accept-at",
        ),
    )
    return {
        **acceptance,
        "certainty": CERTAINTY,
        "threshold": overall and overall.threshold,
        "thresholds": {label: level and level.threshold for label, level in classes.items()},
        "overall": overall and asdict(overall),
        "classes": {label: level and asdict(level) for label, level in classes.items()},
        "accepted_by_class": sum(level.rows for level in classes.values() if level) / max(given, 1),
    }


def _figure(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}
