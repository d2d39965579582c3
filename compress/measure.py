"""Stage: measure models against their teacher, on the same rows and in the same minutes.

Every (model, runtime, threads) is a process of its own, pinned to the same cores. All are alive together and one works
at a time: in each round every one gets the same batches, in an order drawn anew. A speed-up is the median over rounds
of the ratio to the teacher, with an interval; accuracy is compared row by row.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from compress import metrics
from compress.artifact import ModelDir
from compress.data import Example, TextSource, content_sha256, encode_labels, encode_scores, open_source, read_examples
from compress.errors import CompressError
from compress.host import describe_host, library_versions
from compress.measuring.contenders import Contender, Entry, Model, check_split_roles, open_contenders, plan_entries
from compress.measuring.lines import Rows, Run, accuracy_fields, describe_run, keep_predictions, speed_fields
from compress.measuring.results import Measurement, host_id, write_results
from compress.measuring.schema import SCHEMA
from compress.measuring.timing import batches_per_round, draw_batches
from compress.measuring.worker import Worker
from compress.progress import Progress, silent

ROUNDS = 20
PREDICTIONS_KEPT = 5000


def benchmark(
    teacher: Model,
    models: Sequence[Model],
    data: Sequence[Example] | TextSource | str | Path,
    *,
    output: str | Path | None = None,
    controls: Sequence[Model] = (),
    runtimes: Sequence[str] | None = None,
    device: str = "cpu",
    threads: int | Sequence[int] = 1,
    batch_sizes: Sequence[int] = (1, 32),
    rounds: int = ROUNDS,
    seed: int = 0,
    metric: str | None = None,
    max_length: int = 0,
    study: str = "",
    data_name: str = "",
    command: str = "",
    force: bool = False,
    progress: Progress = silent,
) -> list[Measurement]:
    """Measure speed, accuracy, size and memory of every model and return one line per configuration.

    Args:
        teacher: a torch directory; it is measured in torch and in every other runtime that is used.
        models: torch or ONNX directories with the teacher's labels.
        data: labelled rows that no model has seen; latencies are taken on random rows of it.
        output: a ``.jsonl`` to write, whole or not at all.
        controls: models that only show what distillation added; those whose manifest says so need not be listed.
        runtimes: where to run; torch models are exported where needed. Default: where each opens natively.
        threads: threads, and cores that a process is pinned to; several make a sweep.
        batch_sizes: 1 measures latency, larger ones throughput.
        rounds: how often every configuration is timed; at least 3.
        metric: see ``compress.metrics.METRICS``; default accuracy, or Pearson for regression.
        max_length: tokens a text is cut to; 0 for as many as each model can read.
        command: what was typed, kept in every line.

    Raises:
        CompressError: see :mod:`compress.measuring.contenders`; a model that ends its process; an output that exists.
    """
    counts = [threads] if isinstance(threads, int) else list(threads)
    _check_settings(counts, batch_sizes, rounds, device)
    target = Path(output) if output is not None else None
    if target is not None and target.exists() and not force:
        raise CompressError(f"{target} already exists; choose another -o or replace it with --force")
    contenders = open_contenders(teacher, models, controls)
    rows = _read_rows(data, data_name, contenders)
    chosen = metrics.find_metric(metric, task=contenders[0].model.task, classes=len(contenders[0].model.labels))
    with tempfile.TemporaryDirectory(prefix="compress-benchmark-") as folder:
        scratch = Path(folder)
        entries = plan_entries(contenders, runtimes, lambda model: _to_onnx(model, scratch))
        texts = scratch / "texts.json"
        texts.write_text(_json_texts(rows.examples), encoding="utf-8")
        with _workers(entries, counts, scratch) as runs:
            predicted = _predict(runs, texts, device, max_length, chosen.task, progress)
            _measure(runs, batch_sizes, rounds, len(rows.examples), seed, progress)
            for run in runs:
                run.memory = run.worker.ask("memory")
        common = {
            "schema": SCHEMA, "study": study, "data": rows.name, "data_sha256": rows.sha256, "split": "test",
            "data_rows": len(rows.examples), "device": device, "rounds": rounds, "seed": seed, "command": command,
            "created": datetime.now(UTC).isoformat(timespec="seconds"), "host": describe_host(),
            "host_id": host_id(describe_host()), "versions": library_versions(),
        }  # fmt: skip
        accuracy = accuracy_fields(runs, predicted, rows, chosen)
        lines = [
            common | describe_run(run, contenders[0]) | speed_fields(run, runs, size, seed) | accuracy[run.entry.title]
            for run in runs
            for size in batch_sizes
        ]
        if len(rows.examples) <= PREDICTIONS_KEPT:
            keep_predictions(lines, predicted, rows.gold)
    if target is not None:
        write_results(target, lines)
    return lines


def _check_settings(threads: Sequence[int], batch_sizes: Sequence[int], rounds: int, device: str) -> None:
    cores = len(_cores())
    if not threads or any(not 1 <= count <= cores for count in threads):
        raise CompressError(f"--threads {_listed(threads)} is not possible here; use 1 to {cores}, the cores at hand")
    if not batch_sizes or any(size < 1 for size in batch_sizes):
        raise CompressError(f"--batch-size {_listed(batch_sizes)} must be 1 or more, such as 1,32")
    if rounds < 3:
        raise CompressError(f"--rounds {rounds} gives no interval; use 3 or more, {ROUNDS} for a result to keep")
    if device not in {"cpu", "cuda"}:
        raise CompressError(f"--device {device} is not known; use cpu or cuda")


def _listed(values: Sequence[int]) -> str:
    return ",".join(map(str, values)) or "(none)"


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _quietest_first(cores: Sequence[int]) -> list[int]:
    """Order cores by how busy they are now, so that workers are not pinned beside somebody else's work."""
    before = _busy_ticks()
    time.sleep(0.3)
    after = _busy_ticks()
    # Of equals the last: the first cores serve the interrupts of the machine.
    return sorted(cores, key=lambda core: (after.get(core, 0) - before.get(core, 0), -core))


