"""What should go for a speed: whole layers, heads and neurons of all layers, or some of both? What is the rest worth?

    python benchmarks/pruning/compositions.py --teacher DIR --train FILE --work DIR -o RESULTS.jsonl [--steps 400]
        [--only layers-3 ...]

Every composition is one ``compress.prune`` of the same teacher, taught the same rows by the same loss in as many steps;
heads and neurons go by ``--schedule cubic``, which needs no labels, but where the name says otherwise. A slice of train
that the teacher was not fitted on, made as the study ``structure`` makes it, judges; the test set of that study plays
no part. Speeds are of all compositions and the teacher side by side, in ONNX Runtime on one thread, when all are
pruned. Pruned models are kept in the working folder.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compress.data import Example, ExampleSource, grouped_split
from compress.files import write_json_lines
from compress.inference.runners import time_side_by_side
from compress.models.manifest import MANIFEST_NAME
from compress.models.model_dir import Model
from compress.pruning.prune import PRUNING_REPORT_NAME
from compress.recipes import Training
from compress.requests.compression import export, prune
from compress.requests.labelling import label

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import provenance, read_options, read_rows  # noqa: I001

HELD_OUT, SCORED = 0.05, 512
BATCH_SIZES = (1, 32)
TRAINING = Training(batch_size=32, learning_rate=1e-4, evaluations=1)
# By the speed that they come near to in ONNX Runtime, and what is not there for a speed of its own.
COMPOSITIONS: dict[str, dict[str, dict[str, Any]]] = {
    "x1.5": {
        "layers-2": {"layers": "2"},
        "layers-1-units-20": {"layers": "1", "heads": "20%", "ffn": "20%"},
        "units-35": {"heads": "40%", "ffn": "30%"},
        "neurons-50": {"ffn": "50%"},
    },
    "x2": {
        "layers-3": {"layers": "3"},
        "layers-2-units-28": {"layers": "2", "heads": "30%", "ffn": "25%"},
        "layers-1-units-42": {"layers": "1", "heads": "45%", "ffn": "40%"},
        "units-53": {"heads": "55%", "ffn": "50%"},
        "units-53-at-once": {"heads": "55%", "ffn": "50%", "schedule": "steps"},
    },
    "x3": {
        "layers-4": {"layers": "4"},
        "layers-3-units-33": {"layers": "3", "heads": "33%", "ffn": "33%"},
        "layers-2-units-50": {"layers": "2", "heads": "50%", "ffn": "50%"},
        "layers-1-units-62": {"layers": "1", "heads": "65%", "ffn": "60%"},
        "units-68": {"heads": "70%", "ffn": "67%"},
    },
    "recovery": {
        "units-53-unrecovered": {"heads": "55%", "ffn": "50%", "schedule": "steps", "recover": 0.0},
        "units-53-hidden": {"heads": "55%", "ffn": "50%", "recovery": "hidden"},
        "units-53-relations": {"heads": "55%", "ffn": "50%", "recovery": "relations"},
    },
    "targets": {
        "max-accuracy-drop-1": {"max_accuracy_drop": 1.0, "step": 0.05, "recover": 0.0},
        "speedup-1.5": {"speedup": 1.5, "step": 0.05},
    },
    "other": {
        "vocabulary": {"recover": 0.0},  # of the texts of train
        "hidden-17": {"hidden": "17%"},
    },
}


def main() -> None:
    options = read_options(__doc__, teacher=Path, train=Path, work=Path, steps=400, only=[])
    rest, validation = grouped_split(read_rows(options.train, "train"), HELD_OUT, seed=0)
    train = random.Random(0).sample(rest, options.steps * TRAINING.batch_size)
    work = options.work / str(options.steps)
    labels = work / "labels"
    if not (labels / MANIFEST_NAME).is_file():
        label(options.teacher, ExampleSource(train, "train"), labels)
    common = {"study": "compositions", "data": options.train.name, "steps": options.steps, **provenance()}
    made: dict[str, Path] = {}
    plans = [(group, name, plan) for group, members in COMPOSITIONS.items() for name, plan in members.items()]
    plans = [plan for plan in plans if not options.only or plan[1] in options.only]
    for _, name, plan in plans:
        made[name] = work / name
        if not (made[name] / MANIFEST_NAME).is_file():
            schedule = "cubic" if plan.keys() & {"heads", "ffn"} else "steps"
            pruning = {"schedule": schedule, "examples": SCORED, "recover": 1.0, **plan}
            prune(
                options.teacher,
                made[name],
                train=train,
                validation=validation,
                vocabulary=ExampleSource(rest, "vocabulary") if name == "vocabulary" else None,
                labels=[labels] if pruning["recover"] else [],
                training=replace(TRAINING, max_steps=options.steps),
                measure=False,
                threads=1 if "speedup" in pruning else 0,
                **pruning,
            )
        print(name, found_in(made[name])["value"], flush=True)
    speeds = timed(options.teacher, made, validation)
    lines = [
        {"composition": name, "group": group, **plan, **found_in(made[name]), **speeds[name], **common}
        for group, name, plan in plans
    ]
    write_json_lines(options.output, lines)


def timed(teacher: Path, made: dict[str, Path], rows: Sequence[Example]) -> dict[str, dict[str, Any]]:
    """Return of each composition how fast it is, and how many times as fast as the teacher, by batch size."""
    graphs = {"": made_by_export(teacher, next(iter(made.values())).parent / "teacher-onnx")}
    graphs |= {name: made_by_export(path, path.with_name(f"{name}-onnx")) for name, path in made.items()}
    found: dict[str, dict[str, Any]] = {name: {"runtime": "onnxruntime", "threads": 1} for name in made}
    for speed in time_side_by_side(graphs, rows, runtime="onnxruntime", threads=1, batch_sizes=BATCH_SIZES):
        if speed.name:
            values = {"latency_ms": speed.latency_ms, "speedup": speed.speedup, "low": speed.low, "high": speed.high}
            found[speed.name][f"batch_{speed.batch_size}"] = values
    return found


def made_by_export(model: Path, target: Path) -> Path:
    if not target.is_dir():
        export(Model.open(model), target)
    return target


def found_in(directory: Path) -> dict[str, Any]:
    """Return what the report of a pruning says of what is left: quality on the held-out rows, and size."""
    report = json.loads((directory / PRUNING_REPORT_NAME).read_text(encoding="utf-8"))
    first, last = report["cuts"][0], report["cuts"][-1]
    return {
        "teacher_value": first["value"],
        "metric": report["metric"],
        "rows": report["rows"],
        **{key: last[key] for key in ("value", "points", "low", "high", "parameters", "flops", "architecture")},
        "flops_share": last["flops"] / first["flops"],
        **{key: report[key] for key in ("vocabulary", "target") if key in report},
    }


if __name__ == "__main__":
    main()
