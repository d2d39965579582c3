"""The survey's table: published figures, ours, the control's, and how recipes without either are shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compress.benchmarking.results.schema import Measurement
from compress.recipes import Choice, Phase, StudentRecipe, Survey, catalogue
from compress.reporting.pages import EMPTY, Cell
from compress.reporting.sections import gather
from compress.reporting.survey import HEADINGS, NOT_MEASURED, VALIDATION, survey
from compress.reporting.terminal import COLUMNS, sparkline
from compress.requests.measuring import report
from docs.study_tables import published_in_short
from tests.support.results import line, write_lines

GOLD = [0, 1] * 100
TINYBERT = Survey("distillation", "TinyBERT (Jiao 2019)", 7.5, 96, 9.4, "BERT_4, narrow", "all GLUE")
Q8BERT = Survey("quantization", "Q8BERT (Zafrir 2019)", 4, 99, 0, "BERT_12", "all GLUE", baseline="BERT-large")
BODY = replace(TINYBERT, system="TinyBERT, wide", reference_model="bert-large")
PHASES = (Phase((Choice("kl"),)),)
ROUNDED = (*PHASES, Phase((Choice("kl"),), modifier=Choice("fake-quantization")))
KNOWN = {
    "narrow": StudentRecipe(
        "n",
        Choice("transformer"),
        PHASES,
        survey=(TINYBERT,),
        name="narrow",
        limits="no pretrained checkpoint",
    ),
    "rounded": StudentRecipe("r", Choice("transformer"), ROUNDED, survey=(Q8BERT,), name="rounded"),
    "other": StudentRecipe("o", Choice("bilstm"), PHASES, paper="Somebody 2020", name="other"),
    "shared": StudentRecipe("s", Choice("albert"), PHASES, survey=(TINYBERT, BODY), name="shared"),
    "unmeasured": StudentRecipe("u", Choice("bilstm"), PHASES, survey=(TINYBERT,), name="unmeasured"),
}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "recipe_names", lambda kind: tuple(KNOWN))
    monkeypatch.setattr(catalogue, "load_recipe", lambda kind, name: KNOWN[name])


def wrong(count: int) -> list[int]:
    """Return predictions that are wrong in the first rows."""
    return [1 - gold if row < count else gold for row, gold in enumerate(GOLD)]


def model(name: str, mistakes: int, **fields: Any) -> Measurement:
    """Return a line of a model that answers so many of the 200 rows wrongly; the teacher 10."""
    metric = 1 - mistakes / 200
    base: dict[str, Any] = {
        "metric": metric,
        "metric_low": metric - 0.04,
        "metric_high": metric + 0.04,
        "metric_rows": 200,
        "difference_points": 100 * (metric - 0.95),
        "difference_low": -9.0,
        "difference_high": 1.0,
        "predictions": wrong(mistakes),
        "data_rows": len(GOLD),
        "stage": "distill",
        "recipe": "narrow",
        "training_seed": 0,
        "parameters": 5_500_000,
        "parameters_ratio": 4.0,
        "size_ratio": 4.5,
        "training_steps": 500,
        "training_batch_size": 64,
        "shape": {"type": "bert", "layers": 4, "hidden_size": 312, "vocabulary_size": 30522},
        "budget": "small",
    }
    return line(name, **(base | fields))


TEACHER = model(
    "teacher", 10, kind="teacher", recipe="", stage="finetune", gold=GOLD, difference_points=0.0, speedup=1.0
)
STUDENT = model("narrow", 20, control="narrow-control")
CONTROL = model("narrow-control", 30, kind="control", control_of="narrow")


def made(*lines: Measurement, more: tuple[str, ...] = ()) -> dict[str, dict[str, Cell]]:
    """Return the cells by recipe and key."""
    (part,) = gather([TEACHER, *lines])
    found = survey(part.small_batches, part.lines, [KNOWN[name] for name in more])
    assert found is not None and all(len(row) == len(found.headings) == len(HEADINGS) for row in found.rows)
    rows = [dict(zip(HEADINGS, row, strict=True)) for row in found.rows]
    return {row["recipe"].text: row for row in rows}


def test_a_row_holds_what_was_published_and_what_was_measured() -> None:
    row = made(STUDENT, CONTROL)["narrow"]
    assert row["system"].text == "TinyBERT (Jiao 2019)" and row["system"].small == "BERT_4, narrow; all GLUE"
    assert (row["published"].text, row["published"].small) == ("÷7.5, 96%, ×9.4", "")
    assert row["shape"].text == "4 x 312, 30,522 pieces"
    assert row["metric"].text == "90.00%" and row["kept"].text == "94.7%"  # 0.90 of 0.95
    assert row["difference"].text == "−5.00" and row["parameters"].small == "÷4.0"
    assert row["command"].text == "compress distill --student narrow"


def test_the_gain_from_distillation_is_paired_with_the_control() -> None:
    row = made(STUDENT, CONTROL)["narrow"]
    assert row["control"].text == "85.00%" and row["worth"].text == "+5.00"
    # The student is never wrong where the control is right: no resample has a negative difference.
    assert row["worth"].low is not None and 0 < row["worth"].low < 5 < (row["worth"].high or 0)
    alone = made(replace(STUDENT, control=""))["narrow"]
    assert alone["control"].text == alone["worth"].text == "–"


def test_a_student_below_its_control_says_its_limits() -> None:
    ahead, behind = (replace(CONTROL, predictions=wrong(mistakes)) for mistakes in (30, 12))
    assert made(STUDENT, ahead)["narrow"]["recipe"].small == ""
    assert made(STUDENT, replace(behind, metric=0.94))["narrow"]["recipe"].small == "no pretrained checkpoint"


def test_the_steps_are_stated() -> None:
    steps = made(STUDENT)["narrow"]["steps"]
    assert (steps.text, steps.small) == ("500", "of 64 rows")
    assert made(replace(STUDENT, training_batch_size=None))["narrow"]["steps"].small == "of different sizes"
    assert made(replace(STUDENT, training_steps=None))["narrow"]["steps"].text == "–"


def curve(*scores: float, metric: str = "accuracy") -> dict[str, Any]:
    """Return the fields of a training that was evaluated every 334 steps, as 12 times in 4,000 steps."""
    return {"validation_curve": [[334 * n, score] for n, score in enumerate(scores, 1)], "validation_metric": metric}


def validation(student: dict[str, Any], control: dict[str, Any] | None = None) -> Cell:
    """Return the cell of a student with such fields."""
    return made(replace(STUDENT, **student), replace(CONTROL, **(control or {})))["narrow"]["validation"]


def test_the_validation_shows_its_course_and_what_the_last_quarter_brought() -> None:
    cell = validation(curve(0.75, 0.85, 0.81, 0.875))
    assert (cell.text, cell.small) == ("87.50%", "▁▇▄█, +2.50 points in the last quarter")
    rising = validation(curve(*(0.8 + n / 1000 for n in range(12))))
    assert rising.small == "▁▂▂▃▄▄▅▅▆▇▇█, +0.30 points in the last quarter"
    assert validation(curve(0.75, 0.85, 0.84, 0.85)).small == "▁█▇█, 0.00 points in the last quarter"
    assert validation(curve(0.75, 0.85, 0.875)).small == "▁▇█"  # no quarter of three
    assert validation(curve(0.5)).small == "▁" and validation({}) == EMPTY


def test_the_validation_stands_beside_the_controls_where_it_is_the_same_score() -> None:
    ours = curve(0.75, 0.85)
    assert validation(ours, curve(0.5, 0.8, 0.7)).small == "▁█, control 80.00%"
    assert validation(ours, curve(0.5, 0.8, metric="matthews")).small == "▁█"
    pearson = curve(0.5, 0.6, 0.7, 0.8, metric="pearson")
    assert validation(pearson, pearson).small == "▁▃▆█, +10.00 points in the last quarter, control 0.8000"


def test_of_several_seeds_the_control_is_that_of_the_first() -> None:
    """Lines come by speed, and the second seed may be the faster one."""
    student, control = replace(STUDENT, **curve(0.75, 0.85)), replace(CONTROL, **curve(0.5, 0.8))
    others = {"training_seed": 1, "speedup": 99.0, "model_sha256": "9" * 64}
    second = replace(student, **{**others, "model": "second", "control": "second-control"})
    beside = replace(control, **{**others, **curve(0.5, 0.9), "model": "second-control", "control_of": "second"})
    cell = made(student, control, second, beside)["narrow"]["validation"]
    assert cell.small == "▁█, control 80.00%"


def test_a_long_course_has_as_many_characters_as_a_plot_is_wide() -> None:
    shown = sparkline([*range(200)])
    assert len(shown) <= COLUMNS and (shown[0], shown[-1]) == ("▁", "█")
    assert sparkline([*range(COLUMNS)]) == sparkline([2 * value for value in range(COLUMNS)])


def test_a_column_that_no_row_fills_is_left_out(tmp_path: Path) -> None:
    plain, with_curve = [TEACHER, replace(STUDENT, shape={})], [TEACHER, replace(STUDENT, **curve(0.5, 0.75))]
    for number, (lines, is_shown) in enumerate([(plain, False), (with_curve, True)]):
        (part,) = gather(lines)
        found = survey(part.small_batches, part.lines)
        assert found is not None and "Validation" in found.headings
        headings = found.without_empty(found.headings[4:]).headings
        assert ("Validation" in headings) == (VALIDATION in found.notes) == is_shown
        assert headings[:4] == ["System", "Published", "Recipe", "Architecture"]
        report([write_lines(tmp_path / f"{number}.jsonl", lines)], tmp_path / f"r{number}")
        markdown = (tmp_path / f"r{number}" / "report.md").read_text()
        heading, _, row = markdown[markdown.index("| System |") :].splitlines()[:3]
        assert heading.count("|") == row.count("|") == 1 + len(headings)
        html = (tmp_path / f"r{number}" / "report.html").read_text().partition("Published systems and what")[2]
        table = html[: html.index("</table>")]
        assert table.count('<th scope="col"') == len(headings)
        assert table.count("<td") + table.count('<th scope="row"') == len(headings)


def test_a_row_is_about_all_seeds() -> None:
    second = model("narrow-seed-5", 24, training_seed=5, control="narrow-seed-5-control")
    row = made(STUDENT, second)["narrow"]
    assert row["metric"].text == "89.00%" and row["seeds"].text == "2"
    assert row["metric"].small == "± 1.41 over seeds"  # 90 and 88
    assert row["difference"].text == "−6.00"


def test_both_speed_ups_are_of_the_first_seed_however_wide_their_intervals() -> None:
    first = replace(STUDENT, speedup_with_tokenizer_low=2.0, speedup_with_tokenizer_high=15.0)
    fast = model("narrow", 20, runtime="onnxruntime", speedup=30.0, speedup_low=9.0, control="narrow-control")
    second = model("narrow-seed-5", 24, training_seed=5, speedup=6.25)
    row = made(first, fast, second, model("narrow-seed-5", 24, training_seed=5, runtime="onnxruntime", speedup=40.0))
    in_torch = row["narrow"]["speedup_torch"]
    assert (in_torch.text, in_torch.small) == ("×5.50", "×2.00 to ×15.0, wide")
    assert row["narrow"]["speedup_best"].text == "×30.0"


def test_a_seed_that_was_measured_with_more_threads_counts_for_quality_alone() -> None:
    first = replace(STUDENT, threads=2, speedup_with_tokenizer=8.0)
    second = model("narrow-seed-5", 24, training_seed=5)
    row = made(first, replace(second, threads=1), replace(TEACHER, threads=2))["narrow"]
    assert (row["metric"].text, row["seeds"].text) == ("89.00%", "2")
    assert row["speedup_torch"].text == "×5.50"


def test_speeds_of_other_batch_sizes_or_threads_are_none() -> None:
    large = model("narrow", 20, runtime="onnxruntime", batch_size=32, speedup=99.0, control="narrow-control")
    assert made(STUDENT, large)["narrow"]["speedup_best"].text == "×5.50"
    int8 = model("whole-int8", 22, recipe="rounded", stage="quantize", threads=2)
    of_both = [model("whole", 20, recipe="rounded"), int8, replace(TEACHER, threads=2)]
    row = made(*of_both)["rounded"]
    assert row["speedup_best"].text == "–" and row["metric"].text == "89.00%"


def test_the_best_speed_up_says_where() -> None:
    int8 = model("narrow-int8", 22, stage="quantize", runtime="onnxruntime", speedup=20.0)
    onnx = model("narrow", 20, runtime="onnxruntime", speedup=11.0)
    row = made(STUDENT, int8, onnx)["narrow"]
    assert row["speedup_torch"].text == "×5.50"
    assert row["speedup_best"].text == "×11.0" and "onnxruntime" in row["speedup_best"].small
    assert row["metric"].text == "90.00%"  # all of one model: the int8 one has other figures


def test_a_shape_that_is_too_large_to_train_has_its_speed() -> None:
    """As a row of its own, which does not take the place of what the recipe reached."""
    student = model("shared", 20, recipe="shared")
    reference_model = line(
        "bert-large",
        kind="reference-model",
        metric=None,
        metric_name=None,
        difference_points=None,
        speedup=0.05,
        parameters=335_000_000,
        parameters_ratio=0.07,
    )
    (part,) = gather([TEACHER, student, reference_model])
    found = survey(part.small_batches, part.lines)
    assert found is not None
    small, large = (dict(zip(HEADINGS, row, strict=True)) for row in found.rows)
    assert (small["system"].text, small["metric"].text) == ("TinyBERT (Jiao 2019)", "90.00%")
    assert (large["system"].text, large["metric"].text) == ("TinyBERT, wide", "–")
    assert large["shape"].small == "bert-large with random weights: speed only"
    assert large["parameters"].text == "335.0 M" and large["speedup_torch"].text == "×0.050"
    assert published_in_short(found, TEACHER)["shared"]["metric"].startswith("90.00%")
    (part,) = gather([TEACHER, student])
    alone = survey(part.small_batches, part.lines)
    assert alone is not None and alone.rows[1][3] == NOT_MEASURED


def test_a_quantized_system_is_judged_quantized() -> None:
    trained = model("rounded", 10, recipe="rounded", control="rounded-control")
    control = model("rounded-control", 12, recipe="rounded", kind="control", control_of="rounded")
    int8 = model("rounded-int8", 14, recipe="rounded", stage="quantize", runtime="onnxruntime", size_ratio=3.9)
    row = made(trained, control, int8)["rounded"]
    assert (row["control"].text, row["control"].small) == ("94.00%", "against 95.00% before rounding")
    assert row["worth"].text == "+1.00" and row["speedup_torch"].text == "–"
    assert row["metric"].text == "93.00%" and row["disk"].small == "÷3.9"
    assert row["shape"].small == "judged: rounded-int8 in onnxruntime"
    assert (row["published"].text, row["published"].small) == ("÷4, 99%", "against BERT-large")


def test_recipes_that_the_survey_or_the_study_does_not_have() -> None:
    rows = made(STUDENT, model("other", 30, recipe="other"), more=("narrow", "unmeasured"))
    assert list(rows) == ["narrow", "unmeasured", "other"]
    assert rows["unmeasured"]["shape"].text == "not measured" and rows["unmeasured"]["metric"].text == "–"
    assert rows["other"]["system"].small == "Somebody 2020" and rows["other"]["published"].text == "–"


def test_without_a_recipe_of_the_survey_there_is_a_table_on_request_alone() -> None:
    (part,) = gather([TEACHER, model("other", 30, recipe="other")])
    assert survey(part.small_batches, part.lines) is None
    found = survey(part.small_batches, part.lines, unlisted=True)
    recipe = list(HEADINGS).index("recipe")
    assert found and [row[recipe].text for row in found.rows] == ["other"]
    (part,) = gather([TEACHER, model("mine", 30, recipe="mine")])
    assert survey(part.small_batches, part.lines) is None


def test_older_results_without_a_shape_are_shown() -> None:
    old = replace(STUDENT, shape={}, training_steps=None, budget="", control="")
    assert made(replace(old, heads_per_layer=[12, 12, 12]))["narrow"]["shape"].text == "3 layers"
    assert made(old)["narrow"]["shape"].text == "–"
    bilstm = replace(old, shape={"type": "compress_bilstm", "hidden_size": 150, "vocabulary_size": 9000})
    assert made(bilstm)["narrow"]["shape"].text == "compress_bilstm 150, 9,000 pieces"


def test_the_report_has_the_table(tmp_path: Path) -> None:
    results = write_lines(tmp_path / "r.jsonl", [TEACHER, STUDENT, CONTROL])
    page = report([results], tmp_path / "report")
    html, text = page.read_text(encoding="utf-8"), (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert '<td class="text published" data-value="96">÷7.5, 96%, ×9.4</td>' in html
    assert "Published systems and what their recipes reach here" in text and "TinyBERT (Jiao 2019)" in text
    assert "at the budget small" in text
    told = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert told["sections"][0]["survey"]["rows"][0][4]["value"] == pytest.approx(90)


def test_list_and_show_tell_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = KNOWN["narrow"]
    monkeypatch.setattr(catalogue, "figures", dict)
    assert catalogue.in_short(recipe) == ("narrow", "÷7.5, 96%, ×9.4", "not measured yet", *"–––––")
    assert catalogue.behind(recipe) == ""
    assert catalogue.in_short(KNOWN["shared"])[1] == "÷7.5, 96%, ×9.4"  # no recipe makes a reference model
    (part,) = gather([TEACHER, replace(STUDENT, **curve(0.75, 0.875)), CONTROL])
    table = survey(part.small_batches, part.lines, [KNOWN["unmeasured"]])
    assert table is not None
    of_several = "compress run s --budget b --only other --only narrow --data-root d"
    short = published_in_short(table, replace(TEACHER, command=of_several))
    assert list(short) == ["narrow"]
    assert short["narrow"]["made_by"] == "compress run s --budget b --only narrow --data-root d"
    monkeypatch.setattr(catalogue, "figures", lambda: {name: [one] for name, one in short.items()})
    listed = dict(zip(catalogue.STUDENT_HEADINGS, catalogue.in_short(recipe), strict=True))
    assert listed["measured here"] == "÷4.5, 94.7%, ×5.50" and listed["study"] == f"{STUDENT.study}: dev.tsv"
    assert (listed["steps"], listed["metric"], listed["its control"]) == ("500 x 64", "90.00%", "85.00% (+5.00)")
    without = {name: [one | {"validation": "–"}] for name, one in short.items()}
    monkeypatch.setattr(catalogue, "figures", lambda: without)
    assert "its course" not in catalogue.explain(recipe)
    monkeypatch.setattr(catalogue, "figures", lambda: {name: [one] for name, one in short.items()})
    said = catalogue.explain(recipe)
    assert "Limits: no pretrained checkpoint" in said
    assert f"Measured here in the study {STUDENT.study}, on dev.tsv, seeds: 1, steps: 500 (of 64 rows)" in said
    assert "its control, on gold labels alone: 85.00%; distillation is worth +5.00 (" in said
    assert "its course over the last phase: 87.50% (▁█)" in said
    assert "7.5 times smaller than BERT-base, 96% of its performance kept, 9.4 times as fast" in said


def test_an_explanation_has_losses_and_teachers_in_order() -> None:
    recipe = replace(
        KNOWN["narrow"],
        phases=(
            Phase((Choice("mlm"),), name="words", text="pool", share=3.0, teacher="encoder", masking=0.15),
            Phase((Choice("hidden-mse", 2.0), Choice("kl")), by_layer="stacked", training={"learning_rate": 1e-4}),
            Phase(
                (Choice("hard-label"),),
                text="gold",
                frozen=("embeddings", "head"),
                modifier=Choice("module-replacing"),
            ),
        ),
    )
    said = catalogue.explain(recipe)
    assert "1. words, 60% of the steps\n     reads the unlabelled text, 15% of the tokens masked\n" in said
    assert "taught by the text itself" in said
    assert "2. 20% of the steps" in said and "the layers below go on learning" in said
    assert "learns by hidden-mse: " in said and ", weight 2" in said and "with learning_rate = 0.0001" in said
    assert "taught by gold labels alone" in said and "frozen: embeddings, head" in said
    assert "meanwhile module-replacing" in said
    assert said.index("mlm") < said.index("hidden-mse") < said.index("hard-label") < said.index("Training: ")
