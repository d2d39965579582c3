"""Check a fresh GPU machine, check every runtime on it, and measure models there: all of it in at most ten minutes.

    python benchmarks/speed/gpu.py --teacher DIR --model DIR ... --data FILE -o benchmarks/results/gpu.jsonl

First the set-up: CUDA, versions, the card. Then every model in every runtime on 64 rows, held against float32 on the
processor; a runtime that fails is left out, and the results say why. Then the card's fastest matrix products. What time
is left goes to a benchmark of as many rounds as fit into it. ``--device cpu`` does the same without a card, to try it.

Needs this repository, torch, transformers, click, scipy and scikit-learn; it is not installed and fetches nothing.
"""

from __future__ import annotations

import gc
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from compress import plugins
from compress.benchmarking.benchmark import BenchmarkOutput, benchmark
from compress.benchmarking.hardware import EnergyMeter, matmul_peak_tflops
from compress.benchmarking.results.files import write_results
from compress.benchmarking.results.formatting import is_wide
from compress.benchmarking.results.schema import REFERENCE_RUNTIME, Measurement
from compress.data import Example
from compress.data.tokenization import encode, maximum_length, pad
from compress.errors import CompressError
from compress.host import describe_host, library_versions, without_home
from compress.inference.compute import Compute
from compress.inference.threads import available_cores
from compress.inference.torch_run import TorchRun, open_torch
from compress.models.model_dir import Model
from compress.recipes import BenchmarkSettings

sys.path.append(str(Path(__file__).resolve().parents[1]))
from script import read_options, read_rows, said, typed_command  # noqa: I001

RUNTIMES = ("torch", "torch-bfloat16", "torch-float16", "torch-compile", "torch-cuda-graphs", "onnxruntime")
BATCH_SIZES = (1, 32, 256)
CHECKED_ROWS = 64
ALMOST_EXACT = 1e-3  # float32 on a card adds in another order than on a processor
WARM_UP_RUNS = 20  # about what a worker needs until its times settle
RESERVE = 0.75  # share of the time left that a plan may use: the rest is for what it does not foresee


@dataclass
class Check:
    """A model in a runtime: what starting it cost, how right it was, and how long a batch takes."""

    model: str
    runtime: str
    problem: str = ""
    start_s: float = 0.0
    largest_difference: float = 0.0
    agreement: float = 0.0
    compiled_again: int = 0
    latency_ms: dict[int, float] = field(default_factory=dict)


