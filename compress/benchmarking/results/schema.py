"""The schema of result lines: a frozen dataclass whose annotations give each field's type, range and meaning.

The JSON schema (``docs/results.schema.json``) and the table of fields in ``benchmarks/results/README.md`` are derived
from it. Lines are validated when they are written and read, and unknown fields are refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import pydantic
from pydantic_core import ArgsKwargs, core_schema

from compress.inference.speedup_intervals import PERCENTILES, Interval
from compress.recipes.parsing import LARGEST_NUMBER
from compress.tasks import metrics_by_name

SCHEMA = 5
FIRST_WITH_LABELS = 5  # the schema from which times "with tokenizer" end with labels; before, they ended with logits
REFERENCE_RUNTIME = "torch"  # what a user of the teacher runs today
PREDICTIONS_KEPT = 10_000  # of a set with more rows no line keeps them
TEXT_RATE = "throughput_with_tokenizer_rows_per_second"  # the throughput of reports
LARGEST_MS = 1e9  # eleven days
MOST_SAMPLES = 200_000  # 10,000 rounds of 20 batches

Fields = dict[str, Any]  # some fields of a line by name, while it is put together
Record = TypeVar("Record", bound=type)

# Numbers are those that can be computed with.
Number = Annotated[float, pydantic.Field(strict=True, gt=-LARGEST_NUMBER, lt=LARGEST_NUMBER)]
Amount = Annotated[float, pydantic.Field(strict=True, ge=0, lt=LARGEST_NUMBER)]
AboveZero = Annotated[float, pydantic.Field(strict=True, ge=1e-12, lt=LARGEST_NUMBER)]
Whole = Annotated[int, pydantic.Field(strict=True, gt=-LARGEST_NUMBER, lt=LARGEST_NUMBER)]
Count = Annotated[int, pydantic.Field(strict=True, ge=0, lt=LARGEST_NUMBER)]
FromOne = Annotated[int, pydantic.Field(strict=True, ge=1, lt=LARGEST_NUMBER)]
LabelSet = Annotated[str, pydantic.Field(strict=True, pattern="^[01]{1,10000}$")]
Answer = Whole | Number | LabelSet  # the number of a class, a score, or whether each label is there


@dataclass(frozen=True)
class Keys:
    """The keys that are read of an object in a line, with their types; it may have others, which are kept."""

    required: Mapping[str, Any]
    optional: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> Any:
        field_of = core_schema.typed_dict_field
        found = {name: field_of(handler.generate_schema(kind)) for name, kind in self.required.items()}
        for name, kind in self.optional.items():
            found[name] = field_of(handler.generate_schema(kind), required=False)
        return core_schema.typed_dict_schema(found, extra_behavior="allow")


_RECALLS = ("recall", "teacher_recall", "difference_points", "low", "high")  # null where there are too few rows
_RECALL_BOUNDS = dict.fromkeys(("recall_low", "recall_high"), Number | None)  # which files of earlier versions lack
ClassRecall = Annotated[
    dict[str, Any],
    Keys(
        {"label": str, "rows": Count, **dict.fromkeys(_RECALLS, Number | None)},
        {
            **_RECALL_BOUNDS,
            **dict.fromkeys(("lost", "won"), Count),
            **dict.fromkeys(("precision", "f1", "f1_low", "f1_high"), Amount),
            **dict.fromkeys(("average_precision", "average_precision_low", "average_precision_high"), Amount | None),
        },
    ),
]
_IN_SLICES = ("metric", "metric_low", "metric_high", "teacher_metric", "difference_points", "low", "high")
Slice = Annotated[dict[str, Any], Keys({"slice": str, "rows": Count, **dict.fromkeys(_IN_SLICES, Number | None)}, {})]
Flip = Annotated[
    dict[str, Any], Keys({"row": Count, "gold": Answer, "predicted": Answer, "change": Number}, {"word": Count})
]
LeftOut = Annotated[dict[str, str], Keys({"name": str, "reason": str}, {})]
_HOST = {
    "cpu": str,
    "cpu_flags": list[str],
    "cores": Count,
    "cpu_quota": Number | None,
    "system": str,
    "gpu": list[str],
}
Host = Annotated[dict[str, Any], Keys({}, _HOST)]
_SHAPE = {"type": str, "layers": Count, "hidden_size": Count, "vocabulary_size": Count}
Shape = Annotated[dict[str, Any], Keys({}, _SHAPE)]

# Figures that are followed by their lower and upper bound; files of earlier versions lack some of these.
BOUNDS, LATER_BOUNDS = object(), object()
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


def with_bounds(record: Record) -> Record:
    """Add the fields of the bounds behind each figure that is marked :data:`BOUNDS` or :data:`LATER_BOUNDS`."""
    hints = {}
    for name, hint in get_type_hints(record, include_extras=True).items():
        hints[name] = hint
        kind, *about = get_args(hint)
        if BOUNDS in about or LATER_BOUNDS in about:
            said = "its paired 95% interval" if name.startswith("difference") else "its 95% interval"
            later = LATER_BOUNDS in about or hasattr(record, name)
            for bound in names_of(name)[1:]:
                hints[bound] = Annotated[kind | None if later else kind, said]
                if later:
                    setattr(record, bound, None)
    record.__annotations__ = hints
    return record


class WithIntervals:
    """A record whose figures have their bounds in fields beside them."""

    __slots__ = ()

    def figure(self, name: str) -> Interval:
        """Return a figure that every record has, such as ``speedup``, with its 95% interval."""
        return Interval(*(getattr(self, one) for one in names_of(name)))

    def interval(self, name: str) -> Interval | None:
        """Return a figure, such as ``speedup`` or ``difference_points``, with its 95% interval; None without one."""
        found = self.figure(name)
        return None if None in found else found


@pydantic.with_config(pydantic.ConfigDict(extra="forbid", allow_inf_nan=False))
@dataclass(frozen=True, slots=True, kw_only=True)
@with_bounds
class Measurement(WithIntervals):
    """One result: a model in a runtime at one setting. Optional fields have a default and may be left out of a file."""

    # Who
    schema: Annotated[Count, "version of this table"]
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
    training_seed: Annotated[Count | None, "seed it was trained with"]
    training_steps: Annotated[
        Count | None, "optimiser steps that a student or teacher of ours took; null for what has none"
    ] = None
    training_batch_size: Annotated[
        Count | None, "rows of each step; null for what has none, or where phases differ"
    ] = None
    validation_curve: Annotated[
        list[list[Number]],
        "of a student or teacher of ours: step and score of each evaluation on validation rows, in its last phase",
    ] = field(default_factory=list)
    validation_metric: Annotated[str, "name of that score"] = ""
    unlabeled_rows: Annotated[
        Count | None, "rows without labels that a student read; null for a control, and for what has none"
    ] = None
    budget: Annotated[str, "budget of the study that it was trained at; left out where the study has none"] = ""
    model_sha256: Annotated[str, "hash of its files; empty where there are none"]
    tokenizer_sha256: Annotated[str, "hash of its tokenizer; empty where it has none"]
    # Setting
    runtime: Annotated[str, "what ran it: a runtime, a competitor, or the library of a baseline"]
    device: Annotated[str, "cpu or cuda"]
    threads: Annotated[FromOne, "CPU threads and cores of its process"]
    batch_size: Annotated[FromOne, "rows in a batch; the smallest measured one stands for latency"]
    length: Annotated[Count | None, "tokens of every row; null: as long as the data's own rows"]
    padding: Annotated[str, "longest (of the batch), or max_length (all to max_length)"]
    max_length: Annotated[Count, "tokens a row is cut to; 0 where it has none"]
    truncated_rows: Annotated[
        Count | None,
        "rows of the data that are longer, and were cut; null where it has none, or another tool cuts them",
    ] = None
    tokenizer_inside: Annotated[pydantic.StrictBool, "true where tokenisation cannot be told from the model's own time"]
    rounds: Annotated[FromOne, "interleaved rounds, as many as its precision needed or the time allowed"]
    group: Annotated[
        Count,
        "number of the group of models that had the same rounds, from 0; the teacher's lines are those of group 0",
    ] = 0
    seed: Annotated[Count, "seed of the order of models and of the drawn rows"]
    command: Annotated[str, "what was typed"]
    created: Annotated[str, "when, ISO 8601 in UTC; the same for all lines of a run"]
    # Speed
    clock: Annotated[
        Literal["cpu", "wall"],
        "what speed-ups compare: cpu, the CPU time of one thread, or wall for several threads and GPUs",
    ]
    latency_ms: Annotated[
        list[list[Number]],
        "wall-clock time of the model for every batch, one list a round, in milliseconds",
    ]
    latency_cpu_ms: Annotated[list[list[Number]], "the same in CPU time of the process"] = field(default_factory=list)
    latency_p50_ms: Annotated[AboveZero, "median, as observed on this host then, as all percentiles are", BOUNDS]
    latency_mean_ms: Annotated[Amount | None, "mean, which is what a cascade costs", BOUNDS] = None
    latency_p90_ms: Annotated[AboveZero, "90th percentile", BOUNDS]
    latency_p95_ms: Annotated[AboveZero, "95th percentile", BOUNDS]
    latency_p99_ms: Annotated[AboveZero, "99th percentile", BOUNDS]
    latency_cold_p50_ms: Annotated[
        AboveZero | None, "median of first calls right after another model's, which left its own data in the caches"
    ] = None
    tokenize_p50_ms: Annotated[
        Amount, "median time to tokenise a batch and to make labels of logits, as far as the model's own does neither"
    ]
    device_p50_ms: Annotated[Amount | None, "median time on the GPU alone, by CUDA events"]
    throughput_rows_per_second: Annotated[AboveZero, "as observed, model alone: median over rounds", BOUNDS]
    throughput_with_tokenizer_rows_per_second: Annotated[AboveZero, "as observed, from text to label", LATER_BOUNDS]
    throughput_tokens_per_second: Annotated[
        AboveZero | None, "as observed, tokens without padding; null where it has none", LATER_BOUNDS
    ]
    answered: Annotated[list[Number], "of a cascade: the share of the test rows that each member answers"] = field(
        default_factory=list
    )
    speedup: Annotated[
        AboveZero,
        "of the model alone: times as fast as the teacher in torch fp32, of the same batches, by clock",
        BOUNDS,
    ]
    speedup_with_tokenizer: Annotated[
        AboveZero,
        "from text to label (before schema 5 to logits), the speed-up of reports; for tokenizer_inside both are this",
        BOUNDS,
    ]
    speedup_same_runtime: Annotated[
        AboveZero | None, "times as fast as the teacher in this runtime; null where it did not run", BOUNDS
    ]
    noise: Annotated[Amount, "relative spread over rounds of the wall-clock time of batches as long: 0.02 is 2%"]
    warm_up_stable: Annotated[pydantic.StrictBool, "false where warm-up ended before times settled"]
    energy_joules_per_row: Annotated[
        Amount | None, "measured by RAPL or NVML; null without a counter, or where it is too slow"
    ]
    flops_per_row: Annotated[Amount | None, "multiply-adds times two of a row, padding included, as torch counts them"]
    matmul_peak_tflops: Annotated[Amount | None, "fastest matrix product measured on this device in this precision"]
    matmul_peak_share: Annotated[Amount | None, "share of that peak which the model reached"]
    load_ms: Annotated[Amount, "from files to the first answer"]
    peak_memory_bytes: Annotated[Count, "of its process"]
    model_memory_bytes: Annotated[Count, "of it, above what the libraries held before the model was loaded"]
    peak_gpu_memory_bytes: Annotated[Count | None, "as torch counts it"]
    # Quality
    metric_name: Annotated[
        str | None, "accuracy, f1, macro-f1, matthews, pearson, spearman, entity-f1, ...; null with random weights"
    ]
    metric: Annotated[Number | None, "as a fraction", BOUNDS]
    metric_rows: Annotated[Count, "rows it was computed on; words of a tagger, whose intervals draw whole sentences"]
    metric_queries: Annotated[
        Count | None, "queries with a relevant row, which a metric of rankings is a mean over; its intervals draw them"
    ] = None
    metric_kept_percent: Annotated[Number | None, "of the teacher's metric"]
    difference_points: Annotated[Number | None, "metric minus the teacher's on the same rows, in points", BOUNDS]
    mcnemar_p: Annotated[Amount | None, "exact McNemar test against the teacher; null for regression and tagging"]
    agreement: Annotated[Number | None, "share of rows predicted as the teacher does; for regression the correlation"]
    batch_dependent_share: Annotated[
        Amount | None,
        "share of the rows, up to 1,000 spread evenly, with another answer alone than in a batch of 32 (of a "
        "regression, by more than 0.001); null with random weights",
    ] = None
    calibration_error: Annotated[
        Amount | None, "expected calibration error, 15 bins of equal count; null without probabilities", BOUNDS
    ]
    classes: Annotated[
        list[ClassRecall],
        "one object a class: label, rows, recall, recall_low, recall_high, teacher_recall, difference_points, low, "
        "high, lost, won; where its rows are entities, precision, f1, f1_low, f1_high too; of up to 10 classes of "
        "texts average_precision, average_precision_low, average_precision_high",
    ]
    slices: Annotated[
        list[Slice],
        "one object for each slice that was asked for: slice, rows, metric, metric_low, metric_high, teacher_metric, "
        "difference_points, low, high",
    ] = field(default_factory=list)
    flips_lost: Annotated[
        list[Flip], "rows only the teacher has right, worst first: row (and word), gold, predicted, change"
    ]
    flips_won: Annotated[list[Flip], "rows only this has right, largest change first"]
    flips_lost_rows: Annotated[Count | None, "how many there are; the list keeps the first 100"]
    flips_won_rows: Annotated[Count | None, "how many there are; the list keeps the first 100"]
    predictions: Annotated[
        list[Answer], "what each row (no word) is predicted to be; on the first line of a model and runtime"
    ] = field(default_factory=list)
    gold: Annotated[list[Answer], "gold labels; on the first line of the teacher in torch"] = field(
        default_factory=list
    )
    # Size
    parameters: Annotated[Count, "weights; 0 where there are none"]
    size_bytes: Annotated[Count, "of its weights on disk"]
    directory_bytes: Annotated[Count, "of all its files, tokenizer included"]
    parameters_ratio: Annotated[AboveZero | None, "the teacher's over its own"]
    size_ratio: Annotated[AboveZero | None, "the teacher's over its own"]
    shape: Annotated[Shape, "its type, layers, hidden_size and vocabulary_size, as far as its config says"] = field(
        default_factory=dict
    )
    heads_per_layer: Annotated[list[Whole] | None, "attention heads left in each layer"]
    ffn_per_layer: Annotated[list[Whole] | None, "feed-forward width left in each layer"]
    # Data and host
    data: Annotated[str, "name of the test set"]
    data_sha256: Annotated[str, "hash of its rows"]
    split: Annotated[str, "role of the set: test"]
    data_rows: Annotated[FromOne, "rows of it"]
    labels: Annotated[list[str], "names of the classes in order"]
    tokens_median: Annotated[Amount, "tokens of a row"]
    tokens_p95: Annotated[Amount, "tokens of a row, 95th percentile"]
    tokens_max: Annotated[Count, "tokens of the longest row"]
    host: Annotated[Host, "CPU, instruction sets, cores, memory, system, GPU"]
    host_id: Annotated[str, "short fingerprint of what decides speed"]
    versions: Annotated[dict[str, str], "installed versions of what can change a number"]
    left_out: Annotated[list[LeftOut], "what was asked for but could not be measured here: objects of name and reason"]

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
    def speedup_field(self) -> str:
        """The field of :attr:`speedups`."""
        return "speedup_with_tokenizer" if self.length is None else "speedup"

    @property
    def speedups(self) -> Interval:
        """The speed-up over the teacher in torch from text to label; of rows of a fixed length, the model's alone."""
        return self.figure(self.speedup_field)

    @property
    def reach(self) -> str:
        """What :attr:`speedups` are of, in words."""
        if self.length is not None:
            return "of the model alone"
        return "from text to label" if self.schema >= FIRST_WITH_LABELS else "from text to logits"

    @property
    def text_p50_ms(self) -> Interval:
        """The median latency from text to label, as the sum of the medians; of rows of a fixed length the model's."""
        return self._text_ms("latency_p50_ms")

    @property
    def text_p95_ms(self) -> Interval:
        """The 95th percentile of the model's latency, and the median of the rest from text to label."""
        return self._text_ms("latency_p95_ms")

    def _text_ms(self, name: str) -> Interval:
        around_ms = 0.0 if self.length is not None else self.tokenize_p50_ms
        return Interval(*(end + around_ms for end in self.figure(name)))

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
        if self.metric_queries is not None:
            return self.metric_queries, "queries"
        return self.metric_rows, "words" if self.metric_rows > self.data_rows else "examples"

    def points_above(self, other: Self) -> float:
        """Return how much higher its metric is than another line's, in points; both have one."""
        assert self.metric is not None and other.metric is not None
        return 100 * (self.metric - other.metric)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a line of a file; optional ones that have their default are left out."""
        found = {name: getattr(self, name) for name in FIELDS}
        return {name: value for name, value in found.items() if value != FIELDS[name].default}

    @classmethod
    def read(cls, line: dict[str, Any]) -> Self:
        """Return a line of a file, which somebody else may have made: nothing divides by its numbers before.

        Raises:
            ValueError: its arguments are all faults, as short phrases.
        """
        try:
            _VALIDATOR.validate_python(ArgsKwargs((), line))
        except pydantic.ValidationError as error:
            raise ValueError(*dict.fromkeys(map(_phrase, error.errors(include_url=False)))) from None
        found = cls(**line)  # with the numbers as they are written
        if wrong := _value_faults(found):
            raise ValueError(*wrong)
        return found


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
    group: str

    @property
    def optional(self) -> bool:
        return self.default is not MISSING


_KINDS: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array"}
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
    found, group = {}, ""
    for one in fields(Measurement):
        group = _GROUP_STARTS.get(one.name, group)
        hint, *about = get_args(one.type)
        null = type(None) in get_args(hint)
        # Of a union the first, of Annotated what it annotates, of a literal the type of its values.
        while get_origin(hint) not in (None, list, dict):
            hint = get_args(hint)[0]
        kind = _KINDS.get(get_origin(hint) or hint, "string" if isinstance(hint, str) else "object")
        meaning = next(said for said in about if isinstance(said, str))
        default = one.default if one.default_factory is MISSING else one.default_factory()
        found[one.name] = Field(one.name, kind, meaning, null, default, group)
    return found


FIELDS = _read_fields()


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


_VALIDATOR = pydantic.TypeAdapter(Measurement)


def _phrase(fault: Any) -> str:
    """Say what pydantic found; a number inside an array or object, or beyond all bounds, is a matter of its type."""
    name, *inner = fault["loc"]
    match fault["type"]:
        case "missing_keyword_only_argument":
            return f"it has no {name}"
        case "unexpected_keyword_argument":
            return f"{name} is unknown"
        case "literal_error":
            return f"{name} is none of {fault['ctx']['expected']}"
        case "greater_than_equal" if not inner:
            return f"{name} = {fault['input']} is too small"
    return f"{name} is not of type {FIELDS[name].kind}"


def _are_odd(answers: Sequence[Any], least: int, labels: Sequence[str]) -> bool:
    """Tell whether some answers are neither classes from ``least`` on nor sets of the labels, or a mixture of both."""
    classes, sets = range(least, len(labels)), {len(answer) for answer in answers if isinstance(answer, str)}
    return sets != {len(labels)} if sets else any(answer not in classes for answer in answers)


def _value_faults(line: Measurement) -> list[str]:
    """Return which values no benchmark measures: figures, samples of latency, and predictions."""
    rows, flips, curve = line.data_rows, [*line.flips_lost, *line.flips_won], line.validation_curve
    flipped = (line.flips_lost_rows or 0) + (line.flips_won_rows or 0)
    steps = [point[0] for point in curve if len(point) == 2]
    metrics = metrics_by_name()
    metric = metrics.get(line.metric_name or "")
    of_classes = metric is not None and metric.of_classes
    both = (line.latency_ms, line.latency_cpu_ms)
    checks = [
        ("parents do not name the pruned model that the step is of", line.kind == "pruning-step" and not line.parents),
        (
            "validation_curve is not of ascending steps, each with a score",
            len(steps) < len(curve) or steps != sorted({step for step in steps if step >= 0}),
        ),
        (f"metric_name is none of {', '.join(metrics)}", line.metric_name not in (None, *metrics)),
        ("metric has no name", line.metric is not None and line.metric_name is None),
        (
            "metric stands without difference_points, or these without it",
            (line.metric is None) != (line.difference_points is None),
        ),
        (
            "metric_rows are fewer than the rows that flipped",
            line.metric_name is not None and line.metric_rows < max(1, flipped),
        ),
        *(
            (f"{name} has an interval that ends before it begins", figure.low > figure.high)
            for name in ("speedup", "speedup_with_tokenizer", "speedup_same_runtime", "metric", "difference_points")
            if (figure := line.interval(name))
        ),
        (f"latency_ms has more than {MOST_SAMPLES:,} times", any(sum(map(len, one)) > MOST_SAMPLES for one in both)),
        (
            "latency_ms has fewer than two rounds, or a round without batches",
            len(line.latency_ms) < 2 or not all(line.latency_ms),
        ),
        (
            "latency_ms has times that no benchmark measures",
            not all(0 < value < LARGEST_MS for one in both for batches in one for value in batches),
        ),
        (
            "latency_cpu_ms has other batches than latency_ms",
            line.clock == "cpu" and [*map(len, line.latency_ms)] != [*map(len, line.latency_cpu_ms)],
        ),
        ("flips have rows beyond data_rows", any(one["row"] >= rows for one in flips)),
    ]
    for name, key, kept in (("predictions", "predicted", line.predictions), ("gold", "gold", line.gold)):
        in_flips = [one[key] for one in flips]
        least = -1 if key == "predicted" else 0  # that there was no answer
        checks += [
            (f"{name} has classes that are not in labels", of_classes and _are_odd(kept, least, line.labels)),
            (
                f"flips have classes as {key} that are not in labels",
                of_classes and _are_odd(in_flips, least, line.labels),
            ),
            (f"{name} has other rows than data_rows says", len(kept) not in (0, rows)),
            # Their intervals would take hours.
            (f"{name} has more rows than the {PREDICTIONS_KEPT:,} that are kept", len(kept) > PREDICTIONS_KEPT),
        ]
    return [fault for fault, is_wrong in checks if is_wrong]
