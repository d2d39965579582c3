"""The ways to quantize a model: which there are, whether they fit, and making one.

A method is one candidate. ``auto`` takes all that quantizers name as their ``CANDIDATES``: sets of their options.
Training rows give ranges of activations, and tell which layers are sensitive.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import Tensor, nn

from compress import plugins
from compress.data import Example, LabelledData
from compress.data.tokenization import encode, maximum_length, pad
from compress.errors import CompressError, refuse
from compress.files import faults_of
from compress.inference.speedup_intervals import Interval
from compress.models.graph_files import graph_file
from compress.models.integer_rounding import ACTIVATION_RANGES, WEIGHT_BITS
from compress.models.manifest import ONNX_NAME
from compress.models.model_dir import ModelDir
from compress.quantization.fake_layers import FakeLayers, quantized_modules
from compress.quantization.hessian_sensitivity import (
    PART_ROWS,
    PARTS,
    answers_of,
    layer_sensitivities,
    most_sensitive,
)
from compress.requests.compression import Quantize

AUTO = "auto"
LAYERS_IN_FP32 = "layers in fp32"
CALIBRATION_ROWS, CALIBRATION_BATCH_ROWS = 512, 32
# Of the moving average over 16 batches: an outlier of the first one has lost 80% of its weight at the end.
_DECAY = 0.9


@dataclass(frozen=True)
class Check:
    """The comparison of int8 with fp32; ``reasons`` says why int8 is refused, and is empty where it is accepted."""

    metric: str
    fp32: float
    int8: float
    rows: int
    agreement: float
    largest_logit_difference: float
    speedups: Mapping[int, Interval] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    @property
    def mean_speedup(self) -> float:
        """The geometric mean over batch sizes; 1 where nothing was timed."""
        return float(np.exp(np.mean([np.log(ratio.value) for ratio in self.speedups.values()] or [0.0])))


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


def candidates_for(source: ModelDir, request: Quantize, data: LabelledData) -> tuple[list[Quantizing], dict[str, str]]:
    """Return what to make of a model, and why ``auto`` leaves out others, by name.

    Raises:
        CompressError: an unknown method or option, or a model or rows that do not fit.
    """
    method, keep_fp32 = request.method or default_method(source), request.keep_fp32
    if method == AUTO:
        refuse(
            (
                not data.validation,
                "--method auto compares on validation rows; give labelled ones with --validation FILE",
            ),
            (
                request.options,
                "--method auto chooses options; name a method to set them, see 'compress list quantizers'",
            ),
        )
        known = [plugins.find("quantizers", name) for name in plugins.names("quantizers")]
        every = [Quantizing(one, options) for one in known for options in getattr(one.load(), "CANDIDATES", ())]
    else:
        every = [Quantizing(plugins.find("quantizers", method, also=[AUTO]), request.options)]
    reasons = {one.name: _misfit(source, one, keep_fp32, data.train) for one in every}
    refused = {name: reason for name, reason in reasons.items() if reason}
    found = [one for one in every if one.name not in refused]
    reads = any(needs_training_rows(source, one.plugin.name, keep_fp32, one.options) for one in found)
    refuse(
        (not found, next(iter(refused.values()), "")),
        (data.train and not reads, f"--train would not be read: {method} measures nothing on rows here; leave it out"),
    )
    return found, refused


def default_method(source: ModelDir) -> str:
    """Return the quantizer that a model was trained for, or ``onnx-dynamic``, which needs no training."""
    if source.config.get(WEIGHT_BITS):
        return "packed"
    return "onnx-qdq" if source.config.get(ACTIVATION_RANGES) else "onnx-dynamic"


def needs_training_rows(
    source: ModelDir, method: str | None, keep_fp32: int = 0, options: Mapping[str, Any] | None = None
) -> bool:
    """Tell whether a quantization reads training rows: for sensitivities, or for ranges that are not known."""
    plugin = plugins.find("quantizers", method or default_method(source))
    known = "ranges" in (options or {}) or source.config.get(ACTIVATION_RANGES)
    return keep_fp32 > 0 or ("ranges" in plugin.parameters and not known)


def layers_in_fp32(source: ModelDir, train: Sequence[Example], count: int) -> dict[str, Any]:
    """Return notes on the most sensitive layers, which stay in float32: their numbers and all sensitivities.

    They are measured on labelled rows; for tagging on the model's own predictions.

    Raises:
        CompressError: these are all layers, labels that are not the model's, or a model that is no transformer.
    """
    if not count:
        return {}
    model, sample = source.load(), _sample(train, PARTS * PART_ROWS)
    batches = list(_batches(source, sample, PART_ROWS))
    if source.task.by_word:
        answers = [answers_of(model, inputs) for inputs in batches]
    else:
        gold = torch.tensor(source.task.gold(sample, source.labels, "train"))
        answers = list(gold.split(PART_ROWS))
    found = layer_sensitivities(model, list(zip(batches, answers, strict=True)))
    if count >= len(found):
        raise CompressError(f"--keep-fp32 {count} would leave nothing to quantize: the model has {len(found)} layers")
    return {LAYERS_IN_FP32: sorted(most_sensitive(found)[:count]), "sensitivity by layer": found}


def observed_ranges(source: ModelDir, rows: Sequence[Example]) -> dict[str, float]:
    """Return the largest magnitude of the inputs of every linear layer: a moving average over batches of rows."""
    model = source.load()
    modules = quantized_modules(model)
    layers = FakeLayers(modules, lambda _, weight: lambda found, __: found, activation_bits=8, decay=_DECAY)
    for module in modules.values():
        if isinstance(module, nn.Linear):
            module.train()  # it observes; nothing else about it depends on the mode
    with torch.no_grad():
        for inputs in _batches(source, _sample(rows, CALIBRATION_ROWS), CALIBRATION_BATCH_ROWS):
            model(**inputs)
    return layers.ranges()


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


def _misfit(source: ModelDir, candidate: Quantizing, keep_fp32: int, train: Sequence[Example]) -> str:
    """Return why a method cannot quantize a model with these options and rows; empty where it can."""
    plugin, path, name = candidate.plugin, source.path, candidate.plugin.name
    # Ranges come from training or from calibration.
    options = {**({"ranges": {}} if "ranges" in plugin.parameters else {}), **candidate.options}
    if faults := plugin.check(options):
        return "; ".join(faults)
    reads = needs_training_rows(source, name, keep_fp32, candidate.options)
    refusals = (
        (source.is_packed, f"{path} is packed already; give the model that it was made from"),
        (
            source.is_onnx and candidate.packs,
            f"{path} is an ONNX model; {name} needs the torch directory that it is of",
        ),
        (
            source.is_onnx and _has_int8_weights(graph_file(path)),
            f"{path} is int8 already; give the model that it was made from",
        ),
        (
            keep_fp32 and "keep_fp32" not in plugin.parameters,
            f"--keep-fp32 does not fit: {name} leaves no layer out; use --method onnx-dynamic",
        ),
        (
            keep_fp32 and "keep_fp32" in candidate.options,
            "--keep-fp32 and --option keep_fp32 both say which layers stay in float32; give one of them",
        ),
        (
            reads and source.is_onnx,
            f"{path} is an ONNX model, on which neither sensitivities nor ranges are measured; give the torch "
            "directory that it was exported from",
        ),
        (
            keep_fp32 and not train,
            "which layers are sensitive is measured on training rows; give labelled ones with --train FILE",
        ),
        (
            reads and not train,
            f"{source.name} was not trained with ranges of activations, and {name} needs some; give labelled rows to "
            "measure them on with --train FILE, or train with --student q8bert",
        ),
    )
    return next((text for applies, text in refusals if applies), "")


def _has_int8_weights(path: Path) -> bool:
    """Tell whether a graph computes with weights of 8 bits; float32 ones of small networks cast some zeros and ones."""
    graph = onnx.load(str(path), load_external_data=False).graph
    weights = {t.name for t in graph.initializer if t.data_type in {TensorProto.INT8, TensorProto.UINT8}}
    return any(not weights.isdisjoint(node.input) for node in graph.node if node.op_type != "Cast")


def _sample(rows: Sequence[Example], count: int) -> list[Example]:
    return random.Random(0).sample(list(rows), min(count, len(rows)))


def _batches(source: ModelDir, rows: Sequence[Example], size: int) -> Iterator[dict[str, Tensor]]:
    tokenizer = source.tokenizer
    limit = maximum_length(tokenizer, source.config)
    for start in range(0, len(rows), size):
        tokens = encode(tokenizer, rows[start : start + size], limit, by_word=source.task.by_word)
        tokens.pop("words", None)
        read = [{key: ids[row] for key, ids in tokens.items()} for row in range(len(tokens["input_ids"]))]
        yield {key: torch.from_numpy(ids) for key, ids in pad(read, tokenizer.pad_token_id or 0).items()}
