"""What labelling is asked for."""

import importlib
import re
from collections.abc import Iterator
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from compress.errors import CompressError
from compress.escaping.uris import is_uri, without_secrets
from compress.recipes.training import LEAST_MAX_LENGTH
from compress.requests import Duration, Holds, Model, Output, Text, function, option, request
from compress.requests.groups import Placing, TextColumns, Written, named_inputs

MOST_PARTS = 10**9


def _share(value: Any) -> Any:
    """Return which of how many parts ``K/N`` names."""
    found = re.fullmatch("([0-9]{1,10})/([0-9]{1,10})", value) if isinstance(value, str) else None
    part = tuple(map(int, found.groups())) if found else value
    match part:
        case None:
            return None
        case (int(number), int(of)) if 1 <= number <= of <= MOST_PARTS:
            return number, of
    raise ValueError("is not K/N with K from 1 to N, such as 1/4 to 4/4")


@request
class Label(Written[Any], TextColumns, Placing):
    """Run the teacher once over unlabelled text and keep its logits. Resumable."""

    stage = "compress.labelling.label:label"

    teacher: Model = option(help="The teacher: a directory or hub name.", metavar="DIR")
    unlabeled: Text = option(
        help="Text to label: a file, a pattern, a folder of Parquet files or the URI of one; may be repeated.",
        metavar="FILE",
    )
    output: Output = option(
        help="Directory or URI to write; it must not exist.", metavar="DIR", decides=False, required=True
    )
    _: KW_ONLY
    rows: int | None = option(default=None, ge=1, help="Use only so many rows, spread evenly over the text.")
    max_length: int | None = option(default=None, ge=LEAST_MAX_LENGTH, help="Cut texts to so many tokens.")
    precision: Literal["float32", "bfloat16", "auto"] = option(
        default="float32",
        help="bfloat16 is faster on GPUs and some CPUs (AMX); logits differ in the third digit. auto compares both on "
        "512 rows and takes bfloat16 where it is faster and gives at least 99% of the same labels.",
    )
    shard: Annotated[Any, Holds("share"), pydantic.BeforeValidator(_share)] = option(
        default=None,
        metavar="K/N",
        help="Label only every N-th shard of 2,048 rows, beginning with the K-th, such as 3/8; 'compress labels merge' "
        "joins the N directories.",
    )
    engine: Annotated[Any, Holds("engine")] = option(
        default="local",
        decides=False,
        help="ray labels in several worker processes, each with --threads threads (default 1) or a GPU.",
    )
    workers: int | None = option(
        default=None, ge=1, decides=False, help="Workers of Ray; default: as many as there is room for."
    )
    ray_address: str | None = option(
        default=None,
        metavar="ADDRESS",
        decides=False,
        help="Cluster of Ray that runs, auto on a node of it; default: started here.",
    )
    time_limit: Duration | None = option(
        default=None,
        metavar="TIME",
        decides=False,
        help="Finish after this time, such as 30m or 2h, with the rows that are labelled then; the same command goes "
        "on with the rest. [default: none]",
    )

    def faults(self) -> Iterator[str]:
        for name in ("workers", "ray_address"):
            if getattr(self, name) and self.engine == "local":
                flag = f"--{name.replace('_', '-')}"
                yield f"{flag} changes nothing without --engine ray; add it, or leave {flag} out"

    def check_output(self) -> None:
        if self.output is None or not is_uri(str(self.output)):
            return super().check_output()
        output = without_secrets(str(self.output))
        below = f"{output.rstrip('/')}/"
        for name in map(without_secrets, named_inputs(self)):
            lies = is_uri(name) and below.startswith(f"{name.rstrip('/')}/")
            holds = f"{name}/".startswith(below)
            if holds or lies:
                raise CompressError(
                    f"-o {output} {'holds' if holds else 'lies in'} {name}, which this command reads and would change; "
                    "choose another -o"
                )

    def open_made(self, path: Path) -> Any:
        labels = importlib.import_module("compress.labelling.label_dir")
        return labels.LabelDir.open(path, part=self.shard is not None)


label = function(Label)
