"""Stage: the weights of a model become int8, if that is accurate and faster here; or they are packed in fewer bits.

A model is quantized as it was trained to be, unless another method is asked for: its ``config.json`` names the bits of
its weights (``packed``) or the ranges of its activations (``onnx-qdq``); without either it is ``onnx-dynamic``.

int8 is measured, never assumed. With validation rows, these make the result the fp32 graph instead, with the reason
in its manifest:

* the logits are not finite;
* the model predicts one class only (or one score) where the fp32 model does not;
* the metric drops by more than ``max_accuracy_drop`` points;
* it agrees with the fp32 model on fewer than ``min_agreement`` of the rows (for scores: their correlation);
* it is not faster on this host: the geometric mean of its speed-ups at batch size 1 and 32 is not above 1.

Without validation rows nothing can be said, and the int8 model is marked unchecked. Packed weights save bytes and no
time: they are kept whatever the check says, and the manifest says it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np

from compress import plugins
from compress.data import check_roles
from compress.data.examples import Example
from compress.data.fingerprints import content_sha256, describe_rows, without_label
from compress.data.label_encoding import encode_gold
from compress.data.word_alignment import one_column
from compress.errors import CompressError
from compress.evaluation.metrics import find_metric
from compress.exporting.export import write_onnx
from compress.inference.cores import available_cores
from compress.models.manifest import MANIFEST_NAME, ONNX_NAME
from compress.models.model_dir import ModelDir
from compress.models.output_dir import WORK_FOLDER
from compress.models.quantization_config import ACTIVATION_RANGES, WEIGHT_BITS
from compress.models.stage import Stage
from compress.progress import Progress, silent
from compress.quantization.acceptance import Check, Judge, start

_FITTING_ROLES = ("train", "unlabeled")
_INTEGER_NODES = {
    "MatMulInteger",
    "DynamicQuantizeMatMul",
    "DynamicQuantizeLSTM",
    "QLinearMatMul",
    "QAttention",
    "DequantizeLinear",
}


def quantize(
    model: ModelDir | str | Path,
    output: str | Path,
    *,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    train: Sequence[Example] = (),
    keep_fp32: int = 0,
    validation: Sequence[Example] | None = None,
    metric: str | None = None,
    max_accuracy_drop: float = 1.0,
    min_agreement: float = 0.95,
    threads: int = 0,
    device: str = "auto",
    drop_overlap: bool = False,
    force: bool = False,
    progress: Progress = silent,
) -> ModelDir:
    """Write an int8 ONNX directory, or an fp32 one when int8 fails its check. ``manifest.notes`` says which and why.

    Args:
        model: a torch directory, which is exported first, or an fp32 ONNX directory.
        method: a name from ``compress list quantizers``, by default what the model was trained for; ``options`` are its
            keyword arguments.
        train: labelled rows on which sensitivities are measured, or ranges that the model was not trained with.
        keep_fp32: how many encoder layers, the most sensitive ones, stay in float32.
        validation: labelled rows that no stage was trained on.
        max_accuracy_drop: in points of the metric (0.90 to 0.89 is one point).
        min_agreement: share of rows, between 0 and 1.
        threads: processor threads for the check and the timing; 0 for all cores.
        drop_overlap: leave out rows of ``train`` that occur in ``validation`` instead of refusing.

    Raises:
        CompressError: quantized already, an unknown method or option, or a model or rows that do not fit.
    """
    source = ModelDir.open(model)
    plugin = plugins.find("quantizers", method or default_method(source))
    given = dict(options or {})
    _check_request(source, plugin, given, max_accuracy_drop, min_agreement, device)
    _check_rows(source, plugin, given, train, keep_fp32)
    chosen = find_metric(metric, task=source.task, classes=len(source.labels))
    rows = list(validation or ())
    gold = one_column(encode_gold(rows, source.labels, task=source.task, name="validation"))
    roles = {role: found for role, found in (("train", train), ("validation", rows)) if found}
    checked = check_roles(dict(roles), drop_overlap=drop_overlap)
    train = cast(Sequence[Example], checked.sets.get("train", ()))
    data = describe_rows({"train": train, "validation": rows})
    held_out = {entry["sha256"] for entry in data if entry["role"] == "validation"}
    _check_roles(source, held_out | {content_sha256(map(without_label, rows))})
    recipe = {
        "method": plugin.name,
        "options": given,
        "keep_fp32": keep_fp32,
        "max_accuracy_drop": max_accuracy_drop,
        "min_agreement": min_agreement,
    }
    parents, settings = {"model": source}, {"metric": chosen.name, **recipe}
    with Stage.begin(
        "quantize", output, parents=parents, settings=settings, data=data, force=force, keep=False
    ) as stage:
        working = stage.working
        with progress("prepare", None):
            prepared, notes = _prepare(source, plugin, given, train, keep_fp32)
        if not method:
            notes["method"] = f"{plugin.name}, {_because(source)}"
        if plugin.load().WRITES == "torch":
            fp32, architecture = source.path, _pack(source, plugin, prepared, working)
        else:
            with progress("export", None):
                fp32, architecture = _fp32_graph(source, working)
            with progress("quantize", None):
                plugin.function(fp32 / ONNX_NAME, working / ONNX_NAME, **prepared)
        written = ModelDir(working, None)
        check = None
        if rows:
            runtime = "onnxruntime" if written.is_onnx else "torch"
            cores = threads or len(available_cores())
            judge = Judge(fp32, working, source.load_tokenizer(), source.config, cores, runtime)
            with progress("check int8", None):
                check = judge.check(rows, gold, source.task, chosen.name, max_accuracy_drop, min_agreement)
            if check.reasons and written.is_onnx:
                _replace_by_fp32(fp32, working)
        else:
            _check_opens(working, source)
        past = source.manifest
        stage.finish(
            architecture=architecture,
            recipe=recipe,
            data=(*(past.data if past else ()), *data),
            seeds=past.seeds if past else {},
            **_findings(check, plugin.name == "packed", notes),
        )
    return ModelDir.open(output)


def default_method(source: ModelDir) -> str:
    """Return the quantizer that a model was trained for, or ``onnx-dynamic``, for which none is."""
    if source.config.get(WEIGHT_BITS):
        return "packed"
    return "onnx-qdq" if source.config.get(ACTIVATION_RANGES) else "onnx-dynamic"


def needs_training_rows(source: ModelDir, method: str | None, keep_fp32: int = 0) -> bool:
    """Tell whether that needs training rows: for sensitivities, or for ranges that the model has not learned."""
    plugin = plugins.find("quantizers", method or default_method(source))
    return keep_fp32 > 0 or ("ranges" in plugin.parameters and not source.config.get(ACTIVATION_RANGES))


def _because(source: ModelDir) -> str:
    return {
        "packed": "because the model was trained for weights of few bits",
        "onnx-qdq": "because the model was trained with ranges of activations",
        "onnx-dynamic": "because the model was not trained for another",
    }[default_method(source)]


def _prepare(
    source: ModelDir, plugin: plugins.Plugin, options: Mapping[str, Any], train: Sequence[Example], keep_fp32: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plug-in's arguments with what the model has learned or what rows tell, and notes on the latter."""
    from compress.quantization.calibration import measured_sensitivities, observed_ranges
    from compress.quantization.hessian_sensitivity import most_sensitive

    prepared, notes = dict(options), dict[str, Any]()
    learned = source.config.get(ACTIVATION_RANGES)
    if "ranges" in plugin.parameters and "ranges" not in prepared:
        if learned:
            prepared["ranges"] = learned
        else:
            prepared["ranges"] = observed_ranges(source, train)
            prepared.setdefault("per_channel", True)  # the model was not trained for one scale a matrix
        notes["ranges"] = "learned in training" if learned else "observed on training rows"
    if keep_fp32:
        found = measured_sensitivities(source, train)
        if keep_fp32 >= len(found):
            raise CompressError(
                f"--keep-fp32 {keep_fp32} would leave nothing to quantize: the model has {len(found)} layers"
            )
        prepared["keep_fp32"] = sorted(most_sensitive(found)[:keep_fp32])
        notes["layers in fp32"] = prepared["keep_fp32"]
        notes["sensitivity by layer"] = [one.value for one in found]
    return prepared, notes


