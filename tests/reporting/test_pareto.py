"""The Pareto plot of a report, and what a mark says."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from compress.benchmarking.results.files import results_of
from compress.inference.speedup_intervals import Interval
from compress.reporting import svg as svg_module
from compress.reporting.pareto import Point, front, marks, pareto_chart, published_figures
from compress.reporting.rendering import MARKERS
from tests.support.report_study import study
from tests.support.results import line

SVG = "{http://www.w3.org/2000/svg}"


def point(name: str, speedup: float | None, metric: float | None, kind: str = "model") -> Point:
    known = [None if value is None else Interval(value, value, value) for value in (speedup, metric)]
    return Point(name, kind, *known, name)


def drawn(points: list[Point]) -> dict[str, ElementTree.Element]:
    """Return the marks of a plot by their captions."""
    root = ElementTree.fromstring(pareto_chart(points, title="t", y_label="accuracy (%)").wide)
    found = [g for g in root.iter(f"{SVG}g") if "point" in g.attrib.get("class", "").split()]
    assert all(mark.attrib["tabindex"] == "0" for mark in found)
    return {mark.attrib["aria-label"]: mark for mark in found}


def place(mark: ElementTree.Element, axis: str) -> float:
    """Return where a mark is on an axis (log, linear or y), in pixels."""
    style = dict(part.split(":") for part in mark.attrib["style"].split(";"))
    return float(style[f"--{axis}"].removesuffix("px"))


def test_the_front_holds_what_nothing_beats() -> None:
    points = [
        point("teacher", 1, 89, "teacher"),
        point("slow", 2, 88),
        point("good", 5, 88.5),
        point("fast", 40, 88),
        point("bad", 30, 80),
        point("control", 50, 99, "control"),
        point("reference-model", 99, None, "reference-model"),
        point("paper", None, 99, "published"),
    ]
    assert [p.name for p in front(points)] == ["teacher", "good", "fast"]


def test_every_kind_has_a_shape_of_its_own() -> None:
    outlines = [(kind.path, kind.hollow) for kind in MARKERS.values()]
    assert len(set(outlines)) == len(outlines)
    found = drawn([point(kind, 2, 80, kind) for kind in MARKERS if kind not in {"reference-model", "published"}])
    assert {m.find(f"{SVG}path[@class='mark']").attrib["d"] for m in found.values()} == {  # type: ignore[union-attr]
        MARKERS[kind].path for kind in found
    }


def test_what_lacks_a_metric_or_a_speed_is_at_the_edge() -> None:
    found = drawn(
        [
            point("teacher", 1, 89, "teacher"),
            point("m", 9, 88),
            point("b", 0.2, None, "reference-model"),
            point("p", None, 87, "published"),
        ]
    )
    assert place(found["b"], "y") == svg_module.WIDE.bottom and place(found["b"], "log") < place(
        found["teacher"], "log"
    )
    assert place(found["p"], "log") == place(found["p"], "linear") == svg_module.WIDE.right
    assert place(found["p"], "y") > place(found["m"], "y")


def test_a_mark_far_below_does_not_squeeze_the_others() -> None:
    near = [point("teacher", 1, 89, "teacher"), point("a", 5, 88.6), point("b", 9, 88.2)]
    alone, with_floor = drawn(near), drawn([*near, point("majority", 9000, 51, "baseline")])
    assert [place(with_floor[n], a) for n in "ab" for a in ("log", "y")] == [
        place(alone[n], a) for n in "ab" for a in ("log", "y")
    ]
    baseline = with_floor["majority"]
    assert place(baseline, "log") == svg_module.WIDE.right and place(baseline, "y") < svg_module.WIDE.bottom
    assert baseline.find(f"{SVG}path[@class='arrow']") is not None


@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_labels_do_not_meet(size: str) -> None:
    rows = [row for row in results_of(study()) if row.small_batch.threads == 1 and row.small_batch.device == "cpu"]
    rows = [row for row in rows if row.small_batch.length is None]
    lines = [row.small_batch for row in rows]
    points = marks(lines, published_figures(lines))
    assert len(points) >= 25
    svg = getattr(pareto_chart(points, title="t", y_label="accuracy (%)"), size)
    for mode in ("log", "linear"):
        boxes = []
        for mark in ElementTree.fromstring(svg).iter(f"{SVG}g"):
            if "point" not in mark.attrib.get("class", ""):
                continue
            for text in mark.iter(f"{SVG}text"):
                if f"on-{mode}" in text.attrib["class"]:
                    width = 6.6 * len(text.text or "")
                    shift = {"start": 0.0, "end": -width, "middle": -width / 2}[text.attrib["text-anchor"]]
                    left = place(mark, mode) + float(text.attrib["x"]) + shift
                    boxes.append((left, place(mark, "y") + float(text.attrib["y"]), width))
        assert len(boxes) >= 4
        for i, (x, y, width) in enumerate(boxes):
            for other_x, other_y, other_width in boxes[i + 1 :]:
                assert abs(y - other_y) >= 12 or x + width <= other_x or other_x + other_width <= x


def test_every_row_has_a_mark_also_with_a_wide_interval() -> None:
    rough = line("b", speedup_low=1.0, speedup_high=30.0, noise=0.4)
    found = marks([line("teacher", kind="teacher"), line("a", runtime="onnxruntime"), line("a"), rough], [])
    assert [mark.name for mark in found] == ["teacher", "a (onnxruntime)", "a (torch)", "b"]
    assert found[-1].speedup == (5.5, 1.0, 30.0)


def test_published_figures_are_those_of_the_same_data_and_metric() -> None:
    def found(**fields: object) -> list[str]:
        lines = [line("teacher", kind="teacher"), line("s", metric_kept_percent=99.4, **fields)]
        return [one.figure.dataset for one in published_figures(lines)]

    assert found(recipe="bilstm", data="glue/SST-2 dev") == ["SST-2 test"]
    assert found(recipe="bilstm", data="docstrings") == [] and found(recipe="bilstm", data="mySST-2") == []
    assert found(recipe="bilstm", data="glue/SST-2 dev", metric_name="macro-f1") == []
    assert found(recipe="unheard-of", data="glue/SST-2 dev") == []
    (one,) = published_figures([line("s", recipe="bilstm", data="SST-2 dev")])
    assert one.kept == pytest.approx(100 * 90.7 / 94.9) and one.ours_kept == 99.4
    mark = marks([line("teacher", kind="teacher", metric=0.9)], [one])[-1]
    assert mark.speedup is None and mark.metric and mark.metric.value == pytest.approx(90 * 90.7 / 94.9)
    matthews = line("teacher", kind="teacher", metric=0.6, metric_name="matthews")
    drawn = marks([matthews], [one])[-1].metric
    assert drawn and drawn.value == pytest.approx(0.6 * 90.7 / 94.9)
