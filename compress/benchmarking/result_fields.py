"""Result fields of a run: identity, workload, speed, size, memory, arithmetic and quality.

N rows, C classes. What each field means is said in :mod:`compress.benchmarking.results.schema`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from compress.benchmarking.candidates import Candidate, precision_of, training_seed, vocabulary_sha256
from compress.benchmarking.results.files import grouped
from compress.benchmarking.results.schema import FIELDS, Fields, Measurement, interval_fields
from compress.benchmarking.rounds import speedup_of
from compress.benchmarking.worker import Worker, WorkerRun, Workload
from compress.data import Example
from compress.errors import CompressError, refuse
from compress.evaluation.entities import Entities, class_figures
from compress.evaluation.metrics import (
    ACCURACY,
    AVERAGE_PRECISION,
    FEW_CLASSES,
    Array,
    Difference,
    Metric,
    agreement,
    calibration_error,
    calibration_interval,
    interval,
    paired_difference,
    score,
)
from compress.inference.runners import served_bytes
from compress.inference.speedup_intervals import (
    PERCENTILES,
    Interval,
    Rounds,
    mean,
    noise,
    percentile,
    throughput,
    units_per_second,
)
from compress.models.manifest import METRICS_NAME, VOCABULARIES, Manifest
from compress.models.model_dir import CascadeDir, Model
from compress.models.training_log import read_training, series
from compress.progress import Progress, logger
from compress.tasks import Task

ONE = Interval(1.0, 1.0, 1.0)
FLIPS_KEPT = 100
NO_DIFFERENCE = Difference(0.0, 0.0, 0.0, None)  # of the teacher to itself


@dataclass(frozen=True)
class Rows:
    """Labelled rows: what they are called, their fingerprint and their gold labels ``[N]``; for tagging one a word.

    ``slices`` says which rows are of each slice, by its name.
    """

    name: str
    sha256: str
    examples: list[Example]
    gold: np.ndarray
    slices: Mapping[str, np.ndarray] = field(default_factory=dict)


def keep_predictions(
    lines: Sequence[Measurement], predicted: Mapping[str, np.ndarray], gold: np.ndarray
) -> list[Measurement]:
    """Add the predictions of each row to one line of every entry, and the gold labels to the teacher's.

    That is the line which the table of a report shows: of the fewest threads, the data's own lengths and the smallest
    batch.
    """
    entries = grouped((line for line in lines if line.title in predicted), lambda line: line.title)
    keeping = {
        id(min(own, key=lambda x: (x.threads, x.length is not None, x.padding != "longest", x.batch_size)))
        for own in entries.values()
    }

    def kept(line: Measurement) -> Measurement:
        own = {"gold": gold.tolist()} if line.is_reference else {}
        return replace(line, predictions=[_rounded(value) for value in predicted[line.title].tolist()], **own)

    return [kept(line) if id(line) in keeping else line for line in lines]


def describe_run(run: WorkerRun, runs: Sequence[WorkerRun]) -> Fields:
    """Return what a run is: names, origin, architecture, sizes, memory."""
    entry, candidate = run.entry, run.entry.candidate
    teacher = next(other.entry.candidate for other in runs if other.entry.is_reference)
    manifest = candidate.model.manifest
    parameters, size = _weights(run)
    return {
        "model": candidate.name,
        "recipe": candidate.recipe,
        "kind": entry.kind,
        "control_of": candidate.control_of,
        "control": candidate.control,
        "stage": manifest.stage,
        "quantizer": quantizer_of(manifest),
        "parents": _parents(candidate, runs),
        **({"removals": list(candidate.removals)} if candidate.removals else {}),
        "training_seed": training_seed(candidate.model),
        **training_fields(candidate.model),
        "model_sha256": candidate.model.sha256,
        "tokenizer_sha256": vocabulary_sha256(candidate.model),
        "members": list(candidate.model.member_names) if isinstance(candidate.model, CascadeDir) else [],
        "answered": list(run.answered),
        "batch_dependent_share": run.batch_dependent_share,
        "runtime": entry.runtime,
        "device": entry.device,
        "threads": run.threads,
        "tokenizer_inside": run.loaded["tokenizer_inside"],
        "parameters": parameters,
        "size_bytes": size,
        "directory_bytes": sum(f.stat().st_size for f in entry.directory.path.rglob("*") if f.is_file()),
        "parameters_ratio": teacher.model.parameters / parameters if parameters else None,
        "size_ratio": teacher.model.size_bytes / size if size else None,
        "shape": shape_of(candidate.model),
        "heads_per_layer": manifest.architecture.get("heads_per_layer"),
        "ffn_per_layer": manifest.architecture.get("ffn_per_layer"),
        "peak_memory_bytes": run.memory["peak_memory_bytes"],
        "model_memory_bytes": run.memory["peak_memory_bytes"] - run.memory["memory_before_bytes"],
        "peak_gpu_memory_bytes": run.memory["peak_gpu_memory_bytes"],
        "load_ms": run.loaded["load_ms"],
        "labels": list(teacher.model.labels),
        "versions": run.loaded["versions"],
    }


def quantizer_of(manifest: Manifest) -> str:
    """Return which quantizer made a model; ``float32`` where it was refused, nothing for other stages."""
    if manifest.stage != "quantize":
        return ""
    return "float32" if manifest.notes.get("precision") == "fp32" else str(manifest.recipe["method"])


def training_fields(model: Model) -> Fields:
    """Return for how many steps of how many rows a model was trained, on what and how it went, where that is known."""
    manifest = model.manifest
    steps = manifest.notes.get("steps")
    if steps is None:
        return {"training_steps": None, "training_batch_size": None, "unlabeled_rows": None}
    own = manifest.recipe.get("training", {}).get("batch_size")
    sizes = {phase.get("training", {}).get("batch_size", own) for phase in manifest.recipe.get("phases", ())} or {own}
    given = [entry.get("rows", 0) for entry in manifest.data if entry.get("role") == "unlabeled"]
    pool = 0 if manifest.notes.get("control") else manifest.notes.get("pool_rows", sum(given))
    log, validation = read_training(model.path) if (model.path / METRICS_NAME).is_file() else None, {}
    # The score that chose the weights; nothing where that was another one, such as the agreement on rows of the pool.
    if log and log.split == "validation" and log.phases:
        points = series(log.phases[-1][1], "validation")
        validation = {"validation_curve": [[step, score] for step, score in points], "validation_metric": log.metric}
    return {
        "training_steps": int(steps),
        "training_batch_size": sizes.pop() if len(sizes) == 1 else None,
        "unlabeled_rows": pool or None,
        **validation,
    }


# What a shape has, and what configs call it.
SHAPE = {
    "type": ("model_type",),
    "layers": ("num_hidden_layers", "n_layers"),
    "hidden_size": ("hidden_size", "dim"),
    "vocabulary_size": ("vocab_size",),
}


def shape_of(model: Model) -> Fields:
    """Return a model's type, layers, hidden width and vocabulary as its config says; nothing of what it does not."""
    if not (model.path / "config.json").is_file():  # a baseline
        return {}
    found = {key: [model.config[name] for name in names if name in model.config] for key, names in SHAPE.items()}
    return {key: values[0] for key, values in found.items() if values and values[0] is not None}


