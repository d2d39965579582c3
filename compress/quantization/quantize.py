"""Quantization stage: int8 weights where that is accurate and faster on this host, or weights packed in fewer bits.

A model is quantized as it was trained to be, unless another method is asked for: its ``config.json`` names the bits of
its weights (``packed``) or the ranges of its activations (``onnx-qdq``); without either it is ``onnx-dynamic``.

int8 is measured, never assumed. With validation rows, these make the result the fp32 graph instead, with the reason
in its manifest:

* the logits are not finite;
* the model predicts one class only (or one score) where the fp32 model does not;
* the metric drops by more than ``max_accuracy_drop`` points;
* it agrees with the fp32 model on fewer than ``min_agreement`` of the rows (for scores: their correlation);
* it is not faster on this host: the geometric mean of its speed-ups at batch size 1 and 32 is not above 1.

Without validation rows the int8 model is marked unchecked. Packed weights save bytes and no time: they are kept
whatever the result of the check, which the manifest states.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from compress import plugins
from compress.data import Example, LabelledData, check_roles, content_sha256, describe_rows, encode_gold
from compress.data.examples import without_label
from compress.data.tokenization import one_column
from compress.errors import CompressError
from compress.evaluation.metrics import find_metric
from compress.exporting.export import write_onnx
from compress.exporting.onnx_graph import operator_counts
from compress.inference.compute import Compute
from compress.inference.open_runtime import open_runtime
from compress.models.manifest import MANIFEST_NAME, ONNX_NAME
from compress.models.model_dir import ModelDir
from compress.models.output_dir import WORK_FOLDER
from compress.models.packed_weights import ACTIVATION_RANGES, WEIGHT_BITS
from compress.models.saving import describe_architecture
from compress.models.stage import Stage
from compress.progress import Progress, silent
from compress.quantization.acceptance import Check, Judge
from compress.quantization.calibration import measured_sensitivities, observed_ranges
from compress.quantization.hessian_sensitivity import most_sensitive

_FITTING_ROLES = ("train", "unlabeled")
_INTEGER_NODES = {
    "MatMulInteger",
    "DynamicQuantizeMatMul",
    "DynamicQuantizeLSTM",
    "QLinearMatMul",
    "QAttention",
    "DequantizeLinear",
}


@dataclass(frozen=True)
class Quantization:
    """Method and acceptance limits.

    Args:
        method: a name from ``compress list quantizers``; by default what the model was trained for.
        options: keyword arguments of the method.
        keep_fp32: number of encoder layers, the most sensitive ones, that stay in float32.
        max_accuracy_drop: in points of the metric (0.90 to 0.89 is one point).
        min_agreement: share of rows with the prediction of the fp32 model, between 0 and 1.
    """

    method: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    keep_fp32: int = 0
    max_accuracy_drop: float = 1.0
    min_agreement: float = 0.95

    def check(self) -> None:
        """Refuse values out of range."""
        if self.max_accuracy_drop < 0:
            raise CompressError(f"--max-accuracy-drop {self.max_accuracy_drop} is below 0; give points such as 1.0")
        if not 0 <= self.min_agreement <= 1:
            raise CompressError(
                f"--min-agreement {self.min_agreement} is not a share; give one between 0 and 1, such as 0.95"
            )
        if self.keep_fp32 < 0:
            raise CompressError(f"--keep-fp32 {self.keep_fp32} is below 0; give a number of layers")


def quantize(
    model: ModelDir | str | Path,
    output: str | Path,
    *,
    quantization: Quantization = Quantization(),
    data: LabelledData = LabelledData(),
    compute: Compute = Compute(),
    force: bool = False,
    progress: Progress = silent,
) -> ModelDir:
    """Write an int8 ONNX directory, or an fp32 one when int8 fails its check. ``manifest.notes`` says which and why.

    Args:
        model: a torch directory, which is exported first, or an fp32 ONNX directory.
        data: ``train``, rows on which sensitivities are measured, or ranges that the model was not trained with;
            ``validation``, rows for the check that no stage was trained on.
        compute: CPU threads of the check.

    Raises:
        CompressError: quantized already, an unknown method or option, or a model or rows that do not fit.
    """
    source = ModelDir.open(model)
    plugin = plugins.find("quantizers", quantization.method or default_method(source))
    packs = plugin.load().WRITES == "torch"
    if compute.device not in {"auto", "cpu"}:
        raise CompressError(f"--device {compute.device} does not fit: {plugin.name} is for CPUs; use --device cpu")
    quantization.check()
    _check_method(source, plugin, quantization.options, packs)
    _check_training_rows(source, plugin, quantization, data.train)
    chosen = find_metric(data.metric, task=source.task, classes=len(source.labels))
    rows = list(data.validation)
    gold = one_column(encode_gold(rows, source.labels, task=source.task, name="validation"))
    roles = {role: found for role, found in (("train", data.train), ("validation", rows)) if found}
    sets = check_roles(dict(roles), drop_overlap=data.drop_overlap).sets
    train = cast(Sequence[Example], sets.get("train", ()))
    entries = describe_rows({"train": train, "validation": rows})
    _check_held_out(source, rows)
    recipe = asdict(replace(quantization, method=plugin.name))
    with Stage.begin(
        "quantize",
        output,
        parents={"model": source},
        settings={"metric": chosen.name, **recipe},
        data=entries,
        force=force,
        keep=False,
    ) as stage:
        working = stage.working
        with progress("Preparing", None):
            prepared, notes = _prepare(source, plugin, quantization, train)
        if not quantization.method:
            notes["method"] = f"{plugin.name}, because the model was {_TRAINED_FOR[plugin.name]}"
        if packs:
            loaded = source.load()
            plugin.function(loaded, working, **prepared)
            source.load_tokenizer().save_pretrained(working)
            fp32, architecture = source.path, describe_architecture(loaded)
        else:
            with progress("Exporting", None):
                fp32, architecture = _fp32_graph(source, working)
            with progress("Quantizing", None):
                plugin.function(fp32 / ONNX_NAME, working / ONNX_NAME, **prepared)
        check = None
        if rows:
            with progress("Checking int8", 2 * len(rows)) as advance:
                check = Judge(source, fp32, working, compute.threads).check(
                    rows,
                    gold,
                    chosen,
                    max_accuracy_drop=quantization.max_accuracy_drop,
                    min_agreement=quantization.min_agreement,
                    advance=advance,
                )
            if check.reasons and not packs:
                for file in working.glob(f"{ONNX_NAME}*"):
                    file.unlink()
                for file in fp32.glob(f"{ONNX_NAME}*"):
                    shutil.copyfile(file, working / file.name)
        else:
            _check_opens(working, source)
        stage.finish(
            architecture=architecture,
            recipe=recipe,
            data=(*source.manifest.data, *entries),
            seeds=source.manifest.seeds,
            **_findings(check, packs, notes),
        )
    return ModelDir.open(output)


def default_method(source: ModelDir) -> str:
    """Return the quantizer that a model was trained for, or ``onnx-dynamic``, which needs no training."""
    if source.config.get(WEIGHT_BITS):
        return "packed"
    return "onnx-qdq" if source.config.get(ACTIVATION_RANGES) else "onnx-dynamic"


_TRAINED_FOR = {
    "packed": "trained for weights of few bits",
    "onnx-qdq": "trained with ranges of activations",
    "onnx-dynamic": "not trained for another",
}


def needs_training_rows(source: ModelDir, method: str | None, keep_fp32: int = 0) -> bool:
    """Tell whether a quantization needs training rows: for sensitivities, or for ranges that were not learned."""
    plugin = plugins.find("quantizers", method or default_method(source))
    return keep_fp32 > 0 or ("ranges" in plugin.parameters and not source.config.get(ACTIVATION_RANGES))


def _prepare(
    source: ModelDir, plugin: plugins.Plugin, quantization: Quantization, train: Sequence[Example]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plug-in's arguments, with learned or measured ranges and sensitivities, and notes on these."""
    prepared, notes = dict(quantization.options), dict[str, Any]()
    keep_fp32 = quantization.keep_fp32
    if "ranges" in plugin.parameters and "ranges" not in prepared:
        learned = source.config.get(ACTIVATION_RANGES)
        prepared["ranges"] = learned or observed_ranges(source, train)
        notes["ranges"] = "learned in training" if learned else "observed on training rows"
        if not learned:
            prepared.setdefault("per_channel", True)  # the model was not trained for one scale a matrix
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


