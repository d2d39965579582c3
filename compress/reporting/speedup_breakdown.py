"""Where a speed-up comes from: stock use to the best model, each step by its own measured factor.

A step is the ratio of two lines of one run, taken round by round like every speed-up. What was not measured is left
out and named, never guessed; the product of the steps is held against the ratio of the two ends, measured directly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter, mul

from compress.benchmarking.results.files import Result
from compress.benchmarking.results.formatting import plural, precision, times, with_span
from compress.benchmarking.results.schema import REFERENCE_RUNTIME, Measurement
from compress.inference.speedup_intervals import Interval, divided, speedup
from compress.reporting.pages import PAGE_ONLY
from compress.reporting.svg import Bar, Picture, waterfall_chart

_WORDS = {
    "distill": "distillation",
    "prune": "pruning",
    "finetune": "fine-tuning",
    "export": "export",
    "cascade": "cascade",
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

    @property
    def factor(self) -> str:
        return with_span(Interval(self.value, self.low, self.high), times)


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
    picture: Picture = field(metadata=PAGE_ONLY)
    note: str = ""

    @property
    def sentence(self) -> str:
        """How well the steps explain the whole, and what else to know of them."""
        rest = f", a difference of {abs(100 * (self.product / self.total.value - 1)):.1f}%."
        if set(self.missing) - {"dynamic padding", "threads"}:  # these two are then in no total either
            rest = ": the rest lies in steps that were not measured."
        return (
            f"The steps multiply to {times(self.product)}; measured directly, from {self.total.before} to "
            f"{self.total.after}, it is {self.total.factor}{rest} {self.note}"
        ).rstrip()


def waterfalls(best: Result, lines: Sequence[Measurement]) -> list[Waterfall]:
    """Return how the best row's speed came about, at its smallest and its largest batch size.

    ``lines`` are all that were measured; only those of the best row's own run, device, length and batch size are used.
    """
    ends = {line.batch_size: line for line in (best.small_batch, best.large_batch)}  # of two runs, maybe
    return [found for size, line in ends.items() if (found := _waterfall(_Run(line, lines, size)))]


def breakdowns(leading: Sequence[Measurement], rows: Sequence[Result], lines: Sequence[Measurement]) -> list[Waterfall]:
    """Return where the speed of the leaders comes from, and that of every model whose removals were measured apart.

    Of a pruned model each batch size is that of the fastest of what there is of it: itself and its int8, in every
    runtime, by the largest batch size, where times are longest and known best.
    """
    # Leaders are lines of the smallest batch size; a waterfall reads the others of the row too.
    first = [row for line in leading for row in rows if row.small_batch is line]
    found = [fall for row in first for fall in waterfalls(row, lines)]
    models = [row for row in rows if row.small_batch.kind == "model"]
    models.sort(key=lambda row: float(row.large_batch.speedup))
    for sha in dict.fromkeys(line.parents[0] for line in lines if line.kind == "pruning-step"):
        made = [row for row in models if sha in (row.small_batch.model_sha256, *row.small_batch.parents[:1])]
        if not any(row in first for row in made):
            by_size = {fall.batch_size: fall for row in made for fall in waterfalls(row, lines)}  # the fastest last
            found += [by_size[size] for size in sorted(by_size)]
    return found


# A step, and the two lines that it lies between; None for what was not measured.
Pair = tuple[str, Measurement | None, Measurement | None]


class _Run:
    """The lines of one run that may be compared; ``models`` has one of each model by its hash."""

    def __init__(self, best: Measurement, lines: Sequence[Measurement], batch_size: int) -> None:
        same = attrgetter("created", "data_sha256", "host_id", "device", "length")
        self.best, self.batch_size = best, batch_size
        self.lines = [line for line in lines if line.batch_size == batch_size and same(line) == same(best)]
        self.models = {line.model_sha256: line for line in reversed(self.lines)}
        self.teacher = next((line.model_sha256 for line in self.lines if line.kind == "teacher"), "")

    def find(self, model: str, runtime: str, padding: str = "longest") -> Measurement | None:
        """Return a model's line with as many threads as the best model."""
        setting = attrgetter("model_sha256", "runtime", "padding", "threads")
        wanted = (model, runtime, padding, self.best.threads)
        return next((line for line in self.lines if setting(line) == wanted), None)

    def steps(self, model: str) -> list[str]:
        """Return the shapes that a pruned model had before its last removal, the smallest first."""
        found = {
            line.model_sha256: -len(line.removals)
            for line in self.lines
            if line.kind == "pruning-step" and line.parents[:1] == [model]
        }
        return sorted(found, key=lambda sha: found[sha])


def _waterfall(run: _Run) -> Waterfall | None:
    # Stock use pads every row to the model's maximum; the first step is not to.
    stock, base = (run.find(run.teacher, REFERENCE_RUNTIME, padding) for padding in ("max_length", "longest"))
    pairs = [("dynamic padding", stock, base), *_made(run), *_threads(run)]
    known = [(name, before, after) for name, before, after in pairs if before and after]
    first, last = stock or base, run.find(run.best.model_sha256, run.best.runtime)
    if known and known[-1][0].startswith("threads"):
        last = known[-1][2]
    if not known or first is None or last is None:
        return None
    # A cascade's own speed is of mean times: the steps to it are then too, so that they multiply to it.
    *steps, total = (
        _step(*pair, of_means=run.best.kind == "cascade") for pair in (*known, ("all together", first, last))
    )
    missing = [name for name, before, after in pairs if not (before and after)]
    start = "stock use" if first is stock else "the teacher in torch"
    reached = list(accumulate((step.value for step in steps), mul))
    bars = [Bar(step.name, end, step.factor) for step, end in zip(steps, reached, strict=True)]
    bars.append(Bar("measured directly", total.value, total.factor, is_total=True))
    picture = waterfall_chart(bars, title=f"From {start} to {run.best.model}, batch {run.batch_size}")
    return Waterfall(run.batch_size, run.best.model, steps, reached[-1], total, missing, picture, _note(run))


