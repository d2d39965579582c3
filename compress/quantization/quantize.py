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

``auto`` makes a graph for each set of options that quantizers name as their ``CANDIDATES``, and keeps the one of those
that pass whose mean speed-up is the largest. Training rows give ranges of activations, and tell which layers are
sensitive.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import Tensor, nn

from compress import plugins
from compress.data import Example, LabelledData, check_roles
from compress.data.tokenization import maximum_length, pad, token_counts
from compress.data.windows import encode_rows
from compress.errors import CompressError, refuse
from compress.evaluation.metrics import Metric, agreement, answer_name
from compress.exporting.export import write_onnx
from compress.files import faults_of
from compress.inference.batching import open_runtime, runtime_for
from compress.inference.native.write import write_native
from compress.inference.predict import check_label_meaning
from compress.inference.runners import LoadedModel, time_in_turns
from compress.inference.speedup_intervals import Interval, speedup
from compress.inference.threads import default_threads
from compress.models.graph_files import copy_graph, graph_file, graph_with_data
from compress.models.integer_rounding import ACTIVATION_RANGES, WEIGHT_BITS
from compress.models.loading import copy_client_files, read_config
from compress.models.manifest import ONNX_NAME
from compress.models.model_dir import Model, check_unseen
from compress.models.output_dir import WORK_FOLDER
from compress.models.saving import describe_architecture, save_tokenizer
from compress.plugins import Plugin
from compress.progress import Advance
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
LIMITS = ("method", "options", "keep_fp32", "max_accuracy_drop", "min_agreement", "batch_sizes")
LAYERS_IN_FP32 = "layers in fp32"
CALIBRATION_ROWS, CALIBRATION_BATCH_ROWS = 512, 32
# Of the moving average over 16 batches: an outlier of the first one has lost 80% of its weight at the end.
_DECAY = 0.9
_TRAINED_FOR = {
    "packed": "trained for weights of few bits",
    "onnx-qdq": "trained with ranges of activations",
    "onnx-dynamic": "not trained for another",
}


@dataclass(frozen=True)
class Acceptance:
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

    def notes(self, made: str) -> dict[str, Any]:
        """Return what the manifest says of it, with the metric of what was ``made``: ``int8`` or ``packed``."""
        return {
            "fp32": self.fp32,
            made: self.int8,
            "agreement": self.agreement,
            "largest_logit_difference": self.largest_logit_difference,
            "speedup": {str(size): ratio._asdict() for size, ratio in self.speedups.items()},
        }


@dataclass(frozen=True)
class Quantizing:
    """A quantizer with options; once made, ``directory`` has its graph, and ``check`` compares it with fp32."""

    plugin: plugins.Plugin
    options: Mapping[str, Any]
    notes: Mapping[str, Any] = field(default_factory=dict)
    directory: Path = Path()
    check: Acceptance | None = None

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

    @property
    def outcome(self) -> dict[str, Any]:
        assert self.check is not None
        size = sum(file.stat().st_size for file in graph_with_data(graph_file(self.directory)))
        return {"bytes": size, **self.check.notes("int8"), "reasons": list(self.check.reasons)}


def quantize(request: Quantize) -> Model:
    """Write an int8 ONNX directory, or an fp32 one when int8 fails its check. ``manifest.notes`` says which and why.

    A torch directory is exported first. Rows of ``train`` measure sensitivities, or ranges that the model was not
    trained with; rows of ``validation``, that no stage was trained on, check the result.

    Raises:
        CompressError: quantized already, an unknown method or option, or a model or rows that do not fit.
    """
    source, data = Model.open(request.model), request.labelled
    candidates, refused = candidates_for(source, request, data)
    packs = candidates[0].packs
    metric = source.task.metric(data.metric, source.labels)
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
        working, progress = stage.working, request.progress
        fp32, architecture = source.path, source.manifest.architecture
        if packs:
            save_tokenizer(source.tokenizer, working)
            architecture = describe_architecture(source.network)
        else:
            with progress("Exporting", None):
                if not source.is_onnx:
                    (fp32 := working / WORK_FOLDER / "fp32").mkdir()
                    architecture = write_onnx(source, fp32)["architecture"]
                copy_client_files(fp32, working)
        with progress("Preparing", None):
            in_fp32 = layers_in_fp32(source, train, request.keep_fp32)
        made: list[Quantizing] = []
        for number, candidate in enumerate(candidates):
            target = working if packs else working / WORK_FOLDER / f"candidate-{number}"
            try:
                with progress(f"Quantizing by {candidate.name}", None):
                    one = make(source, candidate, train, fp32, target, notes=in_fp32)
            except CompressError as error:
                refused[candidate.name] = str(error)
                continue
            if rows:
                judge = Judge(source, fp32, target, request.threads)
                with progress("Checking int8", 2 * len(rows)) as advance:
                    one = replace(one, check=judge.check(rows, gold, metric, request, advance=advance))
            else:
                _check_opens(target, source)
            made.append(one)
        refuse((not made, next(iter(refused.values()), "")))
        best = max(made, key=lambda one: one.rank)
        method = best.plugin.name
        if not needs_training_rows(source, method, request.keep_fp32, best.options):
            entries = [entry for entry in entries if entry["role"] != "train"]
        if not packs:
            copy_graph(graph_file(fp32 if best.check and best.check.reasons else best.directory), working)
        notes = dict(best.notes) | ({} if packs else write_native(working))
        if request.method == AUTO:
            sizes = " and ".join(map(str, request.batch_sizes))
            reason = "the fastest that passes" if best.rank else "the first, as none passes,"
            notes["method"] = f"{best.name}, {reason} at batch size {sizes}"
            notes["candidates"] = {**{one.name: one.outcome for one in made}, **refused}
        elif not request.method:
            notes["method"] = f"{method}, because the model was {_TRAINED_FOR[method]}"
        stage.finish(
            architecture=architecture or {"model_type": source.config.get("model_type")},
            recipe={**{name: getattr(request, name) for name in LIMITS}, "method": method, "options": best.options},
            data=(*source.manifest.data, *entries),
            seeds=source.manifest.seeds,
            **_findings(best.check, packs, notes),
        )
    return Model.open(stage.output)