class Clock:
    """The time that is left of what was given."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(
        __doc__,
        arguments=arguments,
        teacher=Path,
        model=[],
        data=str,
        runtime=(list(RUNTIMES),),
        batch_size=list(BATCH_SIZES),
        rounds=20,
        threads=min(4, len(available_cores())),
        seconds=540.0,
        device=("cuda", "cpu"),
    )
    clock = Clock(options.seconds)
    try:
        process_s = check_setup(options.device)
        with tempfile.TemporaryDirectory(prefix="compress-gpu-") as scratch:
            rows, sizes = read_rows(options.data, "test"), tuple(options.batch_size)
            checks = [
                check
                for path in (options.teacher, *map(Path, options.model))
                for check in check_model(path, rows, sizes, options, clock, Path(scratch))
            ]
        peaks = measure_peaks(options.device, options.threads)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        write_checks(options.output, checks, peaks)
        lines = measure(checks, rows, sizes, options, clock, process_s)
    except CompressError as error:
        print(f"Error: {error}", flush=True)
        return 2
    show(lines)
    print(f"{options.output}: {len(lines)} lines; {clock.left_s:.0f} of {options.seconds:.0f} s left")
    return 0


def asked(options: Any) -> tuple[list[str], list[str]]:
    """Return the runtimes that were asked for and run on the device, the baseline first, and those that do not."""
    names = dict.fromkeys((REFERENCE_RUNTIME, *options.runtime))
    here = [name for name in names if options.device in plugins.find("runtimes", name).load().DEVICES]
    return here, [name for name in names if name not in here]


def check_setup(device: str) -> float:
    """Say what this machine is, and return how many seconds a process takes to import what it needs."""
    import torch

    say("set-up")
    if device == "cuda":
        if not torch.cuda.is_available():
            raise CompressError(f"torch {torch.__version__} finds no CUDA device here; --device cpu tries the script")
        card = torch.cuda.get_device_properties(0)
        memory = f"{card.total_memory / 2**30:.0f} GiB"
        print(f"{card.name}, {memory}, capability {card.major}.{card.minor}, CUDA {torch.version.cuda}")
        if not describe_host()["gpu"]:
            print("warning: the host description names no GPU, so that results do not say which one it was")
        tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        print(f"TF32 of matrix products and cuDNN before the runtimes turn it off: {tf32}")
    print(", ".join(f"{name} {version}" for name, version in library_versions().items()))
    print(f"energy: {'counted' if EnergyMeter.open(device) else 'no counter'}")
    touch = "torch.zeros(1).cuda()" if device == "cuda" else "pass"
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", f"import torch, transformers; {touch}"], check=True, capture_output=True)
    return time.monotonic() - started


def check_model(
    path: Path, rows: Sequence[Example], sizes: Sequence[int], options: Any, clock: Clock, scratch: Path
) -> list[Check]:
    """Run a model in every runtime on the first rows and hold it against float32 on the processor."""
    model = Model.open(path)
    if model.is_onnx:
        raise CompressError(f"{path} is an ONNX model; give the torch directory that it was exported from")
    tokenizer = model.tokenizer
    limit = maximum_length(tokenizer, model.config)

    def arrays(count: int, batch: int) -> list[dict[str, np.ndarray]]:
        chosen = [rows[index % len(rows)] for index in range(count)]
        tokens = encode(tokenizer, chosen, limit)
        lists = [{key: ids[i] for key, ids in tokens.items()} for i in range(count)]
        return [pad(lists[i : i + batch], int(tokenizer.pad_token_id or 0)) for i in range(0, count, batch)]

    # Batches of several lengths and of two numbers of rows, the second of them not full.
    batches = arrays(CHECKED_ROWS, 24)
    exact = open_torch(path, threads=options.threads, device="cpu")
    expected = np.concatenate([TorchRun(exact)(batch) for batch in batches])
    checks = []
    for runtime in asked(options)[0]:
        check = Check(model.name, runtime)
        checks.append(check)
        if clock.left_s < 0.4 * options.seconds:
            check.problem = "no time was left to check it"
        else:
            try:
                timed = {size: arrays(size, size)[0] for size in sizes}
                _check(check, model, batches, expected, timed, options, scratch)
            except Exception as error:  # whatever it is, the other runtimes are still worth measuring
                said = str(error).splitlines()[0] if str(error) else "no reason"
                check.problem = f"{type(error).__name__}: {without_home(said.replace(str(model.path), model.name))}"
        _forget(options.device)
        times = ", ".join(f"{size}: {ms:.2f} ms" for size, ms in check.latency_ms.items())
        print(
            f"{check.model} in {runtime}: "
            + (check.problem or f"right within {check.largest_difference:.1e}, agrees {check.agreement:.1%}; {times}")
            + (f"; compiled again {check.compiled_again} times" if check.compiled_again else "")
            + f" (start {check.start_s:.1f} s)",
            flush=True,
        )
    return checks


def _check(
    check: Check,
    model: Model,
    batches: list[dict[str, np.ndarray]],
    expected: np.ndarray,
    timed: dict[int, dict[str, np.ndarray]],
    options: Any,
    scratch: Path,
) -> None:
    module = plugins.find("runtimes", check.runtime).load()
    directory = _directory(model, module, options.device, scratch)
    started = time.monotonic()
    run = module.start(directory, threads=options.threads, device=options.device)
    longest = max(batch["input_ids"].shape[1] for batch in (*batches, *timed.values()))
    for size in timed:
        if hasattr(run, "prepare_shapes"):
            run.prepare_shapes(size, longest)
    check.start_s = time.monotonic() - started
    programs = _programs()
    found = np.concatenate([run(batch) for batch in batches])
    difference = np.abs(found - expected)
    check.largest_difference = float(difference.max())
    check.agreement = float((found.argmax(axis=1) == expected.argmax(axis=1)).mean())
    within = getattr(module, "TOLERANCE", ALMOST_EXACT)
    if not np.isfinite(found).all() or (difference > within * (1 + np.abs(expected))).any():
        check.problem = f"its logits differ from float32 by up to {check.largest_difference:.3g}; allowed is {within}"
    for size, batch in timed.items():
        run(batch)
        samples = []
        for _ in range(5):
            begin = time.perf_counter()
            run(batch)
            samples.append(1000 * (time.perf_counter() - begin))
        check.latency_ms[size] = float(np.median(samples))
    check.compiled_again = _programs() - programs


def _directory(model: Model, module: Any, device: str, scratch: Path) -> Path:
    """Return what a runtime opens: the model, or its export, made only where the runtime can use it."""
    if module.OPENS == "torch":
        return model.path
    if device == "cuda":
        import onnxruntime

        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise CompressError("this ONNX Runtime has no CUDA provider")
    from compress.requests.compression import export

    target = scratch / model.sha256[:16]
    return target if target.is_dir() else export(model, target).path


def _programs() -> int:
    """Return how many programs torch.compile has made in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _forget(device: str) -> None:
    """Free what the last runtime held, so that it neither slows down the next one nor fills the card."""
    import torch

    gc.collect()
    torch._dynamo.reset()
    if device == "cuda":
        torch.cuda.empty_cache()