def speed_fields(run: WorkerRun, runs: Sequence[WorkerRun], workload: Workload, seed: int) -> Fields:
    """Return a workload and a run's speed at it: alone, against the teacher in torch and in its own runtime.

    Both are compared at the same threads, batch size and length; neither teacher is padded more than it must be. Rows
    of baselines are counted in the teacher's tokens.
    """
    plain = workload.plain
    teachers = [r for r in runs if r.threads == run.threads and r.entry.candidate.kind == "teacher"]
    baseline = next(r for r in teachers if r.entry.is_reference)
    same = next((r for r in teachers if r.entry.runtime == run.entry.runtime and plain in r.rounds), None)
    rounds, lengths, mine = run.rounds[workload], token_lengths(run, runs), run.milliseconds(workload)
    tokens = [sum(workload.length or lengths[row] for batch in one.measured for row in batch) for one in rounds]
    read = [workload.length] if workload.length else lengths
    cold = [value for one in rounds for value in one.times["cold_ms"]]

    def against(teacher: WorkerRun, with_tokenizer: bool | None) -> Interval:
        if run is teacher and workload == plain:
            return ONE
        return speedup_of(run, workload, teacher, plain, with_tokenizer=with_tokenizer, seed=seed)

    return {
        "batch_size": workload.batch_size,
        "length": workload.length,
        "padding": workload.padding,
        "max_length": workload.width or run.loaded["max_length"],
        "truncated_rows": run.loaded["truncated_rows"],
        "tokens_median": float(np.median(read)),
        "tokens_p95": float(np.percentile(read, 95)),
        "tokens_max": max(read),
        "rounds": len(rounds),
        "clock": "cpu" if run.uses_cpu_time and baseline.uses_cpu_time else "wall",
        "warm_up_stable": run.warm[workload],
        "latency_ms": mine,
        "latency_cpu_ms": run.milliseconds(workload, by_cpu_time=True),
        **observed_fields(mine, workload.batch_size, seed),
        "latency_cold_p50_ms": float(np.median(cold)) if cold else None,
        "tokenize_p50_ms": float(np.median([value for one in rounds for value in one.times["tokenize_ms"]])),
        **interval_fields(
            "throughput_with_tokenizer_rows_per_second",
            throughput(run.milliseconds(workload, with_tokenizer=True), workload.batch_size, seed=seed),
        ),
        **interval_fields(
            "throughput_tokens_per_second",
            None if run.entry.kind == "baseline" else units_per_second(mine, tokens, seed=seed),
        ),
        **interval_fields("speedup", against(baseline, None)),
        **interval_fields("speedup_with_tokenizer", against(baseline, True)),
        **interval_fields("speedup_same_runtime", against(same, False) if same else None),
    }


