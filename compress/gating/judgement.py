"""What a gate says: one judgement for each limit and line, and the verdict of all of them."""

from __future__ import annotations

from dataclasses import dataclass

from compress.measuring.results import Measurement

HOLDS, BROKEN, UNDECIDED = "holds", "broken", "undecided"
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
class Change:
    """A model then and now; a speed is None where it cannot be compared, a line None where there is none."""

    subject: str
    then: Measurement | None
    now: Measurement | None
    points: Figures | None = None
    speed_ratio: Figures | None = None


@dataclass(frozen=True)
class Verdict:
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
