"""Where a speed-up comes from: stock use to the best model, each step by its own measured factor.

A step is the ratio of two lines of one run, taken round by round like every speed-up. What was not measured is left
out and named, never guessed; the product of the steps is held against the ratio of the two ends, measured directly.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from compress.benchmarking.candidates import REFERENCE_RUNTIME
from compress.benchmarking.results.files import Result
from compress.benchmarking.results.formatting import plural, precision, span, times
from compress.benchmarking.results.schema import Measurement
from compress.inference.speed_statistics import Ratio, speedup
from compress.reporting.charts.svg import Picture
from compress.reporting.charts.waterfall import Bar, waterfall_chart

_WORDS = {
    "distill": "distillation",
    "prune": "pruning",
    "finetune": "fine-tuning",
    "export": "export",
}
_REMOVED = {
    "vocabulary": "smaller vocabulary",
    "layers": "layers removed",
    "heads": "heads removed",
    "neurons": "feed-forward neurons removed",
    "hidden": "narrower",
}


@dataclass(frozen=True)
class Step:
    """One change and how many times faster it made things, with its 95% interval."""

    name: str
    before: str
    after: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Waterfall:
    """The steps at one batch size, their product, and the whole measured directly.

    ``missing`` are steps left out, ``note`` says what a reader must know of removals.
    """

    batch_size: int
    model: str
    steps: list[Step]
    product: float
    total: Step
    missing: list[str]
    picture: Picture
    note: str = ""

    @property
    def sentence(self) -> str:
        """How well the steps explain the whole, and what else to know of them."""
        return f"{self._explained} {self.note}".rstrip()

    @property
    def _explained(self) -> str:
        off = 100 * (self.product / self.total.value - 1)
        ends = f"from {self.total.before} to {self.total.after}"
        value = times(self.total.value)
        told = f"The steps multiply to {times(self.product)}; measured directly, {ends}, it is {value}"
        interval = span(times(self.total.low), times(self.total.high))
        if set(self.missing) - {"dynamic padding", "threads"}:  # these two are then in no total either
            return f"{told} ({interval}): the rest lies in steps that were not measured."
        return f"{told} ({interval}), a difference of {abs(off):.1f}%."


def waterfalls(best: Result, lines: Iterable[Measurement]) -> list[Waterfall]:
    """Return how the best row's speed came about, at its smallest and its largest batch size.

    ``lines`` are all that were measured; only those of the best row's own run, device, length and batch size are used.
    """
    lines, sizes = list(lines), dict.fromkeys((best.small_batch.batch_size, best.large_batch.batch_size))
    found = [_waterfall(_Run(best.small_batch, lines, size)) for size in sizes]
    return [one for one in found if one is not None]


class _Run:
    """The lines of one run that may be compared, found by model, runtime, padding and threads."""

    def __init__(self, best: Measurement, lines: Iterable[Measurement], batch_size: int) -> None:
        same = attrgetter("created", "data_sha256", "host_id", "device", "length")
        self.best = best
        self.batch_size = batch_size
        self.lines = [line for line in lines if line.batch_size == batch_size and same(line) == same(best)]
        teachers = [line for line in self.lines if line.kind == "teacher"]
        self.teacher = teachers[0].model_sha256 if teachers else ""

    def find(
        self, model: str, runtime: str, *, padding: str = "longest", threads: int | None = None
    ) -> Measurement | None:
        wanted = (model, runtime, padding, self.best.threads if threads is None else threads)
        keys = ("model_sha256", "runtime", "padding", "threads")
        return next((line for line in self.lines if tuple(getattr(line, key) for key in keys) == wanted), None)

    @property
    def itself(self) -> Measurement | None:
        """The best model at this batch size."""
        return self.find(self.best.model_sha256, self.best.runtime)

    def knows(self, model: str) -> bool:
        return any(line.model_sha256 == model for line in self.lines)

    def steps(self, model: str) -> list[Measurement]:
        """Return a line of each shape that a pruned model had before its last removal, the smallest first."""
        found = {
            line.model_sha256: line
            for line in self.lines
            if line.kind == "pruning-step" and line.parents[:1] == [model]
        }
        return sorted(found.values(), key=lambda line: -len(line.removals))


def _waterfall(run: _Run) -> Waterfall | None:
    missing: list[str] = []
    pairs = [*_padding(run, missing), *_made(run, missing), *_threads(run, missing)]
    steps = []
    for name, before, after in pairs:
        if before.noisy or after.noisy:
            missing.append(f"{name} (the host was too noisy)")
        else:
            steps.append(_step(name, before, after))
    first = run.find(run.teacher, REFERENCE_RUNTIME, padding="max_length") or run.find(run.teacher, REFERENCE_RUNTIME)
    last = pairs[-1][2] if pairs and pairs[-1][0].startswith("threads") else run.itself
    if not steps or first is None or last is None or first.noisy or last.noisy:
        return None
    total = _step("all together", first, last)
    start = "stock use" if first.padding == "max_length" else "the teacher in torch"
    title = f"From {start} to {run.best.model}, batch {run.batch_size}"
    product = 1.0
    for step in steps:
        product *= step.value
    return Waterfall(
        run.batch_size, run.best.model, steps, product, total, missing, _picture(title, steps, total), _note(run)
    )


Pair = tuple[str, Measurement, Measurement]


def _padding(run: _Run, missing: list[str]) -> list[Pair]:
    """Stock use pads every row to the model's maximum; the first step is not to."""
    stock = run.find(run.teacher, REFERENCE_RUNTIME, padding="max_length")
    base = run.find(run.teacher, REFERENCE_RUNTIME)
    if stock is not None and base is not None:
        return [("dynamic padding", stock, base)]
    missing.append("dynamic padding")
    return []


