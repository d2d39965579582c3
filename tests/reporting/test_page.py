"""The page in a browser: nothing is fetched, nothing overflows, everybody can use it, and what it calculates is right.

Playwright drives the Chromium that is installed; it downloads none.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compress.reporting.pages import HTML_NAME
from compress.requests.measuring import report
from tests.support.report_study import study
from tests.support.results import write_lines

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the page is not tested in a browser: pip install -e '.[development]'"
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CURVE = """share_removed,metric,value,split,recovered
0.0,accuracy,0.89,validation,False
0.6,accuracy,0.8,validation,True
"""
METRICS = """{"phase": "inside", "step": 5, "loss": 90.0}
{"phase": "inside", "step": 10, "loss": 70.0}
{"phase": "logits", "step": 5, "loss": 0.9}
{"phase": "logits", "step": 5, "validation": 0.5}
{"phase": "logits", "step": 10, "loss": 0.7}
{"phase": "logits", "step": 10, "validation": 0.75}
"""
SCREENS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"viewport": {"width": 380, "height": 740}, "is_mobile": True},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"the page is not tested in a browser: none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page that has everything: prices for the processor only, trainings, a pruning curve, a lock."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "pruning_curve.csv").write_text(CURVE)
    trained = [folder / name / "metrics.jsonl" for name in ("minilm-3", "minilm-3-control", "a", "b", "c", "d")]
    for metrics in trained:
        metrics.parent.mkdir()
        metrics.write_text(METRICS)
    (folder / "results.lock.json").write_text('{"format_version": 1}')
    results = write_lines(folder / "results.jsonl", study())
    curves = [folder / "pruning_curve.csv", *trained]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GITHUB_STEP_SUMMARY", raising=False)
        report([results], folder / "out", curves=curves, prices=["cpu=0.36"], currency="EUR")
    return (folder / "out" / HTML_NAME).as_uri()


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Any]:
    """Open the page on a screen; at the end nothing may have been fetched and nothing complained about."""
    contexts, complaints = [], []

    def open_on(screen: str = "light", **options: Any) -> Any:
        contexts.append(browser.new_context(**(SCREENS[screen] | options)))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != address else None)
        page.goto(address)
        return page

    yield open_on
    for context in contexts:
        context.close()
    assert complaints == []


def column(page: Any, title: str) -> list[str]:
    """Return what the first table shows in a column, from top to bottom."""
    return page.evaluate(
        """title => {
          const table = document.querySelector(".results table");
          const heading = [...table.tHead.rows[2].cells].find((cell) => cell.textContent.trim() === title);
          return [...table.tBodies[0].rows].map((row) => row.cells[heading.cellIndex].firstChild.textContent);
        }""",
        title,
    )


@pytest.mark.parametrize("screen", SCREENS)
def test_axe_finds_nothing(opened: Any, screen: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = opened(screen)
    # One list of changed rows stands for all of them: axe takes its time.
    page.evaluate("for (const one of document.querySelectorAll('details:not(.flips ~ .flips)')) one.open = true")
    page.locator(".wider").first.check()
    found = axe.Axe().run(page, options={"resultTypes": ["violations"]}).response
    assert [(v["id"], v["nodes"][0]["html"][:200], v["nodes"][0]["failureSummary"]) for v in found["violations"]] == []
    assert len(found["passes"]) > 20


@pytest.mark.parametrize("screen", SCREENS)
def test_only_tables_scroll_sideways(opened: Any, screen: str) -> None:
    page = opened(screen)
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.locator(".wider").first.check()
    assert page.evaluate("document.documentElement.scrollWidth") == SCREENS[screen]["viewport"]["width"]  # type: ignore[index]
    assert page.evaluate("document.querySelector('.results .scroll').scrollWidth") > 1280


@pytest.mark.parametrize("screen", SCREENS)
def test_names_of_rows_stay_in_their_column(opened: Any, screen: str) -> None:
    beyond = """() => {
      const right = (one) => one.getBoundingClientRect().right;
      const found = [...document.querySelectorAll("th.first small")];
      return found.filter((one) => right(one) > right(one.parentElement)).map((one) => one.innerText);
    }"""
    page = opened(screen)
    assert "teacher, torch, padded to 128" in page.locator("th.first small").all_inner_texts()
    assert page.evaluate(beyond) == []


def test_each_screen_has_the_picture_for_it(opened: Any) -> None:
    for screen, shown in (("light", "wide"), ("phone", "narrow")):
        page = opened(screen)
        assert page.locator(f".pareto .{shown} svg").first.is_visible()
        assert page.locator(".pareto svg:visible").count() == 2  # one for the CPU, one for the GPU


def test_headings_sort_and_empty_cells_stay_last(opened: Any) -> None:
    page = opened()
    heading = page.locator(".results th", has=page.get_by_role("button", name="Speed-up", exact=True)).first
    for direction in ("descending", "ascending"):
        heading.get_by_role("button").click()
        assert heading.get_attribute("aria-sort") == direction
        numbers = [float(speed.removeprefix("×").replace(",", "")) for speed in column(page, "Speed-up")]
        assert numbers == sorted(numbers, reverse=direction == "descending") and len(numbers) == 27
    heading = page.locator(".results th", has=page.get_by_role("button", name="Accuracy", exact=True)).first
    for direction in ("descending", "ascending"):
        heading.get_by_role("button").click()
        assert heading.get_attribute("aria-sort") == direction
        *metrics, last, very_last = column(page, "Accuracy")
        assert last == very_last == "–" and "–" not in metrics  # two reference models
        assert metrics == sorted(metrics, reverse=direction == "descending")
    page.get_by_role("button", name="Model", exact=True).first.press("Enter")
    assert column(page, "Model") == sorted(column(page, "Model"), reverse=True)


def test_kinds_can_be_hidden_from_plot_and_table(opened: Any) -> None:
    page = opened()
    part = page.locator(".results").first
    mark, row = part.locator(".pareto .wide .point.baseline").first, part.locator("tr.baseline").first
    assert mark.is_visible() and row.is_visible()
    part.get_by_role("checkbox", name="baseline").uncheck()
    assert not mark.is_visible() and not row.is_visible() and part.locator("tr.model").first.is_visible()
    assert page.locator("#section-2 tr.model").first.is_visible()


def test_all_columns_on_request(opened: Any) -> None:
    page = opened()
    part = page.locator(".results").first
    heading = part.get_by_role("columnheader", name="McNemar p")
    assert heading.count() == 0
    part.get_by_label("all columns").check()
    assert heading.is_visible()
    widths = part.evaluate(
        """part => [".for-all", "tr:last-child"].map((which) =>
          [...part.querySelector(`thead ${which}`).cells].reduce((sum, cell) => sum + cell.colSpan, 0))"""
    )
    assert widths[0] == widths[1]


def test_the_scale_of_the_plot_can_be_switched(opened: Any) -> None:
    page = opened()
    part = page.locator(".results").first
    mark = part.locator(".pareto .wide .point[aria-label^='bilstm-int8']")
    page.emulate_media(reduced_motion="reduce")
    place = "mark => [mark.getBoundingClientRect().x, mark.getBoundingClientRect().y + scrollY]"
    before = mark.evaluate(place)
    part.get_by_label("logarithmic speed").uncheck()
    after = mark.evaluate(place)
    assert after[0] > before[0] + 50 or after[0] < before[0] - 50
    assert before[1] == pytest.approx(after[1], abs=1)


def test_marks_speak_when_focused_and_escape_silences_them(opened: Any) -> None:
    page = opened()
    mark = page.locator(".pareto .wide .point[aria-label^='bilstm-int8']").first
    tip = page.locator(".tip").first
    assert not tip.is_visible()
    mark.focus()
    assert tip.inner_text() == mark.get_attribute("aria-label") and "accuracy 89.45%" in tip.inner_text()
    page.keyboard.press("Escape")
    assert not tip.is_visible()


@pytest.mark.parametrize("way", ["clipboard", "command"])
def test_the_table_is_copied_as_shown_with_numbers(opened: Any, way: str) -> None:
    page = opened()
    if way == "clipboard":
        page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    else:  # a browser that refuses the first way
        page.evaluate(
            """() => {
              navigator.clipboard.writeText = async () => { throw new Error("refused"); };
              document.execCommand = () => { window.copied = document.activeElement.value; return true; };
            }"""
        )
    part = page.locator(".results").first
    part.get_by_role("checkbox", name="baseline").uncheck()
    part.get_by_role("button", name="Copy the table").click()
    page.wait_for_function("window.copied !== undefined")
    assert part.get_by_role("status").inner_text() == "24 rows copied"
    lines = [line.split("\t") for line in page.evaluate("window.copied").splitlines()]
    assert len(lines) == 25 and {len(line) for line in lines} == {len(lines[0])}
    assert lines[0][:5] == ["Model", "Where", "Accuracy (%)", "low", "high"] and "McNemar p" not in lines[0]
    found = {(line[0], line[1]): line for line in lines}
    assert found["bilstm", "onnxruntime"][2:5] == ["89.45", "88.55", "90.35"]
    at = lines[0].index("Speed-up")
    value, low, high = map(float, found["torchao-int8", "competitor, torchao-int8"][at : at + 3])
    assert low == pytest.approx(0.7 * value, rel=0.01) and value < high
    assert found["bert-base", "reference-model, torch"][2:5] == ["", "", ""]


def test_the_calculator_computes(opened: Any) -> None:
    page = opened()
    rows = page.locator("table.costs tbody tr")
    gpu, cpu = rows.filter(has_text="Test GPU").first, rows.filter(has_text="Test CPU, 1 thread").first
    assert gpu.locator(".million").inner_text() == "–" and cpu.locator(".hourly").inner_text() == "0.36 EUR"
    page.get_by_label("Currency").fill("USD")
    page.get_by_label("Price an hour of Test GPU").fill("3.6")
    per_hour = float(gpu.get_attribute("data-per-hour"))
    million, thousand = (float(gpu.locator(f".{name}").get_attribute("data-value")) for name in ("million", "thousand"))
    assert million == pytest.approx(1e6 * 3.6 / per_hour) and thousand == pytest.approx(million / 1000)
    assert gpu.locator(".million").inner_text() == f"{million:.2f} USD"
    assert cpu.locator(".hourly").inner_text() == "0.36 USD"
    for nothing in ("", "0", "-1"):
        page.get_by_label("Price an hour of Test GPU").fill(nothing)
        assert gpu.locator(".million").inner_text() == "–" and gpu.locator(".million[data-value]").count() == 0


def test_the_calculator_begins_with_what_the_page_was_made_with(opened: Any) -> None:
    with_scripts, without = opened(), opened(java_script_enabled=False)
    cells = [page.locator("table.costs td").all_inner_texts() for page in (with_scripts, without)]
    assert cells[0] == cells[1] and "0.36 EUR" in cells[0]


def test_the_page_is_complete_without_scripts(opened: Any) -> None:
    page = opened(java_script_enabled=False)
    part = page.locator(".results").first
    assert part.locator(".pareto .wide svg").is_visible() and part.locator("tbody tr").count() == 27
    part.get_by_label("all columns").check()
    assert part.get_by_role("columnheader", name="McNemar p").is_visible()
    assert page.get_by_text("Typing prices needs scripts").is_visible()
    assert not page.get_by_label("Currency").is_visible() and not opened().get_by_text("Typing prices").is_visible()


def test_paper_has_no_buttons_and_every_row(opened: Any, tmp_path: Path) -> None:
    page = opened()
    page.emulate_media(media="print")
    assert not page.get_by_role("button", name="Copy the table").first.is_visible()
    assert page.locator(".results tbody tr").first.is_visible()
    pdf = page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    assert pdf.startswith(b"%PDF") and 4 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") <= 30
