"""Microseconds a token by the length of a text: CPU time of one thread from text to label, interleaved.

    python benchmarks/speed/speed_by_length.py --model DIR ... --data FILE -o benchmarks/results/speed-by-length.jsonl
        [--lengths 512 2048 8192 32768 100000] [--rounds 9]

``DIR`` is a torch directory of a student without positions (``cnn``, ``ngram``), which is let read as many tokens as
the longest text has. Texts are the rows of ``FILE`` one after the other, as many as are needed. ``native`` is int8;
ONNX Runtime and torch are float32. Each line has the median of the rounds with the 95% interval of a bootstrap.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from compress.data import Example
from compress.inference.batching import open_runtime
from compress.inference.native import NativeRunner
from compress.inference.runners import LoadedModel
from compress.models.model_dir import Model
from compress.requests.compression import export, quantize

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import columns, in_turns, milliseconds, provenance, read_options, read_rows, replace_line  # noqa: I001

SETTINGS = {"config.json": "max_position_embeddings", "tokenizer_config.json": "model_max_length"}


def reading(directory: str, target: Path, tokens: int) -> Path:
    """Write a student as it would be after a training on texts of so many tokens."""
    shutil.copytree(directory, target, ignore=shutil.ignore_patterns("compress.json"))
    for name, key in SETTINGS.items():
        settings = json.loads((target / name).read_text())
        (target / name).write_text(json.dumps(settings | {key: tokens}))
    return target


def ways(directory: Path, folder: Path) -> dict[str, Callable[[str], Any]]:
    """Return what takes a text to logits, from its tokens on and with these."""
    graph = export(directory, folder / "onnx")
    native = NativeRunner(quantize(graph, folder / "int8").path)
    found: dict[str, Callable[[str], Any]] = {"native": lambda text: native.run([text])}
    for runtime, model in (("onnxruntime", graph), ("torch", Model.open(directory))):
        loaded = LoadedModel.open(model)
        loaded.start(lambda one, name=runtime: open_runtime(one.path, name, threads=1, device="cpu"))
        found[runtime] = lambda text, loaded=loaded: loaded.logits([Example(text)])
    return found


def main() -> None:
    lengths = [512, 2048, 8192, 32_768, 100_000]
    options = read_options(__doc__, Path, model=[str], data=str, lengths=lengths, rounds=9)
    generator, table = np.random.default_rng(0), list[list[str]]()
    with tempfile.TemporaryDirectory() as name:
        for number, model in enumerate(options.model):
            folder = Path(name, str(number))
            directory = reading(model, folder / "torch", max(options.lengths))
            every, core = ways(directory, folder), NativeRunner(folder / "int8").core
            words = itertools.cycle(" ".join(row.text for row in read_rows(options.data, labelled=False)).split())
            texts, counts = dict[int, str](), dict[int, int]()
            for length in options.lengths:
                some = [*itertools.islice(words, length)]
                while len(core.ids(" ".join(some))[0]) > length or core.ids(" ".join(some))[1]:
                    some = some[: len(some) * 99 // 100]
                texts[length] = " ".join(some)
                counts[length] = len(core.ids(texts[length])[0])
            took = {(way, length): list[float]() for way in every for length in texts}
            for turn, (way, length) in in_turns(took, options.rounds + 1):
                seconds = milliseconds(lambda: every[way](texts[length]), time.thread_time)  # noqa: B023
                took[way, length] += [1000 * seconds / counts[length]] if turn else []
            for (way, length), values in took.items():
                medians = np.median(generator.choice(values, (2000, len(values))), axis=1)
                low, high = np.quantile(medians, [0.025, 0.975])
                line = {
                    "model": Path(model).name,
                    "way": way,
                    "length": length,
                    "tokens": counts[length],
                    "us_a_token": round(float(np.median(values)), 4),
                    "interval": [round(float(low), 4), round(float(high), 4)],
                    "rounds": options.rounds,
                    **provenance(),
                }
                replace_line(options.output, line, "model", "way", "length")
                said = "{us_a_token:.3f} ({interval[0]:.3f} to {interval[1]:.3f})".format(**line)
                table.append([Path(model).name, way, f"{counts[length]:,}", said])
    print(columns(["student", "runs in", "tokens", "us a token"], table))


if __name__ == "__main__":
    main()
