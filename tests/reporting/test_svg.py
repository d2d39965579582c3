"""Axes, lines, waterfalls and heat maps as SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from compress.reporting import svg as svg_module
from compress.reporting.svg import Bar, heat_map, waterfall_chart

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
    root = ElementTree.fromstring(getattr(heat_map(rows, title="importance <1>"), size))
    cells = [one for one in root.iter(f"{SVG}rect") if one.attrib["class"] in {"cell", "below"}]
    assert [float(one.attrib["fill-opacity"]) for one in cells] == [0.25, 1.0, 0.0, 0.5, 0.125]
    assert [one.attrib["class"] for one in cells] == ["cell", "below", "cell", "cell", "cell"]
    assert [title.text for title in root.iter(f"{SVG}title")][1] == "layer 1, 2: -2"
    assert "the largest is 1 at layer 2, 1" in root.attrib["aria-label"]
    assert all(float(one.attrib["x"]) + float(one.attrib["width"]) <= canvas.width for one in cells)


def test_a_heat_map_of_equal_scores_is_drawn() -> None:
    assert "fill-opacity" in heat_map([[0.0, 0.0]], title="t", formatted=str).wide


@pytest.mark.parametrize("values", [[5.0], [88.1, 88.2], [0.0, 100.0], [-3.0, 4.0], [1.0, 1e6]])
def test_axes_hold_their_values_and_have_round_ticks(values: list[float]) -> None:
    for log in (False, True):
        if log and min(values) <= 0:
            continue
        axis = svg_module.Axis.over(values, 0, 100, log=log)
        assert all(0 < axis.place(value) < 100 for value in values)
        assert 1 <= len(axis.ticks()) <= 12 and all(0 <= axis.place(tick) <= 100 for tick in axis.ticks())
