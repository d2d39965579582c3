"""A whole made-up study: all kinds of lines, two thread counts, fixed lengths, a GPU, a wide interval."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from compress.benchmarking.result_fields import observed_fields
from compress.benchmarking.results.schema import Measurement
from compress.inference.speedup_intervals import speedup
from tests.support.results import line

ROUNDS = 5
GPU_HOST = {"cpu": "Other CPU", "cpu_flags": ["avx512f"], "cores": 16, "gpu": ["Test GPU"], "system": "Linux x86_64"}
TEACHER = "teacher"

# name: (kind, runtimes with their milliseconds a row at batch 1, accuracy, parameters, stage, parent, recipe)
MODELS: dict[str, tuple[str, dict[str, float], float | None, int, str, str, str]] = {
    TEACHER: ("teacher", {"torch": 8.4, "onnxruntime": 4.4, "openvino": 4.1}, 0.8899, 22_700_000, "finetune", "", ""),
    "teacher-int8": ("model", {"onnxruntime": 1.5}, 0.8956, 22_700_000, "quantize", TEACHER, ""),
    "minilm-3": (
        "model",
        {"torch": 4.3, "onnxruntime": 2.15, "openvino": 2.0},
        0.8956,
        17_400_000,
        "distill",
        TEACHER,
        "minilm-3",
    ),
    "minilm-3-int8": ("model", {"onnxruntime": 0.77}, 0.8842, 17_400_000, "quantize", "minilm-3", "minilm-3"),
    "minilm-3-control": (
        "control",
        {"torch": 4.3, "onnxruntime": 2.15},
        0.8750,
        17_400_000,
        "distill",
        TEACHER,
        "minilm-3",
    ),
    "pruned-60": ("model", {"torch": 7.0, "onnxruntime": 3.4}, 0.8933, 20_600_000, "prune", TEACHER, ""),
    "pruned-60-int8": ("model", {"onnxruntime": 1.15}, 0.8865, 20_600_000, "quantize", "pruned-60", ""),
    "bilstm": ("model", {"torch": 1.1, "onnxruntime": 0.38}, 0.8945, 7_500_000, "distill", TEACHER, "bilstm"),
    "bilstm-int8": ("model", {"onnxruntime": 0.21}, 0.8945, 7_500_000, "quantize", "bilstm", "bilstm"),
    "bilstm-control": ("control", {"torch": 1.1, "onnxruntime": 0.38}, 0.8589, 7_500_000, "distill", TEACHER, "bilstm"),
    "majority class": ("baseline", {"numpy": 0.0008}, 0.5092, 0, "", "", ""),
    "tf-idf + logistic regression": ("baseline", {"scikit-learn": 0.12}, 0.8165, 40_000, "", "", ""),
    "static embeddings": ("baseline", {"model2vec": 0.05}, 0.8234, 7_000_000, "", "", ""),
    "transformers-pipeline": ("competitor", {"transformers-pipeline": 9.5}, 0.8899, 22_700_000, "", TEACHER, ""),
    "torchao-int8": ("competitor", {"torchao-int8": 7.7}, 0.8888, 22_700_000, "", TEACHER, ""),
    "optimum-int8": ("competitor", {"optimum": 1.6}, 0.8945, 22_700_000, "", TEACHER, ""),
    "bert-base": ("reference-model", {"torch": 46.0}, None, 109_000_000, "", "", ""),
    "bert-large": ("reference-model", {"torch": 160.0}, None, 335_000_000, "", "", ""),
}


def sha256(name: str) -> str:
    """Return the made-up hash of a model's files."""
    return hashlib.sha256(name.encode()).hexdigest()


def study(*, rows: int = 5000) -> list[Measurement]:
    """Return the lines of a CPU with one and two threads and fixed lengths, and of a GPU."""
    cpu = _Host(rows, {"device": "cpu"}, factor=1.0)
    for threads in (1, 2):
        for size in (1, 32):
            cpu.add_all(threads=threads, batch_size=size)
            cpu.add(TEACHER, "torch", threads=threads, batch_size=size, padding="max_length", slower=4.0)
    for length, slower in ((16, 0.7), (64, 2.2), (128, 4.3)):
        for name, runtime in ((TEACHER, "torch"), (TEACHER, "onnxruntime"), ("bilstm-int8", "onnxruntime")):
            cpu.add(name, runtime, threads=1, batch_size=1, length=length, slower=slower)
    place = {"device": "cuda", "host": GPU_HOST, "host_id": "gpu123", "command": "compress benchmark --device cuda"}
    gpu = _Host(rows, place, factor=0.2)
    for size in (1, 256):
        for name in (TEACHER, "minilm-3", "bilstm"):
            gpu.add(name, "torch", threads=1, batch_size=size)
    lines = [*cpu.lines(), *gpu.lines()]
    left_out = [{"name": "ctranslate2-int8", "reason": "no wheel for this Python; <pip> says so"}]
    lines[0] = replace(lines[0], left_out=left_out)
    return [
        replace(one, speedup_with_tokenizer_low=0.7 * one.speedups.value, noise=0.17)
        if one.model == "torchao-int8"
        else one
        for one in lines
    ]


