"""Result files: flat JSON lines, one for each (model, runtime, device, threads, batch size).

``compress benchmark`` writes them, ``report`` and ``check`` read them, ``benchmarks/results`` keeps them. Every line
stands on its own. Examples are known by their row number only; no line holds a text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.artifact import write_atomically
from compress.errors import CompressError

# One (model, runtime, device, threads, batch size): raw samples, metric with n, sizes, host. It is one line of JSON.
Measurement = dict[str, Any]

SCHEMA = 1
REQUIRED = (
    "schema", "model", "recipe", "kind", "runtime", "device", "threads", "batch_size", "latency_ms", "speedup",
    "speedup_low", "speedup_high", "metric_name", "metric", "metric_rows", "difference_points", "difference_low",
    "difference_high", "parameters", "size_bytes", "host_id", "data", "data_sha256", "created",
)  # fmt: skip
# What makes two lines the same configuration, whatever the batch size and the time.
KEY = ("data_sha256", "host_id", "device", "threads", "model", "runtime")


@dataclass(frozen=True)
class Row:
    """The lines of one configuration, by rising batch size: latency is the first one's, throughput the last one's."""

    lines: tuple[Measurement, ...]

    @property
    def head(self) -> Measurement:
        return self.lines[0]

    @property
    def bulk(self) -> Measurement:
        return self.lines[-1]

    @property
    def title(self) -> str:
        return f"{self.head['model']} in {self.head['runtime']}"


def rows_of(lines: Iterable[Measurement]) -> list[Row]:
    """Gather lines into rows in the order they come; of a configuration measured twice the newest run counts."""
    newest: dict[tuple[Any, ...], dict[int, Measurement]] = {}
    for line in lines:
        sizes = newest.setdefault(tuple(line[key] for key in KEY), {})
        made = {other["created"] for other in sizes.values()}
        if made and line["created"] < max(made):
            continue
        if made and line["created"] > max(made):
            sizes.clear()
        sizes[line["batch_size"]] = line
    return [Row(tuple(sizes[size] for size in sorted(sizes))) for sizes in newest.values()]


def is_baseline(line: Mapping[str, Any]) -> bool:
    """Tell whether a line is the teacher in torch, against which every speed-up is."""
    return line["kind"] == "teacher" and line["runtime"] == "torch"


def write_results(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write lines whole or not at all."""
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise CompressError(f"{path} cannot be written ({error.strerror}); choose another -o") from None


def read_results(paths: Sequence[str | Path]) -> list[Measurement]:
    """Read the lines of all files in order.

    Raises:
        CompressError: a file is missing, empty, damaged or of another kind.
    """
    lines: list[Measurement] = []
    for path in map(Path, paths):
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise CompressError(f"{path} does not exist; make it with 'compress benchmark ... -o {path}'") from None
        except (OSError, UnicodeDecodeError) as error:
            raise CompressError(f"{path} cannot be read as results ({error}); give a .jsonl of benchmark") from None
        found = [_parse(line, number, path) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if not found:
            raise CompressError(f"{path} holds no results; make it with 'compress benchmark ... -o {path}'")
        lines += found
    return lines


def _parse(text: str, number: int, path: Path) -> Measurement:
    try:
        line = json.loads(text)
    except json.JSONDecodeError as error:
        raise CompressError(f"{path}, line {number} is not valid JSON ({error.msg}); run the benchmark again") from None
    missing = [key for key in REQUIRED if not isinstance(line, dict) or key not in line]
    if missing:
        raise CompressError(
            f"{path}, line {number} is not a result of compress benchmark: it has no {', '.join(missing[:3])}"
        )
    if line["schema"] != SCHEMA:
        raise CompressError(f"{path}, line {number} has schema {line['schema']}; this compress reads {SCHEMA}")
    return dict(line)


def host_id(host: Mapping[str, Any]) -> str:
    """Return a short fingerprint of what decides speed: processor, instruction sets, cores, system, GPU."""
    deciding = {key: host.get(key) for key in ("cpu", "cpu_family_model", "cpu_flags", "cores", "system", "gpu")}
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:12]


def shown(line: Mapping[str, Any], key: str = "metric", *, digits: int = 2) -> str:
    """Return a metric as people write it: accuracy and F1 in percent, correlations as fractions."""
    value = float(line[key])
    return f"{100 * value:.{digits}f}%" if in_percent(line["metric_name"]) else f"{value:.{digits + 2}f}"


def in_percent(metric: str) -> bool:
    """Tell whether a metric is written in percent."""
    return metric in {"accuracy", "f1", "macro-f1"}


def points(value: float) -> str:
    """Return a difference in points with its sign and a true minus: ``−0.57``."""
    return f"{value:+.2f}".replace("-", "−").replace("+0.00", "0.00").replace("−0.00", "0.00")


def megabytes(size_bytes: float) -> str:
    """Return a size with two significant digits at least: ``4.4 MB``, ``91 MB``."""
    size = size_bytes / 1e6
    return f"{size:.2f} MB" if size < 1 else f"{size:.1f} MB" if size < 20 else f"{size:,.0f} MB"


def times(value: float) -> str:
    """Return a ratio as ``×0.97``, ``×4.2`` or ``×46``."""
    return f"×{value:.2f}" if value < 9.995 else f"×{value:.1f}" if value < 99.95 else f"×{value:,.0f}"


def milliseconds(value: float) -> str:
    """Return a duration with three significant digits: ``0.185 ms``, ``9.02 ms``, ``237 ms``."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f} ms"


def count(value: float) -> str:
    """Return a large number in short: ``22.7 M``, ``1.1 M``, ``860 k``."""
    return f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value / 1e3:.0f} k" if value >= 1e4 else f"{value:,.0f}"
