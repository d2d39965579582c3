"""Quantization stage: int8 weights where that is accurate and faster on this host, or weights packed in fewer bits.

A model is quantized as it was trained to be, unless another method is asked for: its ``config.json`` names the bits of
its weights (``packed``) or the ranges of its activations (``onnx-qdq``); without either it is ``onnx-dynamic``.

int8 is measured, never assumed. With validation rows, these make the result the fp32 graph instead, with the reason
in its manifest:

* the logits are not finite;
* the model predicts one class only (or one score) where the fp32 model does not;
* the metric drops by more than ``max_accuracy_drop`` points;
* it agrees with the fp32 model on fewer than ``min_agreement`` of the rows (for scores: their correlation);
* it is not faster on this host: the geometric mean of its speed-ups, by default at batch size 1 and 32, is not above 1.

Without validation rows the int8 model is marked unchecked. Packed weights save bytes and no time: they are kept
whatever the result of the check, which the manifest states.

``auto`` makes several int8 graphs, and keeps the one of those that pass whose mean speed-up is the largest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from compress.data import Example, check_roles
from compress.errors import CompressError
from compress.evaluation.metrics import Metric, agreement, score
from compress.exporting.export import write_onnx
from compress.inference.batching import open_runtime, runtime_for
from compress.inference.predict import check_label_meaning
from compress.inference.runners import LoadedModel, time_in_turns
from compress.inference.speedup_intervals import Interval, speedup
from compress.inference.threads import default_threads
from compress.models.fitted_rows import check_unseen
from compress.models.graph_files import copy_graph, graph_file, graph_with_data
from compress.models.loading import copy_client_files, read_config
from compress.models.model_dir import ModelDir
from compress.models.output_dir import WORK_FOLDER
from compress.models.saving import describe_architecture, save_tokenizer
from compress.progress import Advance
from compress.quantization.candidates import (
    AUTO,
    Check,
    Quantizing,
    candidates_for,
    layers_in_fp32,
    make,
    needs_training_rows,
)
from compress.requests.compression import Quantize

LIMITS = ("method", "options", "keep_fp32", "max_accuracy_drop", "min_agreement", "batch_sizes")
_TRAINED_FOR = {
    "packed": "trained for weights of few bits",
    "onnx-qdq": "trained with ranges of activations",
    "onnx-dynamic": "not trained for another",
}


def quantize(request: Quantize) -> ModelDir:
    """Write an int8 ONNX directory, or an fp32 one when int8 fails its check. ``manifest.notes`` says which and why.

    A torch directory is exported first. Rows of ``train`` measure sensitivities, or ranges that the model was not
    trained with; rows of ``validation``, that no stage was trained on, check the result.

    Raises:
        CompressError: quantized already, an unknown method or option, or a model or rows that do not fit.
    """
    source, data = ModelDir.open(request.model), request.labelled
    candidates, refused = candidates_for(source, request, data)
    packs, keep_fp32 = candidates[0].packs, request.keep_fp32
    metric = source.task.metric(data.metric, len(source.labels))
    rows = list(data.validation)
    gold = source.task.column(source.task.gold(rows, source.labels, "validation"))
    roles = {role: found for role, found in (("train", data.train), ("validation", rows)) if found}
    checked = check_roles(dict(roles), data.overlap)
    train = cast(Sequence[Example], checked.sets.get("train", ()))
    entries = checked.described()
    check_unseen([source], rows)
    with request.begin(
        {"model": source},
        data=entries,
        keep=False,
        metric=metric.name,
        method=request.method or candidates[0].plugin.name,
        train=train,
        validation=rows,
    ) as stage:
        working = stage.working
        if packs:
            save_tokenizer(source.tokenizer, working)
            fp32, architecture = source.path, describe_architecture(source.network)
        else:
            with request.progress("Exporting", None):
                fp32, architecture = _fp32_graph(source, working)
        with request.progress("Preparing", None):
            in_fp32 = layers_in_fp32(source, train, keep_fp32)
        made: list[Quantizing] = []
        for number, candidate in enumerate(candidates):
            target = working if packs else working / WORK_FOLDER / f"candidate-{number}"
            try:
                with request.progress(f"Quantizing by {candidate.name}", None):
                    one = make(source, candidate, train, fp32, target, notes=in_fp32)
            except CompressError as error:
                refused[candidate.name] = str(error)
                continue
            if rows:
                judge = Judge(source, fp32, target, request.threads)
                with request.progress("Checking int8", 2 * len(rows)) as advance:
                    one = replace(one, check=judge.check(rows, gold, metric, request, advance=advance))
            else:
                _check_opens(target, source)
            made.append(one)
        if not made:
            raise CompressError(next(iter(refused.values())))
        best = max(made, key=lambda one: one.rank)
        if not needs_training_rows(source, best.plugin.name, keep_fp32, best.options):
            entries = [entry for entry in entries if entry["role"] != "train"]
        if not packs:
            copy_graph(graph_file(fp32 if best.check and best.check.reasons else best.directory), working)
        notes = dict(best.notes)
        if request.method == AUTO:
            sizes = " and ".join(map(str, request.batch_sizes))
            reason = "the fastest that passes" if best.rank else "the first, as none passes,"
            notes["method"] = f"{best.name}, {reason} at batch size {sizes}"
            notes["candidates"] = {**{one.name: _outcome(one) for one in made}, **refused}
        elif not request.method:
            notes["method"] = f"{best.plugin.name}, because the model was {_TRAINED_FOR[best.plugin.name]}"
        stage.finish(
            architecture=architecture,
            recipe={name: getattr(request, name) for name in LIMITS}
            | {"method": best.plugin.name, "options": best.options},
            data=(*source.manifest.data, *entries),
            seeds=source.manifest.seeds,
            **_findings(best.check, packs, notes),
        )
    return ModelDir.open(stage.output)


class Judge:
    """Compares the fp32 and the int8 directory of a model in the same runtime.

    Speed counts for ONNX graphs only: packed weights are unpacked before they run in ``torch``.
    """

    def __init__(self, source: ModelDir, fp32: Path, int8: Path, threads: int) -> None:
        runtime, model = runtime_for(int8), LoadedModel.open(source)
        self.threads = threads or default_threads()  # the same for both, whatever else begins to run
        config = read_config(fp32)  # of the graph: a cross-encoder's activation is in it, and not in this config
        self.models = {
            name: replace(model, function=open_runtime(path, runtime, threads=self.threads, config=config))
            for name, path in (("fp32", fp32), ("int8", int8))
        }
        self.timed = runtime == "onnxruntime"
        self.task, self.labels = source.task, source.labels

    def check(
        self,
        rows: Sequence[Example],
        gold: np.ndarray,
        metric: Metric,
        limits: Quantize,
        advance: Advance = lambda rows: None,
    ) -> Check:
        """Compare both on rows with gold labels ``[N]``; a model refused for its predictions is not timed.

        ``advance`` counts the rows that either has read.
        """
        reference = self.logits("fp32", rows, advance)
        classes = reference.shape[1]
        fp32 = self.task.predictions(reference)
        check_label_meaning(fp32, gold, self.labels, "validation")
        expected = score(fp32, gold, metric=metric, classes=classes)
        try:
            logits = self.logits("int8", rows, advance)
        except CompressError:  # fp32 read the same rows, so that only the numbers can be at fault
            return Check(metric.name, expected, 0.0, len(rows), 0.0, 0.0, {}, ("its logits are not finite numbers",))
        int8 = self.task.predictions(logits)
        found = score(int8, gold, metric=metric, classes=classes)
        same = agreement(int8, fp32)
        reasons = []
        answered = np.isfinite(reference).all(axis=1)  # a word that was cut off has no logits
        if len(np.unique(int8[answered])) == 1 < len(np.unique(fp32[answered])):
            one = int8[answered][0]
            shown = self.labels[one] if self.task.has_classes else one
            reasons.append(f"it predicts {shown} for all {answered.sum():,} rows")
        drop, most = round(100 * (expected - found), 6), limits.max_accuracy_drop  # 3 of 300 rows are one point exactly
        if drop > most:
            reasons.append(f"{metric.name} drops by {drop:.2f} points, more than the {most:g} allowed")
        if same < limits.min_agreement:
            reasons.append(f"it agrees with fp32 on {same:.1%} of the rows, fewer than {limits.min_agreement:.1%}")
        speedups = {} if reasons or not self.timed else {size: self.time(rows, size) for size in limits.batch_sizes}
        difference = float(np.nanmax(np.abs(logits - reference)))
        check = Check(metric.name, expected, found, len(rows), same, difference, speedups, tuple(reasons))
        if speedups and check.mean_speedup <= 1:
            shown = ", ".join(f"x{ratio.value:.2f} at batch size {size}" for size, ratio in speedups.items())
            return replace(check, reasons=(f"it is not faster on this host ({shown})",))
        return check

    def logits(self, name: str, rows: Sequence[Example], advance: Advance) -> np.ndarray:
        return self.models[name].logits(rows, advance)

    def time(self, rows: Sequence[Example], batch_size: int) -> Interval:
        """Return the speed-up of int8 over fp32, on batches of the rows' own lengths."""
        samples = time_in_turns(self.models, rows, batch_size, self.threads)
        return speedup(samples["fp32"], samples["int8"])


