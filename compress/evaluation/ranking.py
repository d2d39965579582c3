"""Metrics of rankings: the rows of each query in the order of their scores, the highest first. N rows, S queries.

Definitions are those of ``trec_eval``: gains of NDCG are the labels themselves (so has scikit-learn), a row is relevant
whose label is above 0, and a query without a relevant row is left out. Rows of equal score stand in no order: each
metric is its mean over all orders of them, in closed form (McSherry and Najork 2008, "Computing information retrieval
performance measures efficiently in the presence of tied scores"). ``trec_eval`` orders them by the names of documents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compress.arrays import np
from compress.data.examples import Example, row_name
from compress.errors import refuse
from compress.evaluation.metrics import Array, Metric
from compress.progress import logger


def queries_of(rows: Sequence[Example], metric: str) -> Array:
    """Return the number of each row's query ``[N]``: of its column, else rows that share the first text are of one.

    Raises:
        CompressError: rows have no query, or every query has a single row.
    """
    named = any(row.query for row in rows)
    refuse(
        (
            not named and any(row.text_pair is None for row in rows),
            f"{metric} ranks the rows of each query, and these are single texts: give pairs of a query and a text, or "
            "name the column of queries with --query-column",
        )
    )
    for number, row in enumerate(rows if named else (), 1):
        if not row.query:  # messages of all rows would take longer than the ranking
            refuse((True, f"{row_name(number, row, 'the rows')} has no query, and others have: name each row's."))
    names = [row.query if named else row.text for row in rows]
    found, queries, sizes = np.unique(names, return_inverse=True, return_counts=True)
    what = "different values in the column of queries" if named else "different first texts"
    refuse(
        (
            len(found) > 0 and sizes.max() == 1,
            f"{metric} ranks the rows of each query, and {len(rows):,} rows have {len(found):,} {what}, so that no "
            "query has two rows: name the column of queries with --query-column, or use another --metric",
        )
    )
    return np.asarray(queries)


def tell_queries(metric: Metric, gold: Array, queries: Array | None) -> None:
    """Say how many queries are ranked, and how many have no relevant row.

    Raises:
        CompressError: fewer than two are ranked, so that there is no interval, or a label is below 0.
    """
    assert metric.units is not None and queries is not None
    kept = metric.units.judged(gold, queries)
    ranked, every = len(np.unique(queries[kept])), len(np.unique(queries))
    metric.units.counts(gold, gold, queries)
    refuse((ranked < 2, f"{metric.name} has one query with a relevant row, which has no interval; give more queries"))
    without = every - ranked
    left_out = f"; {without:,} of {every:,} have no relevant row, a label above 0, and are left out" if without else ""
    logger.info("%s is the mean over %s queries%s", metric.name, f"{ranked:,}", left_out)


@dataclass(frozen=True)
class RankedRows:
    """Rows by query, the highest score first. Those of a query with equal scores are a tie.

    Attributes:
        query: of each row, ``[N]``, from 0 to S - 1.
        rank: of each row in its query, ``[N]``, from 0; within a tie in any order.
        tie: of each row, ``[N]``; ``first`` ``[T]`` is the position of each tie's first row, ``size`` ``[T]`` its rows.
        gains: labels, ``[N]``.
        ideal: labels with the highest of each query first, ``[N]``.
    """

    query: Array
    rank: Array
    tie: Array
    first: Array
    size: Array
    gains: Array
    ideal: Array

    @classmethod
    def of(cls, scores: Array, gold: Array, queries: Array) -> RankedRows:
        order = np.lexsort((-scores, queries))
        query, ranked = queries[order], scores[order]
        begins = np.append(True, query[1:] != query[:-1])
        ties = begins | np.append(True, ranked[1:] != ranked[:-1])
        first = np.flatnonzero(ties)
        rank = np.arange(len(query)) - np.maximum.accumulate(np.where(begins, np.arange(len(query)), 0))
        size = np.diff(np.append(first, len(query)))
        return cls(query, rank, ties.cumsum() - 1, first, size, gold[order], gold[np.lexsort((-gold, queries))])

    @property
    def relevant(self) -> Array:
        return np.asarray(self.gains > 0)

    def by_query(self, values: Array) -> Array:
        """Return the sums of values of rows over queries, ``[S]``."""
        return np.bincount(self.query, weights=values)

    def tied(self, values: Array) -> tuple[Array, Array]:
        """Return for each row the sum of values over its tie, and over the rows of its query before that: ``[N]``."""
        sums = np.add.reduceat(values.astype(float), self.first)
        before = np.append(0.0, sums.cumsum())[:-1]
        begins = self.rank[self.first] == 0
        start = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))
        return sums[self.tie], (before - before[start])[self.tie]


def _ndcg(rows: RankedRows, depth: float) -> Array:
    """Return the sum of ``gain / log2(1 + rank)`` divided by that of the best order."""
    discounts = np.where(rows.rank < depth, 1 / np.log2(rows.rank + 2), 0)
    gains, _ = rows.tied(rows.gains)
    gained = rows.by_query(gains / rows.size[rows.tie] * discounts)
    return np.asarray(gained / rows.by_query(rows.ideal * discounts))


def _average_precision(rows: RankedRows, depth: float) -> Array:
    """Return the mean over relevant rows of the share of relevant ones among the rows down to theirs.

    The row at place i of a tie of n rows, k of them relevant, is relevant with probability k / n, and then
    (i - 1) (k - 1) / (n - 1) of those before it in the tie are.
    """
    count, before = rows.tied(rows.relevant)
    size = rows.size[rows.tie]
    place = np.arange(len(size)) - rows.first[rows.tie]
    hits = before + 1 + place * (count - 1) / np.maximum(size - 1, 1)
    precision = rows.by_query(count / size * hits / (rows.rank + 1))
    return np.asarray(precision / rows.by_query(rows.relevant))


def _reciprocal_rank(rows: RankedRows, depth: float) -> Array:
    """Return one divided by the rank of the first relevant row, 0 beyond the depth.

    It is at place i of a tie of n rows, k of them relevant, with probability C(n - i, k - 1) / C(n, k).
    """
    from scipy.special import gammaln

    count, before = rows.tied(rows.relevant)
    size = rows.size[rows.tie]
    after = size - 1 - (np.arange(len(size)) - rows.first[rows.tie])
    could = (before == 0) & (count > 0) & (after >= count - 1) & (rows.rank < depth)
    n, k, m = (np.where(could, one, 1) for one in (size, count, after))

    def choose(of: Array, some: Array) -> Array:
        return np.asarray(gammaln(of + 1) - gammaln(some + 1) - gammaln(of - some + 1))

    chance = np.exp(choose(m, k - 1) - choose(n, k))
    return rows.by_query(np.where(could, chance / (rows.rank + 1), 0))


@dataclass(frozen=True)
class Rankings:
    """What a metric of rankings counts: the sum of its values over queries with a relevant row, and these."""

    name: str
    of_queries: Callable[[RankedRows, float], Array]
    depth: float = math.inf

    def judged(self, gold: Array, sentences: Array) -> Array:
        """Tell which rows are of a query with a relevant row, ``[N]``."""
        _, query = np.unique(sentences, return_inverse=True)
        return np.asarray(np.bincount(query, weights=gold > 0)[query] > 0)

    def counts(self, predicted: Array, gold: Array, sentences: Array) -> Array:
        """Return the value of each query with a relevant row, and 1: ``[S, 2]``.

        Raises:
            CompressError: there is none, or a label is below 0.
        """
        kept = self.judged(gold, sentences)
        refuse(
            (
                bool((gold < 0).any()),
                f"{self.name} reads labels as relevance, 0 or more, and one is {gold.min():g}; correct it, or use "
                "another --metric",
            ),
            (
                not kept.any(),
                f"{self.name} needs a query with a relevant row, whose label is above 0, and there is none; check "
                "--label-column",
            ),
        )
        _, query = np.unique(sentences[kept], return_inverse=True)
        values = self.of_queries(RankedRows.of(predicted[kept], gold[kept], query), self.depth)
        return np.stack([values, np.ones_like(values)], axis=1)


def _mean(sums: Array) -> Array:
    return np.asarray(sums[..., 0] / sums[..., 1])


RANK_METRICS = tuple(
    Metric(name, False, _mean, Rankings(name, of_queries, depth), of_probabilities=True, of_last=True, ranks=True)
    for name, of_queries, depth in (
        ("ndcg", _ndcg, math.inf),
        ("ndcg@10", _ndcg, 10),
        ("mrr", _reciprocal_rank, math.inf),
        ("mrr@10", _reciprocal_rank, 10),
        ("map", _average_precision, math.inf),
    )
)