def observed_fields(latency_ms: Rounds, batch_size: int, seed: int = 0) -> Fields:
    """Return what was observed of the wall clock: percentiles of latency, throughput, noise."""
    found: Fields = {"noise": noise(latency_ms)} | interval_fields("latency_mean_ms", mean(latency_ms, seed=seed))
    for rank in PERCENTILES:
        found |= interval_fields(f"latency_p{rank}_ms", percentile(latency_ms, rank, seed=seed))
    return found | interval_fields("throughput_rows_per_second", throughput(latency_ms, batch_size, seed=seed))


def device_fields(
    run: WorkerRun, workload: Workload, flops_per_row: Mapping[tuple[str, Workload], float], peaks: Mapping[str, float]
) -> Fields:
    """Return what the hardware says beside time: its own clock, energy, and the share of its peak.

    Args:
        flops_per_row, peaks: as :func:`count_arithmetic` returns them.
    """
    device_ms = [value for one in run.rounds[workload] for value in one.times["device_ms"] if value is not None]
    flops = flops_per_row.get((run.entry.title, workload))
    peak = peaks.get(precision_of(run.entry) or "")
    rows_per_second = throughput(run.milliseconds(workload), workload.batch_size).value
    return {
        "device_p50_ms": float(np.median(device_ms)) if device_ms else None,
        "energy_joules_per_row": run.joules_per_row.get(workload),
        "flops_per_row": flops,
        "matmul_peak_tflops": peak,
        "matmul_peak_share": flops * rows_per_second / (1e12 * peak) if flops and peak else None,
    }


def token_lengths(run: WorkerRun, runs: Sequence[WorkerRun]) -> list[int]:
    """Return the tokens of each row: as the run counts them, or as its model does in a runtime, or as the teacher."""
    mine = [r for r in runs if r.entry.candidate is run.entry.candidate]
    return next(list(r.loaded["lengths"]) for r in [run, *mine, *runs] if r.loaded["lengths"] is not None)


def _parents(candidate: Candidate, runs: Sequence[WorkerRun]) -> list[str]:
    known = {run.entry.candidate.model.sha256: run.entry.candidate.model for run in runs}
    found: list[str] = []
    waiting = [candidate.model]
    while waiting:
        for parent in waiting.pop(0).manifest.parents:
            sha256 = str(parent.get("sha256", ""))
            if sha256 and sha256 not in found:
                found.append(sha256)
                waiting += [known[sha256]] if sha256 in known else []
    return found


def _weights(run: WorkerRun) -> tuple[int, int]:
    """Return the number of weights and their bytes: of baselines and competitors, all files but their tokenizer's."""
    directory = run.entry.directory
    if run.entry.folder == "runtimes":
        return run.entry.candidate.model.parameters, served_bytes(directory, run.entry.runtime)
    files = (file for file in directory.path.rglob("*") if file.is_file() and file.name not in VOCABULARIES)
    return int(run.loaded["parameters"]), sum(file.stat().st_size for file in files)


