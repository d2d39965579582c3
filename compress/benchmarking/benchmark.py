"""Stage: measure models against their teacher, on the same rows and in the same minutes.

Every (model, runtime, threads) is a process of its own, pinned to the same cores. All are alive together and one works
at a time: in each round every one gets the same batches, in an order drawn anew. A speed-up is the median over rounds
of the ratio to the teacher, with an interval; quality is compared row by row. More models than memory holds are
measured in groups, each with the teacher among them.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from compress.benchmarking import extra_candidates
from compress.benchmarking.candidates import Candidate, Entry, Model, check_split_roles, open_candidates, plan_entries
from compress.benchmarking.competitors import interpreter
from compress.benchmarking.lockfile import lock_path, write_lock
from compress.benchmarking.pruning_steps import build_pruning_steps, plan_pruning_steps
from compress.benchmarking.quality_fields import quality_fields
from compress.benchmarking.result_fields import (
    Rows,
    count_arithmetic,
    describe_run,
    device_fields,
    keep_predictions,
    setting_fields,
    speed_fields,
)
from compress.benchmarking.results.files import Measurement, host_id, write_results
from compress.benchmarking.results.schema import SCHEMA
from compress.benchmarking.rounds import Files, Plan, Run, groups_of, started, take_turns
from compress.data import Example, TextSource, check_roles, content_sha256, encode_gold, open_source, read_examples
from compress.data.word_alignment import one_column, word_counts
from compress.errors import CompressError
from compress.evaluation import metrics
from compress.host import describe_host
from compress.inference.cores import available_cores
from compress.models.model_dir import ModelDir
from compress.progress import Progress, silent

logger = logging.getLogger("compress")

ROUNDS = 20
PREDICTIONS_KEPT = 5000
Data = Sequence[Example] | TextSource | str | Path


def benchmark(
    teacher: Model,
    models: Sequence[Model],
    data: Data,
    *,
    output: str | Path | None = None,
    controls: Sequence[Model] = (),
    train: Data | None = None,
    baselines: Sequence[str] | None = None,
    competitors: Sequence[str] = (),
    competitor_models: Sequence[str] = (),
    reference_models: Sequence[str] = (),
    pruning_steps: bool = False,
    runtimes: Sequence[str] | None = None,
    device: str = "cpu",
    threads: int | Sequence[int] = 1,
    batch_sizes: Sequence[int] = (1, 32),
    lengths: Sequence[int] = (),
    padded_teacher: bool = True,
    rounds: int = ROUNDS,
    seed: int = 0,
    metric: str | None = None,
    max_length: int = 0,
    together: int = 0,
    study: str = "",
    budget: str = "",
    data_name: str = "",
    command: str = "",
    force: bool = False,
    progress: Progress = silent,
) -> list[Measurement]:
    """Measure speed, quality, size and memory of every model and return one line per configuration.

    Args:
        teacher: a torch directory; it is measured in torch and in every other runtime that is used.
        models: torch or ONNX directories with the teacher's labels.
        data: labelled rows that no model has seen; latencies are taken on random rows of it.
        output: a ``.jsonl`` to write, whole or not at all, and its lock beside it.
        controls: models that only show what distillation added; those whose manifest says so need not be listed.
        train: labelled rows that baselines are fitted on, and that competitors may calibrate with.
        baselines: cheap classifiers fitted on gold labels only; default all of them where there is ``train``.
        competitors: other tools that run the torch models too, ``"all"`` for every one; what cannot be had here is left
            out, and lines say so.
        competitor_models: names of the models that competitors run; default all but controls.
        reference models: published architectures with random weights, for scale: see
        :mod:`compress.benchmarking.reference_models`.
        pruning step: measure also what each removal of pruned torch models was worth, in their runtimes: see
            :mod:`compress.benchmarking.pruning_steps`.
        runtimes: where to run; torch models are exported where needed. Default: where each opens natively.
        threads: threads, and cores that a process is pinned to; several make a sweep.
        batch_sizes: 1 measures latency, larger ones throughput; reference models are measured at the smallest only.
        lengths: numbers of tokens to measure runtimes at, beside the data's own lengths.
        padded_teacher: measure the teacher in torch also with every row padded to ``max_length``, or 128 tokens.
        rounds: how often every configuration is timed; at least 3.
        metric: see ``compress.evaluation.metrics.METRICS``; default accuracy, or Pearson for regression.
        max_length: tokens a text is cut to; 0 for as many as each model can read.
        together: how many models to hold in memory at a time, beside the teacher; 0 for all.
        budget: name of the budget that the models of a study were trained at, kept in every line.
        command: what was typed, kept in every line.

    Raises:
        CompressError: see :mod:`compress.benchmarking.candidates`; a model that ends its process; an output that
        exists.
    """
    counts = (threads,) if isinstance(threads, int) else tuple(dict.fromkeys(threads))
    plan = Plan(
        device,
        counts,
        tuple(dict.fromkeys(batch_sizes)),
        tuple(dict.fromkeys(lengths)),
        rounds,
        seed,
        max_length,
        padded_teacher,
    )
    _check(plan)
    target = Path(output) if output is not None else None
    if target is not None:
        _check_target(target, force)
    candidates = open_candidates(teacher, models, controls)
    steps = plan_pruning_steps(candidates) if pruning_steps else []
    first = candidates[0].model
    rows = _read_rows(data, data_name, "test", first)
    _check_unseen(rows, candidates)
    fitted = _read_fitted(train, rows, first)
    chosen = metrics.find_metric(metric, task=first.task, classes=len(first.labels))
    with tempfile.TemporaryDirectory(prefix="compress-benchmark-") as folder:
        scratch = Path(folder)
        measured = [*candidates, *build_pruning_steps(steps, scratch)]
        entries = plan_entries(measured, runtimes, lambda model: _to_onnx(model, scratch), device)
        entries += extra_candidates.plan_reference_models(reference_models, candidates, scratch, device)
        entries += _baselines(baselines, fitted, candidates, scratch)
        added, left_out = extra_candidates.plan_competitors(
            competitors,
            extra_candidates.competitor_models(candidates, competitor_models),
            scratch,
            device=device,
            has_train=fitted is not None,
            interpreter=interpreter,
        )
        files = Files.write(scratch, rows.examples, *((fitted.examples, fitted.gold) if fitted else ([], None)))
        lines: list[Measurement] = []
        logits: dict[str, np.ndarray | None] = {}
        for number, group in enumerate(groups_of([*entries, *added], together)):
            # The teacher of a later group is there to be compared with; its own lines are the first group's.
            own_plan = replace(plan, padded_teacher=padded_teacher and not number)
            with started(group, own_plan, files, left_out, progress) as (runs, answers):
                found = _measure(runs, answers, own_plan, rows, first, chosen, progress)
                lines += (line for run, line in found if not (number and run.is_of_teacher))
            logits |= answers
        common = {
            "schema": SCHEMA,
            "study": study,
            "data": rows.name,
            "data_sha256": rows.sha256,
            "split": "test",
            "data_rows": len(rows.examples),
            "rounds": rounds,
            "seed": seed,
            "command": command,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": describe_host(),
            "host_id": host_id(describe_host()),
            "left_out": left_out,
            **({"budget": budget} if budget else {}),
        }
        lines = [{**common, **line} for line in lines]
    # Words that were resampled alone would pretend to be independent: what is said of words is said here.
    if len(rows.examples) <= PREDICTIONS_KEPT and first.task != "tagging":
        known = {title: values for title, values in logits.items() if values is not None}
        keep_predictions(lines, {t: metrics.predictions(v, chosen.task) for t, v in known.items()}, rows.gold)
    if target is not None:
        write_results(target, lines)
        arguments = {
            "teacher": candidates[0].model,
            "models": list(models),
            "controls": list(controls),
            "train": fitted.examples if fitted else None,
            "baselines": None if baselines is None else list(baselines),
            "competitors": list(competitors),
            "competitor_models": list(competitor_models),
            "reference_models": list(reference_models),
            "pruning_steps": pruning_steps,
            "runtimes": None if runtimes is None else list(runtimes),
            "device": device,
            "threads": list(counts),
            "batch_sizes": list(plan.batch_sizes),
            "lengths": list(plan.lengths),
            "padded_teacher": padded_teacher,
            "rounds": rounds,
            "seed": seed,
            "metric": metric,
            "max_length": max_length,
            "together": together,
        }
        write_lock(target, lines, arguments)
    return lines


def _measure(
    runs: Sequence[Run],
    logits: Mapping[str, np.ndarray | None],
    plan: Plan,
    rows: Rows,
    teacher: ModelDir,
    metric: metrics.Metric,
    progress: Progress,
) -> Iterator[tuple[Run, Measurement]]:
    """Let runs that are loaded take turns, and give their lines, without what all lines of a benchmark share."""
    settings = [plan.settings(run) for run in runs]
    take_turns(runs, settings, rows=len(rows.examples), rounds=plan.rounds, seed=plan.seed, progress=progress)
    for run in runs:
        run.memory = run.worker.ask("memory")
    arithmetic = count_arithmetic(runs, plan.device, progress)
    baseline = next(run.entry.title for run in runs if run.is_reference)
    quality = quality_fields(
        logits,
        rows.gold,
        baseline=baseline,
        metric=metric,
        task=teacher.task,
        labels=teacher.labels,
        sentences=_sentences(rows, teacher.task),
    )
    for run, own in zip(runs, settings, strict=True):
        for setting in own:
            yield (
                run,
                {
                    **describe_run(run, runs),
                    **setting_fields(run, runs, setting),
                    **speed_fields(run, runs, setting, plan.seed),
                    **device_fields(run, setting, arithmetic),
                    **quality[run.entry.title],
                },
            )


def _check(plan: Plan) -> None:
    cores = len(available_cores())
    if not plan.threads or any(not 1 <= count <= cores for count in plan.threads):
        raise CompressError(
            f"--threads {_listed(plan.threads)} is not possible here; use 1 to {cores}, the cores at hand"
        )
    if not plan.batch_sizes or any(size < 1 for size in plan.batch_sizes):
        raise CompressError(f"--batch-size {_listed(plan.batch_sizes)} must be 1 or more, such as 1,32")
    if any(length < 1 for length in plan.lengths) or plan.max_length < 0:
        shown = f"--length {_listed(plan.lengths)} and --max-length {plan.max_length}"
        raise CompressError(f"{shown} must be numbers of tokens above 0, such as 32,128")
    if plan.rounds < 3:
        raise CompressError(f"--rounds {plan.rounds} gives no interval; use 3 or more, {ROUNDS} for a result to keep")
    if plan.device not in {"cpu", "cuda"}:
        raise CompressError(f"--device {plan.device} is not known; use cpu or cuda")


def _check_target(target: Path, force: bool) -> None:
    """Refuse before anything is measured what could not, or must not, be written after it."""
    if target.is_dir():
        raise CompressError(f"-o {target} is a directory; give a file in it, such as {target}/results.jsonl")
    taken = next((path for path in (target, lock_path(target)) if path.exists()), None)
    if taken is not None and not force:
        raise CompressError(f"{taken} already exists; choose another -o or replace it with --force")


def _listed(values: Sequence[int]) -> str:
    return ",".join(map(str, values)) or "(none)"


def _to_onnx(model: ModelDir, scratch: Path) -> ModelDir:
    """Export a model once, whatever the number of runtimes that need it."""
    from compress.exporting.export import export

    target = scratch / f"onnx-{model.sha256[:16]}"
    return ModelDir.open(target, verify=False) if target.is_dir() else export(model, target)


def _read_rows(data: Data, name: str, role: str, teacher: ModelDir) -> Rows:
    if isinstance(data, str | Path):
        data = open_source(data, role=role, labelled=True)
    if isinstance(data, TextSource):
        name, examples = name or data.name, read_examples(data)
    else:
        name, examples = name or ("data" if role == "test" else role), list(data)
    if len(examples) < 2:
        raise CompressError(f"{name} has {len(examples)} rows; a comparison needs two or more")
    gold = one_column(encode_gold(examples, teacher.labels, task=teacher.task, name=name))
    return Rows(name, content_sha256(examples), examples, gold)


def _sentences(rows: Rows, task: str) -> np.ndarray | None:
    """Return the sentence of every word that is tagged."""
    return np.repeat(np.arange(len(rows.examples)), word_counts(rows.examples)) if task == "tagging" else None


def _check_unseen(rows: Rows, candidates: Sequence[Candidate]) -> None:
    # A pool is fingerprinted without labels.
    bare = content_sha256(Example(example.text, example.text_pair) for example in rows.examples)
    check_split_roles(candidates, (rows.sha256, bare), rows.name)


def _read_fitted(train: Data | None, rows: Rows, teacher: ModelDir) -> Rows | None:
    """Read the rows that baselines and competitors are fitted on; none of them may be a test row."""
    if train is None:
        return None
    try:
        fitted = _read_rows(train, "", "train", teacher)
    except CompressError as error:
        hint = (
            "baselines and competitors learn from --train: any labels will do with --no-baselines and no --competitor"
        )
        raise CompressError(f"{error} ({hint})") from None
    check_roles({"train": fitted.examples, "test": rows.examples}, drop_overlap=False)
    return fitted


def _baselines(
    names: Sequence[str] | None, fitted: Rows | None, candidates: Sequence[Candidate], scratch: Path
) -> list[Entry]:
    if fitted is not None:
        return extra_candidates.plan_baselines(names, candidates, scratch)
    if names:
        raise CompressError(
            f"the baselines {', '.join(names)} are fitted on training rows; give them with --train FILE"
        )
    if names is None:
        logger.info("no baselines: they are fitted on labelled training rows, which --train FILE gives")
    return []