def _fp32_graph(source: ModelDir, working: Path) -> tuple[Path, dict[str, Any]]:
    """Return the directory of the fp32 graph and the description of its architecture; copy the client's files."""
    if source.is_onnx:
        fp32, architecture = source.path, source.manifest.architecture
    else:
        fp32 = working / WORK_FOLDER / "fp32"
        fp32.mkdir()
        architecture = write_onnx(source, fp32)["architecture"]
    copy_client_files(fp32, working)
    return fp32, architecture or {"model_type": source.config.get("model_type")}


def _check_opens(working: Path, source: ModelDir) -> None:
    """Open the written model and run it, so that a broken graph is never returned."""
    run = open_runtime(working, threads=1, config=source.config)
    ids = np.full((2, 8), 1, dtype=np.int64)
    if not np.isfinite(run({"input_ids": ids, "attention_mask": np.ones_like(ids)})).all():
        raise CompressError(f"what was made of {source.path} does not give finite logits; keep the fp32 model")


def _findings(check: Check | None, packed: bool, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return notes and metrics for the manifest: which precision was kept, and why."""
    made = "packed" if packed else "int8"
    notes: dict[str, Any] = {"precision": made, "checked": check is not None, **found}
    if check is None:
        notes["warning"] = f"{made} was not checked; repeat with --validation to compare it with fp32"
        return {"notes": notes, "metrics": ()}
    notes["check"] = _comparison(check, made)
    value = check.int8
    if check.reasons and packed:
        notes["warning"] = f"packed, it is not as good as what it was made from: {'; '.join(check.reasons)}"
    elif check.reasons:
        value = check.fp32
        notes |= {"precision": "fp32", "reason": f"kept fp32, because of int8: {'; '.join(check.reasons)}"}
    metric = {"name": check.metric, "value": value, "split": "validation", "rows": check.rows}
    return {"notes": notes, "metrics": (metric,)}


def _outcome(candidate: Quantizing) -> dict[str, Any]:
    """Return what the manifest says of a candidate that was checked."""
    assert candidate.check is not None
    return {
        "bytes": sum(file.stat().st_size for file in graph_with_data(graph_file(candidate.directory))),
        **_comparison(candidate.check, "int8"),
        "reasons": list(candidate.check.reasons),
    }


def _comparison(check: Check, made: str) -> dict[str, Any]:
    return {
        "fp32": check.fp32,
        made: check.int8,
        "agreement": check.agreement,
        "largest_logit_difference": check.largest_logit_difference,
        "speedup": {str(size): ratio._asdict() for size, ratio in check.speedups.items()},
    }
