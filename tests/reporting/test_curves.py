"""The charts of trainings: phases one after the other, a student beside its control, and what the table says."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from compress.models.training_log import TrainingLog
from compress.reporting.curves import DRAWN, trainings_of
from compress.reporting.svg import Picture
from tests.support.results import line

SVG = "{http://www.w3.org/2000/svg}"


def log(name: str, steps: int = 4, *, size: float = 1.0, phases: int = 1, **more: Any) -> TrainingLog:
    """A training whose loss falls in every phase, and whose last phase is evaluated in each second step."""
    lines: list[dict[str, Any]] = []
    for number in range(1, phases + 1):
        phase = {"phase": f"phase-{number}"} if phases > 1 else {}
        for step in range(1, steps + 1):
            lines.append({**phase, "step": step, "loss": size * 10**number / step})
            if number == phases and step % 2 == 0:
                lines.append({**phase, "step": step, "validation": 0.5 + step / 100 - step**2 / 1000})
    return TrainingLog(name, lines, **{"metric": "accuracy", **more})


def drawn(picture: Picture) -> tuple[ElementTree.Element, str]:
    root = ElementTree.fromstring(picture.narrow)
    ElementTree.fromstring(picture.wide)
    return root, root.attrib["aria-label"]


def lines_of(root: ElementTree.Element, style: str) -> list[list[float]]:
    found = root.findall(f".//{SVG}polyline")
    return [
        [float(point.split(",")[0]) for point in one.attrib["points"].split()]
        for one in found
        if style in one.attrib["class"]
    ]


def ends_of_phases(root: ElementTree.Element) -> list[float]:
    """Where on the horizontal axis phases end, from 0 to 1."""
    axes = [one.attrib for one in root.iter(f"{SVG}line") if one.attrib.get("class") == "axis"]
    (axis,) = (one for one in axes if "stroke-dasharray" not in one)
    start, end = float(axis["x1"]), float(axis["x2"])
    return [(float(one["x1"]) - start) / (end - start) for one in axes if "stroke-dasharray" in one]


def test_a_student_is_beside_its_control() -> None:
    results = [line("small", control="gold"), line("other"), line("gold", kind="control", control_of="first")]
    logs = [log("small"), log("gold", size=2.0), log("other"), log("alone-control")]
    table, ((scores, losses), *others) = trainings_of(logs, results)
    assert (
        len(others) == 2
        and table
        and [cells[0].text for cells in table.rows] == ["small", "gold", "other", "alone-control"]
    )
    for picture, title in ((scores, "Validation of small"), (losses, "Loss of small")):
        root, says = drawn(picture)
        assert says.startswith(f"{title}. ") and "small goes from" in says and "gold goes from" in says
        assert [len(lines_of(root, style)) for style in ("s0", "s1")] == [1, 1]
    older = [line("small"), line("gold", kind="control", control_of="small")]
    assert "gold goes from" in drawn(trainings_of(logs, older)[1][0][0])[1]
    assert trainings_of([], results) == (None, [])


def test_phases_follow_one_another() -> None:
    table, pictures = trainings_of([log("small", phases=3)], [])
    assert table is not None
    ((scores, losses),) = pictures
    root, says = drawn(losses)
    first, second, third = lines_of(root, "s0")
    assert (
        first[-1] < second[0]
        and second[-1] < third[0]
        and "goes from 10 at 1 to 2.5 at 4, then from 100 at 5 to 25 at 8, then from 1,000 at 9 to 250 at 12" in says
    )
    parts = [one.attrib for one in root.iter(f"{SVG}line") if "stroke-dasharray" in one.attrib]
    assert [float(part["x1"]) for part in parts] == [first[-1], second[-1]]
    root, says = drawn(scores)
    assert ends_of_phases(root) == pytest.approx(ends_of_phases(drawn(losses)[0]), abs=0.01)
    assert "from 51.6 at 10 to 52.4 at 12" in says  # in percent, and after the steps of the phases before
    (cells,) = table.rows
    assert [cell.text for cell in cells] == ["small", "3", "12", "12", "52.40%", "250"]
    assert cells[1].small == "phase-1, phase-2, phase-3"
    assert (cells[4].small, cells[4].value) == ("accuracy on validation", pytest.approx(52.4))


def test_the_dot_is_the_checkpoint_that_is_kept() -> None:
    table, pictures = trainings_of([log("small", 20)], [])
    assert table is not None
    root, _ = drawn(pictures[0][0])
    (dot,) = root.findall(f".//{SVG}path")
    title = dot.find(f"{SVG}title")
    assert title is not None and title.text == "small: 4 → 52.4" and table.rows[0][3].text == "4"
    assert not drawn(pictures[0][1])[0].findall(f".//{SVG}path")


def test_scores_of_other_rows_are_not_compared() -> None:
    logs = [log("small"), log("gold", split="slice of train")]
    table, pictures = trainings_of(logs, [line("small", control="gold")])
    assert table is not None
    scores, losses = pictures[0]
    assert "gold" not in drawn(scores)[1] and "gold" in drawn(losses)[1]
    assert [cells[4].small for cells in table.rows] == ["accuracy on validation", "accuracy on slice of train"]


@pytest.mark.parametrize("phases", [1, 3])
def test_long_losses_are_drawn_as_means(phases: int) -> None:
    table, pictures = trainings_of([log("small", 1000, phases=phases)], [])
    assert table is not None
    counts = [len(part) for part in lines_of(drawn(pictures[0][-1])[0], "s0")]
    assert len(counts) == phases and 0.8 * DRAWN < sum(counts) <= DRAWN


def test_losses_of_different_size_are_on_a_logarithmic_axis() -> None:
    def ticks(size: float) -> list[str]:
        _, pictures = trainings_of([log("small", 4), log("gold", 4, size=size)], [line("small", control="gold")])
        return re.findall(r'text-anchor="end">([^<]+)<', pictures[0][1].narrow)

    assert ticks(1.0) == ["10", "8", "6", "4", "2"][::-1] and ticks(100.0) == ["3", "10", "30", "100", "300", "1,000"]


def test_little_is_known() -> None:
    """Unknown losses, one point, no line at all, and two models of one name."""
    few = [{"step": 1, "loss": None}, {"step": 1, "validation": 0.5}]
    table, pictures = trainings_of(
        [TrainingLog("a", []), TrainingLog("b", few), TrainingLog("b", few[:1]), log("c", 1)], []
    )
    assert table is not None
    assert [len(own) for own in pictures] == [1, 1]
    assert [[cell.text for cell in cells] for cells in table.rows] == [
        ["a", "1", "0", "–", "–", "–"],
        ["b", "1", "1", "1", "0.5000", "–"],
        ["b", "1", "1", "–", "–", "–"],
        ["c", "1", "1", "–", "–", "10"],
    ]
