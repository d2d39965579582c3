"""The pictures of a report: axes, lines, the Pareto plot, and what a mark says."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from compress.benchmarking.results.files import results_of
from compress.reporting.charts import heat_map
from compress.reporting.charts import svg as svg_module
from compress.reporting.charts.pareto import MARKERS, Point, front, pareto_chart
from compress.reporting.charts.pareto_points import marks, published_figures
from compress.reporting.charts.waterfall import Bar, waterfall_chart
from tests.support.report_study import study
from tests.support.results import line

SVG = "{http://www.w3.org/2000/svg}"


def test_line_chart_is_standalone_svg() -> None:
    series = [svg_module.Series("a <b>", [(0, 90), (50, 88.5), (60, 80)]), svg_module.Series("recovered", [(60, 88)])]
    svg = svg_module.line_chart(series, title="heads & accuracy", x_label="removed (%)", y_label="accuracy (%)").wide
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg" and "heads & accuracy" in root.attrib["aria-label"]
    assert len(root.findall(f".//{SVG}polyline")) == 1
    assert len(list(root.iter(f"{SVG}title"))) == 4 and "recovered" in [t.text for t in root.iter(f"{SVG}text")]
    assert "prefers-color-scheme:dark" in svg


def test_series_differ_in_colour_dash_and_shape() -> None:
    series = [svg_module.Series(str(number), [(1, number), (2, number)]) for number in range(25)]
    svg = svg_module.line_chart(series, title="t", x_label="x", y_label="y").wide
    root = ElementTree.fromstring(svg)
    lines = [line.attrib["class"].split()[1:] for line in root.findall(f".//{SVG}polyline")]
    dots = [dot.attrib["d"] for dot in root.findall(f".//{SVG}path") if dot.find(f"{SVG}title") is not None][::2]
    looks = [(*line, dot) for line, dot in zip(lines, dots, strict=True)]
    assert len(set(looks)) == 25 and all(len(set(part)) == 5 for part in zip(*looks[:5], strict=True))
    legend = [group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}text") is not None][:25]
    marks = [(group.find(f"{SVG}line"), group.find(f"{SVG}path")) for group in legend]
    assert [(*line.attrib["class"].split()[1:], dot.attrib["d"]) for line, dot in marks] == looks  # type: ignore[union-attr]
    rules = [
        svg[svg.index(f"{rule}{{") :].split("}")[0]
        for rule in (*(f".s{n}" for n in range(5)), *(f".d{n}" for n in range(1, 5)))
    ]
    assert len({rule.partition("{")[2] for rule in rules}) == 9


def test_a_narrow_waterfall_has_factors_below_the_names() -> None:
    name, says = "feed-forward neurons removed and what came before", "×12.40 (×11.29 to ×13.51)"
    picture = waterfall_chart([Bar(name, 12.4, says), Bar("all", 12.4, says, is_total=True)], title="t")
    for svg, lines in ((picture.wide, [f"{name}: {says}"]), (picture.narrow, [f"{name}: ", says])):
        root = ElementTree.fromstring(svg)
        (text, _) = [one for one in root.iter(f"{SVG}text") if one.get("class") == "step"]
        (factor,) = text
        bar = next(one for one in root.iter(f"{SVG}rect") if "bar" in one.get("class", "").split())
        below = float(factor.get("dy", 0))
        assert ([text.text, factor.text] if below else [f"{text.text}{factor.text}"]) == lines
        assert max(map(len, lines)) * 7 < float(root.attrib["viewBox"].split()[2]) - 16
        assert float(bar.attrib["y"]) > float(text.attrib["y"]) + below


def test_bars_reach_from_low_to_high_and_stay_inside() -> None:
    series = [svg_module.Series("a", [(0, 90), (50, 80)], [(88, 92), (70, 85)]), svg_module.Series("b", [(0, 89)])]
    root = ElementTree.fromstring(svg_module.line_chart(series, title="t", x_label="x", y_label="y", lines=False).wide)
    assert not root.findall(f".//{SVG}polyline")
    bars = [one for one in root.iter(f"{SVG}line") if "bar" in one.attrib["class"].split()]
    lengths = [float(one.attrib["y1"]) - float(one.attrib["y2"]) for one in bars]
    assert len(bars) == 2 and lengths[1] / lengths[0] == pytest.approx(15 / 4, rel=0.01)
    ends = [float(one.attrib[key]) for one in bars for key in ("y1", "y2")]
    assert svg_module.WIDE.top <= min(ends) and max(ends) <= svg_module.WIDE.bottom + 2 * svg_module.LEGEND_STEP


@pytest.mark.parametrize(("size", "canvas"), [("wide", svg_module.WIDE), ("narrow", svg_module.NARROW)])
def test_a_heat_map_shades_by_magnitude_and_colours_by_sign(size: str, canvas: svg_module.Canvas) -> None:
    rows = [[0.5, -2.0, 0.0], [1.0, 0.25]]
    root = ElementTree.fromstring(getattr(heat_map.draw(rows, title="importance <1>"), size))
    cells = [one for one in root.iter(f"{SVG}rect") if one.attrib["class"] in {"cell", "below"}]
    assert [float(one.attrib["fill-opacity"]) for one in cells] == [0.25, 1.0, 0.0, 0.5, 0.125]
    assert [one.attrib["class"] for one in cells] == ["cell", "below", "cell", "cell", "cell"]
    assert [title.text for title in root.iter(f"{SVG}title")][1] == "layer 1, 2: -2"
    assert "the largest is 1 at layer 2, 1" in root.attrib["aria-label"]
    assert all(float(one.attrib["x"]) + float(one.attrib["width"]) <= canvas.width for one in cells)


def test_a_heat_map_of_equal_scores_is_drawn() -> None:
    assert "fill-opacity" in heat_map.draw([[0.0, 0.0]], title="t", formatted=str).wide


@pytest.mark.parametrize("values", [[5.0], [88.1, 88.2], [0.0, 100.0], [-3.0, 4.0], [1.0, 1e6]])
def test_axes_hold_their_values_and_have_round_ticks(values: list[float]) -> None:
    for log in (False, True):
        if log and min(values) <= 0:
            continue
        axis = svg_module.Axis.over(values, 0, 100, log=log)
        assert all(0 < axis.place(value) < 100 for value in values)
        assert 1 <= len(axis.ticks()) <= 12 and all(0 <= axis.place(tick) <= 100 for tick in axis.ticks())


def point(name: str, speedup: float | None, metric: float | None, kind: str = "model") -> Point:
    return Point(name, kind, speedup, speedup or 0, speedup or 0, metric, metric or 0, metric or 0, name)


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
    assert (found[-1].speedup, found[-1].speedup_low, found[-1].speedup_high) == (5.5, 1.0, 30.0)


def test_published_figures_are_those_of_the_same_data_and_metric() -> None:
    def found(**fields: object) -> list[str]:
        lines = [line("teacher", kind="teacher"), line("s", metric_kept_percent=99.4, **fields)]
        return [one.dataset for one in published_figures(lines)]

    assert found(recipe="bilstm", data="glue/SST-2 dev") == ["SST-2 test"]
    assert found(recipe="bilstm", data="docstrings") == [] and found(recipe="bilstm", data="mySST-2") == []
    assert found(recipe="bilstm", data="glue/SST-2 dev", metric_name="macro-f1") == []
    assert found(recipe="unheard-of", data="glue/SST-2 dev") == []
    (one,) = published_figures([line("s", recipe="bilstm", data="SST-2 dev")])
    assert one.kept == pytest.approx(100 * 90.7 / 94.9) and one.ours_kept == 99.4
    mark = marks([line("teacher", kind="teacher", metric=0.9)], [one])[-1]
    assert mark.speedup is None and mark.metric == pytest.approx(90 * 90.7 / 94.9)
    matthews = line("teacher", kind="teacher", metric=0.6, metric_name="matthews")
    assert marks([matthews], [one])[-1].metric == pytest.approx(0.6 * 90.7 / 94.9)
