"""Fronts: against definitions written out, and areas that are known."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest

from compress.evaluation.pareto import hypervolume, hypervolume_contributions, knee, non_dominated, ranked


def drawn(seed: int, count: int = 12) -> list[tuple[float, float]]:
    draw = Random(seed)
    return [(float(draw.randrange(6)), float(draw.randrange(6))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_no_point_of_a_front_is_dominated_and_every_other_one_is(seed: int) -> None:
    points = drawn(seed)
    front = non_dominated(points)
    best = {points[index] for index in front}
    assert len(best) == len(front)  # equal points stand for each other
    for x, y in points:
        beaten = any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
        assert beaten == ((x, y) not in best)


def test_of_equal_points_the_first_counts() -> None:
    assert non_dominated([(1, 1), (1, 1), (0, 0)]) == [0]
    assert non_dominated([]) == []


@pytest.mark.parametrize("seed", range(20))
def test_the_hypervolume_is_the_number_of_unit_squares(seed: int) -> None:
    points = drawn(seed)
    squares = sum(any(x > i and y > j for x, y in points) for i, j in itertools.product(range(6), repeat=2))
    assert hypervolume(points, (0, 0)) == squares


def test_hypervolumes_in_closed_form() -> None:
    assert hypervolume([(2, 1), (1, 2)], (0, 0)) == 3
    assert hypervolume([(2, 1)], (2, 0)) == 0  # nothing beyond the reference
    assert hypervolume([], (0, 0)) == 0
    assert hypervolume_contributions([(2, 1), (1, 2), (1, 1)], (0, 0)) == [1, 1, 0]


@pytest.mark.parametrize("seed", range(10))
def test_fronts_follow_each_other(seed: int) -> None:
    points = drawn(seed)
    order = ranked(points, (-1, -1))
    assert sorted(order) == list(range(len(points)))
    left = list(order)
    while left:
        front = {left[index] for index in non_dominated([points[number] for number in sorted(left)])}
        expected = {sorted(left)[index] for index in non_dominated([points[number] for number in sorted(left)])}
        assert set(left[: len(front)]) == expected
        left = left[len(front) :]


def test_within_a_front_the_point_that_adds_most_comes_first() -> None:
    # From 0, 0 the second adds 2 x 2 alone, the others 1 each.
    assert ranked([(4, 1), (3, 3), (1, 4)], (0, 0))[0] == 1


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(0, 1), (0.6, 0.9), (1, 0)], 1),
        ([(0, 1), (0.2, 0.9), (0.8, 0.5), (1, 0)], 2),
        ([(0, 1), (0.5, 0.4), (1, 0)], 0),  # below the chord: the end with the best metric
        ([(0, 1), (1, 0)], 0),
        ([(3, 2)], 0),
        ([(0, 0), (3, 2), (1, 1)], 1),  # all but one are dominated
    ],
)
def test_the_knee_is_farthest_beyond_the_chord(points: list[tuple[float, float]], expected: int) -> None:
    assert knee(points) == expected


def test_the_knee_does_not_depend_on_units() -> None:
    points = [(1.0, 0.93), (4.0, 0.92), (6.0, 0.88), (8.0, 0.70)]
    assert knee(points) == knee([(100 * x, y / 7) for x, y in points]) == 2
    ends = np.array([points[0], points[-1]])
    scale = np.ptp(ends, axis=0)
    chord = (ends[1] - ends[0]) / scale
    places = [(np.array(point) - ends[0]) / scale for point in points]
    apart = [abs(chord[0] * place[1] - chord[1] * place[0]) for place in places]
    assert int(np.argmax(apart)) == 2
