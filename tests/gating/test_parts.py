"""Limits on every class or slice, or on those that are named, with intervals for looking at many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from compress.cli import execute
from compress.errors import CompressError
from compress.gating.budgets import read_budgets
from tests.support.gating import Results, check, results, student

__all__ = ["results"]


def part(name: str, key: str = "label", **fields: Any) -> dict[str, Any]:
    """Return a class, or a slice, that lost 5 points (1 to 9) and has a recall of 90% (86% to 94%)."""
    figure = "recall" if key == "label" else "metric"
    own = {figure: 0.9, f"{figure}_low": 0.86, f"{figure}_high": 0.94, f"teacher_{figure}": 0.95}
    return {key: name, "rows": 200, **own, "difference_points": -5.0, "low": -9.0, "high": -1.0, **fields}


GOOD = {"difference_points": 0.0, "low": -0.4, "high": 0.4}


def test_a_named_class_is_judged_by_its_own_interval(results: Results) -> None:
    path = results(student(classes=[part("EMAIL"), part("PHONE", **GOOD)]))
    (judgement,) = check([path], max_drop_any_class={"EMAIL": 0.5}).judgements
    assert judgement.sentence == (
        "student in onnxruntime, EMAIL: the loss of at most 0.5 points of recall in 'EMAIL' is broken: "
        "5.00 lost on 200 examples (95% interval 1.00 lost to 9.00 lost)."
    )
    assert (judgement.limit, judgement.value, judgement.low, judgement.high) == (0.5, 5.0, 1.0, 9.0)
    (judgement,) = check([path], min_recall={"EMAIL": 0.85}).judgements
    assert judgement.outcome == "holds" and "recall of at least 85.00% in 'EMAIL'" in judgement.sentence


def test_a_limit_is_broken_by_what_many_classes_show_together(results: Results) -> None:
    """Of ten the quantile is 2.807 in place of 1.960: 5 points with a half width of 4 become 5 with 5.729."""
    classes = [part("EMAIL"), *(part(f"class {number}", **GOOD) for number in range(9))]
    (judgement,) = check([results(student(classes=classes))], max_drop_any_class=0.8).judgements
    assert judgement.outcome == "undecided" and judgement.value == 5.0
    assert (judgement.low, judgement.high) == pytest.approx((-0.729, 10.729), abs=1e-3)
    assert "in 'EMAIL' cannot be decided" in judgement.sentence and "of 10 classes together" in judgement.sentence


def test_a_limit_holds_where_each_class_is_within_its_own_interval(results: Results) -> None:
    """All of many hold where each does (Berger 1982): 9 points are the most that EMAIL lost, at 95%."""
    classes = [part("EMAIL"), *(part(f"class {number}", **GOOD) for number in range(9))]
    (judgement,) = check([results(student(classes=classes))], max_drop_any_class=9).judgements
    assert judgement.outcome == "holds" and (judgement.low, judgement.high) == (1.0, 9.0)
    assert "together" not in judgement.sentence


def test_a_limit_on_all_shows_the_worst(results: Results) -> None:
    worst = {"difference_points": -9.0, "low": -10.0, "high": -8.0}
    path = results(student(classes=[part("A"), part("B", **worst), part("C", low=-40.0, high=30.0)]))
    (judgement,) = check([path], max_drop_any_class=2).judgements
    assert judgement.outcome == "broken" and "in 'B'" in judgement.sentence
    (judgement,) = check([path], max_drop_any_class=20).judgements
    assert judgement.outcome == "undecided" and "in 'C'" in judgement.sentence
    assert check([path], max_drop_any_class=60).exit_code == 0


def test_recall_of_many_classes_is_judged_by_wilsons_interval(results: Results) -> None:
    few = {"rows": 40, "recall": 0.75, "recall_low": 0.6, "recall_high": 0.86}
    path = results(student(classes=[part("A", **few), part("B")]))
    (judgement,) = check([path], min_recall=0.8).judgements
    wilson = binomtest(30, 40).proportion_ci(1 - 0.05 / 2, method="wilson")
    assert judgement.outcome == "undecided"
    assert (judgement.low, judgement.high) == pytest.approx((wilson.low, wilson.high))
    assert check([path], min_recall=0.6).exit_code == 0 and check([path], min_recall=0.95).exit_code == 1


def test_a_bound_stays_where_a_figure_can_be(results: Results) -> None:
    some = [part("A", "slice", metric=0.99, metric_low=0.8, metric_high=1.0), part("B", "slice")]
    verdict = check([results(student(slices=some))], min_metric_any_slice={"A": 0.95, "B": 0.5})
    assert verdict.judgements[0].high == 1.0 and verdict.judgements[0].outcome == "undecided"


@pytest.mark.parametrize("missing", [{"low": None, "high": None}, {"difference_points": None}])
def test_a_class_without_an_interval_is_undecided(results: Results, missing: dict[str, None]) -> None:
    path = results(student(classes=[part("A", **GOOD), part("B", rows=1, **missing)]))
    verdict = check([path], max_drop_any_class=50)
    assert verdict.exit_code == 3 and "in 'B'" in verdict.sentences[0]
    assert "it has no interval (examples: 1)" in verdict.sentences[0]


def test_results_of_an_earlier_version_say_what_to_do(results: Results) -> None:
    earlier = {key: value for key, value in part("A").items() if not key.startswith("recall_")}
    verdict = check([results(student(classes=[earlier]))], min_recall=0.5)
    assert verdict.exit_code == 3 and "run 'compress benchmark' again" in verdict.sentences[0]


def test_slices_are_judged_by_the_metric(results: Results) -> None:
    slices = [part("language=de", "slice"), part("more than 64 tokens", "slice", **GOOD)]
    path = results(student(slices=slices, metric_name="macro-f1"))
    verdict = check([path], max_drop_any_slice={"language=de": 0.5}, min_metric_any_slice=0.5)
    assert [one.outcome for one in verdict.judgements] == ["broken", "holds"]
    assert "points of macro-f1 in 'language=de'" in verdict.sentences[0]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"min_recall": {"": 0.9}}, "names ''.*has the classes EMAIL"),
        ({"min_recall": {}}, "min_recall = .* names nothing"),
        ({"min_recall": {"EMIAL": 0.9}}, "names 'EMIAL'.*has the classes EMAIL.*Did you mean 'EMAIL'"),
        ({"max_drop_any_slice": 1}, "measured without slices; use 'compress benchmark' with --slice-column"),
    ],
)
def test_what_is_not_in_the_results_is_a_mistake(results: Results, limits: dict[str, Any], said: str) -> None:
    with pytest.raises(CompressError, match=said):
        check([results(student(classes=[part("EMAIL")]))], **limits)


def test_classes_of_scores_are_a_mistake(results: Results) -> None:
    with pytest.raises(CompressError, match="min_recall on student in onnxruntime: it has no classes"):
        check([results(student())], min_recall=0.9)


def test_a_command_and_a_file_name_classes(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, budgets, written = (
        results(student(classes=[part("EMAIL"), part("a=b", **GOOD)])),
        tmp_path / "b.toml",
        tmp_path / "v",
    )
    budgets.write_text('[[budget]]\nmin_recall = {EMAIL = 0.98, "a=b" = 0.8}\nmax_drop_any_class = 20\n')
    every = {"max_drop_any_class": 20, "min_recall": {"EMAIL": 0.98, "a=b": 0.8}}
    assert read_budgets(budgets).budget[0].limits() == every
    assert execute(["check", str(path), "--budgets", str(budgets), "--json", str(written)]) == 1
    found = json.loads(written.read_text())["judgements"]
    assert [(one["gate"], one["outcome"]) for one in found] == [
        ("max_drop_any_class", "holds"),
        ("min_recall", "broken"),
        ("min_recall", "holds"),
    ]
    assert execute(["check", str(path), "--min-recall", "a=b=0.8"]) == 0
    assert "in 'a=b' holds" in capsys.readouterr().out
    for wrong, said in (("EMAIL=98", "'98' is not a fraction from 0 to 1"), ("much", "'much' is not a fraction")):
        assert execute(["check", str(path), "--min-recall", wrong]) == 2
        assert said in capsys.readouterr().err


def test_classes_of_entities_are_of_entities(results: Results) -> None:
    path = results(student(classes=[part("PER", rows=39)], metric_name="entity-f1", metric_rows=30_000))
    assert "on 39 entities (95%" in check([path], min_recall={"PER": 0.5}).sentences[0]
    nothing = part("PER", rows=27, recall=0.0, recall_low=None, recall_high=None)
    path = results(student(classes=[nothing], metric_name="entity-f1", metric_rows=30_000))
    assert "it has no interval (entities: 27)" in check([path], min_recall={"PER": 0.5}).sentences[0]


def test_a_share_of_none_shows_no_sign(results: Results) -> None:
    nothing = part("A", rows=20, recall=0.0, recall_low=0.0, recall_high=0.16)
    (judgement,) = check([results(student(classes=[nothing, part("B", **GOOD)]))], min_recall=0.5).judgements
    assert "0.00% on 20 examples (95% interval 0.00% to" in judgement.sentence