class _Host:
    """Collects configurations of one run, and turns them into lines once the teacher's are known."""

    def __init__(self, rows: int, fields: dict[str, Any], factor: float) -> None:
        self.rows, self.fields, self.factor = rows, fields, factor
        self.made: list[Measurement] = []

    def add_all(self, *, threads: int, batch_size: int) -> None:
        for name, (_, runtimes, *_) in MODELS.items():
            for runtime in runtimes:
                self.add(name, runtime, threads=threads, batch_size=batch_size)

    def add(self, name: str, runtime: str, *, threads: int, batch_size: int, slower: float = 1.0, **more: Any) -> None:
        kind, runtimes, accuracy, parameters, stage, parent, recipe = MODELS[name]
        per_batch = self.factor * slower * runtimes[runtime] * (0.8 * batch_size if batch_size > 1 else 1)
        latency = _latency(f"{name}{runtime}{threads}{batch_size}{more}", per_batch / (1 + 0.7 * (threads - 1)))
        observed = observed_fields(latency, batch_size)
        int8 = 4 if stage == "quantize" else 1
        fields = {
            "runtime": runtime,
            "threads": threads,
            "batch_size": batch_size,
            "stage": stage,
            "recipe": recipe,
            "rounds": ROUNDS,
            "model_sha256": sha256(name),
            "parents": [sha256(parent)] if parent else [],
            "training_seed": 0 if stage == "distill" else None,
            "latency_ms": latency,
            "clock": "cpu" if threads == 1 and self.fields["device"] == "cpu" else "wall",
            "latency_cpu_ms": latency,
            **observed,
            **{
                f"throughput_{what}_per_second{end}": share * observed[f"throughput_rows_per_second{end}"]
                for what, share in (("with_tokenizer_rows", 0.95), ("tokens", 26))
                for end in ("", "_low", "_high")
            },
            "parameters": parameters,
            "size_bytes": 4 * parameters // int8 + 1000,
            "control_of": name.removesuffix("-control") if kind == "control" else "",
            "data": "glue/SST-2 dev",
            "data_rows": self.rows,
            "metric_rows": self.rows,
            "energy_joules_per_row": 0.4 * per_batch / batch_size if self.fields["device"] == "cuda" else None,
        }
        self.made.append(line(name, kind=kind, **(fields | self._quality(accuracy, kind) | self.fields | more)))

    def _quality(self, accuracy: float | None, kind: str) -> dict[str, Any]:
        if accuracy is None:
            names = ("metric_name", "metric", "metric_low", "metric_high", "metric_kept_percent", "difference_points")
            more = ("difference_low", "difference_high", "mcnemar_p", "agreement", "calibration_error")
            more += ("calibration_error_low", "calibration_error_high", "flips_lost_rows", "flips_won_rows")
            return {**dict.fromkeys(names + more), "metric_rows": 0, "classes": [], "flips_lost": [], "flips_won": []}
        points = 100 * (accuracy - 0.8899)
        lost, won = round(40 + max(0, -points) * self.rows / 100), round(40 + max(0, points) * self.rows / 100)
        half = 196 * np.sqrt((lost + won) / self.rows**2)
        flips = [{"row": 7 * i + 3, "gold": i % 2, "predicted": 1 - i % 2, "change": -95.0 + i} for i in range(30)]
        halves = [("negative", 1.4 * points), ("positive", 0.6 * points)]
        return {
            "metric": accuracy,
            "metric_low": accuracy - 0.009,
            "metric_high": accuracy + 0.009,
            "metric_kept_percent": 100 * accuracy / 0.8899,
            "difference_points": points,
            "difference_low": points - half if kind != "teacher" else 0.0,
            "difference_high": points + half if kind != "teacher" else 0.0,
            "mcnemar_p": None if kind == "teacher" else 0.04,
            "agreement": 1.0 if kind == "teacher" else 0.96,
            "flips_lost_rows": lost,
            "flips_won_rows": won,
            "flips_lost": flips,
            "flips_won": [{**one, "change": -one["change"]} for one in flips[:4]],
            "classes": [
                {
                    "label": label,
                    "rows": self.rows // 2,
                    "recall": 0.89 + change / 100,
                    "teacher_recall": 0.89,
                    "difference_points": change,
                    "low": change - 1.4 * half,
                    "high": change + 1.4 * half,
                }
                for label, change in halves
            ],
        }

    def lines(self) -> list[Measurement]:
        """Return the lines with their speed-ups over the teacher, at the same threads, length and batch size."""
        return [self._compared(one) for one in self.made]

    def _compared(self, one: Measurement) -> Measurement:
        first, same = self._teacher(one, "torch"), self._teacher(one, one.runtime)
        assert first is not None
        changes: dict[str, Any] = dict.fromkeys([f"speedup_same_runtime{end}" for end in ("", "_low", "_high")])
        for name, teacher in (("speedup", first), ("speedup_with_tokenizer", first), ("speedup_same_runtime", same)):
            changes |= _ratio(name, teacher.latency_ms, one) if teacher else {}
        ratio = first.parameters / one.parameters if one.parameters else None
        return replace(one, size_ratio=first.size_bytes / one.size_bytes, parameters_ratio=ratio, **changes)

    def _teacher(self, like: Measurement, runtime: str) -> Measurement | None:
        setting = attrgetter("threads", "batch_size", "length")
        found = [
            one
            for one in self.made
            if one.kind == "teacher"
            and one.runtime == runtime
            and one.padding == "longest"
            and setting(one) == setting(like)
        ]
        return found[0] if found else None


def _latency(seed: str, middle: float) -> list[list[float]]:
    generator = random.Random(seed)
    return [[middle * generator.uniform(0.97, 1.05) for _ in range(6)] for _ in range(ROUNDS)]


def _ratio(name: str, reference: list[list[float]], one: Measurement) -> dict[str, float]:
    if one.latency_ms == reference:
        return {name: 1.0, f"{name}_low": 1.0, f"{name}_high": 1.0}
    ratio = speedup(reference, one.latency_ms)
    return {name: ratio.value, f"{name}_low": ratio.low, f"{name}_high": ratio.high}
