"""Result lines made up for tests of what reads them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from compress.results import write_results

HOST = {"cpu": "Test CPU", "cpu_flags": ["avx2"], "cores": 2, "gpu": [], "system": "Linux x86_64"}


def line(model: str, *, kind: str = "model", **fields: Any) -> dict[str, Any]:
    """Return a line of a model that is five to six times faster and loses about half a point."""
    teacher = kind == "teacher"
    base: dict[str, Any] = {
        "schema": 1, "study": "made-up", "model": model, "recipe": "", "kind": kind, "control_of": "",
        "runtime": "torch", "device": "cpu", "threads": 1, "batch_size": 1, "rounds": 20, "seed": 0,
        "latency_ms": [[1.0, 1.1]] * 3, "latency_p50_ms": 1.05, "latency_p95_ms": 1.1,
        "throughput_rows_per_second": 950.0, "noise": 0.02,
        "speedup": 1.0 if teacher else 5.5, "speedup_low": 1.0 if teacher else 5.2,
        "speedup_high": 1.0 if teacher else 5.8, "speedup_same_runtime": 1.0 if teacher else 3.0,
        "metric_name": "accuracy", "metric": 0.90 if teacher else 0.895, "metric_low": 0.88, "metric_high": 0.915,
        "metric_rows": 2000, "metric_kept_percent": 100.0 if teacher else 99.4,
        "difference_points": 0.0 if teacher else -0.5, "difference_low": 0.0 if teacher else -0.9,
        "difference_high": 0.0 if teacher else -0.1, "mcnemar_p": None, "agreement": 0.98,
        "parameters": 22_000_000, "size_bytes": 88_000_000, "parameters_ratio": 1.0, "size_ratio": 1.0,
        "model_memory_bytes": 200_000_000, "peak_memory_bytes": 500_000_000, "heads_per_layer": None,
        "tokens_median": 24.0, "tokens_p95": 44.0, "data": "dev.tsv", "data_sha256": "d" * 64, "data_rows": 2000,
        "host": HOST, "host_id": "abc123", "versions": {"torch": "2.13.0", "python": "3.11.7"},
        "command": "compress benchmark", "created": "2026-11-20T12:00:00+00:00", "model_sha256": "e" * 64,
    }  # fmt: skip
    return {**base, **fields}


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    write_results(path, lines)
    return path