def _check_method(source: ModelDir, plugin: plugins.Plugin, options: Mapping[str, Any], packs: bool) -> None:
    """Refuse options that the method does not take, and models that it does not read."""
    # Ranges come from training or from calibration.
    if faults := plugin.check({**({"ranges": {}} if "ranges" in plugin.parameters else {}), **options}):
        raise CompressError("; ".join(faults))
    if source.is_packed:
        raise CompressError(f"{source.path} is packed already; give the model that it was made from")
    if source.is_onnx and packs:
        raise CompressError(f"{source.path} is an ONNX model; {plugin.name} needs the torch directory that it is of")
    if source.is_onnx and _INTEGER_NODES & set(operator_counts(source.path / ONNX_NAME)):
        raise CompressError(f"{source.path} is int8 already; give the model that it was made from")


def _check_training_rows(
    source: ModelDir, plugin: plugins.Plugin, quantization: Quantization, train: Sequence[Example]
) -> None:
    """Refuse missing training rows where they are needed, and given ones where they are not."""
    keep_fp32 = quantization.keep_fp32
    if keep_fp32 and "keep_fp32" not in plugin.parameters:
        raise CompressError(f"--keep-fp32 does not fit: {plugin.name} leaves no layer out; use --method onnx-dynamic")
    needed = keep_fp32 > 0 or ("ranges" not in quantization.options and needs_training_rows(source, plugin.name))
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


