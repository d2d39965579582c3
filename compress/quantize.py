"""Stage: the weights of a model become int8, if that is accurate and faster here.

int8 is measured, never assumed. With validation rows, these make the result the fp32 graph instead, with the reason
in its manifest:

* the logits are not finite;
* the model predicts one class only (or one score) where the fp32 model does not;
* the metric drops by more than ``max_accuracy_drop`` points;
* it agrees with the fp32 model on fewer than ``min_agreement`` of the rows (for scores: their correlation);
* it is not faster on this host: the geometric mean of its speed-ups at batch size 1 and 32 is not above 1.

Without validation rows nothing can be said, and the int8 model is marked unchecked.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from compress import plugins
from compress.artifact import MANIFEST_NAME, ONNX_NAME, WORK_FOLDER, Manifest, ModelDir, finish, parent_entry, writing
from compress.errors import CompressError
from compress.examples import Example, content_sha256, describe_rows, encode_gold, without_label
from compress.export import write_onnx
from compress.int8_check import Check, Judge, start
from compress.measuring.cores import available_cores
from compress.metrics import find_metric
from compress.progress import Progress, silent
from compress.words import one_column

_FITTING_ROLES = ("train", "unlabeled")
_INTEGER_PRODUCTS = {"MatMulInteger", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QLinearMatMul", "QAttention"}


def quantize(
    model: ModelDir | str | Path,
    output: str | Path,
    *,
    method: str = "onnx-dynamic",
    options: Mapping[str, Any] | None = None,
    validation: Sequence[Example] | None = None,
    metric: str | None = None,
    max_accuracy_drop: float = 1.0,
    min_agreement: float = 0.95,
    threads: int = 0,
    device: str = "auto",
    force: bool = False,
    progress: Progress = silent,
) -> ModelDir:
    """Write an int8 ONNX directory, or an fp32 one when int8 fails its check. ``manifest.notes`` says which and why.

    Args:
        model: a torch directory, which is exported first, or an fp32 ONNX directory.
        method: a name from ``compress list quantizers``; ``options`` are its keyword arguments.
        validation: labelled rows that no stage was trained on.
        max_accuracy_drop: in points of the metric (0.90 to 0.89 is one point).
        min_agreement: share of rows, between 0 and 1.
        threads: processor threads for the check and the timing; 0 for all cores.

    Raises:
        CompressError: int8 already, an unknown method or option, or a model or validation rows that do not fit.
    """
    source = model if isinstance(model, ModelDir) else ModelDir.open(model)
    plugin = plugins.find("quantizers", method)
    _check_request(source, plugin, options or {}, max_accuracy_drop, min_agreement, device)
    chosen = find_metric(metric, task=source.task, classes=len(source.labels))
    rows = list(validation or ())
    gold = one_column(encode_gold(rows, source.labels, task=source.task, name="validation"))
    data = describe_rows({"validation": rows})
    _check_roles(source, {entry["sha256"] for entry in data} | {content_sha256(map(without_label, rows))})
    recipe = {
        "method": plugin.name,
        "options": dict(options or {}),
        "max_accuracy_drop": max_accuracy_drop,
        "min_agreement": min_agreement,
    }
    request = {"stage": "quantize", "model": source.sha256, "data": data, "metric": chosen.name, **recipe}
    with writing(output, request, force=force, keep=False) as working:
        with progress("export", None):
            fp32, exported = _fp32_graph(source, working)
        with progress("quantize", None):
            plugin.function(fp32 / ONNX_NAME, working / ONNX_NAME, **(options or {}))
        check = None
        if rows:
            judge = Judge(fp32, working, source.load_tokenizer(), source.config, threads or len(available_cores()))
            with progress("check int8", None):
                check = judge.check(rows, gold, source.task, chosen.name, max_accuracy_drop, min_agreement)
            if check.reasons:
                _replace_by_fp32(fp32, working)
        else:
            _check_opens(working, source)
        finish(working, _manifest(source, exported, Path(output).name, recipe, data, check))
    return ModelDir.open(output)


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
    if faults := plugin.check(options):
        raise CompressError("; ".join(faults))
    if source.is_onnx:
        from compress.graph import operator_counts

        if _INTEGER_PRODUCTS & set(operator_counts(source.path / ONNX_NAME)):
            raise CompressError(f"{source.path} is int8 already; give the model that it was made from")


def _check_roles(source: ModelDir, fingerprints: Set[str]) -> None:
    for entry in source.manifest.data if source.manifest else ():
        if entry.get("role") in _FITTING_ROLES and entry.get("sha256") in fingerprints:
            raise CompressError(
                f"the validation rows are the {entry['role']} rows of {source.name}, so that they would say nothing; "
                "give other rows with --validation"
            )


def _fp32_graph(source: ModelDir, working: Path) -> tuple[Path, Manifest | None]:
    """Return the directory of the fp32 graph and, when it had to be exported, its manifest; copy the client's files."""
    if source.is_onnx:
        fp32, manifest = source.path, source.manifest
    else:
        fp32 = working / WORK_FOLDER / "fp32"
        shutil.rmtree(fp32, ignore_errors=True)
        fp32.mkdir()
        manifest = write_onnx(source, fp32)
    for file in fp32.iterdir():
        if file.is_file() and not file.name.startswith((ONNX_NAME, MANIFEST_NAME, "README", ".")):
            shutil.copyfile(file, working / file.name)
    return fp32, manifest


