"""The ways to quantize a model: which there are, whether they fit, and making one.

A method is one candidate. ``auto`` takes all that quantizers name as their ``CANDIDATES``: sets of their options.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from compress import plugins
from compress.data import Example, LabelledData
from compress.errors import CompressError
from compress.files import faults_of
from compress.models.graph_files import graph_file
from compress.models.manifest import ONNX_NAME
from compress.models.model_dir import ModelDir
from compress.models.packed_weights import ACTIVATION_RANGES, WEIGHT_BITS
from compress.quantization.acceptance import Check
from compress.quantization.calibration import measured_sensitivities, observed_ranges
from compress.quantization.hessian_sensitivity import most_sensitive

AUTO = "auto"
LAYERS_IN_FP32 = "layers in fp32"


@dataclass(frozen=True)
class Quantization:
    """Method and acceptance limits.

    Args:
        method: a name from ``compress list quantizers``, or ``auto`` for the fastest that passes the check; by default
            what the model was trained for.
        options: keyword arguments of the method.
        keep_fp32: number of encoder layers, the most sensitive ones, that stay in float32.
        max_accuracy_drop: in points of the metric (0.90 to 0.89 is one point).
        min_agreement: share of rows with the prediction of the fp32 model, between 0 and 1.
        batch_sizes: at which int8 has to be faster.
    """

    method: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    keep_fp32: int = 0
    max_accuracy_drop: float = 1.0
    min_agreement: float = 0.95
    batch_sizes: Sequence[int] = (1, 32)

    def check(self) -> None:
        """Refuse values out of range."""
        if self.max_accuracy_drop < 0:
            raise CompressError(f"--max-accuracy-drop {self.max_accuracy_drop} is below 0; give points such as 1.0")
        if not 0 <= self.min_agreement <= 1:
            raise CompressError(
                f"--min-agreement {self.min_agreement} is not a share; give one between 0 and 1, such as 0.95"
            )
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise CompressError(f"--batch-size {[*self.batch_sizes]} does not fit; give sizes from 1 on, such as 1,32")
        if self.keep_fp32 < 0:
            raise CompressError(f"--keep-fp32 {self.keep_fp32} is below 0; give a number of layers")


@dataclass(frozen=True)
class Quantizing:
    """A quantizer with options; once made, ``directory`` has its graph, and ``check`` compares it with fp32."""

    plugin: plugins.Plugin
    options: Mapping[str, Any]
    notes: Mapping[str, Any] = field(default_factory=dict)
    directory: Path = Path()
    check: Check | None = None

    @property
    def name(self) -> str:
        """The method and its options: ``onnx-dynamic reduce_range``."""
        options = (key if value is True else f"{key}={value}" for key, value in self.options.items())
        return " ".join([self.plugin.name, *options])

    @property
    def packs(self) -> bool:
        return bool(self.plugin.load().WRITES == "torch")

    @property
    def rank(self) -> float:
        """The mean speed-up of a candidate that passes its check, else 0."""
        return self.check.mean_speedup if self.check and not self.check.reasons else 0.0


def candidates_for(
    source: ModelDir, quantization: Quantization, data: LabelledData
) -> tuple[list[Quantizing], dict[str, str]]:
    """Return what to make of a model, and why ``auto`` leaves out others, by name.

    Raises:
        CompressError: an unknown method or option, or a model or rows that do not fit.
    """
    if quantization.method != AUTO:
        plugin = plugins.find("quantizers", quantization.method or default_method(source), also=[AUTO])
        only = Quantizing(plugin, quantization.options)
        _check_fits(source, only, quantization, data.train)
        _check_read(source, [only], quantization, data.train)
        return [only], {}
    if not data.validation:
        raise CompressError("--method auto compares on validation rows; give labelled ones with --validation FILE")
    if quantization.options:
        raise CompressError("--method auto chooses options; name a method to set them, see 'compress list quantizers'")
    every = [
        Quantizing(plugin, options)
        for plugin in (plugins.find("quantizers", name) for name in plugins.names("quantizers"))
        for options in getattr(plugin.load(), "CANDIDATES", ())
    ]
    found: list[Quantizing] = []
    refused: dict[str, str] = {}
    for candidate in every:
        try:
            _check_fits(source, candidate, quantization, data.train)
            found.append(candidate)
        except CompressError as error:
            refused[candidate.name] = str(error)
    if not found:
        raise CompressError(next(iter(refused.values())))
    _check_read(source, found, quantization, data.train)
    return found, refused


def default_method(source: ModelDir) -> str:
    """Return the quantizer that a model was trained for, or ``onnx-dynamic``, which needs no training."""
    if source.config.get(WEIGHT_BITS):
        return "packed"
    return "onnx-qdq" if source.config.get(ACTIVATION_RANGES) else "onnx-dynamic"


def needs_training_rows(source: ModelDir, method: str | None, keep_fp32: int = 0) -> bool:
    """Tell whether a quantization needs training rows: for sensitivities, or for ranges that were not learned."""
    plugin = plugins.find("quantizers", method or default_method(source))
    return keep_fp32 > 0 or ("ranges" in plugin.parameters and not source.config.get(ACTIVATION_RANGES))


def reads_rows(source: ModelDir, candidate: Quantizing, keep_fp32: int) -> bool:
    """Tell whether making a candidate reads training rows."""
    return keep_fp32 > 0 or ("ranges" not in candidate.options and needs_training_rows(source, candidate.plugin.name))


def layers_in_fp32(source: ModelDir, train: Sequence[Example], count: int) -> dict[str, Any]:
    """Return notes on the most sensitive layers, which stay in float32: their numbers and all sensitivities.

    Raises:
        CompressError: these are all layers.
    """
    if not count:
        return {}
    found = measured_sensitivities(source, train)
    if count >= len(found):
        raise CompressError(f"--keep-fp32 {count} would leave nothing to quantize: the model has {len(found)} layers")
    kept = sorted(most_sensitive(found)[:count])
    return {LAYERS_IN_FP32: kept, "sensitivity by layer": found}


def make(
    source: ModelDir,
    candidate: Quantizing,
    train: Sequence[Example],
    fp32: Path,
    target: Path,
    *,
    notes: Mapping[str, Any],
) -> Quantizing:
    """Write a candidate's graph, or its packed weights, into a directory, and return it with that and its notes.

    Args:
        fp32: the directory of the graph to quantize.
        notes: those of :func:`layers_in_fp32`.

    Raises:
        CompressError: the method cannot quantize this graph.
    """
    prepared, notes = dict(candidate.options), dict(notes)
    if "ranges" in candidate.plugin.parameters and "ranges" not in prepared:
        learned = source.config.get(ACTIVATION_RANGES)
        prepared["ranges"] = learned or observed_ranges(source, train)
        notes["ranges"] = "learned in training" if learned else "observed on training rows"
        if not learned:
            prepared.setdefault("per_channel", True)  # the model was not trained for one scale a matrix
    if LAYERS_IN_FP32 in notes:
        prepared["keep_fp32"] = notes[LAYERS_IN_FP32]
    target.mkdir(parents=True, exist_ok=True)
    read, written = (source.load(plain=True), target) if candidate.packs else (graph_file(fp32), target / ONNX_NAME)
    advice = "use another --method, or give the torch directory that the graph was exported from"
    with faults_of(source.path, candidate.name, advice, verb="quantized by", own=not source.manifest.stage):
        candidate.plugin.function(read, written, **prepared)
    return replace(candidate, notes=notes, directory=target)


def _check_fits(source: ModelDir, candidate: Quantizing, quantization: Quantization, train: Sequence[Example]) -> None:
    """Refuse options that a method does not take, models that it does not read, and missing training rows."""
    plugin, keep_fp32 = candidate.plugin, quantization.keep_fp32
    # Ranges come from training or from calibration.
    if faults := plugin.check({**({"ranges": {}} if "ranges" in plugin.parameters else {}), **candidate.options}):
        raise CompressError("; ".join(faults))
    if source.is_packed:
        raise CompressError(f"{source.path} is packed already; give the model that it was made from")
    if source.is_onnx and candidate.packs:
        raise CompressError(f"{source.path} is an ONNX model; {plugin.name} needs the torch directory that it is of")
    if source.is_onnx and _has_int8_weights(graph_file(source.path)):
        raise CompressError(f"{source.path} is int8 already; give the model that it was made from")
    if keep_fp32 and "keep_fp32" not in plugin.parameters:
        raise CompressError(f"--keep-fp32 does not fit: {plugin.name} leaves no layer out; use --method onnx-dynamic")
    if keep_fp32 and "keep_fp32" in candidate.options:
        raise CompressError(
            "--keep-fp32 and --option keep_fp32 both say which layers stay in float32; give one of them"
        )
    if not reads_rows(source, candidate, keep_fp32):
        return
    if source.is_onnx:
        raise CompressError(
            f"{source.path} is an ONNX model, on which neither sensitivities nor ranges are measured; give the torch "
            "directory that it was exported from"
        )
    if not train:
        raise CompressError(
            "which layers are sensitive is measured on training rows; give labelled ones with --train FILE"
            if keep_fp32
            else f"{source.name} was not trained with ranges of activations, and {plugin.name} needs some; give "
            "labelled rows to measure them on with --train FILE, or train with --student q8bert"
        )


def _has_int8_weights(path: Path) -> bool:
    """Tell whether a graph computes with weights of 8 bits; the float32 one of ``cnn`` casts some zeros and ones."""
    graph = onnx.load(str(path), load_external_data=False).graph
    weights = {t.name for t in graph.initializer if t.data_type in {TensorProto.INT8, TensorProto.UINT8}}
    return any(not weights.isdisjoint(node.input) for node in graph.node if node.op_type != "Cast")


def _check_read(
    source: ModelDir, candidates: Sequence[Quantizing], quantization: Quantization, train: Sequence[Example]
) -> None:
    """Refuse training rows that no candidate reads."""
    if train and not any(reads_rows(source, one, quantization.keep_fp32) for one in candidates):
        name = quantization.method or candidates[0].plugin.name
        raise CompressError(f"--train would not be read: {name} measures nothing on rows here; leave it out")
