"""How far int8 answers depend on the other texts of a batch, how far they are from float32, and what it costs.

    python benchmarks/speed/int8_rows.py --model DIR [--model DIR ...] --data FILE -o RESULTS.jsonl [--rows 10000]

Every torch model is exported and quantized twice: by ``compress quantize`` (``rows``: a range for each row) and by ONNX
Runtime's own ``quantize_dynamic`` per channel (``batch``: a range for all numbers of a batch), both but for the last
layer. All texts are classified one at a time, in shuffled batches of 32, and in those padded to the longest text. The
graphs take turns on the same batches; times are CPU time on one thread, without tokenisation. Lines are added to those
in RESULTS.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic

from compress import plugins
from compress.data import Example, open_source
from compress.data.tokenization import encode, maximum_length, pad
from compress.evaluation.metrics import probabilities as softmax
from compress.exporting.export import write_onnx
from compress.exporting.onnx_graph import quiet
from compress.files import write_json_lines
from compress.inference.batching import Run, open_runtime
from compress.inference.runners import LoadedModel, time_in_turns
from compress.inference.speedup_intervals import percentile, speedup
from compress.models.manifest import ONNX_NAME
from compress.models.model_dir import Model
from compress.models.networks.small_graph import SMALL_PRODUCT

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import provenance, read_options  # noqa: I001

WAYS = ("float32", "batch", "rows")
BATCH_ROWS = 32


def main() -> None:
    arguments = read_options(__doc__, model=[str], data=str, rows=10_000, name=str)
    texts = list(itertools.islice(open_source(arguments.data, role="data", labelled=False), arguments.rows))
    lines = []
    for directory in arguments.model:
        with tempfile.TemporaryDirectory() as folder:
            model = Model.open(directory)
            known = {"study": "int8-rows", "model": model.name, "data": arguments.name, "rows": len(texts)}
            found = compared(model, write_graphs(model, Path(folder)), texts)
            lines += [{**known, **fields, "threads": 1, **provenance()} for fields in found]
    write_json_lines(arguments.output, lines)


def write_graphs(model: Model, folder: Path) -> dict[str, Path]:
    """Write the float32 graph of a model and both int8 graphs that are made of it; return their directories."""
    places = {way: folder / way for way in WAYS}
    for place in places.values():
        place.mkdir()
    write_onnx(model, places["float32"])
    source, *targets = (place / ONNX_NAME for place in places.values())
    quantize_by_batch(source, targets[0])
    plugins.find("quantizers", "onnx-dynamic").function(source, targets[1])
    return places


def quantize_by_batch(source: Path, target: Path) -> None:
    """Quantize with ONNX Runtime's own ``quantize_dynamic``, without the last layer and products that are too small."""
    graph = onnx.load(str(source))
    for number, node in enumerate(graph.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    products = [node.name for node in graph.graph.node if node.op_type in {"MatMul", "Gemm"}]
    last = products[-1]
    with quiet():
        quantize_dynamic(
            graph,
            str(target),
            op_types_to_quantize=["MatMul", "Gemm", "LSTM"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=[name for name in products if name.startswith(SMALL_PRODUCT)] + [last, f"{last}_MatMul"],
            extra_options={"DefaultTensorType": TensorProto.FLOAT},
        )


def compared(model: Model, places: dict[str, Path], texts: list[Example]) -> list[dict[str, Any]]:
    """Return for each graph what depends on the batch, what differs from float32, and how fast it is."""
    tokenizer = model.tokenizer
    padding_id = tokenizer.pad_token_id or 0
    tokens = encode(tokenizer, texts, maximum_length(tokenizer, model.config))
    longest = max(tokens["input_ids"], key=len)
    runs = {way: open_runtime(place, threads=1, config=model.config) for way, place in places.items()}

    def probabilities_of(run: Run, order: np.ndarray, batch_rows: int, beside: list[np.ndarray]) -> np.ndarray:
        """Return ``[N, C]`` in the order of the texts; rows ``beside`` are in every batch and have no answer here."""
        found = np.zeros((len(texts), len(model.labels)))
        for start in range(0, len(order), batch_rows):
            rows = order[start : start + batch_rows]
            read = [{key: values[row] for key, values in tokens.items()} for row in rows]
            read += [{key: (row if key == "input_ids" else 0 * row) for key in tokens} for row in beside]
            found[rows] = softmax(run(pad(read, padding_id)))[: len(rows)]
        return found

    order = np.random.default_rng(0).permutation(len(texts))
    answers = {
        way: {
            "alone": probabilities_of(run, np.arange(len(texts)), 1, []),
            "shuffled": probabilities_of(run, order, BATCH_ROWS, []),
            "padded": probabilities_of(run, order, BATCH_ROWS, [longest]),
        }
        for way, run in runs.items()
    }
    loaded = LoadedModel.open(model)
    models = {way: replace(loaded, function=run) for way, run in runs.items()}
    times = {size: time_in_turns(models, texts, size, 1) for size in (1, BATCH_ROWS)}
    lines, exact = [], answers["float32"]["alone"]
    for way in WAYS:
        alone = answers[way].pop("alone")
        fields: dict[str, Any] = {"ranges": way}
        for name, batched in answers[way].items():
            fields[f"{name}_labels_changed"] = int((batched.argmax(axis=1) != alone.argmax(axis=1)).sum())
            fields[f"{name}_largest_change"] = float(np.abs(batched - alone).max())
        fields["labels_other_than_float32"] = int((alone.argmax(axis=1) != exact.argmax(axis=1)).sum())
        for size, samples in times.items():
            fields[f"latency_ms_batch_{size}"] = percentile(samples[way], 50).value
            for of in {"float32", "batch"} - {way}:
                ratio = speedup(samples[of], samples[way])
                fields[f"speedup_over_{of}_batch_{size}"] = [ratio.value, ratio.low, ratio.high]
        print(model.name, fields, flush=True)
        lines.append(fields)
    return lines


if __name__ == "__main__":
    main()