def candidates_for(source: Model, request: Quantize, data: LabelledData) -> tuple[list[Quantizing], dict[str, str]]:
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


def default_method(source: Model) -> str:
    """Return the quantizer that a model was trained for, or ``onnx-dynamic``, which needs no training."""
    if source.config.get(WEIGHT_BITS):
        return "packed"
    return "onnx-qdq" if source.config.get(ACTIVATION_RANGES) else "onnx-dynamic"


def needs_training_rows(
    source: Model, method: str | None, keep_fp32: int = 0, options: Mapping[str, Any] | None = None
) -> bool:
    """Tell whether a quantization reads training rows: for sensitivities, or for what it has to know and does not."""
    plugin = plugins.find("quantizers", method or default_method(source))
    known = {*(options or {}), *(["ranges"] if source.config.get(ACTIVATION_RANGES) else [])}
    return keep_fp32 > 0 or not known.issuperset(_measured(plugin))


def _measured(plugin: Plugin) -> set[str]:
    """Return the options of a quantizer that are measured on training rows where nobody gives them."""
    return {*plugin.parameters} & {"ranges", "counts"}


def layers_in_fp32(source: Model, train: Sequence[Example], count: int) -> dict[str, Any]:
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
    layers = len(found)
    refuse((count >= layers, f"--keep-fp32 {count} would leave nothing to quantize: the model has {layers} layers"))
    return {LAYERS_IN_FP32: sorted(most_sensitive(found)[:count]), "sensitivity by layer": found}


def observed_ranges(source: Model, rows: Sequence[Example]) -> dict[str, float]:
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
    source: Model,
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
    if "counts" in candidate.plugin.parameters and "counts" not in prepared:
        counted = token_counts(source.tokenizer, train)
        prepared["counts"] = [counted[token] for token in range(len(source.tokenizer))]
    if LAYERS_IN_FP32 in notes:
        prepared["keep_fp32"] = notes[LAYERS_IN_FP32]
    target.mkdir(parents=True, exist_ok=True)
    read, written = (source.load(plain=True), target) if candidate.packs else (graph_file(fp32), target / ONNX_NAME)
    advice = "use another --method, or give the torch directory that the graph was exported from"
    with faults_of(source.path, candidate.name, advice, verb="quantized by", own=not source.manifest.stage):
        candidate.plugin.function(read, written, **prepared)
    return replace(candidate, notes=notes, directory=target)


