"""The schema of result lines: a frozen dataclass whose annotations give each field's type and meaning.

The JSON schema (``docs/results.schema.json``) and the table of fields in ``benchmarks/results/README.md`` are derived
from it. Lines are validated when they are written and read, and unknown fields are refused.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Annotated, Any, Self, get_args, get_origin, get_type_hints

from compress.inference.speedup_intervals import PERCENTILES, Interval
from compress.recipes.parsing import LARGEST_NUMBER
from compress.tasks import metrics_by_name

SCHEMA = 4
CLOCKS = ("cpu", "wall")
REFERENCE_RUNTIME = "torch"  # what a user of the teacher runs today
PREDICTIONS_KEPT = 10_000  # of a set with more rows no line keeps them

Fields = dict[str, Any]  # some fields of a line by name, while it is put together


# Figures whose bounds are not called ``NAME_low`` and ``NAME_high``.
_BOUNDS = {
    "difference_points": "difference_{}",
    **{f"latency_{of}_ms": f"latency_{of}_{{}}_ms" for of in ("mean", *(f"p{rank}" for rank in PERCENTILES))},
}


def names_of(name: str) -> list[str]:
    """Return the fields of a figure, of its lower and of its upper bound."""
    bound = _BOUNDS.get(name, name + "_{}")
    return [name, bound.format("low"), bound.format("high")]


def interval_fields(name: str, figure: Iterable[float] | None) -> Fields:
    """Return a figure and its bounds as the fields that :meth:`Measurement.interval` reads; null without a figure."""
    return dict(zip(names_of(name), figure or (None, None, None), strict=True))


class WithIntervals:
    """A record whose figures have their bounds in fields beside them."""

    __slots__ = ()

    def interval(self, name: str) -> Interval | None:
        """Return a figure, such as ``speedup`` or ``difference_points``, with its 95% interval; None without one."""
        value, low, high = (getattr(self, one) for one in names_of(name))
        return None if value is None or low is None or high is None else Interval(value, low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(WithIntervals):
    """One result: a model in a runtime at one setting. Optional fields have a default and may be left out of a file."""

    # Who
    schema: Annotated[int, "version of this table"]
    study: Annotated[str, "study the line belongs to; empty outside one"]
    model: Annotated[str, "name of what was measured, unique within a run"]
    kind: Annotated[
        str,
        "teacher, model, cascade (of models), control (undistilled), baseline (gold labels only), competitor (another "
        "tool); with random weights reference-model (a published size) or pruning-step (a pruned model, the first of "
        "parents, before its last removals)",
    ]
    recipe: Annotated[str, "recipe that made it; empty if none"]
    control_of: Annotated[str, "for a control: the model it is the control of, or the first of several"]
    control: Annotated[str, "for a model: the control that belongs to it; empty where none was measured"] = ""
    stage: Annotated[str, "stage that made it: finetune, distill, prune, quantize, export; empty if none of ours"]
    quantizer: Annotated[
        str, "of stage quantize: onnx-dynamic or onnx-qdq, both int8, packed (size only), or float32, which was kept"
    ] = ""
    parents: Annotated[list[str], "sha256 of the models it was made from, nearest first"]
    removals: Annotated[
        list[str], "what compress prune took of it in turn: vocabulary, layers, heads, neurons, hidden"
    ] = field(default_factory=list)
    members: Annotated[list[str], "of a cascade: its models, in the order in which they are asked"] = field(
        default_factory=list
    )
    training_seed: Annotated[int | None, "seed it was trained with"]
    training_steps: Annotated[
        int | None, "optimiser steps that a student or teacher of ours took; null for what has none"
    ] = None
    training_batch_size: Annotated[int | None, "rows of each step; null for what has none, or where phases differ"] = (
        None
    )
    validation_curve: Annotated[
        list[list[float]],
        "of a student or teacher of ours: step and score of each evaluation on validation rows, in its last phase",
    ] = field(default_factory=list)
    validation_metric: Annotated[str, "name of that score"] = ""
    unlabeled_rows: Annotated[
        int | None, "rows without labels that a student read; null for a control, and for what has none"
    ] = None
    budget: Annotated[str, "budget of the study that it was trained at; left out where the study has none"] = ""
    model_sha256: Annotated[str, "hash of its files; empty where there are none"]
    tokenizer_sha256: Annotated[str, "hash of its tokenizer; empty where it has none"]
    # Setting
    runtime: Annotated[str, "what ran it: a runtime, a competitor, or the library of a baseline"]
    device: Annotated[str, "cpu or cuda"]
    threads: Annotated[int, "CPU threads and cores of its process"]
    batch_size: Annotated[int, "rows in a batch; the smallest measured one stands for latency"]
    length: Annotated[int | None, "tokens of every row; null: as long as the data's own rows"]
    padding: Annotated[str, "longest (of the batch), or max_length (all to max_length)"]
    max_length: Annotated[int, "tokens a row is cut to; 0 where it has none"]
    truncated_rows: Annotated[
        int | None, "rows of the data that are longer, and were cut; null where it has none, or another tool cuts them"
    ] = None
    tokenizer_inside: Annotated[bool, "true where tokenisation cannot be told from the model's own time"]
    rounds: Annotated[int, "interleaved rounds, as many as its precision needed or the time allowed"]
    group: Annotated[
        int, "number of the group of models that had the same rounds, from 0; the teacher's lines are those of group 0"
    ] = 0
    seed: Annotated[int, "seed of the order of models and of the drawn rows"]
    command: Annotated[str, "what was typed"]
    created: Annotated[str, "when, ISO 8601 in UTC; the same for all lines of a run"]
    # Speed
    clock: Annotated[
        str, "what speed-ups compare: cpu, the CPU time of one thread, or wall for several threads and GPUs"
    ]
    latency_ms: Annotated[
        list[list[float]],
        "wall-clock time of the model for every batch, one list a round, in milliseconds",
    ]
    latency_cpu_ms: Annotated[list[list[float]], "the same in CPU time of the process"] = field(default_factory=list)
    latency_p50_ms: Annotated[float, "median, as observed on this host then, as all percentiles are"]
    latency_p50_low_ms: Annotated[float, "its 95% interval"]
    latency_p50_high_ms: Annotated[float, "its 95% interval"]
    latency_mean_ms: Annotated[float | None, "mean, which is what a cascade costs"] = None
    latency_mean_low_ms: Annotated[float | None, "its 95% interval"] = None
    latency_mean_high_ms: Annotated[float | None, "its 95% interval"] = None
    latency_p90_ms: Annotated[float, "90th percentile"]
    latency_p90_low_ms: Annotated[float, "its 95% interval"]
    latency_p90_high_ms: Annotated[float, "its 95% interval"]
    latency_p95_ms: Annotated[float, "95th percentile"]
    latency_p95_low_ms: Annotated[float, "its 95% interval"]
    latency_p95_high_ms: Annotated[float, "its 95% interval"]
    latency_p99_ms: Annotated[float, "99th percentile"]
    latency_p99_low_ms: Annotated[float, "its 95% interval"]
    latency_p99_high_ms: Annotated[float, "its 95% interval"]
    latency_cold_p50_ms: Annotated[
        float | None, "median of first calls right after another model's, which left its own data in the caches"
    ] = None
    tokenize_p50_ms: Annotated[float, "median time to tokenise a batch; 0 where it is inside"]
    device_p50_ms: Annotated[float | None, "median time on the GPU alone, by CUDA events"]
    throughput_rows_per_second: Annotated[float, "as observed, model alone: median over rounds"]
    throughput_rows_per_second_low: Annotated[float, "its 95% interval"]
    throughput_rows_per_second_high: Annotated[float, "its 95% interval"]
    throughput_with_tokenizer_rows_per_second: Annotated[float, "as observed, tokenisation and model in sequence"]
    throughput_with_tokenizer_rows_per_second_low: Annotated[float | None, "its 95% interval"] = None
    throughput_with_tokenizer_rows_per_second_high: Annotated[float | None, "its 95% interval"] = None
    throughput_tokens_per_second: Annotated[float | None, "as observed, tokens without padding; null where it has none"]
    throughput_tokens_per_second_low: Annotated[float | None, "its 95% interval"] = None
    throughput_tokens_per_second_high: Annotated[float | None, "its 95% interval"] = None
    answered: Annotated[list[float], "of a cascade: the share of the test rows that each member answers"] = field(
        default_factory=list
    )
    speedup: Annotated[float, "times as fast as the teacher in torch fp32: of the same batches, by clock"]
    speedup_low: Annotated[float, "its 95% interval"]
    speedup_high: Annotated[float, "its 95% interval"]
    speedup_with_tokenizer: Annotated[float, "the same, tokenised on both sides; for tokenizer_inside both are this"]
    speedup_with_tokenizer_low: Annotated[float, "its 95% interval"]
    speedup_with_tokenizer_high: Annotated[float, "its 95% interval"]
    speedup_same_runtime: Annotated[
        float | None, "times as fast as the teacher in this runtime; null where it did not run"
    ]
    speedup_same_runtime_low: Annotated[float | None, "its 95% interval"]
    speedup_same_runtime_high: Annotated[float | None, "its 95% interval"]
    noise: Annotated[float, "relative spread over rounds of the wall-clock time of batches as long: 0.02 is 2%"]
    warm_up_stable: Annotated[bool, "false where warm-up ended before times settled"]
    energy_joules_per_row: Annotated[
        float | None, "measured by RAPL or NVML; null without a counter, or where it is too slow"
    ]
    flops_per_row: Annotated[float | None, "multiply-adds times two of a row, padding included, as torch counts them"]
    matmul_peak_tflops: Annotated[float | None, "fastest matrix product measured on this device in this precision"]
    matmul_peak_share: Annotated[float | None, "share of that peak which the model reached"]
    load_ms: Annotated[float, "from files to the first answer"]
    peak_memory_bytes: Annotated[int, "of its process"]
    model_memory_bytes: Annotated[int, "of it, above what the libraries held before the model was loaded"]
    peak_gpu_memory_bytes: Annotated[int | None, "as torch counts it"]
    # Quality
    metric_name: Annotated[str | None, "accuracy, f1, macro-f1, matthews, pearson, spearman; null with random weights"]
    metric: Annotated[float | None, "as a fraction"]
    metric_low: Annotated[float | None, "its 95% interval"]
    metric_high: Annotated[float | None, "its 95% interval"]
    metric_rows: Annotated[int, "rows it was computed on; words of a tagger, whose intervals draw whole sentences"]
    metric_kept_percent: Annotated[float | None, "of the teacher's metric"]
    difference_points: Annotated[float | None, "metric minus the teacher's on the same rows, in points"]
    difference_low: Annotated[float | None, "its paired 95% interval"]
    difference_high: Annotated[float | None, "its paired 95% interval"]
    mcnemar_p: Annotated[float | None, "exact McNemar test against the teacher; null for regression and tagging"]
    agreement: Annotated[float | None, "share of rows predicted as the teacher does; for regression the correlation"]
    batch_dependent_share: Annotated[
        float | None,
        "share of the rows, up to 1,000 spread evenly, with another answer alone than in a batch of 32 (of a "
        "regression, by more than 0.001); null with random weights",
    ] = None
    calibration_error: Annotated[
        float | None, "expected calibration error, 15 bins of equal count; null without probabilities"
    ]
    calibration_error_low: Annotated[float | None, "its 95% interval"]
    calibration_error_high: Annotated[float | None, "its 95% interval"]
    classes: Annotated[
        list[dict[str, Any]], "one object a class: label, rows, recall, teacher_recall, difference_points, low, high"
    ]
    flips_lost: Annotated[
        list[dict[str, Any]], "rows only the teacher has right, worst first: row (and word), gold, predicted, change"
    ]
    flips_won: Annotated[list[dict[str, Any]], "rows only this has right, largest change first"]
    flips_lost_rows: Annotated[int | None, "how many there are; the list keeps the first 100"]
    flips_won_rows: Annotated[int | None, "how many there are; the list keeps the first 100"]
    predictions: Annotated[
        list[float], "what each row (no word) is predicted to be; on the first line of a model and runtime"
    ] = field(default_factory=list)
    gold: Annotated[list[float], "gold labels; on the first line of the teacher in torch"] = field(default_factory=list)
    # Size
    parameters: Annotated[int, "weights; 0 where there are none"]
    size_bytes: Annotated[int, "of its weights on disk"]
    directory_bytes: Annotated[int, "of all its files, tokenizer included"]
    parameters_ratio: Annotated[float | None, "the teacher's over its own"]
    size_ratio: Annotated[float | None, "the teacher's over its own"]
    shape: Annotated[dict[str, Any], "its type, layers, hidden_size and vocabulary_size, as far as its config says"] = (
        field(default_factory=dict)
    )
    heads_per_layer: Annotated[list[int] | None, "attention heads left in each layer"]
    ffn_per_layer: Annotated[list[int] | None, "feed-forward width left in each layer"]
    # Data and host
    data: Annotated[str, "name of the test set"]
    data_sha256: Annotated[str, "hash of its rows"]
    split: Annotated[str, "role of the set: test"]
    data_rows: Annotated[int, "rows of it"]
    labels: Annotated[list[str], "names of the classes in order"]
    tokens_median: Annotated[float, "tokens of a row"]
    tokens_p95: Annotated[float, "tokens of a row, 95th percentile"]
    tokens_max: Annotated[int, "tokens of the longest row"]
    host: Annotated[dict[str, Any], "CPU, instruction sets, cores, memory, system, GPU"]
    host_id: Annotated[str, "short fingerprint of what decides speed"]
    versions: Annotated[dict[str, str], "installed versions of what can change a number"]
    left_out: Annotated[
        list[dict[str, str]], "what was asked for but could not be measured here: objects of name and reason"
    ]

    @property
    def is_reference(self) -> bool:
        """Whether it is the teacher in torch with dynamic padding, which every speed-up is relative to."""
        return self.kind == "teacher" and self.runtime == REFERENCE_RUNTIME and self.padding == "longest"

    @property
    def is_compressed(self) -> bool:
        """Whether it is what a user may take in place of the teacher: a model, or a cascade of models."""
        return self.kind in {"model", "cascade"}

    @property
    def title(self) -> str:
        return f"{self.model} in {self.runtime}"

    @property
    def speedups(self) -> Interval:
        """The speed-up over the teacher in torch, without tokenisation where it can be told apart."""
        return Interval(self.speedup, self.speedup_low, self.speedup_high)

    @property
    def cost_ms(self) -> list[list[float]]:
        """What speed-ups compare: what every batch took, a list a round, by :attr:`clock`."""
        return self.latency_cpu_ms if self.clock == "cpu" else self.latency_ms

    @property
    def difference(self) -> Interval | None:
        """The metric minus the teacher's in points; None where it has no metric."""
        return self.interval("difference_points")

    @property
    def counted(self) -> tuple[int, str]:
        """What the metric is a mean over: how many, and of what; of a tagger words, several to an example."""
        return self.metric_rows, "words" if self.metric_rows > self.data_rows else "examples"

    def points_above(self, other: Self) -> float:
        """Return how much higher its metric is than another line's, in points; both have one."""
        assert self.metric is not None and other.metric is not None
        return 100 * (self.metric - other.metric)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a line of a file; optional ones that have their default are left out."""
        found = {name: getattr(self, name) for name in FIELDS}
        return {name: value for name, value in found.items() if value != FIELDS[name].default}


@dataclass(frozen=True)
class Field:
    """A field of a line: its JSON type, its meaning, and whether it may be null or left out.

    ``kind`` is ``string``, ``integer``, ``number``, ``boolean``, ``array`` or ``object``.
    """

    name: str
    kind: str
    meaning: str
    null: bool
    default: Any  # MISSING where the field may not be left out
    hint: Any  # its annotation, without null

    @property
    def optional(self) -> bool:
        return self.default is not MISSING


# JSON type -> the Python types that hold it.
_PYTHON: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
}
# The first field of each group.
_GROUP_STARTS = {
    "schema": "Who",
    "runtime": "Setting",
    "clock": "Speed",
    "metric_name": "Quality",
    "parameters": "Size",
    "data": "Data and host",
}


def _read_fields() -> dict[str, Field]:
    hints = get_type_hints(Measurement, include_extras=True)
    found = {}
    for one in fields(Measurement):
        hint, meaning = get_args(hints[one.name])
        null = NoneType in get_args(hint)
        bare = get_args(hint)[0] if null else hint
        kind = next(kind for kind, types in _PYTHON.items() if (get_origin(bare) or bare) in types)
        default = one.default if one.default_factory is MISSING else one.default_factory()
        found[one.name] = Field(one.name, kind, meaning, null, default, bare)
    return found


FIELDS = _read_fields()


def groups() -> dict[str, list[Field]]:
    found: dict[str, list[Field]] = {}
    group = ""
    for one in FIELDS.values():
        group = _GROUP_STARTS.get(one.name, group)
        found.setdefault(group, []).append(one)
    return found


def json_schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of compress results",
        "type": "object",
        "properties": {
            f.name: {"type": [f.kind, "null"] if f.null else f.kind, "description": f.meaning} for f in FIELDS.values()
        },
        "required": [f.name for f in FIELDS.values() if not f.optional],
        "additionalProperties": False,
    }


LARGEST_MS = 1e9  # eleven days
MOST_SAMPLES = 200_000  # 10,000 rounds of 20 batches
_LEAST_ABOVE_ZERO = 1e-12
_COUNTED_FROM_ONE = ("threads", "batch_size", "rounds", "data_rows")
_ABOVE_ZERO = ("speedup", "throughput", "latency_p", "latency_cold", "size_ratio", "parameters_ratio")
_MAY_BE_NEGATIVE = ("metric", "metric_low", "metric_high", "metric_kept_percent", "agreement")
_INTERVALS = ("speedup", "speedup_with_tokenizer", "speedup_same_runtime", "metric", "difference_points")

Rule = Callable[[Any], bool]


def faults(line: object) -> list[str]:
    """Return everything about a line that is not as the table says, as short phrases; none if it is right.

    Somebody else may have made it: this comes before anything divides by its numbers.
    """
    if not isinstance(line, dict):
        return ["it is not an object"]
    found = [f"it has no {f.name}" for f in FIELDS.values() if f.name not in line and not f.optional]
    found += [f"{name} is unknown" for name in line if name not in FIELDS]
    found += [f"{name} is not of type {FIELDS[name].kind}" for name in line if name in FIELDS and not _fits(name, line)]
    return found or _value_faults(line)


def _fits(name: str, line: Mapping[str, Any]) -> bool:
    known, value = FIELDS[name], line[name]
    if value is None:
        return known.null
    if not _rule_of(known.hint)(value):
        return False
    needed, read = _KEYS.get(name, {}), _KEYS_READ.get(name, {})
    objects = value if isinstance(value, list | tuple) else [value]
    return not (needed or read) or all(
        needed.keys() <= one.keys() and all(rule(one[key]) for key, rule in {**needed, **read}.items() if key in one)
        for one in objects
    )


@cache  # made once for a type, not once for each of a hundred thousand samples
def _rule_of(hint: Any) -> Rule:
    """Return what tells whether a value of JSON is of a type, and so are its parts.

    Numbers are those that can be computed with.
    """
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin is list:
        of_item = _rule_of(inner[0])
        return lambda value: isinstance(value, list | tuple) and all(map(of_item, value))
    if origin is dict:
        of_value = _rule_of(inner[1])
        return lambda value: isinstance(value, dict) and all(map(of_value, value.values()))
    if origin in (int, float):
        return lambda value: (
            isinstance(value, int | float if origin is float else int)
            and not isinstance(value, bool)
            and abs(value) < LARGEST_NUMBER
        )
    return lambda value: origin is Any or isinstance(value, origin)


def _is_count(value: Any) -> bool:
    return _rule_of(int)(value) and value >= 0


def _is_number_or_null(value: Any) -> bool:
    return value is None or _rule_of(float)(value)


_is_text, _is_number, _are_texts = _rule_of(str), _rule_of(float), _rule_of(list[str])
_FLIP: Mapping[str, Rule] = {"row": _is_count, "gold": _is_number, "predicted": _is_number, "change": _is_number}
# Field -> the keys of each of its objects.
_KEYS: Mapping[str, Mapping[str, Rule]] = {
    "classes": {
        "label": _is_text,
        "rows": _is_count,
        **dict.fromkeys(("recall", "teacher_recall", "difference_points", "low", "high"), _is_number_or_null),
    },
    "flips_lost": _FLIP,
    "flips_won": _FLIP,
    "left_out": {"name": _is_text, "reason": _is_text},
}
# Field -> the keys that its objects may have, of those that are read.
_KEYS_READ: Mapping[str, Mapping[str, Rule]] = {
    "flips_lost": {"word": _is_count},
    "flips_won": {"word": _is_count},
    "host": {
        "cpu": _is_text,
        "cpu_flags": _are_texts,
        "cores": _is_count,
        "cpu_quota": _is_number_or_null,
        "system": _is_text,
        "gpu": _are_texts,
    },
    "shape": {"type": _is_text, "layers": _is_count, "hidden_size": _is_count, "vocabulary_size": _is_count},
}


def _value_faults(line: Mapping[str, Any]) -> list[str]:
    """Return which values no benchmark measures: figures, samples of latency, and predictions."""
    found = []
    for name, value in line.items():
        if FIELDS[name].kind in ("integer", "number") and value is not None:
            least = 1 if name in _COUNTED_FROM_ONE else _LEAST_ABOVE_ZERO if name.startswith(_ABOVE_ZERO) else 0
            if value < least and not name.startswith("difference") and name not in _MAY_BE_NEGATIVE:
                found.append(f"{name} = {value} is too small")
    metric, rows, flips = line["metric_name"], line["data_rows"], [*line["flips_lost"], *line["flips_won"]]
    flipped = (line["flips_lost_rows"] or 0) + (line["flips_won_rows"] or 0)
    curve = line.get("validation_curve", ())
    steps = [point[0] for point in curve if len(point) == 2]
    bounds = {name: [line.get(one) for one in names_of(name)[1:]] for name in _INTERVALS}
    latency, by_cpu = (line.get(name, ()) for name in ("latency_ms", "latency_cpu_ms"))
    kept = {name: line.get(name, ()) for name in ("predictions", "gold")}
    metrics = metrics_by_name()
    has_classes = metric in metrics and metrics[metric].of_classes
    # Of a prediction -1 says that there was no answer.
    classes = {"predictions": range(-1, len(line["labels"])), "gold": range(len(line["labels"]))} if has_classes else {}
    of_flips = {"predicted": classes["predictions"], "gold": classes["gold"]} if has_classes else {}
    checks = {
        "parents do not name the pruned model that the step is of": line["kind"] == "pruning-step"
        and not line["parents"],
        "validation_curve is not of ascending steps, each with a score": len(steps) < len(curve)
        or steps != sorted({step for step in steps if step >= 0}),
        f"metric_name is none of {', '.join(metrics)}": metric is not None and metric not in metrics,
        "metric has no name": line["metric"] is not None and metric is None,
        "metric stands without difference_points, or these without it": (line["metric"] is None)
        != (line["difference_points"] is None),
        "metric_rows are fewer than the rows that flipped": metric is not None
        and line["metric_rows"] < max(1, flipped),
        **{
            f"{name} has an interval that ends before it begins": low is not None and high is not None and low > high
            for name, (low, high) in bounds.items()
        },
        f"clock is none of {', '.join(CLOCKS)}": line["clock"] not in CLOCKS,
        f"latency_ms has more than {MOST_SAMPLES:,} times": any(
            sum(map(len, samples)) > MOST_SAMPLES for samples in (latency, by_cpu)
        ),
        "latency_ms has fewer than two rounds, or a round without batches": len(latency) < 2 or not all(latency),
        "latency_ms has times that no benchmark measures": not all(
            0 < value < LARGEST_MS for batches in (*latency, *by_cpu) for value in batches
        ),
        "latency_cpu_ms has other batches than latency_ms": line["clock"] == "cpu"
        and [*map(len, latency)] != [*map(len, by_cpu)],
        **{
            f"{name} has classes that are not in labels": any(value not in known for value in kept[name])
            for name, known in classes.items()
        },
        **{
            f"flips have classes as {key} that are not in labels": any(one[key] not in known for one in flips)
            for key, known in of_flips.items()
        },
        **{f"{name} has other rows than data_rows says": len(kept[name]) not in (0, rows) for name in kept},
        **{  # whose intervals would take hours
            f"{name} has more rows than the {PREDICTIONS_KEPT:,} that are kept": len(kept[name]) > PREDICTIONS_KEPT
            for name in kept
        },
        "flips have rows beyond data_rows": any(one["row"] >= rows for one in flips),
    }
    return found + [fault for fault, is_wrong in checks.items() if is_wrong]
