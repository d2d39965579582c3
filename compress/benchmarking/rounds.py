"""Measure loaded worker processes in interleaved rounds."""

import math
import random
import time
from collections.abc import Sequence

from compress.benchmarking.hardware import EnergyMeter
from compress.benchmarking.results.files import grouped
from compress.benchmarking.results.formatting import plural
from compress.benchmarking.results.schema import REFERENCE_RUNTIME
from compress.benchmarking.worker import Round, WorkerRun, Workload
from compress.data.examples import batched
from compress.inference.speedup_intervals import Interval, by_length, draw_batches, speedup
from compress.progress import Progress, logger
from compress.recipes import BenchmarkSettings

PADDED_WIDTH = 128  # what people commonly pad to
ENERGY_READINGS = 5
# Reference models are there for scale: one of seconds a row would take most of a benchmark's time.
REFERENCE_BATCHES = 4
SLICE_ROWS = 5  # of a turn, if batches are not larger
LEAST_ROUNDS = 3
# The rounds after which it is seen whose speed-up is precise enough: seldom, as that takes time itself.
CHECKED_ROUNDS = frozenset({5, 7, 10, 13, 17, 22, 28, 36, 46, 58, 73, 92, *range(115, 10_000, 25)})
# What is there for comparison is measured less precisely than the models, by so many times.
COMPARISON_KINDS = frozenset({"baseline", "control", "reference-model", "pruning-step"})
COMPARISON_FACTOR = 2.0


Pair = tuple[WorkerRun, Workload]


def workloads_of(run: WorkerRun, settings: BenchmarkSettings) -> list[Workload]:
    """Return the workloads of a loaded run.

    Baselines, competitors and the native library read texts and have the data's own lengths only; pruning steps serve
    the breakdown of a speed-up, which is of these. Reference models are measured for latency: a large batch of
    BERT-large takes as long as the whole benchmark of another model.
    """
    entry = run.entry
    reads_tokens = entry.folder == "runtimes" and not run.loaded["tokenizer_inside"]
    lengths = [None, *(settings.lengths if reads_tokens and entry.kind != "pruning-step" else ())]
    sizes = [min(settings.batch_sizes)] if entry.kind == "reference-model" else settings.batch_sizes
    workloads = [Workload(size, length) for length in lengths for size in sizes]
    readable = int(run.loaded["max_length"])
    if entry.is_reference and settings.padded_teacher and readable:  # windows are nearly all of one length
        # Rows are padded as is common, to at least 128 tokens, and none is cut for it.
        width = readable if settings.max_length else min(readable, max(PADDED_WIDTH, *run.loaded["lengths"]))
        workloads += [Workload(size, None, width) for size in sizes]
    return workloads


def take_turns(
    runs: Sequence[WorkerRun],
    workloads: Sequence[Sequence[Workload]],
    settings: BenchmarkSettings,
    *,
    seed: int,
    progress: Progress,
) -> None:
    """Warm up, then take turns until every speed-up is as precise as it is to be, or the time is over.

    Within a round, all that have the same rows before them follow in short slices of these, in a random order. What is
    precise enough drops out, so that a run may have fewer rounds than the teacher; its rounds are then the first ones.

    Args:
        runs: loaded processes, the teacher in torch among them at every thread count; what is measured is added.
        workloads: of each run.
        settings: its ``time_limit`` is that of this call; :data:`LEAST_ROUNDS` rounds are finished in any case.
    """
    generator = random.Random(seed)
    pairs = [(run, workload) for run, own in zip(runs, workloads, strict=True) for workload in own]
    groups = grouped(pairs, lambda pair: pair[1].plain)
    ordered = by_length(next(run for run in runs if run.entry.is_reference).loaded["lengths"], generator)
    with progress("Warming up", len(pairs)) as advance:
        for run, workload in pairs:
            probe = draw_batches(ordered, workload.batch_size, generator)[0]
            run.warm[workload] = run.worker.ask("warm_up", probe=probe, shape=workload.shape)["stable"]
            run.rounds[workload] = []
            advance(1)
    # Workloads get the same time, so that small batches, which are quick, are not kept waiting by large ones.
    spent_s, done = dict.fromkeys(groups, 0.0), dict.fromkeys(groups, 0)
    less_precise, shown, seconds = 0, 0, math.ceil(settings.time_limit)
    with progress(f"Measuring (limit {seconds} s)", seconds) as advance:
        while groups:
            plain = min(groups, key=lambda one: (done[one] >= LEAST_ROUNDS, spent_s[one]))
            if shown >= seconds and done[plain] >= LEAST_ROUNDS:
                less_precise += sum(len(_wide(group, settings)) for group in groups.values())
                break
            started = time.monotonic()
            _measure_round(groups[plain], draw_batches(ordered, plain.batch_size, generator), generator)
            spent_s[plain] += time.monotonic() - started
            before, shown = shown, min(seconds, int(sum(spent_s.values())))
            advance(shown - before)
            done[plain] += 1
            is_last = done[plain] >= settings.rounds
            if is_last or done[plain] in CHECKED_ROUNDS:
                group = groups.pop(plain)
                wide = _wide(group, settings)
                less_precise += len(wide) if is_last else 0
                if wide and not is_last:  # with the teachers that they are compared with
                    kept = {(run.threads, name) for run, _ in wide for name in (run.entry.runtime, REFERENCE_RUNTIME)}
                    groups[plain] = [
                        (run, own)
                        for run, own in group
                        if (run, own) in wide
                        or (run.entry.kind == "teacher" and own == plain and (run.threads, run.entry.runtime) in kept)
                    ]
    if less_precise:
        logger.info(
            "%s less precise than asked, after %d s and %s: a longer --time-limit or more --rounds may narrow them",
            plural(less_precise, "speed-up"),
            sum(spent_s.values()),
            plural(min(done.values()), "round"),
        )
    meters = {device: EnergyMeter.open(device) for device in {run.entry.device for run in runs}}
    for run, workload in pairs:
        if meter := meters[run.entry.device]:
            run.joules_per_row[workload] = joules_per_row(run, workload, run.rounds[workload][-1].measured, meter)