def _pack(source: ModelDir, plugin: plugins.Plugin, options: Mapping[str, Any], working: Path) -> dict[str, Any]:
    """Write the packed model with its tokenizer and return the description of its architecture."""
    from compress.models.saving import describe_architecture

    model = source.load()
    plugin.function(model, working, **options)
    source.load_tokenizer().save_pretrained(working)
    return describe_architecture(model)


def _check_request(
    source: ModelDir,
    plugin: plugins.Plugin,
    options: Mapping[str, Any],
    max_accuracy_drop: float,
    min_agreement: float,
    device: str,
) -> None:
    if device not in {"auto", "cpu"}:
        raise CompressError(f"--device {device} does not fit: {plugin.name} is for processors; use --device cpu")
    if max_accuracy_drop < 0:
        raise CompressError(f"--max-accuracy-drop {max_accuracy_drop} is below 0; give points such as 1.0")
    if not 0 <= min_agreement <= 1:
        raise CompressError(f"--min-agreement {min_agreement} is not a share; give one between 0 and 1, such as 0.95")
    # Ranges come from training or from calibration.
    if faults := plugin.check({**({"ranges": {}} if "ranges" in plugin.parameters else {}), **options}):
        raise CompressError("; ".join(faults))
    if source.is_packed:
        raise CompressError(f"{source.path} is packed already; give the model that it was made from")
    if source.is_onnx and plugin.load().WRITES == "torch":
        raise CompressError(f"{source.path} is an ONNX model; {plugin.name} needs the torch directory that it is of")
    if source.is_onnx:
        from compress.exporting.onnx_graph import operator_counts

        if _INTEGER_NODES & set(operator_counts(source.path / ONNX_NAME)):
            raise CompressError(f"{source.path} is int8 already; give the model that it was made from")


