"""A whole report of foreign names has the elements that one of ordinary names has, and no other."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

from hypothesis import given, settings
from markdown_it import MarkdownIt

from compress.benchmarking.results.files import Results
from compress.models.training_log import TrainingLog
from compress.reporting.curves import pruning_curve
from compress.reporting.rendering import render
from compress.reporting.report import ShownLock, view
from compress.reporting.svg import Series, line_chart
from tests.support.foreign import texts
from tests.support.results import line

CURVE = [{"heads_removed": "1", "share_removed": "0.5", "value": "0.8", "recovered": "False"}]


class Structure(HTMLParser):
    """Every element of a page, with the names of its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.feed(re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL))  # where room decides which names are drawn
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment",))


def pages(text: str) -> tuple[str, str]:
    """Return the page and its Markdown twin, with a text in every field that somebody else may fill."""
    name = f"n{text}"
    about = {
        "runtime": name,
        "recipe": name,
        "command": name,
        "study": name,
        "data": name,
        "host": {"cpu": name, "system": name, "gpu": [name], "cpu_flags": [name], "cores": 2},
        "versions": {"torch": name},
    }
    lines = [line(name, kind="teacher", **about), line(f"{name} s", **about)]
    curve = pruning_curve(name, name, [{**row, "split": name} for row in CURVE])
    trained = [{"phase": phase, "step": step, "loss": 1.0 / step} for phase in (name, "b") for step in (1, 2)]
    log = TrainingLog(name, [*trained, {"phase": "b", "step": 2, "validation": 0.5}], name, name)
    page = view(Results(tuple(lines)), title=name, curves=[curve], logs=[log], currency=name)
    page = replace(page, locks=[ShownLock(name, name, name)])
    return render("report.html.j2", page=page), render("report.md.j2", page=page)


def blocks(page: str) -> list[str]:
    """Return the kinds of all blocks, parts of text and raw HTML of a Markdown page; text itself is one kind."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    found = []
    for token in parser.parse(page):
        found.append(token.content if token.type == "html_block" else token.type)
        found += [child.content if child.type == "html_inline" else child.type for child in token.children or []]
    return [one for one in found if one not in ("text", "softbreak")]


ORDINARY_HTML, ORDINARY_MARKDOWN = pages("ame")


@settings(max_examples=25)
@given(texts)
def test_reports_have_no_further_element(text: str) -> None:
    html, markdown = pages(text)
    assert Structure(html).found == Structure(ORDINARY_HTML).found
    assert blocks(markdown) == blocks(ORDINARY_MARKDOWN)
    for page in (html, markdown):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page)
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ElementTree.fromstring(svg)


@given(texts)
def test_charts_are_xml_that_shows_names(text: str) -> None:
    series = [Series(text, [(0, 1), (1, 2)]), Series("b", [(0, 1)])]
    drawn = line_chart(series, title=text, x_label=text, y_label=text).wide
    tags = {element.tag.partition("}")[2] for element in ElementTree.fromstring(drawn).iter()}
    assert tags == {"svg", "style", "rect", "g", "line", "polyline", "path", "title", "text"}
