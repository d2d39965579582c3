"""Microseconds to turn a text into what a model reads, one text at a time, in the ways there are, interleaved.

    python benchmarks/speed/tokenization_speed.py --model DIR --unlabeled FILE [--rows 500] [--rounds 20]
        [-o results.jsonl]

Every round takes rows that were not seen before and gives them, text by text, to each way in a random order. The
encoder of this project remembers words, so that it first reads ``--before`` other rows, as a service would have.
Threads: one.
"""

from __future__ import annotations

import copy
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

os.environ["TOKENIZERS_PARALLELISM"] = "false"


from compress.data import Example, open_source
from compress.data.tokenization import encode, maximum_length, pad
from compress.files import write_json_lines
from compress.inference.speedup_intervals import speedup
from compress.models.model_dir import Model

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import in_turns, milliseconds, provenance, read_options, said  # noqa: I001

OURS = "compress"
Way = Callable[[Example], object]


def main() -> None:
    arguments = read_options(__doc__, None, model=str, unlabeled=str, rows=500, rounds=20, before=20_000, seed=0)
    model = Model.open(arguments.model)
    source = open_source(arguments.unlabeled, role="unlabeled", labelled=False)
    pool = list(source.sample(arguments.before + arguments.rows * arguments.rounds))
    random.Random(arguments.seed).shuffle(pool)
    before, pool = pool[: arguments.before], pool[arguments.before :]
    ways = _ways(model)
    for example in before:
        ways[OURS](example)
    for way in ways.values():
        way(before[0])
    samples: dict[str, list[list[float]]] = {name: [] for name in ways}
    for number, name in in_turns(ways, arguments.rounds, arguments.seed):
        rows = pool[number * arguments.rows : (number + 1) * arguments.rows]
        samples[name].append([milliseconds(partial(ways[name], row)) for row in rows])
    tokens, lines = [len(ids) for ids in encode(model.tokenizer, pool, 512)["input_ids"]], []
    for name, rounds in samples.items():
        ratio = speedup(rounds, samples[OURS], seed=arguments.seed)
        line = {
            "study": "tokenization-speed",
            "model": model.name,
            "way": name,
            "rows_per_round": arguments.rows,
            "rounds": arguments.rounds,
            "rows_before": arguments.before,
            "mean_tokens": float(np.mean(tokens)),
            "median_us": 1000 * float(np.median(rounds)),
            "mean_us": 1000 * float(np.mean(rounds)),
            "compress_is_faster_by": ratio._asdict(),
            "data": source.name,
            **provenance(),
            "seed": arguments.seed,
        }
        lines.append(line)
        print(
            f"{name:42} median {line['median_us']:6.1f} us, mean {line['mean_us']:6.1f} us; compress is "
            f"{said(line['compress_is_faster_by'])}"
        )
    print(f"{np.mean(tokens):.1f} tokens a text")
    if arguments.output:
        write_json_lines(Path(arguments.output), lines)


def _ways(model: Model) -> dict[str, Way]:
    """Return what makes int64 arrays ``[1, T]`` of a text, by name; each has a tokenizer of its own."""
    limit = maximum_length(model.tokenizer, model.config)
    ours, stock, plain = (copy.deepcopy(model.tokenizer) for _ in range(3))
    backend = plain.backend_tokenizer
    backend.no_padding()
    backend.enable_truncation(limit)

    def by_words(row: Example) -> object:
        tokens = encode(ours, [row], limit)
        return pad([{key: ids[0] for key, ids in tokens.items()}], ours.pad_token_id or 0)

    def call(row: Example) -> object:
        return stock(row.text, truncation=True, max_length=limit, return_tensors="np")

    def encode_one(row: Example) -> object:
        encoding = backend.encode(row.text)
        return [np.array([values]) for values in (encoding.ids, encoding.type_ids, encoding.attention_mask)]

    def encode_batch_fast(row: Example) -> object:
        encoding = backend.encode_batch_fast([row.text])[0]
        return [np.array([values]) for values in (encoding.ids, encoding.type_ids, encoding.attention_mask)]

    return {
        OURS: by_words,
        "PreTrainedTokenizerFast.__call__": call,
        "tokenizers.Tokenizer.encode": encode_one,
        "tokenizers.Tokenizer.encode_batch_fast": encode_batch_fast,
    }


if __name__ == "__main__":
    main()