def _made(run: _Run, missing: list[str]) -> list[Pair]:
    """Return the steps from the teacher in torch to the best model in its runtime.

    The runtime changes at the first model of the chain that was measured in both: at the teacher, if there is a choice.
    A model that was not measured where its neighbours were is stepped over: its step and the next one are told as one.
    """
    runtime, chain = run.best.runtime, _chain(run)
    both = [i for i, (_, model) in enumerate(chain) if run.find(model, REFERENCE_RUNTIME) and run.find(model, runtime)]
    switch = both[0] if both else 0
    found: list[Pair] = []
    before, names = run.find(run.teacher, REFERENCE_RUNTIME), list[str]()
    for index, (name, model) in enumerate(chain):
        after = run.find(model, REFERENCE_RUNTIME if index <= switch else runtime)
        names += [name] if index else []
        if index and before and after:
            found.append((" and ".join(names), before, after))
        elif after:
            missing += names
        if after:
            before, names = after, []
        if index == switch and runtime != REFERENCE_RUNTIME:
            name = f"runtime: {REFERENCE_RUNTIME} → {runtime}"
            before = run.find(model, runtime)
            found += _pair(name, run.find(model, REFERENCE_RUNTIME), before, missing)
    missing += names
    return found


def _chain(run: _Run) -> list[tuple[str, str]]:
    """Return the teacher and what was made of it in turn, down to the best model: step names and hashes.

    A parent that was not measured is stepped over; its child's step is then said to hold what came before it too.
    """
    chain: list[tuple[str, str]] = []
    line = run.best
    while line.model_sha256 != run.teacher:
        parents = line.parents
        known = next((p for p in parents if p != line.model_sha256 and run.knows(p)), None)
        is_direct = known is not None and known == parents[0]
        words, models = _words(line, run)
        if not is_direct and words[-1]:
            words[-1] += " and what came before"
        chain += zip([word or "another model" for word in words], models, strict=True)
        if known is None or known in {sha for _, sha in chain}:
            break
        line = next(other for other in run.lines if other.model_sha256 == known)
    return [("", run.teacher), *reversed(chain)]


def _words(line: Measurement, run: _Run) -> tuple[list[str], list[str]]:
    """Return the steps that made a model from its parent and the models they led to, the last one first.

    Pruning is a step for each removal where the shapes between them were measured, else one.
    """
    if line.stage == "quantize":
        return [precision(line)], [line.model_sha256]
    between = run.steps(line.model_sha256)
    removals = line.removals
    if len(removals) != len(between) + 1:
        return [_WORDS.get(line.stage, "")], [line.model_sha256]
    made = [line.model_sha256, *(one.model_sha256 for one in between)]
    return [_removed(removal) for removal in reversed(removals)], made


def _removed(removal: str) -> str:
    return _REMOVED.get(removal, f"{removal} removed")


def _note(run: _Run) -> str:
    """Say that removals were taken apart with random weights, or how to take them apart."""
    notes = []
    for _, model in _chain(run)[1:]:
        line = next(line for line in run.lines if line.model_sha256 == model)
        removals = line.removals
        if line.kind == "pruning-step":
            notes.append("Shapes between removals were measured with random weights, which are as fast.")
        elif len(removals) > 1 and not run.steps(model):
            told = ", ".join(_removed(removal) for removal in removals)
            notes.append(
                f"Pruning is one step of several ({told}): 'compress benchmark --pruning-steps' measures each."
            )
    return " ".join(dict.fromkeys(notes))


def _threads(run: _Run, missing: list[str]) -> list[Pair]:
    """Return the step from the fewest threads to the number at which the best model is fastest; none if that is it."""
    best = run.best
    one = run.itself
    more = [
        line
        for line in run.lines
        if line.threads > best.threads
        and line.padding == "longest"
        and (line.model_sha256, line.runtime) == (best.model_sha256, best.runtime)
    ]
    if one is None or not more:
        missing.append("threads")
        return []
    fastest = min([one, *more], key=lambda line: float(line.latency_p50_ms))
    if fastest is one:
        return []
    return [(f"threads: {one.threads} → {fastest.threads}", one, fastest)]


def _pair(name: str, before: Measurement | None, after: Measurement | None, missing: list[str]) -> list[Pair]:
    if before is None or after is None:
        missing.append(name)
        return []
    return [(name, before, after)]


def _step(name: str, before: Measurement, after: Measurement) -> Step:
    ratio: Ratio = speedup(before.latency_ms, after.latency_ms)
    return Step(name, _told(before), _told(after), ratio.value, ratio.low, ratio.high)


def _told(line: Measurement) -> str:
    padded = f", padded to {line.max_length}" if line.padding == "max_length" else ""
    return f"{line.model} in {line.runtime}{padded}, {plural(line.threads, 'thread')}"


def _picture(title: str, steps: Sequence[Step], total: Step) -> Picture:
    bars, reached = [], 1.0
    for step in steps:
        start, reached = reached, reached * step.value
        bars.append(Bar(step.name, start, reached, f"{times(step.value)} ({span(times(step.low), times(step.high))})"))
    interval = span(times(total.low), times(total.high))
    bars.append(Bar("measured directly", 1.0, total.value, f"{times(total.value)} ({interval})", is_total=True))
    return Picture.both(lambda canvas: waterfall_chart(bars, title=title, canvas=canvas))
