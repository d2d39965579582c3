"""The page of a search: what is said of each end it can have."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from compress.reporting.pages import write_page
from compress.reporting.search_page import search_page, verdict


def row(number: int, speedup: float, points: float | None, ended: str = "done") -> dict[str, Any]:
    timed = {"speedup": speedup, "low_speedup": speedup / 1.1, "high_speedup": speedup * 1.1}
    found: dict[str, Any] = {
        "trial": number,
        "name": f"ngram int8, buckets {number}",
        "family": "ngram",
        **timed,
        "latency_ms": 10 / speedup if speedup else 0.0,
        "size_bytes": 4_000_000,
        "rungs": [],
        "ended": ended,
    }
    if points is not None:
        score = {"value": 0.93 + points / 100, "points": points, "low": points - 1, "high": points + 1}
        rungs = [{"share": share, "steps": int(900 * share), "seconds": 1.0, **score} for share in (1 / 9, 1 / 3, 1.0)]
        found |= {"steps": 900, **score, "rungs": rungs}
    return found


FOUND: dict[str, Any] = {
    "teacher": "minilm",
    "metric": "accuracy",
    "teacher_value": 0.93,
    "rows": {"train": 1000, "validation": 872, "test": 500},
    "threads": 1,
    "seed": 0,
    "budget": {"max_accuracy_drop": 1.0},
    "asked": "at most 1 point below the teacher",
    "limits": {},
    "command": "compress search <b>",
    "seconds": 3600.0,
    "trials": [row(1, 40.0, -0.5), row(2, 9.0, 0.1), row(3, 12.0, None, "too slow: ×12.0 where ×20.0 was asked")],
    "front": [1, 2],
    "rungs": [1 / 9, 1 / 3, 1.0],
    "winner": 1,
    "closest": None,
    "certainty": "within 1 point, not certain with 872 rows",
    "again": "compress distill --teacher minilm && compress quantize",
    "met": True,
    "cascade": None,
    "test": {
        "value": 0.92,
        "points": -0.4,
        "low": -0.9,
        "high": 0.2,
        "speedup": {"value": 39.0, "low": 38.0, "high": 40.0},
        "latency_ms": {"value": 0.25, "low": 0.24, "high": 0.26},
        "rows": 500,
    },
    "left_out": 0,
}


def found(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(FOUND) | changes


def test_the_winner_its_certainty_and_the_test_rows_are_named() -> None:
    asked, winner, test = verdict(FOUND)
    assert asked == "Asked for: at most 1 point below the teacher. 3 shapes timed, 2 trained, in 60 min."
    assert "The fastest student within the budget: ngram int8, buckets 1. ×40.0 (×36.4 to ×44.0) as fast" in winner
    assert "−0.50 points (−1.50 to +0.50) to the teacher, within 1 point, not certain with 872 rows." in winner
    assert "chosen among 2 candidates on validation rows" in test and "optimistic by selection" in test
    assert "On 500 test rows that took no part it has accuracy 92.00%, −0.40 points (−0.90 to +0.20)" in test
    assert test.endswith("×39.0 (×38.0 to ×40.0) as fast. That is certainly within 1 point.")
    again = "the commands that make it again do not read --test."
    assert verdict(found(left_out=3))[-1].endswith(
        f"3 rows of its training text were left out as rows of --validation or --test; {again}"
    )


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ({"points": -3.0, "low": -4.0, "high": -2.0}, "That is certainly beyond 1 point: the budget is not met."),
        ({"points": -1.2, "low": -2.0, "high": 0.5}, "That is beyond 1 point, not certain with 500 rows."),
        ({"points": -0.8, "low": -2.0, "high": 0.5}, "That is within 1 point, not certain with 500 rows."),
    ],
)
def test_what_test_rows_say_of_the_drop(test: dict[str, float], said: str) -> None:
    assert verdict(found(test=FOUND["test"] | test))[-1].endswith(said)


@pytest.mark.parametrize(("budget", "rule"), [({}, "The knee of the front"), ({"min_speedup": 20}, "The best student")])
def test_the_rule_is_named(budget: dict[str, float], rule: str) -> None:
    assert verdict(found(budget=budget, certainty=""))[1].startswith(rule)


def test_a_speed_that_test_rows_refute_is_told() -> None:
    assert verdict(found(budget={"min_speedup": 45.0}))[-1].endswith(
        "It is certainly slower than the ×45.0 that was asked: the budget is not met."
    )


def test_a_latency_that_test_rows_refute_is_told() -> None:
    said = verdict(found(budget={"max_latency_ms": 0.2}))[-1]
    assert said.endswith("It certainly takes longer than the 0.2 ms that were asked: the budget is not met.")
    assert verdict(found(budget={"max_latency_ms": 0.25}))[-1].endswith("as fast.")


def test_scores_are_drawn_at_the_steps_that_they_were_reached_with(tmp_path: Path) -> None:
    straight = found()
    for row in straight["trials"][:2]:
        row["rungs"] = [rung for rung in row["rungs"] if rung["share"] != 1 / 3]  # the winner goes to the last at once
    write_page(search_page(straight), tmp_path)
    drawn = (tmp_path / "report.html").read_text()
    assert "after 11% of the steps" in drawn and "after 100% of the steps" in drawn and "after 33%" not in drawn


def test_without_test_rows_there_is_no_unbiased_figure() -> None:
    assert verdict(found(test=None))[-1].endswith(
        "There is no unbiased figure: give rows that take no part with --test FILE."
    )


def test_a_cascade_that_won_is_told_as_such() -> None:
    joined = {
        "members": ["cnn int8", "the teacher in int8"],
        "answered": [0.9, 0.1],
        **{"speedup": 90.0, "latency_ms": 0.2, "size_bytes": 25_000_000},
        **{"value": 0.88, "points": -0.2, "low": -0.9, "high": 0.4},
    }
    *_, cascade, measured = verdict(found(cascade=joined))
    assert (
        "Faster is a cascade, which is DIR/best" in cascade and "cnn int8 90.0%; the teacher in int8 10.0%" in cascade
    )
    assert "in the mean" in cascade and "chosen among thousands" in measured and "500 test rows" in measured
    *_, cascade, _ = verdict(found(cascade=joined, winner=None))
    assert "A cascade meets it" in cascade


def test_what_came_closest() -> None:
    assert "The closest is ngram int8, buckets 2: +0.10 points" in verdict(found(winner=None, closest=2))[-1]
    only = found(winner=None, closest=3, trials=FOUND["trials"][2:])
    assert verdict(only)[-1] == (
        "None was trained. In speed and size the closest is ngram int8, buckets 3: "
        "too slow: ×12.0 where ×20.0 was asked."
    )
    nothing = found(winner=None, trials=[row(1, 0.0, None, "cannot be built: no tokenizer")])
    assert verdict(nothing)[-1] == "No shape could be timed. The first cannot be built: no tokenizer."
    assert verdict(found(winner=None, trials=[]))[-1] == "No shape was timed: the time was over before."


def test_a_winner_of_a_lower_rung_is_told_as_such() -> None:
    short = found()
    short["trials"][0]["rungs"] = short["trials"][0]["rungs"][:2]
    assert "(trained for 33% of its steps: the time was over)" in verdict(short)[1]


def test_the_page_has_the_front_and_all_trials(tmp_path: Path) -> None:
    write_page(search_page(FOUND), tmp_path)
    page, front = (tmp_path / "report.html").read_text(), (tmp_path / "front.csv").read_text().splitlines()
    assert "compress search &lt;b&gt;" in page and "too slow: ×12.0" in page and "compress quantize" in page
    assert f"\nTo make the winner again: `{FOUND['again']}`\n" in (tmp_path / "report.md").read_text()
    assert '<pre tabindex="0">compress distill --teacher minilm &amp;&amp; compress quantize</pre>' in page
    assert len(front) == 3 and len((tmp_path / "trials.csv").read_text().splitlines()) == 4
    assert (tmp_path / "front.svg").read_text().startswith("<svg")


def test_a_search_that_trained_nothing_has_a_page_too() -> None:
    nothing = row(1, 0.0, None, "cannot be built: no such tokenizer")
    assert not search_page(found(trials=[nothing], front=[], winner=None, fastest=None)).contents[1:]
    assert (
        search_page(found(trials=FOUND["trials"][2:], front=[], winner=None)).contents[0].title == "All that was tried"
    )
