"""Result lines made up for tests of what reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from compress.benchmarking.results.files import write_results
from compress.benchmarking.results.schema import SCHEMA, Measurement

HOST = {"cpu": "Test CPU", "cpu_flags": ["avx2"], "cores": 2, "gpu": [], "system": "Linux x86_64"}


def line(model: str, *, kind: str = "model", **fields: Any) -> Measurement:
    """Return a line of a model that is five to six times faster and loses about half a point."""
    teacher = kind == "teacher"
    base: dict[str, Any] = {
        "schema": SCHEMA,
        "study": "made-up",
        "model": model,
        "recipe": "",
        "kind": kind,
        "control_of": "",
        "stage": "",
        "parents": [],
        "training_seed": None,
        "model_sha256": "e" * 64,
        "tokenizer_sha256": "f" * 64,
        "runtime": "torch",
        "device": "cpu",
        "threads": 1,
        "batch_size": 1,
        "length": None,
        "padding": "longest",
        "max_length": 128,
        "tokenizer_inside": False,
        "rounds": 3,
        "seed": 0,
        "command": "compress benchmark",
        "created": "2026-11-20T12:00:00+00:00",
        "latency_ms": [[1.0, 1.1]] * 3,
        "clock": "cpu",
        "latency_cpu_ms": [[1.0, 1.1]] * 3,
        "latency_p50_ms": 1.05,
        "latency_p50_low_ms": 1.02,
        "latency_p50_high_ms": 1.08,
        "latency_p90_ms": 1.08,
        "latency_p90_low_ms": 1.06,
        "latency_p90_high_ms": 1.1,
        "latency_p95_ms": 1.1,
        "latency_p95_low_ms": 1.08,
        "latency_p95_high_ms": 1.12,
        "latency_p99_ms": 1.1,
        "latency_p99_low_ms": 1.06,
        "latency_p99_high_ms": 1.15,
        "latency_cold_p50_ms": 1.3,
        "tokenize_p50_ms": 0.1,
        "device_p50_ms": None,
        "throughput_rows_per_second": 950.0,
        "throughput_rows_per_second_low": 930.0,
        "throughput_rows_per_second_high": 970.0,
        "throughput_with_tokenizer_rows_per_second": 860.0,
        "throughput_with_tokenizer_rows_per_second_low": 840.0,
        "throughput_with_tokenizer_rows_per_second_high": 880.0,
        "throughput_tokens_per_second": 19_000.0,
        "throughput_tokens_per_second_low": 18_500.0,
        "throughput_tokens_per_second_high": 19_500.0,
        "speedup": 1.0 if teacher else 6.0,
        "speedup_low": 1.0 if teacher else 5.7,
        "speedup_high": 1.0 if teacher else 6.3,
        "speedup_with_tokenizer": 1.0 if teacher else 5.5,
        "speedup_with_tokenizer_low": 1.0 if teacher else 5.2,
        "speedup_with_tokenizer_high": 1.0 if teacher else 5.8,
        "speedup_same_runtime": 1.0 if teacher else 3.0,
        "speedup_same_runtime_low": 1.0 if teacher else 2.9,
        "speedup_same_runtime_high": 1.0 if teacher else 3.1,
        "noise": 0.02,
        "warm_up_stable": True,
        "energy_joules_per_row": None,
        "flops_per_row": None,
        "matmul_peak_tflops": None,
        "matmul_peak_share": None,
        "load_ms": 100.0,
        "peak_memory_bytes": 500_000_000,
        "model_memory_bytes": 200_000_000,
        "peak_gpu_memory_bytes": None,
        "metric_name": "accuracy",
        "metric": 0.90 if teacher else 0.895,
        "metric_low": 0.88,
        "metric_high": 0.915,
        "metric_rows": 2000,
        "metric_kept_percent": 100.0 if teacher else 99.4,
        "difference_points": 0.0 if teacher else -0.5,
        "difference_low": 0.0 if teacher else -0.9,
        "difference_high": 0.0 if teacher else -0.1,
        "mcnemar_p": None,
        "agreement": 1.0 if teacher else 0.98,
        "calibration_error": 0.03,
        "calibration_error_low": 0.02,
        "calibration_error_high": 0.05,
        "classes": [],
        "flips_lost": [],
        "flips_won": [],
        "flips_lost_rows": 0,
        "flips_won_rows": 0,
        "parameters": 22_000_000,
        "size_bytes": 88_000_000,
        "directory_bytes": 89_000_000,
        "parameters_ratio": 1.0,
        "size_ratio": 1.0,
        "heads_per_layer": None,
        "ffn_per_layer": None,
        "data": "dev.tsv",
        "data_sha256": "d" * 64,
        "split": "test",
        "data_rows": 2000,
        "labels": ["negative", "positive"],
        "tokens_median": 24.0,
        "tokens_p95": 44.0,
        "tokens_max": 60,
        "host": HOST,
        "host_id": "abc123",
        "versions": {"torch": "2.13.0", "python": "3.11.7"},
        "left_out": [],
    }
    fields = {as_text_to_label(name): value for name, value in fields.items()} | fields
    return Measurement(**{**base, **fields})


def as_text_to_label(name: str) -> str:
    """Return the field from text to label beside one of the model alone: here both are the same, unless it is said."""
    return re.sub("^speedup(_low|_high)?$", r"speedup_with_tokenizer\1", name)


def write_lines(path: Path, lines: Iterable[Measurement]) -> Path:
    write_results(path, lines)
    return path