def _made(run: _Run) -> Iterator[Pair]:
    """Yield the steps from the teacher in torch to the best model in its runtime.

    The runtime changes at the first model of the chain that was measured in both: at the teacher, if there is a choice.
    A model that was not measured where its neighbours were is stepped over: its step and the next one are told as one.
    """
    runtime, chain = run.best.runtime, _chain(run)
    both = (i for i, (_, model) in enumerate(chain) if run.find(model, REFERENCE_RUNTIME) and run.find(model, runtime))
    switch = next(both, 0)
    before, names = run.find(run.teacher, REFERENCE_RUNTIME), list[str]()
    for index, (name, model) in enumerate(chain):
        after = run.find(model, REFERENCE_RUNTIME if index <= switch else runtime)
        names += [name] if index else []
        if index and before and after:
            yield " and ".join(names), before, after
        elif after:
            yield from ((missing, None, after) for missing in names)
        if after:
            before, names = after, []
        if index == switch and runtime != REFERENCE_RUNTIME:
            before = run.find(model, runtime)
            yield f"runtime: {REFERENCE_RUNTIME} → {runtime}", run.find(model, REFERENCE_RUNTIME), before
    yield from ((missing, before, None) for missing in names)


def _chain(run: _Run) -> list[tuple[str, str]]:
    """Return the teacher and what was made of it in turn, down to the best model: step names and hashes.

    A parent that was not measured is stepped over; its child's step is then said to hold what came before it too.
    """
    chain: list[tuple[str, str]] = []
    line = run.best
    while line.model_sha256 != run.teacher:
        # A cascade is made of its members, and of none of them in turn.
        parents = () if line.members else line.parents
        known = next((p for p in parents if p != line.model_sha256 and p in run.models), None)
        steps = _steps_to(line, run)
        name, model = steps[-1]
        if name and not line.members and line.parents[:1] != [known]:
            steps[-1] = (f"{name} and what came before", model)
        chain += steps
        if known is None or known in {sha for _, sha in chain}:
            break
        line = run.models[known]
    return [("", run.teacher), *((name or "another model", model) for name, model in reversed(chain))]


def _steps_to(line: Measurement, run: _Run) -> list[tuple[str, str]]:
    """Return the steps that made a model from its parent with the models they led to, the last one first.

    Pruning is a step for each removal where the shapes between them were measured, else one.
    """
    between = run.steps(line.model_sha256)
    if line.stage == "quantize" or len(line.removals) != len(between) + 1:
        return [(precision(line) if line.stage == "quantize" else _WORDS.get(line.stage, ""), line.model_sha256)]
    return list(zip(map(_removed, reversed(line.removals)), [line.model_sha256, *between], strict=True))


def _removed(removal: str) -> str:
    return _REMOVED.get(removal, f"{removal} removed")


def _note(run: _Run) -> str:
    notes = []
    for line in (run.models[model] for _, model in _chain(run)[1:]):
        if line.kind == "pruning-step":
            notes.append("Shapes between removals were measured with random weights, which are as fast.")
        elif len(line.removals) > 1 and not run.steps(line.model_sha256):
            told = ", ".join(map(_removed, line.removals))
            notes.append(
                f"Pruning is one step of several ({told}): 'compress benchmark --pruning-steps' measures each."
            )
    return " ".join(dict.fromkeys(notes))


def _threads(run: _Run) -> list[Pair]:
    """Return the step from the fewest threads to the number at which the best model is fastest; none if that is it."""
    setting = attrgetter("model_sha256", "runtime", "padding")
    wanted = (run.best.model_sha256, run.best.runtime, "longest")
    one = run.find(run.best.model_sha256, run.best.runtime)
    more = [line for line in run.lines if setting(line) == wanted and line.threads > run.best.threads]
    if one is None or not more:
        return [("threads", None, None)]
    fastest = min([one, *more], key=lambda line: float(line.latency_p50_ms))
    return [] if fastest is one else [(f"threads: {one.threads} → {fastest.threads}", one, fastest)]


def _step(name: str, before: Measurement, after: Measurement, *, of_means: bool) -> Step:
    if before.group == after.group:
        costs = (line.cost_ms if before.clock == after.clock else line.latency_ms for line in (before, after))
        ratio = speedup(*costs, of_means=of_means)
    else:  # no round is shared, but each was compared with the teacher in its own
        ratio = divided(*(line.figure("speedup") for line in (after, before)))
    return Step(name, _told(before), _told(after), ratio.value, ratio.low, ratio.high)


def _told(line: Measurement) -> str:
    padded = f", padded to {line.max_length}" if line.padding == "max_length" else ""
    return f"{line.title}{padded}, {plural(line.threads, 'thread')}"
