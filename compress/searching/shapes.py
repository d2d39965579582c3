"""Time the shape of a student before anything is trained: its real graph, with the weights that training begins with.

A model is as fast with random weights as with trained ones. It is built by the code that training uses, exported, made
int8, and timed in turns with the teacher in torch, which is what the user runs today.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from compress import plugins
from compress.data import Example
from compress.errors import CompressError
from compress.exporting.export import write_onnx
from compress.inference.side_by_side import time_side_by_side
from compress.inference.speedup_intervals import Interval
from compress.models.manifest import ONNX_NAME
from compress.models.model_dir import ModelDir
from compress.models.resumption import keep, kept
from compress.searching.making import Maker
from compress.searching.space import PRECISIONS, QUANTIZER, Shape

TEACHER = "teacher"


@dataclass(frozen=True)
class ShapeTiming:
    """What a shape costs: its median latency a row, its speed-up over the teacher in torch, and its size on disk.

    ``fault`` says why it cannot be built, and is empty otherwise.
    """

    latency_ms: float = 0.0
    speedup: float = 0.0
    low: float = 0.0
    high: float = 0.0
    size_bytes: int = 0
    teacher_ms: float = 0.0
    fault: str = ""

    @property
    def interval(self) -> Interval:
        return Interval(self.speedup, self.low, self.high)


@dataclass(frozen=True)
class ShapeTimer:
    """Times shapes, each once: a file in ``folder`` keeps what was found.

    Args:
        rows: what models are timed on, one at a time.
        threads: CPU threads of both models.
    """

    teacher: ModelDir
    folder: Path
    maker: Maker
    rows: Sequence[Example]
    threads: int

    def known(self, shape: Shape) -> ShapeTiming | None:
        """Return what was found of a shape, None before it is timed."""
        found = kept(self.folder / f"{shape.key}.json")
        return None if found is None else ShapeTiming(**found)

    def time(self, shape: Shape) -> ShapeTiming:
        """Return what a shape costs; both precisions take turns at once, because building takes longer than timing."""
        if (found := self.known(shape)) is not None:
            return found
        work = self.folder / "building"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            timed = self._timed(shape, work)
        except CompressError as error:  # such as a tokenizer of which no vocabulary is learned
            timed = dict.fromkeys(PRECISIONS, ShapeTiming(fault=str(error)))
        shutil.rmtree(work)
        for precision, timing in timed.items():
            keep(self.folder / f"{replace(shape, precision=precision).key}.json", asdict(timing))
        return timed[shape.precision]

    def _timed(self, shape: Shape, work: Path) -> dict[Any, ShapeTiming]:
        torch_form, directories = work / "torch", {str(precision): work / precision for precision in PRECISIONS}
        self.maker.build(shape, torch_form)
        directories["fp32"].mkdir()
        write_onnx(ModelDir.open(torch_form), directories["fp32"])
        shutil.copytree(directories["fp32"], directories["int8"], ignore=shutil.ignore_patterns(f"{ONNX_NAME}*"))
        quantize = plugins.find("quantizers", QUANTIZER).function
        quantize(directories["fp32"] / ONNX_NAME, directories["int8"] / ONNX_NAME)
        speeds = time_side_by_side(
            {TEACHER: self.teacher.path, **directories}, self.rows, runtime="", threads=self.threads, batch_sizes=(1,)
        )
        teacher_ms = speeds[0].latency_ms
        sizes = {name: ModelDir.open(path, verify=False).size_bytes for name, path in directories.items()}
        return {
            one.name: ShapeTiming(one.latency_ms, one.speedup, one.low, one.high, sizes[one.name], teacher_ms)
            for one in speeds[1:]
        }
