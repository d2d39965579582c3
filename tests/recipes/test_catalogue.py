"""What the catalogue says of students: the figures that are listed, and why some are below their control."""

from __future__ import annotations

import pytest

from compress.recipes import Choice, Phase, StudentRecipe, catalogue

FIGURES = {
    "data": "glue/SST-2 dev",
    "study": "table1",
    "metric": "75.69% (72.7% to 78.4%)",
    "kept": "85.3%",
    "disk": "29 MB (÷3.1)",
    "speedup_best": "×4.92 (×4.76 to ×5.12; onnxruntime)",
    "control": "81.42%",
    "worth": "−5.73 (−8.36 to −3.09)",
    "steps": "4,000 (of 32 rows)",
}


def student(monkeypatch: pytest.MonkeyPatch, *measured: dict[str, str], limits: str = "") -> StudentRecipe:
    """Return a recipe of which so much was measured."""
    monkeypatch.setattr(catalogue, "figures", lambda: {"mine": [FIGURES | one for one in measured]})
    return StudentRecipe("m", Choice("bilstm"), (Phase((Choice("kl"),)),), limits=limits, name="mine")


def listed(recipe: StudentRecipe) -> dict[str, str]:
    return dict(zip(catalogue.STUDENT_HEADINGS, catalogue.in_short(recipe), strict=True))


def test_the_first_measurement_is_listed_with_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    row = listed(student(monkeypatch, {}, {"metric": "1%", "study": "front"}))
    assert (row["study"], row["steps"], row["metric"]) == ("table1: SST-2", "4,000 x 32", "75.69%")
    assert row["its control"] == "81.42% (−5.73)" and row["measured here"] == "÷3.1, 85.3%, ×4.92"
    assert listed(student(monkeypatch, {"steps": "500 (of different sizes)"}))["steps"] == "500 (of different sizes)"
    several = student(monkeypatch, {"data": "ud/en_lines dev + ud/fr_partut dev + ud/it_partut dev"})
    assert listed(several)["study"] == "table1: en_lines +2"


def test_the_study_with_few_labels_has_a_column_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    few_labels = {"study": catalogue.FEW_LABELS, "worth": "+8.94 (+5.72 to +12.13)"}
    assert listed(student(monkeypatch, {}, few_labels))["500 labels"] == "+8.94 (+5.72 to +12.13)"
    assert listed(student(monkeypatch, {}, {"study": "front"}))["500 labels"] == "–"


@pytest.mark.parametrize(
    ("worth", "said"),
    [
        ("+5.73 (+3.09 to +8.36)", ""),
        ("0.00 (−1.00 to +1.00)", ""),
        ("–", ""),
        ("−5.73 (−8.36 to −3.09)", "−5.73 (−8.36 to −3.09): random weights"),
        ("−0.23 (−2.75 to +2.29)", "−0.23 (−2.75 to +2.29): the interval contains 0; random weights"),
        ("−0.23 (−0.75 to 0.00)", "−0.23 (−0.75 to 0.00): the interval contains 0; random weights"),
        ("−0.17", "−0.17: no interval; random weights"),
    ],
)
def test_a_student_below_its_control_says_why(worth: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert catalogue.behind(student(monkeypatch, {"worth": worth}, limits="random weights")) == said


def test_only_the_listed_measurement_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        catalogue.behind(student(monkeypatch, {"worth": "+1.00 (+0.10 to +2.00)"}, {}, limits="random weights")) == ""
    )


def test_every_shipped_student_that_is_certainly_below_its_control_says_why() -> None:
    said = {one.name: catalogue.behind(one) for one in catalogue.students()}
    assert [name for name, why in said.items() if why.endswith(": ")] == [] and any(said.values())
