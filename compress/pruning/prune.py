"""Pruning stage: remove layers, heads, neurons, hidden size and vocabulary, then recover accuracy by distillation.

Removals are done in the order vocabulary, layers, heads and neurons, hidden size; one recovery follows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from compress import plugins
from compress.data import Example, LabelledData, content_sha256
from compress.errors import CompressError
from compress.exporting.export import has_exporter
from compress.inference.compute import Compute, resolve_device
from compress.inference.side_by_side import Speed
from compress.inference.threads import using_threads
from compress.labelling.label_dir import LabelDir, open_labels
from compress.models.model_dir import ModelDir
from compress.models.output_dir import empty, keep_apart, places_of, write_atomically
from compress.models.stage import Stage
from compress.progress import Progress, silent
from compress.pruning.evaluation import split_rows
from compress.pruning.plan import PruningPlan, plan_pruning
from compress.pruning.pruned_state import PrunedState, reloadable
from compress.pruning.recovery import RECOVERY, Recovery, check_labels
from compress.pruning.removal_steps import execute_plan
from compress.pruning.step_timing import StepTimer
from compress.recipes import Pruning, Training
from compress.reporting.charts.pruning_curve import CURVE_NAME, curve_csv
from compress.reporting.figure_page import write_figures
from compress.reporting.pruning_page import removed, view
from compress.surgery.remove_vocabulary import check_tokenizer
from compress.training.phases import check_batch_sizes

TIMED_BATCH_SIZES = (1, 32)  # at which each removal is timed
PRUNING_REPORT_NAME = "pruning.json"


@dataclass(frozen=True)
class PruningData(LabelledData):
    """Rows that a pruning reads: ``train`` scores and trains, ``validation`` evaluates and selects.

    Without validation rows the scoring rows evaluate, which is optimistic; the report says so.

    Args:
        vocabulary: text whose subword tokens are kept; it is read twice. None keeps all.
        labels: text for the recovery, labelled by the unpruned model or its teacher, beside the rows of ``train``.
        training: hyperparameters of the recovery on them; below one epoch, with that share of its least steps.
    """

    vocabulary: Iterable[Example] | None = None
    labels: Sequence[LabelDir | str | Path] = ()
    training: Training = RECOVERY


def prune(
    model: ModelDir | str | Path,
    pruning: Pruning,
    output: str | Path,
    *,
    data: PruningData,
    measure: bool = True,
    compute: Compute = Compute(),
    force: bool = False,
    progress: Progress = silent,
) -> ModelDir:
    """Remove structure from a model and return the smaller one.

    ``report.html`` in its directory, and ``pruning.json`` with the same figures, state after each removal the number
    of weights and FLOPs, the speed in each runtime, and the metric; ``pruning_curve.csv`` is the metric step by step.

    Args:
        pruning: what to remove, and how it is chosen.
        measure: time the model after each removal, on one thread or as many as ``compute`` says.

    Raises:
        CompressError: for anything about the request that the user can correct.
    """
    source = ModelDir.open(model)
    pruning.check()
    if pruning.max_accuracy_drop and not data.validation:
        raise CompressError(
            "--max-accuracy-drop is judged on rows that the model was not fitted on; give them with --validation FILE"
        )
    plugins.find("criteria", pruning.criterion)
    labels = open_labels(data.labels)
    keep_apart(places_of(output), [directory.path for directory in labels])
    check_labels(source, labels, pruning.recover, bool(data.validation))
    if pruning.recover:
        check_batch_sizes(data.training)
    rows = split_rows(source, data, examples=pruning.examples, seed=compute.seed, labels=labels)
    compute = replace(compute, device=resolve_device(compute.device))
    whole, tokenizer = source.load(plain=True), source.load_tokenizer()
    plan = plan_pruning(whole, pruning, vocabulary=data.vocabulary is not None)
    if data.vocabulary is not None:
        check_tokenizer(tokenizer)
    recipe = {**asdict(pruning), "training": asdict(data.training)}
    settings = {
        **recipe,
        **({"vocabulary": content_sha256(data.vocabulary)} if data.vocabulary is not None else {}),
        "labels": [directory.manifest.files for directory in labels],
        "metric": rows.evaluation.metric.name,
        **compute.asked,
        **({"threads": compute.threads} if pruning.speedup else {}),
    }
    with (
        using_threads(compute.threads),
        Stage.begin(
            "prune",
            output,
            parents={"unpruned": source},
            settings=settings,
            data=rows.described,
            seed=compute.seed,
            force=force,
        ) as stage,
    ):
        runtimes = ("torch", "onnxruntime") if has_exporter(source) else ("torch",)
        evaluated = rows.evaluation
        timer = StepTimer(evaluated.gold.examples, runtimes, compute.threads or 1)
        selection = rows.selection(source.task)
        recovery = Recovery(source, rows, selection, pruning, data.training, compute, progress)
        try:
            state = PrunedState(whole.to(compute.device), tokenizer, evaluated, stage.scratch / "cuts")  # type: ignore[arg-type]
            decisions = execute_plan(plan, state, recovery, timer, data.vocabulary, stage.scratch, progress)
        except CompressError:
            empty(stage.working)  # the next request under this name will be another one
            raise
        state.model = reloadable(state.model)
        notes = {"recovery": recovery.recover(state, stage.working).noted} if pruning.recover else {}
        speeds: list[Speed] = []
        if measure:
            shapes = {name: path for name, path in state.checkpoints.items() if name != "recovery"}
            with progress("Timing", len(runtimes)) as advance:
                speeds = timer.speeds(shapes, TIMED_BATCH_SIZES, advance)
        notes |= write_pruning_report(source, plan, state, decisions, speeds, stage)
        read = (
            *source.manifest.data,
            *rows.described,
            *(entry | rows.left_out for directory in labels for entry in directory.manifest.data),
        )
        metric = {
            "name": evaluated.metric.name,
            "value": state.steps[-1].value,
            "split": evaluated.split,
            "rows": len(evaluated.gold.examples),
        }
        stage.write_model(state.model, state.tokenizer, recipe=recipe, data=read, metrics=(metric,), notes=notes)
    return ModelDir.open(output)


def write_pruning_report(
    source: ModelDir,
    plan: PruningPlan,
    state: PrunedState,
    decisions: Mapping[str, Any],
    speeds: Sequence[Speed],
    stage: Stage,
) -> dict[str, Any]:
    """Write the page, tables and pictures of a pruned model, and return the notes of its manifest."""
    curve, last, config = list(decisions.get("curve", ())), state.steps[-1], plan.config
    if curve and last.removal == "recovery":
        chosen = next(point for point in curve if point["chosen"])
        recovered = {key: getattr(last, key) for key in ("value", "points", "low", "high")}
        curve.append({**chosen, **recovered, "recovered": True})
    content = {
        "name": stage.manifest.name,
        "model": source.name,
        "model_sha256": source.sha256,
        "metric": state.rows.metric.name,
        "split": state.rows.split,
        "rows": len(state.rows.gold.examples),
        "schedule": config.schedule,
        "criterion": "gradual-pruning" if config.schedule == "cubic" else config.criterion,
        "cuts": [asdict(step) for step in state.steps],
        "speeds": [asdict(speed) for speed in speeds],
        **({"max_accuracy_drop": config.max_accuracy_drop} if config.max_accuracy_drop else {}),
        **decisions,
        "curve": curve,
    }
    write_figures(content, view, stage.working / PRUNING_REPORT_NAME)
    if curve:
        write_atomically(stage.working / CURVE_NAME, curve_csv(curve))
    # A target may remove no heads or no neurons.
    shapes = [{"removal": step.removal, "config": step.config} for step in state.steps if step.removed or not step.of]
    return {"removed": removed(content["cuts"]), "shapes": shapes}