def count_arithmetic(
    runs: Sequence[WorkerRun], device: str, progress: Progress
) -> tuple[dict[tuple[str, Workload], float], Mapping[str, float]]:
    """Return the operations of a row by title of the entry and workload, and a GPU's peak TFLOPS by precision.

    The batches of the first round are counted, by the process of the teacher. What a model does is the same in every
    runtime; a graph of another model, such as int8, has no count.
    """
    worker = min((run for run in runs if run.entry.is_reference), key=lambda run: run.threads).worker
    in_torch = (
        run
        for run in runs
        if run.entry.folder == "runtimes"
        and run.entry.kind != "cascade"
        and run.entry.candidate.model.form == "a torch"
    )
    models = grouped(in_torch, lambda run: run.entry.candidate.name)
    flops: dict[tuple[str, Workload], float] = {}
    with progress("Counting operations", len(models)) as advance:
        for mine in models.values():
            counted = _flops(worker, mine, runs)
            flops |= {(run.entry.title, one): counted[one] for run in mine for one in run.rounds if one in counted}
            advance(1)
    precisions = dict.fromkeys(precision_of(run.entry) for run in runs if device == "cuda")
    peaks = {p: worker.ask("peak", device="cuda", precision=p, threads=1)["tflops"] for p in precisions if p}
    return flops, peaks


def _flops(worker: Worker, mine: Sequence[WorkerRun], runs: Sequence[WorkerRun]) -> dict[Workload, float]:
    lengths = token_lengths(mine[0], runs)
    batches = {workload: run.rounds[workload][0].batches for run in mine for workload in run.rounds}
    jobs = [
        {"batches": [[workload.length or lengths[row] for row in batch] for batch in drawn], "width": workload.width}
        for workload, drawn in batches.items()
    ]
    candidate = mine[0].entry.candidate
    try:
        place, windows = str(candidate.model.path.resolve()), str(candidate.model.given_windows or "")
        found = worker.ask("arithmetic", directory=place, windows=windows, jobs=jobs)["flops"]
    except CompressError as error:  # what was timed is worth more than this
        logger.warning("the operations of %s are not counted: %s", candidate.name, error)
        return {}
    return {workload: value for workload, value in zip(batches, found, strict=True) if value is not None}


@dataclass(frozen=True)
class ModelPredictions:
    """What a model says about every row: ``predicted [N]`` and, of a classifier, ``probabilities [N, C]``."""

    predicted: Array
    probabilities: Array | None

    def judged(self, metric: Metric) -> Array:
        """Return what a metric reads, see :meth:`compress.tasks.Task.judged`."""
        return metric.reads(self.predicted, self.probabilities)


def quality_fields(
    logits: Mapping[str, np.ndarray | None],
    gold: np.ndarray,
    *,
    baseline: str,
    metric: Metric,
    task: Task,
    labels: Sequence[str],
    sentences: np.ndarray | None = None,
    slices: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, Fields]:
    """Return the quality fields that follow from logits and gold labels, of every model by its title.

    Args:
        logits: logits or log-probabilities ``[N, C]`` by title, ``[N, 1]`` for regression; None for random weights,
            whose fields are null and whose lists are empty.
        gold: class indices, or scores, ``[N]``.
        baseline: title of the teacher that the others are compared with.
        metric: what to measure.
        labels: names of the classes in order.
        sentences: where a task answers words, the sentence of each, ``[N]``; of a metric that ranks, the query.
        slices: which answers are of each slice of the rows, bool ``[N]`` by its name.

    Raises:
        CompressError: a model's output is not a number.
        ValueError: the baseline has no logits, or shapes differ.
    """
    known: dict[str, Any] = {"task": task, "labels": labels, "sentences": sentences}
    teacher = read_answers(baseline, logits[baseline], len(gold), **known)
    found: dict[str, Fields] = {}
    for title, values in logits.items():
        if values is None:
            empty = {"integer": 0, "array": []}
            needed = [field for field in FIELDS.values() if field.group == "Quality" and not field.optional]
            found[title] = {field.name: None if field.null else empty[field.kind] for field in needed}
            continue
        model = teacher if title == baseline else read_answers(title, values, len(gold), **known)
        found[title] = {
            **_metric_fields(model, teacher, gold, metric, task, len(labels), sentences),
            "classes": _class_fields(model, teacher, gold, metric, task, labels, sentences) if task.has_classes else [],
            **_flip_fields(model, teacher, gold, task, sentences if task.by_word else None),
        }
        if slices:
            found[title]["slices"] = [
                {"slice": name, **_part_fields(model, teacher, gold, held, metric, len(labels), sentences)}
                for name, held in slices.items()
            ]
    return found


