"""How much faster fine-tuning on few rows is where rows of like length are run together.

    python benchmarks/speed/batch_parts.py --teacher DIR --texts FILE --rows 1000 --name banking77 -o RESULTS.jsonl
        [--batch-size 64] [--rounds 5] [--threads 1] [--precision auto]

Few rows cannot be sorted far without the same rows meeting in every batch, so that batches of random rows hold much
padding. Both ways train the same model on the same batches in turns; a round is a pass over the rows, in batches drawn
anew. A step is forwards, cross-entropy with labels drawn at random, backwards, clipping and AdamW. Times are CPU time
on one thread, else wall time. A line replaces that of the same rows, batch size, model, precision, threads and host.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compress.data import open_source
from compress.data.tokenization import encode, pad
from compress.inference.compute import autocast, fast_float32, resolve_precision
from compress.inference.speedup_intervals import speedup
from compress.models.batch import Batch
from compress.models.model_dir import Model
from compress.training.teacher_signal import ActivationRecorder, of_like_lengths
from compress.training.trainer import RowAdamW, clip_gradients
from compress.training.training_data import EpochSampler

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import milliseconds, provenance, read_options, replace_line, said  # noqa: I001

WARM_UP = 2  # steps of each way


def main() -> None:
    options = read_options(
        __doc__,
        teacher=str,
        texts=str,
        rows=int,
        name=str,
        batch_size=64,
        rounds=5,
        threads=1,
        precision=("auto", "float32", "bfloat16"),
    )
    torch.set_num_threads(options.threads)
    precision = resolve_precision(options.precision, "cpu")
    directory = Model.open(options.teacher)
    model: Any = directory.load()
    model.train()
    examples = list(open_source(options.texts, role="unlabeled", labelled=False).sample(options.rows))
    tokens = encode(directory.tokenizer, examples, 128)
    rows = [{key: values[row] for key, values in tokens.items()} for row in range(len(examples))]
    lengths = np.array([len(row["input_ids"]) for row in rows])
    sampler, padding_id = EpochSampler(options.batch_size, lengths, seed=0), int(model.config.pad_token_id or 0)
    ways = {name: ActivationRecorder(model, frozenset(), whole=name == "whole") for name in ("whole", "parts")}
    optimizer = RowAdamW(model.parameters(), lr=1e-5)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    pass_ms: dict[str, list[float]] = {name: [] for name in ways}
    seen: list[Batch] = []
    with fast_float32():
        for number in range(options.rounds + 1):
            sampler.set_epoch(number)
            order = [rows[row] for row in sampler]
            starts = range(0, len(order), options.batch_size)
            batches = [batch_of(order[start : start + options.batch_size], padding_id) for start in starts]
            batches = batches if number else batches[:WARM_UP]
            for name in [*ways][:: -1 if number % 2 else 1]:
                took = milliseconds(partial(train, ways[name], optimizer, precision, batches), clock)
                pass_ms[name] += [took] if number else []
            seen += batches if number else []
    ratio = speedup([[one] for one in pass_ms["whole"]], [[one] for one in pass_ms["parts"]])
    counts = np.array([tokens_of(batch, ways["parts"].part_tokens) for batch in seen])
    whole, divided, parts = counts.sum(axis=0)
    line = {
        "study": "batch-parts",
        "data": options.name,
        "rows": len(rows),
        "batch_size": options.batch_size,
        "model": directory.name,
        "precision": precision,
        "tokens_per_row": float(lengths.mean()),
        "padded_tokens_per_row": whole / options.rounds / len(rows),
        "padded_tokens_per_row_in_parts": divided / options.rounds / len(rows),
        "parts_per_batch": parts / len(seen),
        "pass_ms": pass_ms,
        "parts_are_faster_by": ratio._asdict(),
        "threads": options.threads,
        **provenance(),
    }
    replace_line(options.output, line, "data", "rows", "batch_size", "model", "precision", "threads", "host_id")
    tokens_of_a_row = "{tokens_per_row:.1f} tokens a row, {padded_tokens_per_row:.1f} with padding, "
    divided_ones = "{padded_tokens_per_row_in_parts:.1f} in {parts_per_batch:.1f} parts a batch"
    print((tokens_of_a_row + divided_ones).format(**line), said(line["parts_are_faster_by"]), sep="\n")


def batch_of(rows: list[Any], padding_id: int) -> Batch:
    return Batch(**{name: torch.from_numpy(values) for name, values in pad(rows, padding_id).items()})


def tokens_of(batch: Batch, part_tokens: float) -> tuple[int, int, int]:
    """Return the tokens of a batch with padding, those of its parts, and their number."""
    lengths = batch.attention_mask.sum(dim=1)
    parts = of_like_lengths(lengths, part_tokens)
    return batch.input_ids.numel(), sum(len(part) * int(lengths[part].max()) for part in parts), len(parts)


def train(recorder: ActivationRecorder, optimizer: torch.optim.Optimizer, precision: str, batches: list[Batch]) -> None:
    def forward(**inputs: Any) -> Any:
        with autocast("cpu", precision):  # of every part, as a training does it
            return recorder.model(**inputs)

    for batch in batches:
        raw, _ = recorder(batch, forward)
        torch.nn.functional.cross_entropy(raw.float(), torch.randint(raw.shape[1], (len(raw),))).backward()
        clip_gradients(recorder.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
