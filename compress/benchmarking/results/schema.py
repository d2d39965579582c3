"""What a line of results may say: every field with its type, unit and meaning.

This table is the only definition. It makes the JSON schema (``docs/results.schema.json``) that other programs rely on,
lines are held to it when they are written and read, and a field that is not in it cannot be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA = 2


@dataclass(frozen=True)
class Field:
    """A field: its JSON type, what it means, and whether it may be null or left out of a line.

    ``kind`` is ``string``, ``integer``, ``number``, ``boolean``, ``array`` or ``object``.
    """

    name: str
    kind: str
    meaning: str
    null: bool = False
    optional: bool = False


def _fields(*rows: tuple[str, str, str]) -> tuple[Field, ...]:
    """Read rows of name, type and meaning; ``?`` after a type means null is possible, ``~`` that it may be left out."""
    return tuple(Field(n, kind.rstrip("?~"), meaning, "?" in kind, "~" in kind) for n, kind, meaning in rows)


WHO = _fields(
    ("schema", "integer", "version of this table"),
    ("study", "string", "study the line belongs to; empty outside one"),
    ("model", "string", "name of what was measured, unique within a run"),
    (
        "kind",
        "string",
        "teacher, model, control (undistilled), baseline (gold labels only), competitor (another tool); with random "
        "weights reference-model (a published size) or pruning-step (a pruned model, the first of parents, before its "
        "last removals)",
    ),
    ("recipe", "string", "recipe that made it; empty if none"),
    ("control_of", "string", "for a control: the model it is the control of, or the first of several"),
    ("control", "string~", "for a model: the control that belongs to it; empty where none was measured"),
    ("stage", "string", "stage that made it: finetune, distill, prune, quantize, export; empty if none of ours"),
    ("quantizer", "string~", "of stage quantize: onnx-dynamic or onnx-qdq, both int8, or packed: size only"),
    ("parents", "array", "sha256 of the models it was made from, nearest first"),
    ("removals", "array~", "what compress prune took of it in turn: vocabulary, layers, heads, neurons, hidden"),
    ("training_seed", "integer?", "seed it was trained with"),
    ("training_steps", "integer?~", "optimiser steps that a student or teacher of ours took; null for what has none"),
    ("training_batch_size", "integer?~", "rows of each step; null for what has none, or where phases differ"),
    ("budget", "string~", "budget of the study that it was trained at; left out where the study has none"),
    ("model_sha256", "string", "hash of its files; empty where there are none"),
    ("tokenizer_sha256", "string", "hash of its tokenizer; empty where it has none"),
)
SETTING = _fields(
    ("runtime", "string", "what ran it: a runtime, a competitor, or the library of a baseline"),
    ("device", "string", "cpu or cuda"),
    ("threads", "integer", "processor threads and cores of its process"),
    ("batch_size", "integer", "rows in a batch; the smallest measured one stands for latency"),
    ("length", "integer?", "tokens of every row; null: as long as the data's own rows"),
    ("padding", "string", "longest (of the batch), or max_length (all to max_length)"),
    ("max_length", "integer", "tokens a row is cut to; 0 where it has none"),
    ("tokenizer_inside", "boolean", "true where tokenisation cannot be told from the model's own time"),
    ("rounds", "integer", "interleaved rounds"),
    ("seed", "integer", "seed of the order of models and of the drawn rows"),
    ("command", "string", "what was typed"),
    ("created", "string", "when, ISO 8601 in UTC; the same for all lines of a run"),
)
SPEED = _fields(
    ("latency_ms", "array", "model time of every batch, one list a round, in milliseconds"),
    ("latency_p50_ms", "number", "median"),
    ("latency_p90_ms", "number", "90th percentile"),
    ("latency_p95_ms", "number", "95th percentile"),
    ("latency_p95_low_ms", "number", "its 95% interval, bootstrap over rounds"),
    ("latency_p95_high_ms", "number", "its 95% interval, bootstrap over rounds"),
    ("latency_p99_ms", "number", "99th percentile"),
    ("tokenize_p50_ms", "number", "median time to tokenise a batch; 0 where it is inside"),
    ("device_p50_ms", "number?", "median time on the GPU alone, by CUDA events"),
    ("throughput_rows_per_second", "number", "median over rounds, model alone"),
    ("throughput_with_tokenizer_rows_per_second", "number", "median over rounds, tokenisation and model in sequence"),
    ("throughput_tokens_per_second", "number?", "median over rounds, tokens without padding; null where it has none"),
    ("speedup", "number", "times as fast as the teacher in torch fp32: median over rounds of the ratio"),
    ("speedup_low", "number", "its 95% interval"),
    ("speedup_high", "number", "its 95% interval"),
    ("speedup_with_tokenizer", "number", "the same, tokenised on both sides; for tokenizer_inside both are this"),
    ("speedup_with_tokenizer_low", "number", "its 95% interval"),
    ("speedup_with_tokenizer_high", "number", "its 95% interval"),
    ("speedup_same_runtime", "number?", "times as fast as the teacher in this runtime; null where it did not run"),
    ("speedup_same_runtime_low", "number?", "its 95% interval"),
    ("speedup_same_runtime_high", "number?", "its 95% interval"),
    ("noise", "number", "relative spread of one batch repeated in every round: 0.02 is 2%"),
    ("noisy", "boolean", "true where the host was too noisy for speeds of this line to decide anything"),
    ("warm_up_stable", "boolean", "false where warm-up ended before times settled"),
    ("energy_joules_per_row", "number?", "measured by RAPL or NVML; null without a counter, or where it is too slow"),
    ("flops_per_row", "number?", "multiply-adds times two of a row, padding included, as torch counts them"),
    ("matmul_peak_tflops", "number?", "fastest matrix product measured on this device in this precision"),
    ("matmul_peak_share", "number?", "share of that peak which the model reached"),
    ("load_ms", "number", "from files to the first answer"),
    ("peak_memory_bytes", "integer", "of its process"),
    ("model_memory_bytes", "integer", "of it, above what the libraries held before the model was loaded"),
    ("peak_gpu_memory_bytes", "integer?", "as torch counts it"),
)
QUALITY = _fields(
    ("metric_name", "string?", "accuracy, f1, macro-f1, matthews, pearson, spearman; null with random weights"),
    ("metric", "number?", "as a fraction"),
    ("metric_low", "number?", "its 95% interval"),
    ("metric_high", "number?", "its 95% interval"),
    ("metric_rows", "integer", "rows it was computed on; words of a tagger, whose intervals draw whole sentences"),
    ("metric_kept_percent", "number?", "of the teacher's metric"),
    ("difference_points", "number?", "metric minus the teacher's on the same rows, in points"),
    ("difference_low", "number?", "its paired 95% interval"),
    ("difference_high", "number?", "its paired 95% interval"),
    ("mcnemar_p", "number?", "exact McNemar test against the teacher; null for regression and tagging"),
    ("agreement", "number?", "share of rows predicted as the teacher does; for regression the correlation"),
    ("calibration_error", "number?", "expected calibration error, 15 bins of equal count; null without probabilities"),
    ("calibration_error_low", "number?", "its 95% interval"),
    ("calibration_error_high", "number?", "its 95% interval"),
    ("classes", "array", "one object a class: label, rows, recall, teacher_recall, difference_points, low, high"),
    ("flips_lost", "array", "rows only the teacher has right, worst first: row (and word), gold, predicted, change"),
    ("flips_won", "array", "rows only this has right, largest change first"),
    ("flips_lost_rows", "integer?", "how many there are; the list keeps the first 100"),
    ("flips_won_rows", "integer?", "how many there are; the list keeps the first 100"),
    ("predictions", "array~", "what each row (no word) is predicted to be; on the first line of a model and runtime"),
    ("gold", "array~", "gold labels; on the first line of the teacher in torch"),
)
SIZE = _fields(
    ("parameters", "integer", "weights; 0 where there are none"),
    ("size_bytes", "integer", "of its weights on disk"),
    ("directory_bytes", "integer", "of all its files, tokenizer included"),
    ("parameters_ratio", "number?", "the teacher's over its own"),
    ("size_ratio", "number?", "the teacher's over its own"),
    ("shape", "object~", "its type, layers, hidden_size and vocabulary_size, as far as its config says"),
    ("heads_per_layer", "array?", "attention heads left in each layer"),
    ("ffn_per_layer", "array?", "feed-forward width left in each layer"),
)
WHERE = _fields(
    ("data", "string", "name of the test set"),
    ("data_sha256", "string", "hash of its rows"),
    ("split", "string", "role of the set: test"),
    ("data_rows", "integer", "rows of it"),
    ("labels", "array", "names of the classes in order"),
    ("tokens_median", "number", "tokens of a row"),
    ("tokens_p95", "number", "tokens of a row, 95th percentile"),
    ("tokens_max", "integer", "tokens of the longest row"),
    ("host", "object", "processor, instruction sets, cores, memory, system, GPU"),
    ("host_id", "string", "short fingerprint of what decides speed"),
    ("versions", "object", "installed versions of what can change a number"),
    ("left_out", "array", "what was asked for but could not be measured here: objects of name and reason"),
)
GROUPS: Mapping[str, tuple[Field, ...]] = {
    "Who": WHO,
    "Setting": SETTING,
    "Speed": SPEED,
    "Quality": QUALITY,
    "Size": SIZE,
    "Data and host": WHERE,
}
FIELDS: Mapping[str, Field] = {field.name: field for group in GROUPS.values() for field in group}

_PYTHON: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
}


def faults(line: object) -> list[str]:
    """Return everything about a line that is not as the table says, as short phrases; none if it is right."""
    if not isinstance(line, dict):
        return ["it is not an object"]
    found = [f"it has no {f.name}" for f in FIELDS.values() if f.name not in line and not f.optional]
    found += [f"{name} is unknown" for name in line if name not in FIELDS]
    found += [f"{name} is not of type {FIELDS[name].kind}" for name in line if name in FIELDS and not _fits(name, line)]
    return found


def _fits(name: str, line: Mapping[str, Any]) -> bool:
    field, value = FIELDS[name], line[name]
    if value is None:
        return field.null
    return isinstance(value, _PYTHON[field.kind]) and (field.kind == "boolean" or not isinstance(value, bool))


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of one line."""
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