def _measure_round(group: Sequence[Pair], batches: list[list[int]], generator: random.Random) -> None:
    """Give all of a group the batches of a round, slice by slice, in an order drawn anew for every slice."""
    for run, workload in group:
        run.rounds[workload].append(Round(batches))
    # In short turns: the closer models follow each other, the more alike the machine.
    for part in batched(batches, max(2, SLICE_ROWS // len(batches[0]))):
        for run, workload in generator.sample(group, len(group)):
            times = run.rounds[workload][-1].times
            is_limited = run.entry.kind == "reference-model"
            if own := part[: max(0, REFERENCE_BATCHES - len(times["latency_ms"]))] if is_limited else part:
                for name, values in run.worker.ask("measure", batches=own, shape=workload.shape).items():
                    times[name] += values


def _wide(group: Sequence[Pair], settings: BenchmarkSettings) -> list[Pair]:
    """Return the pairs of a group whose speed-up is not as precise as it is to be."""
    teachers = {run.threads: (run, own) for run, own in group if run.entry.is_reference and own == own.plain}
    wide = []
    for run, workload in group:
        if (run, workload) == teachers[run.threads]:
            continue
        is_for_comparison = run.entry.kind in COMPARISON_KINDS or bool(workload.width)
        wanted = settings.half_width * (COMPARISON_FACTOR if is_for_comparison else 1)
        ratios = (speedup_of(run, workload, *teachers[run.threads], with_tokenizer=which) for which in (None, True))
        if not all(ratio.half_width <= wanted for ratio in ratios):
            wide.append((run, workload))
    return wide


def speedup_of(
    run: WorkerRun,
    workload: Workload,
    reference: WorkerRun,
    plain: Workload,
    *,
    with_tokenizer: bool | None = None,
    seed: int = 0,
) -> Interval:
    """Return how many times faster a run is than a reference.

    By default with tokenisation where it is inside the run: its time with tokenisation, against the reference's
    without, would compare unlike things.

    One CPU thread is compared by CPU time, which other programs hardly lengthen. Threads that wait for each
    other or for a GPU are compared by the wall clock.
    """
    if with_tokenizer is None:
        with_tokenizer = run.loaded["tokenizer_inside"]
    by_cpu_time = run.uses_cpu_time and reference.uses_cpu_time
    first, second = (
        one.milliseconds(own, by_cpu_time, with_tokenizer) for one, own in ((reference, plain), (run, workload))
    )
    # A cascade's batches are of two kinds, so that no column has a typical one: the mean is what it costs.
    return speedup(first, second, seed=seed, of_means=run.entry.kind == "cascade")


def joules_per_row(run: WorkerRun, workload: Workload, batches: Sequence[list[int]], meter: EnergyMeter) -> float:
    """Return the energy of a row, over as many repeats of the batches as the counter needs to tell them apart."""
    started, before, rows = time.perf_counter(), meter.joules(), 0
    while True:
        turn = run.worker.ask("measure", batches=batches, shape=workload.shape, warm_up=False)
        rows += workload.batch_size * len(turn["latency_ms"])
        if time.perf_counter() - started >= ENERGY_READINGS * meter.resolution_s:
            return (meter.joules() - before) / rows
