"""Pruning stage: remove layers, heads, neurons, hidden size and vocabulary, then recover accuracy by distillation.

Removals are done in the order vocabulary, layers, heads and neurons, hidden size; one recovery follows.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from compress import plugins
from compress.data import Example, content_sha256
from compress.errors import CompressError, refuse
from compress.exporting.export import has_exporter
from compress.fields import fields_of
from compress.files import write_atomically
from compress.inference.compute import Compute, resolve_device
from compress.inference.runners import Speed, time_side_by_side
from compress.inference.speedup_intervals import Interval
from compress.inference.threads import using_threads
from compress.labelling.label import teacher_logits
from compress.labelling.label_dir import LabelDir, open_labels
from compress.models.components import Part, units_of
from compress.models.manifest import cached_json, is_whole
from compress.models.model_dir import Model
from compress.models.modeling.families import head_size_of
from compress.models.output_dir import WORK_FOLDER, Stage, empty
from compress.progress import each, logger
from compress.pruning.choose_units import PruningPlan, choose_units, plan_pruning, plan_units
from compress.pruning.evaluation import PrunedState, PruningRows, reloadable, split_rows
from compress.pruning.scoring import Values, choose_removed_layers, hidden_importance
from compress.recipes import Choice, Phase, Pruning, Training
from compress.reporting.curves import CURVE_NAME
from compress.reporting.pages import as_csv, write_study
from compress.reporting.pruning_page import pruning_page, removed
from compress.requests.compression import Prune, export
from compress.surgery.remove_vocabulary import check_tokenizer
from compress.surgery.unit_masks import Masks, mask_key, masks_at, masks_from_json
from compress.training import phases
from compress.training.trainer import Outcome, TrainingRun, join_logs
from compress.training.training_data import Selection, TrainingData

TIMED_BATCH_SIZES = (1, 32)  # at which each removal is timed
PRUNING_REPORT_NAME = "pruning.json"
RECOVERY = Training(epochs=1.0, min_steps=400, learning_rate=5e-5, evaluations=8)
# The cubic schedule masks heads and neurons in this share of the recovery's epochs, at a constant learning rate. All
# are masked after MASKED_BY of that phase, so that the model trains without them before they are removed.
MASKING_SHARE, MASKED_BY = 0.6, 0.9
MASKING_FOLDER = "masking"


def prune(request: Prune) -> Model:
    """Remove structure from a model and return the smaller one.

    ``report.html`` in its directory, and ``pruning.json`` with the same figures, state after each removal the number
    of weights and FLOPs, the speed in each runtime, and the metric; ``pruning_curve.csv`` is the metric step by step.
    Without validation rows the scoring rows evaluate, which is optimistic; the report says so.

    Raises:
        CompressError: for anything about the request that the user can correct.
    """
    source, data = Model.open(request.model), request.labelled
    corpus, training = request.open_text("vocabulary"), request.training or RECOVERY
    plugins.find("criteria", request.criterion)
    balanced = "recovery learns the logits of the model, not gold labels: leave class_weights and logit_adjustment out"
    refuse((training.class_weights or training.logit_adjustment, balanced))
    labels = open_labels(request.labels)
    check_labels(source, labels)
    if request.recover:
        phases.check_batch_sizes(training)
    compute = replace(request.compute, device=resolve_device(request.device))
    rows = split_rows(source, data, examples=request.examples, seed=compute.seed, labels=labels)
    evaluated, selection = rows.evaluation, rows.selection(source.task)
    whole = source.load(plain=True)
    plan = plan_pruning(whole, request, vocabulary=corpus is not None)
    if corpus is not None:
        check_tokenizer(source.tokenizer)
    with (
        using_threads(compute.threads),
        request.begin(
            {"unpruned": source},
            data=rows.described,
            model=source,
            train=data.train,
            validation=data.validation,
            vocabulary=corpus and content_sha256(corpus),
            labels=labels,
            training=training,
            metric=evaluated.metric.name,
            threads=compute.threads if request.speedup else 0,
        ) as stage,
    ):
        try:
            whole.to(compute.device)  # type: ignore[arg-type]
            state = PrunedState(whole, source.tokenizer, evaluated, stage.scratch / "cuts")
            run = PruningRun(request, source, rows, selection, training, compute, state, stage)
            decisions = run.remove(plan, corpus)
        except CompressError:
            empty(stage.working)  # the next request under this name will be another one
            raise
        state.model = reloadable(state.model)
        notes = {"recovery": run.recover().noted} if request.recover else {}
        speeds: list[Speed] = []
        if request.measure:
            shapes = {name: path for name, path in state.checkpoints.items() if name != "recovery"}
            with request.progress("Timing", len(run.runtimes)) as advance:
                for runtime in each(run.runtimes, advance):
                    speeds += run.speeds(shapes, runtime, TIMED_BATCH_SIZES)
        notes |= run.report(decisions, speeds)
        read = (
            *source.manifest.data,
            *rows.described,
            *(entry | rows.left_out for directory in labels for entry in directory.manifest.data),
        )
        metric = {
            "name": evaluated.metric.name,
            "value": state.steps[-1]["value"],
            "split": evaluated.split,
            "rows": len(evaluated.gold.examples),
        }
        recipe = {**{name: getattr(request, name) for name in fields_of(Pruning)}, "training": asdict(training)}
        stage.write_model(state.model, state.tokenizer, recipe=recipe, data=read, metrics=(metric,), notes=notes)
    return Model.open(stage.output)


def directory_for(runtime: str, directory: Path) -> Path:
    """Return the directory that a runtime opens: for ONNX the export of a torch directory."""
    if runtime == "torch":
        return directory
    target = directory.with_name(f"{directory.name}-onnx")
    if not is_whole(target):
        export(Model.open(directory, verify=False), target)
    return target


def check_labels(source: Model, label_dirs: Sequence[LabelDir]) -> None:
    known = {source.sha256, *(str(parent["sha256"]) for parent in source.manifest.parents)}
    refuse(
        *(
            (
                labels.teacher_sha256 not in known,
                f"{labels.path} was labelled by {labels.teacher_name}, which is neither {source.name} nor its teacher; "
                "label the text again with 'compress label --teacher ...'",
            )
            for labels in label_dirs
        ),
    )


def recovery_training(training: Training, epochs: float) -> Training:
    """Return the training of so many passes over the rows; below one, few rows get that share of its least steps."""
    return replace(training.part(min(1.0, epochs)), epochs=epochs, max_steps=training.max_steps)


@dataclass(frozen=True)
class PruningRun:
    """A pruning at work: removals from ``state`` in place, each decision kept in the stage's scratch folder.

    The recovery distils the unpruned model ``source`` into the pruned one; rows of ``selection`` select the checkpoint.
    """

    request: Prune
    source: Model
    rows: PruningRows
    selection: Selection | None
    training: Training
    compute: Compute
    state: PrunedState
    stage: Stage

    def remove(self, plan: PruningPlan, corpus: Iterable[Example] | None) -> dict[str, Any]:
        """Remove everything, evaluate each step, and return the decisions.

        Args:
            corpus: text whose subword tokens are kept; None keeps all.
        """
        request, state, folder = self.request, self.state, self.stage.scratch
        progress, found = request.progress, dict[str, Any]()
        if corpus is not None:
            found["vocabulary"] = state.remove_vocabulary(corpus)
        batches = self.rows.batches(state.tokenizer, self.compute.device)
        if plan.layers:
            with progress("Removing layers", plan.layers) as advance:
                found["layers"] = cached_json(
                    folder / "layers.json",
                    lambda: choose_removed_layers(state.model, batches, plan.layers, advance),
                )
            state.remove_layers([step["layer"] for step in found["layers"]])
        units = plan_units(state.model, request) if plan.layers and plan.units else plan.units
        for part, count in units.items():
            present = sum(layer.count for layer in units_of(state.model, part))
            rounded = part == "neurons" and request.multiple > 1
            most = "up to " if request.has_target else "about " if rounded else ""
            stay = f"multiples of {request.multiple} stay in each layer" if rounded else f"{present - count:,} stay"
            logger.info("removing %s%s of %s %s, %s", most, f"{count:,}", f"{present:,}", part, stay)
        shutil.rmtree(folder / "candidates", ignore_errors=True)  # of a run that was stopped
        if request.schedule == "cubic":
            state.remove_units(self._mask_gradually(units))
        elif units:
            evaluation, values = state.evaluation("path"), Values(folder / "values")
            decision = cached_json(
                folder / "units.json",
                lambda: choose_units(evaluation, batches, units, request, self._speedup_of, values),
            )
            masks = masks_from_json(decision.pop("masks"))
            found |= decision
            state.remove_units(masks)
        if plan.hidden:
            with progress("Scoring hidden width", len(batches)) as advance:
                scored = cached_json(
                    folder / "hidden.json",
                    lambda: hidden_importance(state.model, each(batches, advance)).argsort(stable=True).tolist(),
                )
            state.remove_hidden(sorted(scored[: plan.hidden]))
        return found

    @property
    def runtimes(self) -> Sequence[str]:
        """Where the model is timed; the last one decides about a speed-up."""
        return ("torch", "onnxruntime") if has_exporter(self.source) else ("torch",)

    def speeds(self, steps: Mapping[str, Path], runtime: str, batch_sizes: Sequence[int]) -> list[Speed]:
        """Return the speeds of model directories by name; the first is what others are compared with."""
        places = {name: directory_for(runtime, path) for name, path in steps.items()}
        rows, threads = self.rows.evaluation.gold.examples, self.compute.threads or 1
        return time_side_by_side(places, rows, runtime=runtime, threads=threads, batch_sizes=batch_sizes)

    def _speedup_of(self, masks: Masks) -> Interval:
        smaller = self.state.save_without(masks, self.stage.scratch / "candidates" / mask_key(masks))
        places = {"whole": self.state.checkpoints["nothing"], "candidate": smaller}
        timed = self.speeds(places, self.runtimes[-1], (self.request.speedup_batch_size,))[-1]
        return Interval(timed.speedup, timed.low, timed.high)

    def _mask_gradually(self, units: Mapping[Part, int]) -> Masks:
        """Train the model while the cubic schedule masks heads and neurons, and return the masks."""
        folder, model = self.stage.scratch / MASKING_FOLDER, self.state.model
        outcome = phases.load_finished(folder, model)
        if outcome is None:
            (folder / WORK_FOLDER).mkdir(parents=True, exist_ok=True)
            options = {name: getattr(self.request, name) for name in ("keep_heads", "multiple", "normalise")}
            options |= {"until": MASKED_BY, "heads": units.get("heads", 0), "neurons": units.get("neurons", 0)}
            training = replace(self._part_of_training(MASKING_SHARE), schedule="constant")
            run = TrainingRun(folder, training, self.source.task, self.compute, self.request.progress, "Masking")
            outcome = self._distil(run, modifier=Choice("gradual-pruning", options=options))
            phases.save_finished(folder, model, outcome)
        self.state.trained = True
        assert outcome.masked is not None
        return masks_at(model, outcome.masked)

    def recover(self) -> Outcome:
        """Train the pruned model for the rest of the epochs, select its best checkpoint, and record it."""
        working, share, compute = self.stage.working, 1.0, self.compute
        if is_cubic := self.request.schedule == "cubic":  # another order of rows than while masking
            share, compute = 1 - MASKING_SHARE, replace(compute, seed=compute.seed + phases.SEEDS_APART)
        training, progress = self._part_of_training(share), self.request.progress
        run = TrainingRun(working, training, self.source.task, compute, progress, "Recovering")
        outcome = self._distil(run, selection=self.selection)
        if is_cubic:
            join_logs({"masking": self.stage.scratch / MASKING_FOLDER, "recovery": working}, working)
        self.state.trained = True
        self.state.record("recovery", 0, 0)
        return outcome

    def _part_of_training(self, share: float) -> Training:
        return recovery_training(self.training, self.request.recover).part(share)

    def _distil(
        self, run: TrainingRun, *, selection: Selection | None = None, modifier: Choice | None = None
    ) -> Outcome:
        """Distil the unpruned model by its logits, and by hidden states or relations of tokens as the request says."""
        state, losses = self.state, [Choice("logit-mse")]
        if self.request.recovery == "hidden":
            losses.append(Choice("hidden-mse", options={"layers": state.layer_map}))
        elif self.request.recovery == "relations":
            # As many relation heads as a head is wide divide any number of heads that a layer has left.
            losses.append(Choice("relations", options={"relation_heads": head_size_of(state.model.config)}))
        phase = Phase(tuple(losses), modifier=modifier)
        teacher = Model.open(state.teacher, verify=False).load() if phase.needs & {"hidden", "attention"} else None
        data = replace(self._training_data, selection=selection)
        (outcome,) = phases.fit(state.model, state.tokenizer, data, run, phases=(phase,), teachers={"task": teacher})
        return outcome

    @cached_property
    def _training_data(self) -> TrainingData:
        """The text of the pool and of train with the logits of the unpruned model, which may have to be computed."""
        pool, train, progress = self.rows.pool, self.rows.train, self.request.progress
        own = [labels for labels in pool.labels if labels.teacher_sha256 == self.source.sha256] if pool else []
        logits = teacher_logits(self.source, train.examples, compute=self.compute, labels=own, progress=progress)
        kept = pool if pool is None or self.rows.validation.examples else pool.part(held=False)
        return TrainingData(kept.labelled if kept else None, replace(train, logits=logits))

    def report(self, decisions: Mapping[str, Any], speeds: Sequence[Speed]) -> dict[str, Any]:
        """Write the page, tables and pictures of the pruned model, and return the notes of its manifest."""
        request, state, working = self.request, self.state, self.stage.working
        curve, last = list(decisions.get("curve", ())), state.steps[-1]
        if curve and last["removal"] == "recovery":
            chosen = next(point for point in curve if point["chosen"])
            recovered = {key: last[key] for key in ("value", "points", "low", "high")}
            curve.append({**chosen, **recovered, "recovered": True})
        content = {
            "name": self.stage.manifest.name,
            "model": self.source.name,
            "model_sha256": self.source.sha256,
            "metric": state.rows.metric.name,
            "split": state.rows.split,
            "rows": len(state.rows.gold.examples),
            "schedule": request.schedule,
            "criterion": "gradual-pruning" if request.schedule == "cubic" else request.criterion,
            "cuts": state.steps,
            "speeds": [asdict(speed) for speed in speeds],
            **({"max_accuracy_drop": request.max_accuracy_drop} if request.max_accuracy_drop else {}),
            **decisions,
            "curve": curve,
        }
        write_study(content, pruning_page, working / PRUNING_REPORT_NAME)
        if curve:
            points = [[*curve[0]], *([point[key] for key in curve[0]] for point in curve)]
            write_atomically(working / CURVE_NAME, as_csv(points))
        # A target may remove no heads or no neurons.
        shapes = [
            {key: step[key] for key in ("removal", "config")}
            for step in state.steps
            if step["removed"] or not step["of"]
        ]
        return {"removed": removed(content["cuts"]), "shapes": shapes}
