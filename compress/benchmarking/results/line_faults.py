"""What is wrong with a result line that somebody else may have made, before anything divides by its numbers."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, get_args, get_origin

from compress.benchmarking.results.schema import CLOCKS, FIELDS, PREDICTIONS_KEPT, names_of
from compress.evaluation.metrics import METRICS
from compress.recipes.parsing import LARGEST_NUMBER

LARGEST_MS = 1e9  # eleven days
MOST_SAMPLES = 200_000  # 10,000 rounds of 20 batches
_LEAST_ABOVE_ZERO = 1e-12

Rule = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= 0


def _is_number_or_null(value: Any) -> bool:
    return value is None or _is_number(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


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
_COUNTED_FROM_ONE = ("threads", "batch_size", "rounds", "data_rows")
_ABOVE_ZERO = ("speedup", "throughput", "latency_p", "latency_cold", "size_ratio", "parameters_ratio")
_MAY_BE_NEGATIVE = ("metric", "metric_low", "metric_high", "metric_kept_percent", "agreement")
_INTERVALS = ("speedup", "speedup_with_tokenizer", "speedup_same_runtime", "metric", "difference_points")


def faults(line: object) -> list[str]:
    """Return everything about a line that is not as the table says, as short phrases; none if it is right."""
    if not isinstance(line, dict):
        return ["it is not an object"]
    found = [f"it has no {f.name}" for f in FIELDS.values() if f.name not in line and not f.optional]
    found += [f"{name} is unknown" for name in line if name not in FIELDS]
    found += [f"{name} is not of type {FIELDS[name].kind}" for name in line if name in FIELDS and not _fits(name, line)]
    return found or [*_value_faults(line), *_sample_faults(line)]


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
    if origin is float:
        return _is_number
    if origin is int:
        return lambda value: isinstance(value, int) and _is_number(value)
    return lambda value: origin is Any or isinstance(value, origin)


def _value_faults(line: Mapping[str, Any]) -> Iterator[str]:
    """Say which values no benchmark measures."""
    for name, value in line.items():
        if FIELDS[name].kind not in ("integer", "number") or value is None:
            continue
        least = 1 if name in _COUNTED_FROM_ONE else _LEAST_ABOVE_ZERO if name.startswith(_ABOVE_ZERO) else 0
        if value < least and not name.startswith("difference") and name not in _MAY_BE_NEGATIVE:
            yield f"{name} = {value} is too small"
    if line["kind"] == "pruning-step" and not line["parents"]:
        yield "parents do not name the pruned model that the step is of"
    curve = line.get("validation_curve", ())
    steps = [point[0] for point in curve if len(point) == 2]
    if len(steps) < len(curve) or steps != sorted({step for step in steps if step >= 0}):
        yield "validation_curve is not of ascending steps, each with a score"
    if line["metric_name"] is not None and line["metric_name"] not in METRICS:
        yield f"metric_name is none of {', '.join(METRICS)}"
    if line["metric"] is not None and line["metric_name"] is None:
        yield "metric has no name"
    if (line["metric"] is None) != (line["difference_points"] is None):
        yield "metric stands without difference_points, or these without it"
    flipped = (line["flips_lost_rows"] or 0) + (line["flips_won_rows"] or 0)
    if line["metric_name"] is not None and line["metric_rows"] < max(1, flipped):
        yield "metric_rows are fewer than the rows that flipped"
    for name in _INTERVALS:
        _, low, high = (line.get(one) for one in names_of(name))
        if low is not None and high is not None and low > high:
            yield f"{name} has an interval that ends before it begins"


def _sample_faults(line: Mapping[str, Any]) -> Iterator[str]:
    """Say what is wrong with what figures are computed of again: samples of latency, and predictions."""
    if line["clock"] not in CLOCKS:
        yield f"clock is none of {', '.join(CLOCKS)}"
    rounds = [line.get(name, ()) for name in ("latency_ms", "latency_cpu_ms")]
    if any(sum(map(len, samples)) > MOST_SAMPLES for samples in rounds):
        yield f"latency_ms has more than {MOST_SAMPLES:,} times"
    if len(rounds[0]) < 2 or not all(rounds[0]):
        yield "latency_ms has fewer than two rounds, or a round without batches"
    if not all(0 < value < LARGEST_MS for samples in rounds for batches in samples for value in batches):
        yield "latency_ms has times that no benchmark measures"
    if line["clock"] == "cpu" and len({tuple(map(len, samples)) for samples in rounds}) > 1:
        yield "latency_cpu_ms has other batches than latency_ms"
    known = METRICS.get(line["metric_name"] or "")
    flips = [*line["flips_lost"], *line["flips_won"]]
    if known and known.task != "regression":
        for name, key, lowest in (("predictions", "predicted", -1), ("gold", "gold", 0)):  # -1: no answer
            classes = range(lowest, len(line["labels"]))
            if any(value not in classes for value in line.get(name, ())):
                yield f"{name} has classes that are not in labels"
            if any(one[key] not in classes for one in flips):
                yield f"flips have classes as {key} that are not in labels"
    for name in ("predictions", "gold"):
        if len(line.get(name, ())) not in (0, line["data_rows"]):
            yield f"{name} has other rows than data_rows says"
        if len(line.get(name, ())) > PREDICTIONS_KEPT:  # whose intervals would take hours
            yield f"{name} has more rows than the {PREDICTIONS_KEPT:,} that are kept"
    if any(one["row"] >= line["data_rows"] for one in flips):
        yield "flips have rows beyond data_rows"
