"""A promised share, tested while rows come: whenever one looks, it is called broken wrongly at most 5 times in 100.

A martingale bets on rows that differ. Of a promise of p and a smaller share q, each row multiplies it by q/p, or where
it differs by (1 - q)/(1 - p). While the promise is kept it is not expected to grow, whatever came before, and so
reaches 20 with a probability of at most 1/20 (Ville 1939). Bets on several q, begun at every row, are averaged, so that
a change after many good rows is found too. Waudby-Smith and Ramdas (2023), "Estimating means of bounded random
variables by betting", arXiv:2010.09686, section 3.
"""

from dataclasses import dataclass, field

from compress.evaluation.acceptance import CERTAINTY

POWERS = (1.5, 2.0, 3.0, 5.0, 10.0)  # q is this power of p: there are nearly so many times as many differences
MOST = 1e300  # of a bet, which grows without end where the promise is broken


@dataclass
class SequentialTest:
    """Whether a share of at least ``promised`` holds of rows that come one by one.

    Args:
        rows: how many have come.
        same: how many of them are as promised.
        evidence: the most that the bets were worth so far: 1 over it is a p-value whenever one looks.
        bets: what each bet is worth.
    """

    promised: float
    rows: int = 0
    same: int = 0
    evidence: float = 1.0
    bets: list[float] = field(default_factory=lambda: [0.0] * len(POWERS))

    @property
    def holds(self) -> bool:
        return self.evidence < 1 / (1 - CERTAINTY)

    def add(self, same: bool) -> None:
        self.rows += 1
        self.same += same
        begun = 1 / (self.rows * (self.rows + 1))  # the share of the bets that begin with this row; 1 of all rows
        for number, power in enumerate(POWERS):
            other = self.promised**power
            factor = other / self.promised if same else (1 - other) / (1 - self.promised)
            self.bets[number] = min((self.bets[number] + begun) * factor, MOST)
        self.evidence = max(self.evidence, sum(self.bets) / len(POWERS) + 1 / (self.rows + 1))
