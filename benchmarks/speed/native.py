"""Microseconds from a text to its label, in the ways there are, interleaved: CPU time of one thread, a text at a time.

    python benchmarks/speed/native.py --model DIR ... --data FILE [--fasttext FILE ...] [--model2vec DIR] [--rows 500]
        [--rounds 40] [--threads 1 2 16] [-o results.jsonl]

``DIR`` is an ONNX directory with a native container. Every round takes the same rows in another order of ways. The
first way is the public call, the second the same call with a list of all rows, the third without the native library;
the loop in C is compiled by ``cc -O3`` from an exported directory. ``--fasttext`` are model files of fastText, and
``--model2vec`` is a folder with static embeddings and a linear head, as ``room.py`` makes them; the packages have to be
installed (fasttext-wheel, model2vec). Then so many threads call one model at once, with a list each: texts in a second
of the clock, and whether all answers are those of one thread.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np

from compress.data import Example
from compress.files import write_json_lines
from compress.inference.batching import open_runtime
from compress.inference.native import NativeRunner
from compress.inference.predict import load
from compress.inference.runners import LoadedModel
from compress.inference.speedup_intervals import speedup
from compress.models.manifest import NATIVE_NAME
from compress.models.model_dir import Model
from compress.requests.compression import export

sys.path.append(str(Path(__file__).resolve().parents[1]))
from room import open_model2vec
from script import in_turns, milliseconds, provenance, read_options, read_rows, said  # noqa: I001

OURS, GRAPH = "predict(text)", "predict(text), ONNX Runtime"
LOOP = """
#include "native.h"
#include <stddef.h>
void classify_all(const compress_model *model, const compress_text *texts, size_t count, float *logits) {
    for (size_t i = 0; i < count; i++) compress_classify(model, texts[i], NULL, logits);
}
"""
Way = Callable[[Sequence[str]], object]


class Text(ctypes.Structure):
    """compress_text of native.h."""

    _fields_ = (("bytes", ctypes.c_char_p), ("size", ctypes.c_size_t))


def loop_in_c(directory: str, texts: Sequence[str]) -> Callable[[], np.ndarray]:
    """Return what classifies all texts in C and returns the logits of the last."""
    with tempfile.TemporaryDirectory() as name:
        made = export(directory, Path(name, "c"), format="c")
        (made.path / "loop.c").write_text(LOOP)
        files = [path.name for path in made.path.glob("*.c") if path.name != "example.c"]
        subprocess.run(["cc", "-O3", "-shared", "-fPIC", *files, "-o", "loop.so"], cwd=made.path, check=True)
        library = ctypes.CDLL(str(made.path / "loop.so"))
        container = np.memmap(made.path / NATIVE_NAME, np.uint8, "r")  # which begins at a page
    library.compress_open.restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(4096)
    model = ctypes.c_void_p(library.compress_open(ctypes.c_void_p(container.ctypes.data), container.size, error))
    if not model:
        raise SystemExit(error.value.decode())
    given = (Text * len(texts))(*((text.encode(), len(text.encode())) for text in texts))
    logits = np.zeros(len(made.labels), np.float32)
    place = logits.ctypes.data_as(ctypes.c_void_p)

    def classify(kept: np.ndarray = container) -> np.ndarray:  # the model reads the container
        library.classify_all(model, given, ctypes.c_size_t(len(given)), place)
        return logits

    return classify


def open_fasttext(file: str) -> tuple[str, Callable[[str], object]]:
    """Return what a model of fastText reads, and its call."""
    import fasttext

    model = fasttext.load_model(file).f  # without the wrapper, which numpy 2 breaks
    read = model.getArgs()
    words = f"up to {read.wordNgrams} words" if read.wordNgrams > 1 else "words"
    name = f"{words} and {read.minn} to {read.maxn} characters" if read.maxn else words
    return f"fastText, {name}", lambda text: model.predict(f"{text}\n", 1, 0.0, "strict")


def ways(directory: str, options: argparse.Namespace, texts: Sequence[str]) -> dict[str, Way]:
    """Return what each way does with texts; all but two read one at a time in Python."""
    model = load(directory)
    if not isinstance(model.runner, NativeRunner):
        raise SystemExit(f"{directory} does not run in the native library: {model.manifest.notes.get('native')}")
    graph = load(directory)
    loaded = LoadedModel.open(Model.open(directory))
    loaded.start(lambda one: open_runtime(one.path, "onnxruntime", threads=1, device="cpu"))
    graph.__dict__.update(runner=loaded)
    prepared = {text: loaded.prepare([Example(text)]) for text in texts}
    tokenizer = loaded.tokenizer.backend_tokenizer
    loop = loop_in_c(directory, texts)
    np.testing.assert_allclose(loop(), model.runner.read(texts[-1:])[0][0], rtol=2e-6, atol=2e-6)

    def one_by_one(function: Callable[[str], object]) -> Way:
        return lambda some: [function(text) for text in some]

    found: dict[str, Way] = {
        OURS: one_by_one(model.predict),
        "predict(list)": model.predict,
        GRAPH: one_by_one(graph.predict),
        "the library alone": one_by_one(lambda text: model.runner.core.predict(text, None, False, False)),
        "the library in a loop in C": lambda _: loop(),
        "tokenizers alone": one_by_one(tokenizer.encode),
        "ONNX Runtime alone, of token ids": one_by_one(lambda text: loaded.function(prepared[text])),
    }
    for file in options.fasttext:
        name, answer = open_fasttext(file)
        found[name] = one_by_one(answer)
    if options.model2vec:
        embeddings = open_model2vec(Path(options.model2vec))
        found["model2vec"] = one_by_one(lambda text: embeddings([text]))
    return found


def main() -> None:
    options = read_options(
        __doc__,
        None,
        model=[str],
        data=str,
        fasttext=[],
        model2vec=None,
        rows=500,
        rounds=40,
        threads=[1, 2, 16],
        seed=0,
    )
    texts = [row.text for row in read_rows(options.data, labelled=False)[: options.rows]]
    lines = [
        line for model in options.model for line in (*alone(model, texts, options), *together(model, texts, options))
    ]
    if options.output:
        write_json_lines(Path(options.output), lines)


def alone(model: str, texts: Sequence[str], options: argparse.Namespace) -> list[dict[str, object]]:
    every = ways(model, options, texts)
    samples: dict[str, list[list[float]]] = {name: [] for name in every}
    for way in every.values():
        way(texts)
    for _, name in in_turns(every, options.rounds, options.seed):
        samples[name].append([milliseconds(partial(every[name], texts), time.thread_time) / len(texts)])
    lines = []
    for name, rounds in samples.items():
        ratio = speedup(rounds, samples[OURS], seed=options.seed)
        line = {
            "study": "native",
            "model": Model.open(model).name,
            "way": name,
            "rows": len(texts),
            "rounds": options.rounds,
            "mean_bytes": float(np.mean([len(text.encode()) for text in texts])),
            "median_us": 1000 * float(np.median(rounds)),
            "predict_is_faster_by": ratio._asdict(),
            **provenance(),
            "seed": options.seed,
        }
        lines.append(line)
        print(f"{name:52} {line['median_us']:7.2f} us; predict(text) is {said(line['predict_is_faster_by'])}")
    return lines


def together(model: str, texts: Sequence[str], options: argparse.Namespace) -> list[dict[str, object]]:
    """Return the rates of several threads, in turns; every round has the same number of texts."""
    loaded, lists = load(model), max(options.threads)
    expected = loaded.predict(texts)
    rates: dict[int, list[float]] = {threads: [] for threads in options.threads}
    pools = {threads: ThreadPoolExecutor(threads) for threads in options.threads}
    equal = 0
    for _, threads in in_turns(pools, options.rounds, options.seed):
        begun = time.perf_counter()
        found = list(pools[threads].map(loaded.predict, [texts] * lists))
        rates[threads].append(lists * len(texts) / (time.perf_counter() - begun))
        equal += sum(one == answer for some in found for one, answer in zip(some, expected, strict=True))
    lines = []
    for threads, found in rates.items():
        line = {
            "study": "native",
            "model": loaded.name,
            "way": f"predict(list) in {threads} threads",
            "threads": threads,
            "texts_a_second": float(np.median(found)),
            "rounds": options.rounds,
            "answers": options.rounds * lists * len(texts) * len(rates),
            "equal": equal,
            **provenance(),
            "seed": options.seed,
        }
        lines.append(line)
        print(f"{line['way']:52} {line['texts_a_second']:9,.0f} texts a second; {equal:,} of {line['answers']:,} equal")
    return lines


if __name__ == "__main__":
    main()
