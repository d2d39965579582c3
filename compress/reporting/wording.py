"""Results in words: the sentences that a report begins with, and the table on the screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from compress.measuring.results import Measurement, Row, is_baseline, rows_of
from compress.metrics import METRICS, paired_difference
from compress.reporting.units import count, in_percent, megabytes, milliseconds, points, shown, times

if TYPE_CHECKING:
    from rich.table import Table

KEPT_ENOUGH_PERCENT = 99.0
NOISY = 0.10


def best_row(rows: Sequence[Row]) -> Row | None:
    """Return the fastest model that keeps 99% of the teacher's metric; without any, the one that keeps most."""
    models = [row for row in rows if row.head["kind"] == "model"]
    good = [row for row in models if (row.head["metric_kept_percent"] or 0) >= KEPT_ENOUGH_PERCENT]
    if good:
        return max(good, key=lambda row: float(row.head["speedup"]))
    return max(models, key=lambda row: float(row.head["metric"]), default=None)


def verdict(rows: Sequence[Row]) -> list[str]:
    """Return the sentences a reader needs if they read nothing else; the first one is the result."""
    best = best_row(rows)
    teacher = next((row for row in rows if is_baseline(row.head)), None)
    if best is None or teacher is None:
        return ["Only the teacher was measured; there is no compressed model to judge."]
    line = best.head
    kept = line["metric_kept_percent"]
    closest = kept is None or kept < KEPT_ENOUGH_PERCENT
    name = line["metric_name"]
    sentences = [
        f"{'No model keeps 99% of the teacher’s ' + name + '; the closest, ' if closest else ''}{best.title}"
        f"{',' if closest else ''} runs at {times(line['speedup'])} the speed of the teacher"
        + (f", is {times(line['size_ratio'])} smaller on disk" if (line["size_ratio"] or 0) > 1.05 else "")
        + (f" and keeps {kept:.1f}% of its {name}." if kept is not None else f"; its {name} is {shown(line)}.")
        + (" It is the fastest of the models that keep 99%, chosen on these rows." if not closest else ""),
        f"Its {name} is {shown(line)} against {shown(teacher.head)} on {line['metric_rows']:,} examples: "
        f"{points(line['difference_points'])} points, and the data allow {points(line['difference_low'])} to "
        f"{points(line['difference_high'])} (95% paired interval).",
    ]
    control = control_of(best, rows)
    if control is not None:
        gain = 100 * (line["metric"] - control.head["metric"])
        bounds = _gain_interval(line, control.head, teacher.head)
        sentences.append(
            f"The same student trained on gold labels only reaches {shown(control.head)}: "
            f"distillation is worth {points(gain)} points"
            + (f" ({points(bounds[0])} to {points(bounds[1])})." if bounds else ".")
        )
    noisy = [row for row in rows if row.head.get("noise", 0) > NOISY]
    if noisy:
        worst = max(noisy, key=lambda row: float(row.head["noise"]))
        sentences.append(
            f"The machine was busy: the same work varied by up to {worst.head['noise']:.0%} ({worst.title}), "
            "so read speeds by their intervals."
        )
    return sentences


def _gain_interval(model: Measurement, control: Measurement, teacher: Measurement) -> tuple[float, float] | None:
    """Return the paired 95% interval of a model against its control, where the lines keep their predictions."""
    columns = (model.get("predictions"), control.get("predictions"), teacher.get("gold"))
    if any(column is None for column in columns):
        return None
    predicted, reference, gold = (np.asarray(column) for column in columns)
    classes = int(max(predicted.max(), reference.max(), gold.max())) + 1
    metric = METRICS[model["metric_name"]]
    found = paired_difference(predicted, reference, gold, metric=metric, classes=classes)
    return found.low, found.high


def control_of(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the control of a model: named after it, else of the same recipe; in the same runtime if there is one."""
    controls = [
        other
        for other in rows
        if other.head["kind"] == "control"
        and (other.head.get("control_of") == row.head["model"] or other.head["recipe"] == row.head["recipe"] != "")
    ]
    controls.sort(
        key=lambda o: (o.head.get("control_of") != row.head["model"], o.head["runtime"] != row.head["runtime"])
    )
    return controls[0] if controls else None


def metric_title(name: str) -> str:
    """Return a metric's name for a heading, with its unit."""
    return f"{name} (%)" if in_percent(name) else name


def results_table(lines: Sequence[Measurement]) -> Table:
    """Return results as a table for the terminal: one row a configuration, intervals in brackets."""
    from rich.markup import escape
    from rich.table import Table

    rows = rows_of(lines)
    head, bulk = rows[0].head, rows[0].bulk
    table = Table(title=f"{head['metric_name']} on {escape(head['data'])}, {head['data_rows']:,} rows")
    table.add_column("model", overflow="fold")
    table.add_column("runtime")
    if len({row.head["threads"] for row in rows}) > 1:
        table.add_column("threads", justify="right")
    for name in (
        metric_title(head["metric_name"]), "points to teacher", f"speed-up, batch {head['batch_size']}",
        f"p50, batch {head['batch_size']}", f"rows/s, batch {bulk['batch_size']}",
        "parameters", "disk", "memory", "noise",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for row in rows:
        line, base = row.head, is_baseline(row.head)
        cells = [
            escape(line["model"]) + (f" ({line['kind']})" if line["kind"] != "model" else ""), line["runtime"],
            *([str(line["threads"])] if len(table.columns) == 12 else []),
            shown(line).removesuffix("%"),
            "" if base else _bracketed(points, line, "difference_points", "difference"),
            "×1" if base else _bracketed(times, line, "speedup", "speedup"),
            milliseconds(line["latency_p50_ms"]), f"{row.bulk['throughput_rows_per_second']:,.0f}",
            count(line["parameters"]), megabytes(line["size_bytes"]), megabytes(line["model_memory_bytes"]),
            f"{line['noise']:.1%}",
        ]  # fmt: skip
        table.add_row(*cells, style="dim" if line["kind"] == "control" else None)
    return table


def _bracketed(form: Callable[[float], str], line: Measurement, key: str, prefix: str) -> str:
    return f"{form(line[key])} \\[{form(line[prefix + '_low'])}, {form(line[prefix + '_high'])}]"
