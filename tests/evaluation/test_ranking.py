"""Metrics of rankings: against scikit-learn, all orders of ties, and figures computed by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score

from compress.data.examples import Example
from compress.errors import CompressError
from compress.evaluation.metrics import interval, paired_difference, score
from compress.evaluation.ranking import RANK_METRICS, queries_of, tell_queries
from compress.tasks import default, everything

METRICS = {metric.name: metric for metric in RANK_METRICS}


def value(name: str, scores: Any, gold: Any, queries: Any = None) -> float:
    found = np.zeros(len(gold), int) if queries is None else np.asarray(queries)
    return score(np.asarray(scores, float), np.asarray(gold), metric=METRICS[name], classes=1, sentences=found)


def plain(name: str, ranked: Any) -> float:
    """Return the metric of labels in their order, as textbooks write it."""
    relevant = [rank for rank, label in enumerate(ranked, 1) if label > 0]
    if name.startswith("mrr"):
        return 1 / relevant[0] if name == "mrr" or relevant[0] <= 10 else 0
    if name == "map":
        return sum(number / rank for number, rank in enumerate(relevant, 1)) / len(relevant)
    depth = 10 if name.endswith("@10") else None

    def gained(labels: Any) -> float:
        return sum(label / math.log2(rank + 1) for rank, label in enumerate(labels[:depth], 1))

    return gained(ranked) / gained(sorted(ranked, reverse=True))


@pytest.mark.parametrize("name", METRICS)
def test_figures_of_a_query_are_those_of_the_definition(name: str) -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        gold = generator.integers(0, 3, 14) * generator.integers(0, 2, 14)
        gold[0] = 1
        scores = generator.permutation(14)
        assert value(name, scores, gold) == pytest.approx(plain(name, gold[np.argsort(-scores)].tolist()))


@pytest.mark.parametrize("name", METRICS)
def test_ties_are_the_mean_over_their_orders(name: str) -> None:
    generator = np.random.default_rng(1)
    for _ in range(20):
        gold, scores = generator.integers(0, 3, 7), generator.integers(0, 3, 7)
        gold[3] = 1
        orders = [
            plain(name, [int(gold[row]) for row in order])
            for order in itertools.permutations(range(7))
            if all(scores[one] >= scores[other] for one, other in itertools.pairwise(order))
        ]
        assert value(name, scores, gold) == pytest.approx(np.mean(orders))


def test_ties_beyond_the_depth_of_mrr() -> None:
    gold = np.array([0] * 9 + [1] + [0] * 3)
    scores = np.array([2] * 9 + [1] * 4)  # the relevant row is at place 10 once in four orders
    assert value("mrr@10", scores, gold) == pytest.approx(1 / 4 / 10)


def test_figures_are_those_of_scikit_learn() -> None:
    generator = np.random.default_rng(2)
    for _ in range(30):
        gold, scores = generator.integers(0, 4, 25), generator.integers(0, 8, 25)
        gold[0] = 1
        assert value("ndcg", scores, gold) == pytest.approx(ndcg_score([gold], [scores]))
        assert value("ndcg@10", scores, gold) == pytest.approx(ndcg_score([gold], [scores], k=10))
        distinct = scores + generator.permutation(25) / 100
        assert value("map", distinct, gold) == pytest.approx(average_precision_score(gold > 0, distinct))


def test_published_examples() -> None:
    """Manning, Raghavan and Schütze 2008, chapter 8; Järvelin and Kekäläinen's gains as Wikipedia's page on DCG has."""
    ranked = [1, 0, 1, 0, 0, 1]
    assert value("map", -np.arange(6), ranked) == pytest.approx((1 / 1 + 2 / 3 + 3 / 6) / 3)
    gains = [3, 2, 3, 0, 1, 2]
    assert value("ndcg", -np.arange(6), gains) == pytest.approx(6.861 / 7.141, abs=1e-3)
    # cat, torus, virus: the right plural is third, second, first
    assert value("mrr", [3, 2, 1] * 3, [0, 0, 1, 0, 1, 0, 1, 0, 0], [0] * 3 + [1] * 3 + [2] * 3) == pytest.approx(
        11 / 18
    )


def test_a_mean_is_over_queries_with_a_relevant_row_in_any_order_of_rows() -> None:
    gold, scores = np.array([1, 0, 0, 0, 0, 1]), np.array([0.9, 0.1, 0.4, 0.3, 0.8, 0.2])
    queries = np.array([7, 7, 5, 5, 9, 9])
    assert value("mrr", scores, gold, queries) == pytest.approx((1 + 0.5) / 2)
    mixed = np.random.default_rng(0).permutation(6)
    assert value("mrr", scores[mixed], gold[mixed], queries[mixed]) == pytest.approx(0.75)


def test_intervals_draw_whole_queries() -> None:
    """Rows of a query that are repeated say nothing more about queries."""
    generator = np.random.default_rng(3)
    queries = np.repeat(np.arange(200), 5)
    gold = np.tile([1, 0, 0, 0, 0], 200)
    scores, others = generator.normal(size=(2, 1000)) + gold
    low, high = interval(scores, gold, metric=METRICS["mrr"], classes=1, sentences=queries)
    values = [value("mrr", scores[queries == one], gold[queries == one]) for one in range(200)]
    half = 1.96 * np.std(values) / math.sqrt(200)
    assert (low, high) == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=0.01)
    found = paired_difference(scores, others, gold, metric=METRICS["mrr"], classes=1, sentences=queries)
    changes = [
        100 * (mine - value("mrr", others[queries == one], gold[queries == one])) for one, mine in enumerate(values)
    ]
    assert found.points == pytest.approx(np.mean(changes)) and found.mcnemar_p is None
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.std(changes) / math.sqrt(200), rel=0.15)


def test_queries_are_a_column_or_the_first_text() -> None:
    pairs = [Example("q", "a"), Example("r", "b"), Example("q", "c")]
    assert queries_of(pairs, "ndcg").tolist() == [0, 1, 0]
    named = [Example("x", query="2"), Example("y", query="1"), Example("z", query="2")]
    assert queries_of(named, "ndcg").tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([Example("a"), Example("a")], "these are single texts: give pairs of a query and a text, or name the column"),
        ([Example("a", "x", query="1"), Example("b", "y", query="")], "has no query, and others have"),
        ([Example("a", "x"), Example("b", "y")], "2 rows have 2 different first texts, so that no query has two rows"),
        ([Example("a", query="1"), Example("a", query="2")], "2 different values in the column of queries"),
    ],
)
def test_rows_without_a_ranking_are_refused(rows: list[Example], said: str) -> None:
    with pytest.raises(CompressError, match=said):
        queries_of(rows, "map")


def test_labels_that_rank_nothing_are_refused() -> None:
    queries = np.array([0, 0, 1, 1])
    with pytest.raises(CompressError, match=r"ndcg reads labels as relevance, 0 or more, and one is -0.5"):
        tell_queries(METRICS["ndcg"], np.array([1, -0.5, 1, 0]), queries)
    with pytest.raises(CompressError, match="map needs a query with a relevant row, whose label is above 0"):
        tell_queries(METRICS["map"], np.zeros(4), queries)
    with pytest.raises(CompressError, match="mrr has one query with a relevant row, which has no interval"):
        tell_queries(METRICS["mrr"], np.array([1, 0, 0, 0]), queries)


def test_queries_that_are_left_out_are_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "compress")
    tell_queries(METRICS["ndcg"], np.array([1, 0, 0, 0, 1, 0]), np.array([0, 0, 1, 1, 2, 2]))
    assert "ndcg is the mean over 2 queries; 1 of 3 have no relevant row" in caplog.text


def test_classifiers_of_two_labels_rank_by_the_probability_of_the_last() -> None:
    task = default()
    logits, gold = np.array([[0.0, 1.0], [1.0, 3.0], [2.0, 0.0]]), np.array([1, 0, 0])
    assert task.evaluate(logits, gold, ("0", "1"), "mrr", np.zeros(3, int)) == 0.5
    with pytest.raises(CompressError, match="metric 'ndcg' needs two labels, not 3"):
        task.metric("ndcg", ("a", "b", "c"))
    assert task.constant_score(gold, ("0", "1"), "map") == -math.inf
    scores = everything()["regression"]
    assert scores.evaluate(logits[:, 1:], gold, ("score",), "mrr", np.zeros(3, int)) == 0.5
