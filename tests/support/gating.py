"""What the tests of the gate share: files of made-up results, and a check typed as keywords."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compress.benchmarking.results.schema import Measurement
from compress.gating import check as check_module
from tests.support.results import line, write_lines

Results = Callable[..., Path]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Return a maker of result files: the given lines beside a teacher in torch."""

    def make(*lines: Measurement, name: str = "results.jsonl") -> Path:
        return write_lines(tmp_path / name, [line("teacher", kind="teacher", gold=[1] * 2000), *lines])

    return make


def student(**fields: Any) -> Measurement:
    return line(fields.pop("model", "student"), runtime=fields.pop("runtime", "onnxruntime"), **fields)


def check(paths: Sequence[Path], **budget: Any) -> check_module.GateVerdict:
    """Check with one budget."""
    return check_module.check(paths, [check_module.GateBudget(**budget)])


def predicted(right: int, rows: int = 2000) -> list[int]:
    return [1] * right + [0] * (rows - right)