def read_answers(
    title: str,
    logits: np.ndarray | None,
    rows: int,
    *,
    task: Task,
    labels: Sequence[str],
    sentences: np.ndarray | None = None,
) -> ModelPredictions:
    """Turn logits into predictions and probabilities.

    Raises:
        CompressError: one of them is not a number.
        ValueError: their shape is not ``[rows, C]``.
    """
    values = np.asarray(logits, dtype=np.float64)
    width = len(labels) if task.has_classes else 1
    if values.shape != (rows, width):
        raise ValueError(f"{title} has logits of shape {values.shape}, not {(rows, width)}")
    predicted = task.predictions(values, sentences)
    # A log-probability may be minus infinity; its softmax is a number all the same.
    with np.errstate(invalid="ignore"):
        probabilities = task.probabilities(values)
    broken = ~np.isfinite(values if probabilities is None else probabilities).all(axis=1)
    refuse(
        (
            broken.any(),
            f"{title} answers row {int(broken.argmax()) + 1} and {int(broken.sum()) - 1} others with something that is "
            "not a number; leave this model out, or make it again",
        )
    )
    return ModelPredictions(predicted, probabilities)


def _metric_fields(
    model: ModelPredictions,
    teacher: ModelPredictions,
    gold: Array,
    metric: Metric,
    task: Task,
    classes: int,
    sentences: Array | None,
) -> Fields:
    mine, reference = model.judged(metric), teacher.judged(metric)
    queries = {}
    if metric.ranks and metric.units and sentences is not None:
        queries = {"metric_queries": len(np.unique(sentences[metric.units.judged(gold, sentences)]))}
    compared: dict[str, Any] = {"metric": metric, "classes": classes, "sentences": sentences}
    value, reached = score(mine, gold, **compared), score(reference, gold, **compared)
    bounds = interval(mine, gold, **compared)
    difference = NO_DIFFERENCE
    if model is not teacher:
        difference = paired_difference(mine, reference, gold, **compared)
    error = None
    if model.probabilities is not None:  # of the probability of the predicted class, or of each label
        confidence, correct, rows = task.decisions(model.probabilities, model.predicted, gold)
        error = (
            calibration_error(confidence, correct),
            *calibration_interval(confidence, correct, sentences=sentences if rows is None else rows),
        )
    return {
        "metric_name": metric.name,
        **interval_fields("metric", (value, *bounds)),
        "metric_rows": len(gold),
        **queries,
        "metric_kept_percent": 100 * value / reached if reached > 0 else None,
        **interval_fields("difference_points", (difference.points, difference.low, difference.high)),
        "mcnemar_p": difference.mcnemar_p,
        "agreement": agreement(model.predicted, teacher.predicted),
        **interval_fields("calibration_error", error),
    }


def _average_precision(chances: Array, held: Array) -> tuple[float, float, float] | None:
    """Return the average precision of one class and its interval, of its probability and its rows, ``[N]`` each."""
    if not held.any() or len(held) < 2:
        return None
    rows = chances[:, None], held.astype(int)
    value = score(*rows, metric=AVERAGE_PRECISION, classes=2)
    return value, *interval(*rows, metric=AVERAGE_PRECISION, classes=2)