def _check_held_out(source: ModelDir, rows: Sequence[Example]) -> None:
    """Refuse validation rows that the model was fitted on, with labels or without."""
    fingerprints = {content_sha256(rows), content_sha256(map(without_label, rows))}
    for entry in source.manifest.data:
        if entry.get("role") in _FITTING_ROLES and entry.get("sha256") in fingerprints:
            raise CompressError(
                f"the validation rows are the {entry['role']} rows of {source.name}, so that they would say nothing; "
                "give other rows with --validation"
            )


def _fp32_graph(source: ModelDir, working: Path) -> tuple[Path, dict[str, Any]]:
    """Return the directory of the fp32 graph and the description of its architecture; copy the client's files."""
    if source.is_onnx:
        fp32, architecture = source.path, source.manifest.architecture
    else:
        fp32 = working / WORK_FOLDER / "fp32"
        shutil.rmtree(fp32, ignore_errors=True)
        fp32.mkdir()
        architecture = write_onnx(source, fp32)["architecture"]
    for file in fp32.iterdir():
        if file.is_file() and not file.name.startswith((ONNX_NAME, MANIFEST_NAME, "README", ".")):
            shutil.copyfile(file, working / file.name)
    return fp32, architecture or {"model_type": source.config.get("model_type")}


def _check_opens(working: Path, source: ModelDir) -> None:
    """Open the written model and run it, so that a broken graph is never returned."""
    run = open_runtime(working, threads=1)
    ids = np.full((2, 8), 1, dtype=np.int64)
    logits = run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    if (logits.shape[0], logits.shape[-1]) != (2, len(source.labels)) or not np.isfinite(logits).all():
        raise CompressError(f"what was made of {source.path} does not give logits; keep the fp32 model")


def _findings(check: Check | None, packed: bool, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return notes and metrics for the manifest: which precision was kept, and why."""
    made = "packed" if packed else "int8"
    notes: dict[str, Any] = {"precision": made, "checked": check is not None, **found}
    if check is None:
        notes["warning"] = f"{made} was not checked; repeat with --validation to compare it with fp32"
        return {"notes": notes, "metrics": ()}
    notes["check"] = {
        "fp32": check.fp32,
        made: check.int8,
        "agreement": check.agreement,
        "largest_logit_difference": check.largest_logit_difference,
        "speedup": {str(size): ratio._asdict() for size, ratio in check.speedups.items()},
    }
    value = check.int8
    if check.reasons and packed:
        notes["warning"] = f"packed, it is not as good as what it was made from: {'; '.join(check.reasons)}"
    elif check.reasons:
        value = check.fp32
        notes |= {"precision": "fp32", "reason": f"kept fp32, because of int8: {'; '.join(check.reasons)}"}
    metric = {"name": check.metric, "value": value, "split": "validation", "rows": check.rows}
    return {"notes": notes, "metrics": (metric,)}
