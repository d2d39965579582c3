"""How much time a graph saves that computes neither padding nor tokens that nobody reads.

    python benchmarks/speed/token_rows.py --model DIR [--model DIR ...] --data FILE -o RESULTS.jsonl
        [--batch-size 1 --batch-size 32] [--rounds 9] [--texts 256]

Every model is exported twice, with :func:`compress.exporting.onnx_graph.compute_only_tokens` and without, and both are
quantized to dynamic int8 of 7 bits. The graphs take turns within each round, in an order drawn anew, on the same
batches of consecutive texts, padded to their longest. Times are CPU time on one thread; tokenisation is not timed.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from compress import plugins
from compress.data import open_source
from compress.exporting.export import write_onnx
from compress.files import write_json_lines
from compress.inference.batching import open_runtime
from compress.inference.runners import LoadedModel
from compress.inference.speedup_intervals import speedup
from compress.models.model_dir import Model

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import in_turns, milliseconds, provenance, read_options, said  # noqa: I001

WAYS, PRECISIONS = ("all positions", "tokens"), ("float32", "int8")


def main() -> None:
    arguments = read_options(__doc__, model=[str], data=str, batch_size=[1, 32], rounds=9, texts=256)
    texts = list(itertools.islice(open_source(arguments.data, role="data", labelled=False), arguments.texts))
    lines = []
    for directory, batch_size in itertools.product(arguments.model, arguments.batch_size):
        with tempfile.TemporaryDirectory() as folder:
            graphs = write_graphs(Model.open(directory), Path(folder))
            runner = LoadedModel.open(Model.open(directory), 0, ())
            starts = range(0, len(texts) - batch_size + 1, batch_size)
            batches = [runner.prepare(texts[start : start + batch_size]) for start in starts]
            samples: dict[tuple[str, str], list[list[float]]] = {key: [] for key in graphs}
            for number, key in in_turns(graphs, arguments.rounds + 1):
                took = [milliseconds(partial(graphs[key], batch), time.process_time) for batch in batches]
                samples[key] += [took] if number else []  # the first round warms up
        sizes = [(batch["attention_mask"].sum(), batch["attention_mask"].size) for batch in batches]
        padding = 1 - np.array(sizes).sum(axis=0)[0] / np.array(sizes).sum(axis=0)[1]
        for precision in PRECISIONS:
            every, tokens = (samples[way, precision] for way in WAYS)
            ratio = speedup(every, tokens)
            line = {
                "study": "token-rows",
                "model": Model.open(directory).name,
                "precision": precision,
                "batch_size": batch_size,
                "padding_share": round(float(padding), 4),
                "batches": len(batches),
                "all_positions_ms": float(np.median(every)),
                "tokens_ms": float(np.median(tokens)),
                "speedup": ratio.value,
                "speedup_low": ratio.low,
                "speedup_high": ratio.high,
                "threads": 1,
                **provenance(),
            }
            lines.append(line)
            setting = f"{line['model']}, {precision}, batch {batch_size}, {padding:.0%} padding"
            print(f"{setting}: {said(ratio._asdict())}", flush=True)
    write_json_lines(arguments.output, lines)


def write_graphs(model: Model, folder: Path) -> dict[tuple[str, str], Any]:
    """Return functions of token arrays by how the graph treats positions and by its precision."""
    quantize = plugins.find("quantizers", "onnx-dynamic").function
    found = {}
    for way in WAYS:
        exact, rounded = (folder / f"{way} {precision}" for precision in PRECISIONS)
        exact.mkdir()
        unchanged = (
            mock.patch("compress.exporting.onnx_graph.compute_only_tokens") if way != "tokens" else nullcontext()
        )
        with unchanged:
            write_onnx(model, exact)
        shutil.copytree(exact, rounded)
        quantize(exact / "model.onnx", rounded / "model.onnx", reduce_range=True)
        found[way, "float32"], found[way, "int8"] = (open_runtime(one, threads=1) for one in (exact, rounded))
    return found


if __name__ == "__main__":
    main()