def measure_peaks(device: str, threads: int) -> dict[str, float]:
    """Measure the fastest matrix product in each precision that a card has units for."""
    say("matrix products")
    precisions = ("float32", "bfloat16", "float16") if device == "cuda" else ("float32",)
    peaks = {precision: matmul_peak_tflops(device, precision, threads) for precision in precisions}
    print(", ".join(f"{name} {value:.4g} TFLOP/s" for name, value in peaks.items()), flush=True)
    return peaks


def write_checks(output: Path, checks: Sequence[Check], peaks: dict[str, float]) -> None:
    """Keep what is known so far beside the results, whatever happens to the benchmark."""
    known = {"host": describe_host(), "peaks_tflops": peaks, "checks": [asdict(check) for check in checks]}
    output.with_name(f"{output.stem}.checks.json").write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def measure(
    checks: Sequence[Check], rows: Sequence[Example], sizes: Sequence[int], options: Any, clock: Clock, process_s: float
) -> list[Measurement]:
    """Run the benchmark with the runtimes that work, again without one that fails in it, while there is time."""
    say("benchmark")
    runtimes, elsewhere = asked(options)
    left_out = [{"name": name, "reason": f"it does not run on {options.device}"} for name in elsewhere]
    left_out += [{"name": f"{c.model} in {c.runtime}", "reason": c.problem} for c in checks if c.problem]
    broken = {check.runtime for check in checks if check.problem and not _is_left_out_alone(check)}
    if REFERENCE_RUNTIME in broken:
        reason = next(check.problem for check in checks if check.problem and check.runtime == REFERENCE_RUNTIME)
        raise CompressError(f"the baseline, torch in float32, does not work here: {reason}")
    runtimes = [name for name in runtimes if name not in broken]
    while True:
        used = [c for c in checks if c.runtime in runtimes and c.latency_ms]
        seconds = seconds_to_measure(used, len(rows), clock.left_s, process_s)
        print(f"{', '.join(runtimes)}: at most {options.rounds} rounds and {seconds:.0f} s", flush=True)
        try:
            lines = benchmark(
                options.teacher,
                options.model,
                rows,
                BenchmarkSettings(
                    runtimes=tuple(runtimes),
                    threads=options.threads,
                    batch_sizes=tuple(sizes),
                    rounds=options.rounds,
                    time_limit=max(1.0, seconds),
                    padded_teacher=False,
                ),
                output=BenchmarkOutput(
                    options.output,
                    force=True,
                    study=options.output.stem,
                    data_name=Path(options.data).name,
                    command=typed_command(Path(sys.executable).name),
                ),
                compute=Compute(options.device),
            )
            break
        except CompressError as error:
            failed = next((name for name in runtimes if f" in {name}: " in str(error)), None)
            if failed is None or failed == REFERENCE_RUNTIME:
                raise
            print(f"left out: {error}", flush=True)
            left_out.append({"name": failed, "reason": without_home(str(error))})
            runtimes.remove(failed)
    if left_out:
        said = [entry for entry in left_out if entry not in lines[0].left_out]
        lines = [replace(line, left_out=[*line.left_out, *said]) for line in lines]
        write_results(options.output, lines)
    return lines


def _is_left_out_alone(check: Check) -> bool:
    """Tell whether the benchmark leaves out just this model in this runtime by itself."""
    return check.problem.startswith("Unavailable")


def seconds_to_measure(checks: Sequence[Check], rows: int, left_s: float, process_s: float) -> float:
    """Return how long rounds may take, if they begin after everything is loaded, has predicted and is warm.

    Raises:
        CompressError: nothing is left for them.
    """
    before_s = process_s
    for check in checks:
        largest = max(check.latency_ms)
        before_s += process_s + check.start_s + math.ceil(rows / largest) * check.latency_ms[largest] / 1000
        before_s += WARM_UP_RUNS * sum(check.latency_ms.values()) / 1000
    found = RESERVE * left_s - before_s
    if found <= 0:
        raise CompressError(
            f"{left_s:.0f} s are too few: starting takes about {before_s:.0f} s; "
            "give fewer --model or --runtime, or more --seconds"
        )
    return found


def show(lines: Sequence[Measurement]) -> None:
    """Print the figures that matter, last."""
    say("results")
    print(f"{'model':24} {'runtime':18} {'batch':>5} {'p50 ms':>8} {'card ms':>8} {'rows/s':>9} {'peak':>6} speed-up")
    for line in lines:
        card = "" if line.device_p50_ms is None else f"{line.device_p50_ms:.3f}"
        share = "" if line.matmul_peak_share is None else f"{line.matmul_peak_share:.1%}"
        print(
            f"{line.model:24.24} {line.runtime:18.18} {line.batch_size:5} {line.latency_p50_ms:8.3f} "
            f"{card:>8} {line.throughput_rows_per_second:9,.0f} {share:>6} {said(line.speedups._asdict())}"
            + (", wide" if is_wide(line.speedups) else "")
        )
    for missing in lines[0].left_out:
        print(f"left out: {missing['name']}: {missing['reason']}")


def say(station: str) -> None:
    print(f"== {station}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