def _busy_ticks() -> dict[int, int]:
    """Return what Linux counts of the time that each core was not idle; nothing elsewhere."""
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        return {}
    # user, nice, system, idle, iowait, irq, softirq, steal
    return {
        int(line[0][3:]): sum(map(int, line[1:4])) + sum(map(int, line[6:9]))
        for line in lines
        if line[0].startswith("cpu") and line[0] != "cpu"
    }


def _to_onnx(model: ModelDir, scratch: Path) -> ModelDir:
    """Export a model once, whatever the number of runtimes that need it."""
    from compress.export import export

    target = scratch / f"onnx-{model.sha256[:16]}"
    return ModelDir.open(target, verify=False) if target.is_dir() else export(model, target)


def _read_rows(
    data: Sequence[Example] | TextSource | str | Path, name: str, contenders: Sequence[Contender]
) -> Rows:
    if isinstance(data, str | Path):
        data = open_source(data, role="test", labelled=True)
    if isinstance(data, TextSource):
        name, examples = name or data.name, read_examples(data)
    else:
        name, examples = name or "data", list(data)
    if len(examples) < 2:
        raise CompressError(f"{name} has {len(examples)} rows; a comparison needs two or more")
    sha256 = content_sha256(examples)
    # A pool is fingerprinted without labels.
    bare = content_sha256(Example(example.text, example.text_pair) for example in examples)
    check_split_roles(contenders, (sha256, bare), name)
    teacher = contenders[0].model
    if teacher.task == "regression":
        gold = np.array(encode_scores(examples, name=name), dtype=np.float64)
    else:
        gold = np.array(encode_labels(examples, teacher.labels, name=name), dtype=np.int64)
    return Rows(name, sha256, examples, gold)


def _json_texts(examples: Sequence[Example]) -> str:
    return json.dumps([[example.text, example.text_pair] for example in examples])


@contextmanager
def _workers(entries: Sequence[Entry], counts: Sequence[int], scratch: Path) -> Iterator[list[Run]]:
    """Start a process for each entry and thread count; all are ended on the way out, whatever happens."""
    with ExitStack() as stack:
        runs = []
        for entry in entries:
            for count in counts:
                worker = Worker(entry.title, threads=count, scratch=scratch)
                stack.callback(worker.close)
                runs.append(Run(entry, count, worker))
        yield runs


def _predict(
    runs: Sequence[Run], texts: Path, device: str, max_length: int, task: str, progress: Progress
) -> dict[str, np.ndarray]:
    """Load every model, one after the other, and return what each entry predicts ``[N]``."""
    predicted: dict[str, np.ndarray] = {}
    cores = _quietest_first(_cores())
    with progress("Loading and predicting", len(runs)) as advance:
        for run in runs:
            run.loaded = run.worker.ask(
                "load",
                directory=str(run.entry.directory.path.resolve()),
                runtime=run.entry.runtime,
                device=device,
                threads=run.threads,
                cores=sorted(cores[: run.threads]) if hasattr(os, "sched_setaffinity") else [],
                texts=str(texts),
                max_length=max_length,
            )
            logits = texts.with_name("logits.npy")
            run.worker.ask("predict", logits=str(logits))
            predicted.setdefault(run.entry.title, metrics.predictions(np.load(logits), task))
            advance(1)
    return predicted


def _measure(
    runs: Sequence[Run], batch_sizes: Sequence[int], rounds: int, rows: int, seed: int, progress: Progress
) -> None:
    """Warm up, then take turns: within a round and a batch size, models follow each other in a random order."""
    generator = random.Random(seed)
    probes = {size: draw_batches(generator, rows, size, 1)[0] for size in batch_sizes}
    with progress("Warming up", len(runs) * len(batch_sizes)) as advance:
        for run in runs:
            for size in batch_sizes:
                run.warm[size] = run.worker.ask("warm_up", probe=probes[size])["stable"]
                run.turns[size] = []
                advance(1)
    with progress("Measuring", rounds * len(runs) * len(batch_sizes)) as advance:
        for _ in range(rounds):
            for size in generator.sample(list(batch_sizes), len(batch_sizes)):
                batches = draw_batches(generator, rows, size, batches_per_round(size))
                for run in generator.sample(list(runs), len(runs)):
                    run.turns[size].append(run.worker.ask("measure", probe=probes[size], batches=batches))
                    advance(1)
