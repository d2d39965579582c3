"""Labelling in tests: with parts and engines as objects, and without what a request checks before the work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.labelling import label as stage
from compress.labelling.label_dir import LabelDir
from compress.models.compute import Compute
from compress.progress import Progress, silent
from compress.requests.labelling import Label

ANYWHERE = Compute()


@dataclass(frozen=True)
class LabelOptions:
    max_length: int | None = None
    precision: Any = "float32"
    part: tuple[int, int] | None = None
    engine: Any = "local"
    time_limit: float | None = None


def label(
    teacher: Any,
    unlabeled: Any,
    output: str | Path,
    *,
    options: LabelOptions = LabelOptions(),
    compute: Compute = ANYWHERE,
    force: bool = False,
    progress: Progress = silent,
) -> LabelDir:
    return stage.label(
        Label(
            teacher,
            unlabeled,
            output,
            max_length=options.max_length,
            precision=options.precision,
            shard=options.part,
            engine=options.engine,
            time_limit=options.time_limit,
            device=compute.device,
            threads=compute.threads,
            force=force,
            progress=progress,
        )
    )