def _class_fields(
    model: ModelPredictions,
    teacher: ModelPredictions,
    gold: Array,
    metric: Metric,
    task: Task,
    labels: Sequence[str],
    sentences: Array | None,
) -> list[Fields]:
    """Compare recall class by class: recall is the accuracy on the rows of a class, and so are its intervals.

    Where the metric counts entities, these are the rows, and each is found or not; classes have precision and F1 too.
    A few classes of whole texts have the average precision, which no threshold decides.
    """
    names, figures = labels, [Fields()] * len(labels)
    parts = (
        (task.held(gold, index), *(task.held(one.predicted, index) for one in (model, teacher)))
        for index in range(len(labels))
    )
    if isinstance(metric.units, Entities) and sentences is not None:
        figures = class_figures(metric.units.counts(model.predicted, gold, sentences))
        starts, _, of = metric.units.read(gold, sentences)
        right, before = (metric.units.found(one.predicted, gold, sentences) for one in (model, teacher))
        names, sentences = metric.units.classes, sentences[starts]
        parts = ((of == index, right, before) for index in range(len(names)))
    elif sentences is None and model.probabilities is not None and len(labels) <= FEW_CLASSES:
        figures = [
            interval_fields("average_precision", _average_precision(chances, task.held(gold, index)))
            for index, chances in enumerate(model.probabilities.T)
        ]
    found = []
    for label, more, (held, mine, reference) in zip(names, figures, parts, strict=True):
        of_teacher = ModelPredictions(reference, None)
        own = of_teacher if model is teacher else ModelPredictions(mine, None)
        part = _part_fields(own, of_teacher, np.ones_like(held), held, ACCURACY, 2, sentences)
        part = {name.replace("metric", "recall"): value for name, value in part.items()}
        lost, won = (int((held & one & ~other).sum()) for one, other in ((reference, mine), (mine, reference)))
        found.append({"label": label, **part, "lost": lost, "won": won, **more})
    return found


def _part_fields(
    model: ModelPredictions,
    teacher: ModelPredictions,
    gold: Array,
    held: Array,
    metric: Metric,
    classes: int,
    sentences: Array | None,
) -> Fields:
    """Compare on the answers that a part of the rows ``held [N]`` has.

    A part without rows has no metric. One row, or words of one sentence, has no interval, and rows that are all alike
    have none where it is resampled, as if they could not be otherwise: null, but where all answers are right or all
    wrong the accuracy has Wilson's, as if each sentence had one. A metric that ranks needs queries with a relevant row.
    """
    if metric.units and sentences is not None:
        held = held.copy()
        held[held] = metric.units.judged(gold[held], sentences[held])
    mine, reference, gold = model.judged(metric)[held], teacher.judged(metric)[held], gold[held]
    own = None if sentences is None else sentences[held]
    about: dict[str, Any] = {"metric": metric, "classes": classes, "sentences": own}
    value, before = (score(one, gold, **about) if len(gold) else None for one in (mine, reference))
    bounds: tuple[float | None, float | None] = (None, None)
    paired = None
    if len(gold if own is None else np.unique(own)) > 1:
        low, high = interval(mine, gold, **about)
        if own is not None and metric.is_accuracy and value in {0, 1}:
            firsts = np.unique(own, return_index=True)[1]
            low, high = interval(mine[firsts], gold[firsts], metric=metric, classes=classes)
        bounds = (low, high) if low < high else bounds
        if model is teacher:
            paired = NO_DIFFERENCE
        elif (found := paired_difference(mine, reference, gold, **about)).low < found.high:
            paired = found
    return {
        "rows": len(gold),
        "metric": value,
        "metric_low": bounds[0],
        "metric_high": bounds[1],
        "teacher_metric": before,
        "difference_points": None if value is None or before is None else 100 * (value - before),
        "low": paired and paired.low,
        "high": paired and paired.high,
    }


def _rounded(answer: Any) -> Any:
    return round(answer, 5) if isinstance(answer, float) else answer


def _flip_fields(
    model: ModelPredictions, teacher: ModelPredictions, gold: Array, task: Task, sentences: Array | None
) -> Fields:
    """List the rows that the model gets wrong and the teacher right, and the reverse, largest change first.

    A change below 0 is for the worse (:meth:`compress.tasks.Task.flips`). With ``sentences``, ``row`` is the sentence
    and ``word`` the number of the word in it, from 0.
    """
    mine = model.predicted
    change, lost, won = task.flips(mine, teacher.predicted, gold, model.probabilities, teacher.probabilities)

    def place(row: int) -> dict[str, int]:
        if sentences is None:
            return {"row": row}
        return {"row": int(sentences[row]), "word": row - int(np.searchsorted(sentences, sentences[row]))}

    def listed(chosen: Array, rank: Array) -> list[dict[str, Any]]:
        rows = np.flatnonzero(chosen)
        first = rows[np.argsort(rank[rows], kind="stable")][:FLIPS_KEPT]
        return [
            {
                **place(int(row)),
                "gold": gold[row].item(),
                "predicted": _rounded(mine[row].item()),
                "change": change[row].item(),
            }
            for row in first
        ]

    return {
        "flips_lost": listed(lost, change),
        "flips_won": listed(won, -change),
        "flips_lost_rows": int(lost.sum()),
        "flips_won_rows": int(won.sum()),
    }
