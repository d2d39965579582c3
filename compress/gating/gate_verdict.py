"""Gate verdict: one judgement for each limit and result, and the exit code of all of them."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from compress.benchmarking.results import verdict
from compress.benchmarking.results.formatting import points
from compress.benchmarking.results.schema import Measurement
from compress.benchmarking.results.verdict import Verdict

HOLDS, BROKEN, UNDECIDED = "holds", "broken", "undecided"
OUTCOMES = {verdict.WITHIN: HOLDS, verdict.WORSE: BROKEN, verdict.UNDECIDED: UNDECIDED}
EXIT_CODES = {HOLDS: 0, BROKEN: 1, UNDECIDED: 3}
VERBS = {HOLDS: "holds", BROKEN: "is broken", UNDECIDED: "cannot be decided"}

Figures = tuple[float, float, float]  # a value and its 95% interval


@dataclass(frozen=True)
class Judgement:
    """One limit on one line: ``outcome`` is ``holds``, ``broken`` or ``undecided``, and ``sentence`` says why.

    ``value`` has the 95% interval ``low`` to ``high`` in the unit of ``limit``; an exact value, such as a size, is its
    own interval. ``count`` is how many ``of`` (examples, rounds, ...) it rests on.
    """

    gate: str
    subject: str
    outcome: str
    sentence: str
    limit: float
    value: float | None
    low: float | None
    high: float | None
    count: int
    of: str


@dataclass(frozen=True)
class Limit:
    """A limit of a gate on one subject; its methods judge it. ``what`` is the limit in words."""

    gate: str
    value: float
    subject: str

    def judged(
        self,
        what: str,
        figures: Figures,
        found: Verdict,
        form: Callable[[float], str],
        count: int,
        of: str = "examples",
    ) -> Judgement:
        """Judge by a verdict on ``figures``, a value and its 95% interval, from ``count`` ``of`` something."""
        outcome = OUTCOMES[found.outcome]
        why = f"; {found.more}" if found.more else ""
        over = f"{'over' if of == 'rounds' else 'on'} {count:,} {of}"
        interval = shown_interval(form, *figures[1:])
        return self.because(what, outcome, f"{form(figures[0])} {over} ({interval}){why}", *figures, count, of)

    def unknown(self, what: str, line: Measurement, missing: str) -> Judgement:
        """Leave undecided what a line lacks the figures for; it is never passed in silence."""
        count, of = line.counted
        return self.because(what, UNDECIDED, f"the {line.kind} has no {missing}", count=count, of=of)

    def because(
        self,
        what: str,
        outcome: str,
        why: str,
        value: float | None = None,
        low: float | None = None,
        high: float | None = None,
        count: int = 0,
        of: str = "examples",
    ) -> Judgement:
        """Return an outcome with its reason."""
        sentence = f"{self.subject}: {what} {VERBS[outcome]}: {why}."
        return Judgement(self.gate, self.subject, outcome, sentence, self.value, value, low, high, count, of)


@dataclass(frozen=True)
class Change:
    """A model then and now; a speed is None where it cannot be compared, a line None where there is none."""

    subject: str
    then: Measurement | None
    now: Measurement | None
    points: Figures | None = None
    speed_ratio: Figures | None = None


@dataclass(frozen=True)
class GateVerdict:
    """Every judgement, what a reader must know besides, and how models changed since older results."""

    judgements: tuple[Judgement, ...] = ()
    notes: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    older: str = ""

    @property
    def outcome(self) -> str:
        """``broken`` if any judgement is, else ``undecided`` if any is, else ``holds``."""
        outcomes = {judgement.outcome for judgement in self.judgements}
        return next((one for one in (BROKEN, UNDECIDED) if one in outcomes), HOLDS)

    @property
    def exit_code(self) -> int:
        """0 holds, 1 broken, 3 cannot decide."""
        return EXIT_CODES[self.outcome]

    @property
    def sentences(self) -> list[str]:
        return [judgement.sentence for judgement in self.judgements]


# Settings that tell two lines of one model and runtime apart, in words.
_SETTINGS = {
    "device": "on {}",
    "threads": "threads {}",
    "length": "length {}",
    "padding": "padding {}",
    "data": "on {}",
    "training_seed": "seed {}",
    "host_id": "host {}",
}


def subjects(lines: Sequence[Measurement]) -> list[str]:
    """Name each line by its model and runtime, and by the settings that differ between the lines."""
    vary = {key for key in _SETTINGS if len({getattr(line, key) for line in lines}) > 1}
    return [", ".join([line.title, *_settings(line, vary)]) for line in lines]


def _settings(line: Measurement, vary: Set[str]) -> list[str]:
    shown = vary | {"device"} if line.device != "cpu" else vary
    given = {key: getattr(line, key) for key in _SETTINGS if key in shown}
    return [_SETTINGS[key].format(value) for key, value in given.items() if value is not None]


def shown_interval(form: Callable[[float], str], low: float, high: float) -> str:
    """Return ``95% interval 0.10 lost to 0.90 lost``, each bound in its form."""
    return f"95% interval {form(low)} to {form(high)}"


def lost(drop: float) -> str:
    """Return a loss in points with its direction: ``0.50 lost``, ``0.20 won``."""
    return f"{points(drop).lstrip('+−')} {'lost' if drop >= 0 else 'won'}"
