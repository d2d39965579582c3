"""What waiting threads of OpenMP do to training and to latency: spin for a while, as by default, or sleep at once?

    python benchmarks/speed/wait_policy.py [--rounds 15] [--threads 2] [--disturbed] [-o RESULTS.jsonl]

GNU's OpenMP, which PyTorch's wheels for Linux bring, reads its policy when it is loaded, so that each policy is a
process of its own. They take turns: some training steps of a BERT of MiniLM's shape with three layers at batch 32, then
single sentences. Weights are random; that changes no time. ``--disturbed`` keeps every core busy with one other
process meanwhile, as on a host that is shared.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

from compress.benchmarking.results.files import host_id
from compress.host import describe_host, library_versions, typed_command
from compress.inference.cores import available_cores
from compress.inference.speedup_intervals import speedup
from compress.models.output_dir import write_atomically

POLICIES: dict[str, dict[str, str]] = {
    "default": {},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
}
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
KINDS = {"training": (32, 32, 3), "latency": (1, 32, 20)}  # rows, tokens, how often in a turn
BUSY = "import os, sys\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(1000))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=len(available_cores()))
    parser.add_argument("--disturbed", action="store_true", help="keep all cores busy with something else")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, help="JSON lines to write")
    options = parser.parse_args()
    if options.client:
        client(options.threads)
        return
    plain = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, __file__, "--client", "--threads", str(options.threads)]
    generator = random.Random(options.seed)
    took: dict[tuple[str, str], list[list[float]]] = {(kind, name): [] for kind in KINDS for name in POLICIES}
    with ExitStack() as stack:
        workers = {}
        for name, variables in POLICIES.items():
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            workers[name] = stack.enter_context(subprocess.Popen(command, env={**plain, **variables}, **pipes))
            turn(workers[name], "training"), turn(workers[name], "latency")  # warm-up
        if options.disturbed:
            for _ in available_cores():
                stack.callback(subprocess.Popen([sys.executable, "-c", BUSY]).kill)
        for _ in range(options.rounds):
            for kind in KINDS:
                for name in generator.sample(sorted(workers), len(workers)):
                    took[kind, name].append(turn(workers[name], kind))
        for worker in workers.values():
            worker.stdin.close()
    common = {
        "study": "wait-policy",
        "disturbed": options.disturbed,
        "threads": options.threads,
        "rounds": options.rounds,
        "command": typed_command("python"),
        "load_average": os.getloadavg()[0],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": describe_host(),
        "host_id": host_id(describe_host()),
        "versions": library_versions(),
    }
    lines = []
    for (kind, name), rounds in took.items():
        ratio = speedup(took[kind, "default"], rounds, seed=options.seed)
        median = sorted(ms for one in rounds for ms in one)[sum(map(len, rounds)) // 2]
        lines.append({"kind": kind, "policy": name, "median_ms": median, "speed_to_default": asdict(ratio), **common})
        print(f"{kind:9} {name:24} {median:9.2f} ms, x{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")
    if options.output:
        write_atomically(options.output, "".join(json.dumps(line) + "\n" for line in lines))


def turn(worker: Any, kind: str) -> list[float]:
    print(kind, file=worker.stdin, flush=True)
    took: list[float] = json.loads(worker.stdout.readline())
    return took


def client(threads: int) -> None:
    """Answer each line of standard input, ``training`` or ``latency``, with a list of milliseconds."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(hidden_size=384, num_hidden_layers=3, num_attention_heads=12, intermediate_size=1536)
    )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for line in sys.stdin:
        kind = line.strip()
        rows, tokens, times = KINDS[kind]
        ids = torch.randint(1000, 20000, (rows, tokens))
        model.train(kind == "training")
        took = []
        for _ in range(times):
            started = time.perf_counter()
            if kind == "training":
                model(ids, labels=ids[:, 0] % 2).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            else:
                with torch.inference_mode():
                    model(ids)
            took.append(1000 * (time.perf_counter() - started))
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main()
