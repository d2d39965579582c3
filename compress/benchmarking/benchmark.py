"""Benchmarking stage: measure speed, quality, size and memory of models against their teacher in interleaved rounds.

Every (model, runtime, threads) is a process of its own, pinned to the same cores. All are alive together and one works
at a time: in each round every one gets the same batches in short turns, in an order drawn anew, until speed-ups are as
precise as wanted or the time is over. Quality is compared row by row. More models than memory holds are measured in
groups, each with the teacher among them.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np

from compress.benchmarking.candidates import (
    AnyModel,
    Entry,
    build_pruning_steps,
    build_reference_models,
    competitor_models,
    open_candidates,
    plan_baselines,
    plan_competitors,
    plan_entries,
    plan_pruning_steps,
)
from compress.benchmarking.lockfile import LOCK_SUFFIX, lock_path, write_lock
from compress.benchmarking.result_fields import (
    Rows,
    count_arithmetic,
    describe_run,
    device_fields,
    keep_predictions,
    quality_fields,
    speed_fields,
    token_lengths,
)
from compress.benchmarking.results.files import Results, host_id, write_results
from compress.benchmarking.results.schema import PREDICTIONS_KEPT, REFERENCE_RUNTIME, SCHEMA, Fields, Measurement
from compress.benchmarking.rounds import take_turns, workloads_of
from compress.benchmarking.slices import slices_by_column, slices_by_length
from compress.benchmarking.worker import WorkerRun, groups_of, started
from compress.benchmarking.worker_main import write_rows
from compress.data import (
    Example,
    Overlap,
    check_roles,
    content_sha256,
    load_rows,
    open_rows,
    open_text,
    read_examples,
)
from compress.errors import CompressError, refuse
from compress.evaluation import metrics
from compress.evaluation.ranking import tell_queries
from compress.fields import is_given
from compress.host import describe_host, without_home
from compress.inference.compute import Compute, resolve_device
from compress.inference.predict import check_label_meaning
from compress.inference.threads import core_count, free_cores
from compress.models.model_dir import TRAINING_ROLES, Model, check_unseen, tell_seen
from compress.models.output_dir import alone, check_file, keep_apart, output_path, set_aside
from compress.progress import Progress, logger, silent
from compress.recipes import BenchmarkSettings
from compress.requests import FileList, local_inputs
from compress.requests.measuring import Benchmark


@dataclass(frozen=True)
class BenchmarkOutput:
    """The result file of a benchmark, and what every line of it says of the run.

    Args:
        path: a ``.jsonl`` to write, whole or not at all, and its lock beside it; None writes nothing.
        force: move existing files aside.
        study: name of the study that the models belong to.
        budget: name of the study's budget that they were trained at.
        data_name: name of the test rows; default the name of their file.
        command: the command line.
        progress: how progress is shown.
    """

    path: str | Path | None = None
    force: bool = False
    study: str = ""
    budget: str = ""
    data_name: str = ""
    command: str = ""
    progress: Progress = silent

    @classmethod
    def for_request(cls, request: Any) -> Self:
        """Return the output of a request, which overlaps nothing that the request names to be read."""
        path = None if request.output is None else os.fspath(request.output)  # a slash at its end says something
        output = cls(path, request.force, command=without_home(request.command), progress=request.progress)
        keep_apart(output.files, local_inputs(request))
        return output

    @property
    def files(self) -> tuple[Path, ...]:
        """The result file and its lock; none where nothing is written."""
        if self.path is None:
            return ()
        results = output_path(self.path, added=LOCK_SUFFIX, file=True)
        return results, lock_path(results)


def run_benchmark(request: Benchmark) -> Results:
    """Measure what a request names, and say how its rows are read.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    output = BenchmarkOutput.for_request(request)
    source = open_rows(request.data, role="test", **request.columns, values=request.slice_columns)
    given = parts_of(request.train)
    learns = bool(request.baselines or request.competitors)
    train, texts = labelled_rows(given, request.columns) if learns else ([], given)
    if texts:
        pool = open_text(*texts, role="train", beside=request.data, **request.columns)
        check_roles({"train": pool, "test": source}, request.overlap)
    counts = request.threads if any(request.threads) else (core_count(),)
    teacher: Any = request.teacher
    lines = benchmark(
        teacher,
        request.models,
        source,
        request.settings(counts),
        controls=request.controls,
        train=train or None,
        output=output,
        compute=Compute(request.device, seed=request.seed),
    )
    logger.info("test: %s", source.describe())
    return lines


def parts_of(text: Any) -> Sequence[Any]:
    """Return the texts of a request's field one by one; none where it is not given."""
    return text if isinstance(text, FileList) else (text,) if is_given(text) else ()


