"""Fronts of two objectives that are both maximised: dominance, ranks, hypervolume, knee. Points are ``[N, 2]``."""

from collections.abc import Sequence

import numpy as np

Points = Sequence[tuple[float, float]]


def non_dominated(points: Points) -> list[int]:
    """Return the numbers of the points that no other one dominates, in order; of equal points the first.

    A point dominates another if it is at least as good in both objectives and better in one.
    """
    found: list[int] = []
    for index in sorted(range(len(points)), key=lambda index: (-points[index][0], -points[index][1], index)):
        if not found or points[index][1] > points[found[-1]][1]:
            found.append(index)
    return sorted(found)


def hypervolume(points: Points, reference: tuple[float, float]) -> float:
    """Return the area that points dominate above a reference point (Zitzler and Thiele 1998)."""
    area, height = 0.0, reference[1]
    for x, y in sorted(points, reverse=True):  # from the right: each adds the part of its height that is new
        if x > reference[0] and y > height:
            area, height = area + (x - reference[0]) * (y - height), y
    return area


def hypervolume_contributions(points: Points, reference: tuple[float, float]) -> list[float]:
    """Return by how much the hypervolume is less without each point."""
    whole = hypervolume(points, reference)
    return [whole - hypervolume([*points[:index], *points[index + 1 :]], reference) for index in range(len(points))]


def ranked(points: Points, reference: tuple[float, float]) -> list[int]:
    """Return the numbers of all points, the most worth keeping first.

    Fronts follow each other as in NSGA-II (Deb et al. 2002, section III A), and within a front the point first without
    which it would lose most hypervolume, as in SMS-EMOA (Beume et al. 2007, section 3).
    """
    left, found = list(range(len(points))), list[int]()
    while left:
        front = [left[index] for index in non_dominated([points[number] for number in left])]
        gains = hypervolume_contributions([points[number] for number in front], reference)
        order = sorted(range(len(front)), key=lambda index: (-gains[index], front[index]))
        found += [front[index] for index in order]
        left = [number for number in left if number not in front]
    return found


def knee(points: Points) -> int:
    """Return the number of the front's point that lies farthest beyond the chord between its ends.

    Each objective is scaled by its range on the front, so that units do not decide. Das 1999, "On characterizing the
    'knee' of the Pareto curve based on Normal-Boundary Intersection" (Structural Optimization 18); with two objectives
    that is the largest distance from the chord. Where no point lies beyond it, it is the end that is best in the second
    objective.
    """
    front = non_dominated(points)
    values = np.array([points[index] for index in front], dtype=float)
    ranges = np.ptp(values, axis=0)
    scaled = (values - values.min(axis=0)) / np.where(ranges > 0, ranges, 1.0)
    beyond = scaled.sum(axis=1) - 1  # the chord runs from (0, 1) to (1, 0): this times a constant is the distance
    best = max(range(len(front)), key=lambda index: (round(float(beyond[index]), 9), scaled[index, 1]))
    return front[best]