def _misfit(source: Model, candidate: Quantizing, keep_fp32: int, train: Sequence[Example]) -> str:
    """Return why a method cannot quantize a model with these options and rows; empty where it can."""
    plugin, path, name = candidate.plugin, source.path, candidate.plugin.name
    options = {**{option: {} for option in _measured(plugin)}, **candidate.options}
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
            f"{path} is an ONNX model, for which nothing is measured on training rows; give the torch directory that "
            "it was exported from",
        ),
        (
            keep_fp32 and not train,
            "which layers are sensitive is measured on training rows; give labelled ones with --train FILE",
        ),
        (
            reads and not train and "counts" in plugin.parameters,
            f"{name} counts the tokens of text like that which the model will read; give labelled rows of it with "
            "--train FILE",
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


def _batches(source: Model, rows: Sequence[Example], size: int) -> Iterator[dict[str, Tensor]]:
    tokenizer = source.tokenizer
    limit, windows = maximum_length(tokenizer, source.config), source.windows
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        tokens, _ = encode_rows(tokenizer, some, limit, windows, most=1, by_word=source.task.by_word)
        tokens.pop("words", None)
        read = [{key: ids[row] for key, ids in tokens.items()} for row in range(len(tokens["input_ids"]))]
        yield {key: torch.from_numpy(ids) for key, ids in pad(read, tokenizer.pad_token_id or 0).items()}


class Judge:
    """Compares the fp32 and the int8 directory of a model in the same runtime.

    Speed counts for ONNX graphs only: packed weights are unpacked before they run in ``torch``.
    """

    def __init__(self, source: Model, fp32: Path, int8: Path, threads: int) -> None:
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
    ) -> Acceptance:
        """Compare both on rows with gold labels ``[N]``; a model refused for its predictions is not timed.

        ``advance`` counts the rows that either has read.
        """
        reference = self.logits("fp32", rows, advance)
        sentences = self.task.clusters(rows, metric)
        fp32 = self.task.predictions(reference, sentences)
        check_label_meaning(fp32, gold, self.labels, "validation")
        expected = self.task.score(reference, gold, metric, sentences)
        try:
            logits = self.logits("int8", rows, advance)
        except CompressError:  # fp32 read the same rows, so that only the numbers can be at fault
            return Acceptance(
                metric.name, expected, 0.0, len(rows), 0.0, 0.0, {}, ("its logits are not finite numbers",)
            )
        int8 = self.task.predictions(logits, sentences)
        found, same = self.task.score(logits, gold, metric, sentences), agreement(int8, fp32)
        answered = np.isfinite(reference).all(axis=1)  # a word that was cut off has no logits
        classes = [answer_name(one, self.labels) for one in np.unique(int8[answered]).tolist()]
        drop, most = round(100 * (expected - found), 6), limits.max_accuracy_drop  # 3 of 300 rows are one point exactly
        faults = (
            (
                len(classes) == 1 < len(np.unique(fp32[answered])),
                f"it predicts {''.join(map(str, classes[:1]))} for all {answered.sum():,} rows",
            ),
            (drop > most, f"{metric.name} drops by {drop:.2f} points, more than the {most:g} allowed"),
            (
                same < limits.min_agreement,
                f"it agrees with fp32 on {same:.1%} of the rows, fewer than {limits.min_agreement:.1%}",
            ),
        )
        reasons = tuple(text for applies, text in faults if applies)
        speedups = {} if reasons or not self.timed else {size: self.time(rows, size) for size in limits.batch_sizes}
        difference = float(np.nanmax(np.abs(logits - reference)))
        check = Acceptance(metric.name, expected, found, len(rows), same, difference, speedups, reasons)
        if speedups and check.mean_speedup <= 1:
            shown = ", ".join(f"x{ratio.value:.2f} at batch size {size}" for size, ratio in speedups.items())
            return replace(check, reasons=(f"it is not faster on this host ({shown})",))
        return check

    def logits(self, name: str, rows: Sequence[Example], advance: Advance) -> np.ndarray:
        return self.models[name].logits(rows, advance)

    def time(self, rows: Sequence[Example], batch_size: int) -> Interval:
        samples = time_in_turns(self.models, rows, batch_size, self.threads)
        return speedup(samples["fp32"], samples["int8"])


def _check_opens(working: Path, source: Model) -> None:
    """Open the written model and run it, so that a broken graph is never returned."""
    run = open_runtime(working, threads=1, config=source.config)
    ids = np.full((2, 8), 1, dtype=np.int64)
    finite = np.isfinite(run({"input_ids": ids, "attention_mask": np.ones_like(ids)})).all()
    refuse((not finite, f"what was made of {source.path} does not give finite logits; keep the fp32 model"))


def _findings(check: Acceptance | None, packed: bool, found: Mapping[str, Any]) -> dict[str, Any]:
    made = "packed" if packed else "int8"
    notes: dict[str, Any] = {"precision": made, "checked": check is not None, **found}
    if check is None:
        notes["warning"] = f"{made} was not checked; repeat with --validation to compare it with fp32"
        return {"notes": notes, "metrics": ()}
    notes["check"] = check.notes(made)
    value = check.int8
    if check.reasons and packed:
        notes["warning"] = f"packed, it is not as good as what it was made from: {'; '.join(check.reasons)}"
    elif check.reasons:
        value = check.fp32
        notes |= {"precision": "fp32", "reason": f"kept fp32, because of int8: {'; '.join(check.reasons)}"}
    metric = {"name": check.metric, "value": value, "split": "validation", "rows": check.rows}
    return {"notes": notes, "metrics": (metric,)}