def labelled_rows(parts: Sequence[Any], columns: Mapping[str, Any]) -> tuple[list[Example], list[Any]]:
    """Return the rows that baselines and competitors learn from, and what has no labels, such as pools."""
    rows: list[Example] = []
    others = []
    for part in parts:
        try:
            rows += load_rows(part, role="train", **columns)
        except CompressError as error:
            others.append(part)
            logger.warning("no baseline is fitted on %s: %s", part, error)
    return rows, others


def benchmark(
    teacher: AnyModel,
    models: Sequence[AnyModel],
    data: Any,
    settings: BenchmarkSettings = BenchmarkSettings(),
    *,
    controls: Sequence[AnyModel] = (),
    train: Any = None,
    output: BenchmarkOutput | str | Path | None = None,
    compute: Compute = Compute("cpu"),
) -> Results:
    """Measure speed, quality, size and memory of every model and return one line per configuration.

    Args:
        teacher: a torch directory; it is measured in torch and in every other runtime that is used.
        models: torch or ONNX directories with the teacher's labels.
        data: labelled rows that no model has seen; latencies are taken on random rows of it.
        controls: models that only show what distillation added; those whose manifest says so need not be listed.
        train: labelled rows that baselines are fitted on, and that competitors may calibrate with.
        output: the result file, and what its lines say of the run.
        compute: device and seed; ``settings.threads`` are the thread counts that are measured.

    Raises:
        CompressError: see :mod:`compress.benchmarking.candidates`; rows that a model has seen; a model that ends its
            process; an output that exists.
    """
    output = output if isinstance(output, BenchmarkOutput) else BenchmarkOutput(output)
    files = output.files
    settings = replace(
        settings,
        threads=tuple(dict.fromkeys(settings.thread_counts)),
        batch_sizes=tuple(dict.fromkeys(settings.batch_sizes)),
        lengths=tuple(dict.fromkeys(settings.lengths)),
    )
    counts, threads, cores = settings.thread_counts, max(settings.thread_counts, default=0), core_count()
    impossible = f"--threads {','.join(map(str, counts))} is not possible here; use 1 to {cores}, the cores at hand"
    refuse((threads > cores, impossible))
    compute = replace(compute, device=resolve_device(compute.device))
    for file in files:  # refused before the measurement
        check_file(file, force=output.force)
    with (
        alone(files[0]) if files else nullcontext(),
        tempfile.TemporaryDirectory(prefix="compress-benchmark-") as folder,
    ):
        scratch = Path(folder)
        if compute.device == "cpu" and threads > 1 and threads > free_cores():
            logger.warning(
                "other work keeps cores busy: speeds on %d threads are those of this machine as it is now; one thread "
                "is compared by CPU time, which other work hardly moves",
                threads,
            )
        opened_teacher = Model.open(teacher).with_windows(settings.windows or None)
        candidates = open_candidates(opened_teacher, models, controls)
        keep_apart(files, [candidate.model.path for candidate in candidates])
        steps = plan_pruning_steps(candidates) if settings.pruning_steps else []
        first = candidates[0].model
        rows = _read_rows(data, output.data_name, "test", first)
        rows = replace(rows, slices=slices_by_column(rows.examples, settings.slice_columns, rows.name))
        opened = [candidate.model for candidate in candidates]
        check_unseen(opened, rows.examples, "test", TRAINING_ROLES, option="data")
        fitted = _read_fitted(train, rows, settings.overlap, opened)
        metric = first.task.metric(settings.metric or None, first.labels)
        if metric.ranks:
            tell_queries(metric, rows.gold, first.task.clusters(rows.examples, metric))
        measured = [*candidates, *build_pruning_steps(steps, scratch)]
        device = compute.device
        entries = plan_entries(measured, settings.runtimes, lambda model: _to_onnx(model, scratch), device)
        has_train = fitted is not None
        pairs = all(row.text_pair is not None for row in rows.examples)
        baselines = plan_baselines(settings.baselines, candidates, scratch, has_train=has_train, pairs=pairs)
        compared = competitor_models(candidates, settings.competitor_models)
        added, left_out = plan_competitors(settings.competitors, compared, scratch, device=device, has_train=has_train)
        # Last, because the largest take a while to build: a mistake in the settings is found before.
        for one in build_reference_models(settings.reference_models, candidates, scratch):
            entries.append(Entry(one, REFERENCE_RUNTIME, one.model, REFERENCE_RUNTIME, device))
        entries += baselines
        write_rows(scratch, rows.examples, *((fitted.examples, fitted.gold) if fitted else ()))
        measured_fields: list[Fields] = []
        logits: dict[str, np.ndarray | None] = {}
        groups = groups_of([*entries, *added], settings.together)
        for number, group in enumerate(groups):
            # The teacher of a later group is there to be compared with; its own lines are the first group's.
            own = replace(
                settings,
                padded_teacher=settings.padded_teacher and not number,
                time_limit=settings.time_limit / len(groups),
            )
            with started(group, own, scratch, left_out, output.progress) as (runs, predicted):
                measured_fields += [
                    {**fields, "group": number}
                    for run, fields in _measure(runs, predicted, own, compute, rows, metric, output.progress)
                    if not number or run.entry.kind != "teacher"
                ]
            logits |= predicted
        common: Fields = {
            "schema": SCHEMA,
            "study": output.study,
            "data": rows.name,
            "data_sha256": rows.sha256,
            "split": "test",
            "data_rows": len(rows.examples),
            "seed": compute.seed,
            "command": output.command,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": describe_host(),
            "host_id": host_id(describe_host()),
            "left_out": left_out,
            **({"budget": output.budget} if output.budget else {}),
        }
        lines = [Measurement(**common, **fields) for fields in measured_fields]
        cut = dict.fromkeys(f"{line.truncated_rows:,} for {line.model}" for line in lines if line.truncated_rows)
        if cut:
            logger.info("of %d test rows, longer than what is read, were cut: %s", len(rows.examples), ", ".join(cut))
        # Intervals resample whole sentences, which cannot be done with the predictions of single words, and of
        # probabilities predictions say too little.
        if len(rows.examples) <= PREDICTIONS_KEPT and not first.task.by_word and not metric.of_probabilities:
            predictions = {
                title: first.task.predictions(values) for title, values in logits.items() if values is not None
            }
            lines = keep_predictions(lines, predictions, rows.gold)
        for file in files:
            set_aside(file)
        if files:
            write_results(files[0], lines)
            places = {candidate.name: candidate.model.path for candidate in candidates}
            write_lock(files[0], lines, settings, compute, places, fitted.examples if fitted else None)
    return Results(tuple(lines), files[:1])


