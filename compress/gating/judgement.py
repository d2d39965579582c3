"""One limit on one result line: what came of it, in figures and in a sentence."""

from collections.abc import Callable
from dataclasses import dataclass

from compress.benchmarking.results import verdict
from compress.benchmarking.results.formatting import points
from compress.benchmarking.results.schema import Measurement
from compress.benchmarking.results.verdict import Verdict
from compress.errors import ExitCode

HOLDS, BROKEN, UNDECIDED = "holds", "broken", "undecided"
OUTCOMES = {verdict.WITHIN: HOLDS, verdict.WORSE: BROKEN, verdict.UNDECIDED: UNDECIDED}
EXIT_CODES = {HOLDS: ExitCode.DONE, BROKEN: ExitCode.BROKEN, UNDECIDED: ExitCode.UNDECIDED}
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
        together: str = "",
    ) -> Judgement:
        """Judge by a verdict on ``figures``, a value and its 95% interval, from ``count`` ``of`` something.

        ``together`` says of what the interval is, where it is one of several.
        """
        outcome = OUTCOMES[found.outcome]
        why = f"; {found.more}" if found.more else ""
        over = f"{'over' if of == 'rounds' else 'on'} {count:,} {of}"
        interval = shown_interval(form, *figures[1:])
        return self.because(
            what, outcome, f"{form(figures[0])} {over} ({interval}{together}){why}", *figures, count, of
        )

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
        sentence = f"{self.subject}: {what} {VERBS[outcome]}: {why}."
        return Judgement(self.gate, self.subject, outcome, sentence, self.value, value, low, high, count, of)


def shown_interval(form: Callable[[float], str], low: float, high: float) -> str:
    """Return ``95% interval 0.10 lost to 0.90 lost``, each bound in its form."""
    return f"95% interval {form(low)} to {form(high)}"


def lost(drop: float) -> str:
    """Return a loss in points with its direction: ``0.50 lost``, ``0.20 won``."""
    return f"{points(drop).lstrip('+−')} {'lost' if drop >= 0 else 'won'}"


def as_loss(difference: Figures) -> Figures:
    """Return a difference and its interval as a loss, which is positive where something was lost."""
    value, low, high = difference
    return -value, -high, -low