def _check_rows(
    source: ModelDir, plugin: plugins.Plugin, options: Mapping[str, Any], train: Sequence[Example], keep_fp32: int
) -> None:
    """Check that training rows are there where they are needed, and only there."""
    if keep_fp32 < 0:
        raise CompressError(f"--keep-fp32 {keep_fp32} is below 0; give a number of layers")
    if keep_fp32 and "keep_fp32" not in plugin.parameters:
        raise CompressError(f"--keep-fp32 does not fit: {plugin.name} leaves no layer out; use --method onnx-dynamic")
    needed = needs_training_rows(source, plugin.name, keep_fp32) and not ("ranges" in options and not keep_fp32)
    if needed and source.is_onnx:
        raise CompressError(
            f"{source.path} is an ONNX model, on which neither sensitivities nor ranges are measured; give the torch "
            "directory that it was exported from"
        )
    if needed and not train:
        raise CompressError(
            "which layers are sensitive is measured on training rows; give labelled ones with --train FILE"
            if keep_fp32
            else f"{source.name} was not trained with ranges of activations, and {plugin.name} needs some; give "
            "labelled rows to measure them on with --train FILE, or train with --student q8bert"
        )
    if train and not needed:
        raise CompressError(f"--train would not be read: {plugin.name} measures nothing on rows here; leave it out")


def _check_roles(source: ModelDir, fingerprints: Set[str]) -> None:
    for entry in source.manifest.data if source.manifest else ():
        if entry.get("role") in _FITTING_ROLES and entry.get("sha256") in fingerprints:
            raise CompressError(
                f"the validation rows are the {entry['role']} rows of {source.name}, so that they would say nothing; "
                "give other rows with --validation"
            )


def _fp32_graph(source: ModelDir, working: Path) -> tuple[Path, dict[str, Any]]:
    """Return the directory of the fp32 graph and the description of its architecture; copy the client's files."""
    if source.is_onnx:
        fp32, architecture = source.path, source.manifest.architecture if source.manifest else {}
    else:
        fp32 = working / WORK_FOLDER / "fp32"
        shutil.rmtree(fp32, ignore_errors=True)
        fp32.mkdir()
        architecture = write_onnx(source, fp32)["architecture"]
    for file in fp32.iterdir():
        if file.is_file() and not file.name.startswith((ONNX_NAME, MANIFEST_NAME, "README", ".")):
            shutil.copyfile(file, working / file.name)
    return fp32, architecture or {"model_type": source.config.get("model_type")}


def _replace_by_fp32(fp32: Path, working: Path) -> None:
    for file in working.glob(f"{ONNX_NAME}*"):
        file.unlink()
    for file in fp32.glob(f"{ONNX_NAME}*"):
        shutil.copyfile(file, working / file.name)


def _check_opens(working: Path, source: ModelDir) -> None:
    """Open what was written and run it, so that a graph that does not work is never handed on."""
    run = start(working, threads=1, runtime="onnxruntime" if ModelDir(working, None).is_onnx else "torch")
    ids = np.full((2, 8), 1, dtype=np.int64)
    logits = run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    if (logits.shape[0], logits.shape[-1]) != (2, len(source.labels)) or not np.isfinite(logits).all():
        raise CompressError(f"what was made of {source.path} does not give logits; keep the fp32 model")


def _findings(check: Check | None, packed: bool, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return notes and metrics for the manifest: which precision was kept, and why."""
    refused = check is not None and bool(check.reasons) and not packed
    kept = "packed" if packed else "fp32" if refused else "int8"
    notes: dict[str, Any] = {"precision": kept, "checked": check is not None, **found}
    metrics: tuple[dict[str, Any], ...] = ()
    if check is None:
        notes["warning"] = f"{kept} was not checked; repeat with --validation to compare it with fp32"
    else:
        value = check.fp32 if refused else check.int8
        metrics = ({"name": check.metric, "value": value, "split": "validation", "rows": check.rows},)
        notes["check"] = {
            "fp32": check.fp32,
            kept if packed else "int8": check.int8,
            "agreement": check.agreement,
            "largest_logit_difference": check.largest_logit_difference,
            "speedup": {str(size): asdict(ratio) for size, ratio in check.speedups.items()},
        }
        if refused:
            notes["reason"] = f"kept fp32, because of int8: {'; '.join(check.reasons)}"
        elif check.reasons:
            notes["warning"] = f"packed, it is not as good as what it was made from: {'; '.join(check.reasons)}"
    return {"notes": notes, "metrics": metrics}