def _replace_by_fp32(fp32: Path, working: Path) -> None:
    for file in working.glob(f"{ONNX_NAME}*"):
        file.unlink()
    for file in fp32.glob(f"{ONNX_NAME}*"):
        shutil.copyfile(file, working / file.name)


def _check_opens(working: Path, source: ModelDir) -> None:
    """Open what was written and run it, so that a graph that does not work is never handed on."""
    run = start(working, threads=1)
    ids = np.full((2, 8), 1, dtype=np.int64)
    logits = run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    if (logits.shape[0], logits.shape[-1]) != (2, len(source.labels)) or not np.isfinite(logits).all():
        raise CompressError(f"the int8 graph of {source.path} does not give logits; keep the fp32 model")


def _manifest(
    source: ModelDir,
    exported: Manifest | None,
    name: str,
    recipe: Mapping[str, Any],
    data: Sequence[Mapping[str, Any]],
    check: Check | None,
) -> Manifest:
    kept = "fp32" if check and check.reasons else "int8"
    notes: dict[str, Any] = {"precision": kept, "checked": check is not None}
    metrics: tuple[dict[str, Any], ...] = ()
    if check is None:
        notes["warning"] = "int8 was not checked; repeat with --validation to compare it with fp32"
    else:
        value = check.fp32 if kept == "fp32" else check.int8
        metrics = ({"name": check.metric, "value": value, "split": "validation", "rows": check.rows},)
        notes["check"] = {
            "fp32": check.fp32,
            "int8": check.int8,
            "agreement": check.agreement,
            "largest_logit_difference": check.largest_logit_difference,
            "speedup": {str(size): asdict(ratio) for size, ratio in check.speedups.items()},
        }
        if check.reasons:
            notes["reason"] = f"kept fp32, because of int8: {'; '.join(check.reasons)}"
    architecture = dict(exported.architecture) if exported else {"model_type": source.config.get("model_type")}
    return Manifest(
        stage="quantize",
        name=name,
        task=source.task,
        labels=source.labels,
        architecture=architecture,
        parents=(parent_entry("model", source),),
        recipe=dict(recipe),
        data=(*(source.manifest.data if source.manifest else ()), *(dict(entry) for entry in data)),
        metrics=metrics,
        notes=notes,
        seeds=source.manifest.seeds if source.manifest else {},
    )