def _measure(
    runs: Sequence[WorkerRun],
    logits: Mapping[str, np.ndarray | None],
    settings: BenchmarkSettings,
    compute: Compute,
    rows: Rows,
    metric: metrics.Metric,
    progress: Progress,
) -> Iterator[tuple[WorkerRun, Fields]]:
    """Let loaded runs take turns, and yield their lines, without the fields that all lines of a benchmark share."""
    workloads = [workloads_of(run, settings) for run in runs]
    reference = next(run for run in runs if run.entry.is_reference)
    teacher = reference.entry.candidate.model
    known = logits[reference.entry.title]
    sentences = teacher.task.clusters(rows.examples, metric)
    if known is not None:
        check_label_meaning(teacher.task.predictions(known, sentences), rows.gold, teacher.labels, rows.name)
    take_turns(runs, workloads, settings, seed=compute.seed, progress=progress)
    for run in runs:
        run.memory = run.worker.ask("memory")
    arithmetic = count_arithmetic(runs, compute.device, progress)
    lengths = token_lengths(reference, runs) if settings.slice_lengths else ()
    slices = {**rows.slices, **slices_by_length(lengths, settings.slice_lengths)}
    quality = quality_fields(
        logits,
        rows.gold,
        baseline=reference.entry.title,
        metric=metric,
        task=teacher.task,
        labels=teacher.labels,
        sentences=sentences,
        slices={name: held[sentences] if teacher.task.by_word else held for name, held in slices.items()},
    )
    for run, own in zip(runs, workloads, strict=True):
        described = describe_run(run, runs)
        for workload in own:
            yield (
                run,
                {
                    **described,
                    **speed_fields(run, runs, workload, compute.seed),
                    **device_fields(run, workload, *arithmetic),
                    **quality[run.entry.title],
                },
            )


def _to_onnx(model: Model, scratch: Path) -> Model:
    """Export a model once, whatever the number of runtimes that need it."""
    from compress.requests.compression import export

    target = scratch / f"onnx-{model.sha256[:16]}"
    return Model.open(target, verify=False) if target.is_dir() else export(model, target)


def _read_rows(data: Any, name: str, role: str, teacher: Model) -> Rows:
    source = open_rows(data, role=role)
    examples, name = read_examples(source), name or source.name
    refuse((len(examples) < 2, f"{name} has {len(examples)} rows; a comparison needs two or more"))
    gold = teacher.task.column(teacher.task.gold(examples, teacher.labels, name))
    return Rows(name, content_sha256(examples), examples, gold)


def _read_fitted(train: Any, rows: Rows, overlap: Overlap, models: Sequence[Model]) -> Rows | None:
    """Read the rows that baselines and competitors are fitted on, without test rows; say which of these models saw."""
    if train is None:
        return None
    try:
        fitted = _read_rows(train, "", "train", models[0])
    except CompressError as error:
        raise CompressError(
            f"{error} (baselines and competitors learn from --train: any labels will do with --no-baselines and no "
            "--competitor)"
        ) from None
    checked = check_roles({"train": fitted.examples, "test": rows.examples}, overlap)
    if not checked.left_out:
        return fitted
    tell_seen(models, rows.examples, {"train": fitted.examples})
    return _read_rows(list(checked.sets["train"]), fitted.name, "train", models[0])
