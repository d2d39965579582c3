"""What was measured becomes result lines: speed, accuracy, sizes and memory of every run, as flat fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compress import metrics
from compress.data import Example
from compress.measuring.contenders import Contender, Entry
from compress.measuring.results import Measurement, is_baseline
from compress.measuring.timing import Ratio, noise, percentiles, speedup, throughput
from compress.measuring.worker import Worker


@dataclass
class Run:
    """An entry with a thread count, its process, and what was measured so far."""

    entry: Entry
    threads: int
    worker: Worker
    loaded: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    warm: dict[int, bool] = field(default_factory=dict)
    turns: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def latency_ms(self, batch_size: int) -> list[list[float]]:
        return [turn["latency_ms"] for turn in self.turns[batch_size]]

    def tokenize_ms(self, batch_size: int) -> list[list[float]]:
        return [turn["tokenize_ms"] for turn in self.turns[batch_size]]

    def total_ms(self, batch_size: int) -> list[list[float]]:
        """Tokenisation and model together, batch by batch."""
        pairs = zip(self.latency_ms(batch_size), self.tokenize_ms(batch_size), strict=True)
        return [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]


@dataclass(frozen=True)
class Rows:
    """The test rows: what they are called, their fingerprint and their gold labels ``[N]``."""

    name: str
    sha256: str
    examples: list[Example]
    gold: np.ndarray


def accuracy_fields(
    runs: Sequence[Run], predicted: dict[str, np.ndarray], rows: Rows, metric: metrics.Metric
) -> dict[str, Measurement]:
    """Return the accuracy fields of each entry, by its title, against the teacher in torch."""
    baseline = next(run.entry for run in runs if run.entry.is_baseline)
    reference = predicted[baseline.title]
    classes = len(baseline.contender.model.labels)
    teacher_value = metrics.score(reference, rows.gold, metric=metric, classes=classes)
    found = {}
    for title, mine in predicted.items():
        value = metrics.score(mine, rows.gold, metric=metric, classes=classes)
        low, high = metrics.interval(mine, rows.gold, metric=metric, classes=classes)
        if title == baseline.title:
            difference = metrics.Difference(0.0, 0.0, 0.0, None)
        else:
            difference = metrics.paired_difference(mine, reference, rows.gold, metric=metric, classes=classes)
        found[title] = {
            "metric_name": metric.name, "metric": value, "metric_low": low, "metric_high": high,
            "metric_rows": len(rows.gold),
            "metric_kept_percent": 100 * value / teacher_value if teacher_value else None,
            "difference_points": difference.points, "difference_low": difference.low,
            "difference_high": difference.high, "mcnemar_p": difference.mcnemar_p,
            "agreement": metrics.agreement(mine, reference),
        }  # fmt: skip
    return found


def keep_predictions(lines: Sequence[Measurement], predicted: dict[str, np.ndarray], gold: np.ndarray) -> None:
    """Add what each row was predicted to be to the first line of every entry, and the gold to the baseline's."""
    done: set[str] = set()
    for line in lines:
        title = f"{line['model']} in {line['runtime']}"
        if title not in done:
            line["predictions"] = [round(value, 5) for value in predicted[title].tolist()]
            if is_baseline(line):
                line["gold"] = gold.tolist()
        done.add(title)


def describe_run(run: Run, teacher: Contender) -> Measurement:
    """Return what a run is: names, architecture, sizes, memory."""
    contender, directory = run.entry.contender, run.entry.directory
    manifest = contender.model.manifest
    architecture = manifest.architecture if manifest else {}
    size, parameters = directory.size_bytes, contender.model.parameters
    lengths = run.loaded["lengths"]
    return {
        "model": contender.name, "recipe": contender.recipe, "kind": contender.kind, "control_of": contender.control_of,
        "stage": manifest.stage if manifest else "", "model_sha256": contender.model.sha256,
        "runtime": run.entry.runtime, "threads": run.threads,
        "parameters": parameters, "size_bytes": size,
        "directory_bytes": sum(f.stat().st_size for f in directory.path.rglob("*") if f.is_file()),
        "parameters_ratio": teacher.model.parameters / parameters if parameters else None,
        "size_ratio": teacher.model.size_bytes / size if size else None,
        "heads_per_layer": architecture.get("heads_per_layer"), "ffn_per_layer": architecture.get("ffn_per_layer"),
        "peak_memory_bytes": run.memory["peak_memory_bytes"],
        "model_memory_bytes": run.memory["peak_memory_bytes"] - run.memory["memory_before_bytes"],
        "peak_gpu_memory_bytes": run.memory.get("peak_gpu_memory_bytes"), "load_ms": run.loaded["load_ms"],
        "max_length": run.loaded["max_length"], "tokens_median": float(np.median(lengths)),
        "tokens_p95": float(np.percentile(lengths, 95)), "tokens_max": max(lengths),
    }  # fmt: skip


def speed_fields(run: Run, runs: Sequence[Run], batch_size: int, seed: int) -> Measurement:
    """Return the timing fields of a run at a batch size: alone, against the teacher in torch and in its own runtime."""
    peers = [r for r in runs if r.threads == run.threads and r.entry.contender.kind == "teacher"]
    baseline = next(r for r in peers if r.entry.is_baseline)
    same = next((r for r in peers if r.entry.runtime == run.entry.runtime), None)
    mine = run.latency_ms(batch_size)
    spread = percentiles(mine)
    total = _ratio(run.total_ms(batch_size), baseline.total_ms(batch_size), seed)
    headline = _ratio(mine, baseline.latency_ms(batch_size), seed)
    beside = _ratio(mine, same.latency_ms(batch_size), seed) if same else None
    return {
        "batch_size": batch_size, "warm_up_stable": run.warm[batch_size],
        **{f"latency_p{p}_ms": value for p, value in spread.items()},
        "tokenize_p50_ms": percentiles(run.tokenize_ms(batch_size))[50],
        "throughput_rows_per_second": throughput(mine, batch_size),
        "throughput_with_tokenizer_rows_per_second": throughput(run.total_ms(batch_size), batch_size),
        "speedup": headline.value, "speedup_low": headline.low, "speedup_high": headline.high,
        "speedup_with_tokenizer": total.value, "speedup_with_tokenizer_low": total.low,
        "speedup_with_tokenizer_high": total.high,
        "speedup_same_runtime": beside.value if beside else None,
        "speedup_same_runtime_low": beside.low if beside else None,
        "speedup_same_runtime_high": beside.high if beside else None,
        "noise": noise([turn["probe_ms"] for turn in run.turns[batch_size]]),
        "latency_ms": mine,
    }  # fmt: skip


def _ratio(mine: list[list[float]], reference: list[list[float]], seed: int) -> Ratio:
    return Ratio(1.0, 1.0, 1.0) if mine == reference else speedup(reference, mine, seed=seed)
