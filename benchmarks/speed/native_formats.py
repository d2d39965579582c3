"""A small student in WebAssembly: microseconds from a text to its label in Node, beside Python's call; and sizes.

    python benchmarks/speed/native_formats.py --model DIR --data FILE [--rows 500] [--rounds 40] -o results.jsonl

``DIR`` is a student that the native library runs. Its exports are made in a temporary folder, with a second module of
plain instructions. Ways take turns, a text at a time, each by the CPU time of its process. Bytes of code are those of
the library compiled by ``cc -O3 -c``, its sections text and data, without the example.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from compress.exporting.native_formats import compile_wasm
from compress.files import write_json_lines
from compress.inference.predict import load
from compress.inference.speedup_intervals import speedup
from compress.models.manifest import NATIVE_NAME
from compress.requests.compression import export

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import in_turns, milliseconds, provenance, read_options, read_rows, said  # noqa: I001

OURS, SIMD, PLAIN = "predict(text)", "WebAssembly in Node", "WebAssembly in Node, plain instructions"
NODE = """
import { load } from "./compress.js";
import { createInterface } from "node:readline";
const model = await load({ wasm: process.argv[1] });
let texts;
for await (const line of createInterface({ input: process.stdin })) {
  texts ??= JSON.parse(line);
  const begin = process.cpuUsage();
  for (const text of texts) model.classify(text);
  const { user, system } = process.cpuUsage(begin);
  console.log(JSON.stringify([(user + system) / 1000, model.instructions]));
}
"""


@contextmanager
def node(folder: Path, wasm: str, texts: Sequence[str]) -> Iterator[Callable[[], float]]:
    """Run Node with a module; the function classifies all texts and returns the milliseconds of CPU time."""
    command = ["node", "--input-type=module", "-e", NODE, wasm]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout

        def turn(line: str = "go") -> float:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            return float(json.loads(process.stdout.readline())[0])

        turn(json.dumps([*texts]))
        yield turn  # it ends at the end of its input


def code_bytes(folder: Path) -> int:
    """Return the bytes of the library's machine code and constants."""
    files = [path.name for path in sorted(folder.glob("*.c")) if path.name != "example.c"]
    subprocess.run(["cc", "-O3", "-c", *files], cwd=folder, check=True)
    objects = [str(Path(name).with_suffix(".o")) for name in files]
    done = subprocess.run(["size", *objects], cwd=folder, capture_output=True, text=True, check=True)
    return sum(sum(map(int, line.split()[:2])) for line in done.stdout.splitlines()[1:])


def sizes(c: Path, wasm: Path) -> dict[str, int]:
    found = {"code_bytes": code_bytes(c)}
    for name, path in (
        ("wasm", wasm / "compress.wasm"),
        ("container", wasm / NATIVE_NAME),
        ("page", wasm / "index.html"),
    ):
        found[f"{name}_bytes"] = path.stat().st_size
        if name != "page":
            found[f"{name}_gzipped_bytes"] = len(gzip.compress(path.read_bytes(), 9, mtime=0))
    return found


def main() -> None:
    options = read_options(__doc__, model=str, data=str, rows=500, rounds=40, seed=0)
    texts = [row.text for row in read_rows(options.data, labelled=False)[: options.rows]]
    model = load(options.model)
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        c, wasm = (export(options.model, Path(name, form), format=form).path for form in ("c", "wasm"))
        compile_wasm(wasm / "plain.wasm", ())
        ways = {
            OURS: lambda: milliseconds(lambda: [model.predict(text) for text in texts], time.thread_time),
            SIMD: running.enter_context(node(wasm, "compress.wasm", texts)),
            PLAIN: running.enter_context(node(wasm, "plain.wasm", texts)),
        }
        samples: dict[str, list[list[float]]] = {way: [] for way in ways}
        for way in ways.values():
            for _ in range(10):  # until JavaScript is compiled
                way()
        for _, way in in_turns(ways, options.rounds, options.seed):
            samples[way].append([ways[way]() / len(texts)])
        measured = sizes(c, wasm)
    lines = []
    for way, rounds in samples.items():
        line = {
            "study": "native-formats",
            "model": model.name,
            "way": way,
            "rows": len(texts),
            "rounds": options.rounds,
            "mean_bytes": float(np.mean([len(text.encode()) for text in texts])),
            "median_us": 1000 * float(np.median(rounds)),
            "predict_is_faster_by": speedup(rounds, samples[OURS], seed=options.seed)._asdict(),
            "plain_is_slower_by": speedup(samples[PLAIN], rounds, seed=options.seed)._asdict(),
            **measured,
            **provenance(),
            "seed": options.seed,
        }
        lines.append(line)
        print(f"{way:40} {line['median_us']:7.2f} us; predict(text) is {said(line['predict_is_faster_by'])}")
    print(measured)
    write_json_lines(options.output, lines)


if __name__ == "__main__":
    main()
