"""What leaves the gate: exit codes, Markdown, JUnit XML, GitHub annotations, JSON; also with hostile names."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

import compress
from compress.cli import execute
from compress.errors import CompressError
from compress.gating import check as check_module
from compress.gating.gate import github_annotations, to_json, to_junit, to_markdown, to_text
from tests.support.gating import Results, check, predicted, results, student
from tests.support.results import line

__all__ = ["results"]

HOLDS = {"max_accuracy_drop": 1.0}
BREAKS = {"min_speedup": 6.0}
STRADDLES = {"min_speedup": 5.5}
# A command for a CI runner, markup, a broken line, ends of what it may stand in, and characters that XML cannot hold.
HOSTILE = (
    "x\n::error::owned\r\n::set-output name=a::b]]><!--\"'&<b>|*_`[a](https://example.org)%0A,:@team #1 $x$ ~y~"
    "\x00\x1b[31m\x85\u2028\u202e\ufffe\\"
)


@pytest.fixture(autouse=True)
def _not_on_github(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def options(limits: dict[str, float]) -> list[str]:
    return [word for name, value in limits.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def verdict_of(results: Results, **fields: Any) -> check_module.GateVerdict:
    """Return a verdict with a judgement of each outcome."""
    path = results(student(**fields))
    budgets = [check_module.GateBudget(**limits) for limits in (HOLDS, BREAKS, STRADDLES)]
    return check_module.check([path], budgets)


@pytest.mark.parametrize(("limits", "code"), [(HOLDS, 0), (BREAKS, 1), (STRADDLES, 3)])
def test_exit_codes(results: Results, capsys: Any, limits: dict[str, float], code: int) -> None:
    assert execute(["check", str(results(student())), *options(limits)]) == code
    said = capsys.readouterr().out
    assert said.startswith({0: "holds: ", 1: "broken: ", 3: "undecided: "}[code])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no budget to check"),
        (["--max-accuracy-drop", "-1"], "'--max-accuracy-drop': '-1' is not a number of percentage points"),
        (["--max-size", "huge"], "'--max-size': 'huge' is not a size"),
        (["--min-speedup", "5", "--model", "studnet"], "Error: the results hold no line with model 'studnet'"),
        (["--budgets", "b.toml", "--min-speedup", "5", "--model", "teacher"], "Error: min_speedup is relative to the"),
        (["--budgets", "none.toml"], "none.toml does not exist"),
        (["--budgets", "b.toml", "--model", "student"], "keys of a [[budget]]"),
        (["--over-seeds", "--budgets", "b.toml"], "--over-seeds is for --max-accuracy-drop"),
        (["--over-seeds", "--min-speedup", "5"], "--over-seeds is for --max-accuracy-drop alone"),
        (["--min-speedup", "5", "--max-baseline-drop", "1"], "need --baseline or --against"),
        (["--baseline", "none.jsonl"], "none.jsonl does not exist"),
        (["--against", "nonsense"], "is not REF:PATH"),
        (["--min-speedup", "5", "--junit", "b.toml/x.xml"], "--junit b.toml/x.xml cannot be written"),
        (["--update-baseline", "b.toml"], "is a file"),
        (["--update-baseline", "model"], "model holds config.json, so that it is a model or another output"),
        (["--update-baseline", "taken"], "abc123.jsonl, line 1 is not valid JSON"),
        (["--min-speedup", "5", "--junit", "b.toml"], "--junit b.toml exists and is not a verdict of compress"),
        (["--min-speedup", "5", "--json", "b.toml"], "--json b.toml exists and is not a verdict of compress"),
        (["--min-speedup", "5", "--json", "linked"], "--json linked is a link or a device"),
        (["--min-speedup", "5", "--json", ""], "it is empty"),
        (["--min-speedup", "5", "--json", "v/"], "--json v/ names a directory; give a file, such as v or v/new"),
        (["--min-speedup", "5", "--json", "v", "--junit", "./v"], "--junit and --json are both v; name two files"),
        (["--baseline", "taken", "--json", "taken/v.json"], "--json taken/v.json lies in taken, which this command"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: list[str], message: str
) -> None:
    path = results(student())
    monkeypatch.chdir(tmp_path)
    Path("b.toml").write_text("[[budget]]\nmax_size = '1GB'\n")
    Path("linked").symlink_to("b.toml")
    Path("taken").mkdir()
    Path("model").mkdir()
    Path("model", "config.json").write_text("{}")
    Path("taken", "abc123.jsonl").write_text("mine")
    before = {path: path.is_dir() or path.read_bytes() for path in tmp_path.rglob("*")}
    assert execute(["check", str(path), *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("Error: ") and said.count("\n") == 1
    assert {path: path.is_dir() or path.read_bytes() for path in tmp_path.rglob("*")} == before


def test_budgets_come_from_a_file_and_from_options(results: Results, tmp_path: Path, capsys: Any) -> None:
    budgets = tmp_path / "budgets.toml"
    budgets.write_text('[[budget]]\nmodel = "student"\nmax_accuracy_drop = 1.0\n[[budget]]\nmax_size = "90MB"\n')
    path = str(results(student()))
    assert execute(["check", path, "--budgets", str(budgets)]) == 0
    assert execute(["check", path, "--budgets", str(budgets), "--min-speedup", "6", "--model", "student"]) == 1
    assert capsys.readouterr().out.count("\nbroken: ") == 1
    budgets.write_text('[[budget]]\nmodel = "studnet"\nmax_accuracy_drop = 1.0\n')
    assert execute(["check", path, "--budgets", str(budgets), "--min-speedup", "6"]) == 2
    assert capsys.readouterr().err.startswith("Error: budget[0]: the results hold no line with model 'studnet'")


def test_options_choose_models_and_runtimes(results: Results, capsys: Any) -> None:
    slow = student(model="slow", speedup_low=1.0, speedup_high=1.1)
    path = str(results(student(), slow, student(runtime="openvino")))
    assert execute(["check", path, "--min-speedup", "5", "--model", "student", "--runtime", "onnxruntime"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert execute(["check", path, "--min-speedup", "5", "--model", "student", "--model", "slow"]) == 1
    assert capsys.readouterr().out.count("\n") == 3


def test_a_baseline_is_made_kept_and_renewed(results: Results, tmp_path: Path, capsys: Any) -> None:
    folder, stored = tmp_path / "baselines", tmp_path / "baselines" / "abc123.jsonl"
    good = str(results(student(predictions=predicted(1800)), name="good.jsonl"))
    assert execute(["check", good, "--update-baseline", str(folder)]) == 0
    assert capsys.readouterr().out == f"baseline: wrote {stored}\n"
    first = stored.read_bytes()
    slow = str(results(student(speedup=2.0, speedup_low=1.9, speedup_high=2.1, predictions=predicted(1800))))
    assert execute(["check", slow, "--baseline", str(folder), "--update-baseline", str(folder)]) == 1
    assert "is left as it is, because the verdict is broken" in capsys.readouterr().out
    assert stored.read_bytes() == first
    allowed = ["--baseline", str(folder), "--max-baseline-slowdown", "0.9", "--model", "student"]
    assert execute(["check", slow, *allowed, "--update-baseline", str(folder)]) == 0
    assert stored.read_bytes() == Path(slow).read_bytes() != first


def test_python_takes_limits_by_name_and_several_faults_come_at_once(results: Results, tmp_path: Path) -> None:
    path, found = results(student()), tmp_path / "verdict.json"
    verdict = compress.check(path, max_size="90MB", max_accuracy_drop=1, models=["student"], json_file=found)
    assert verdict.exit_code == 0 and len(verdict.judgements) == len(json.loads(found.read_text())["judgements"]) == 2
    stored = compress.check([path], update_baseline=tmp_path / "kept").stored
    assert stored == {tmp_path / "kept" / "abc123.jsonl": []}
    with pytest.raises(CompressError) as fault:
        compress.check(path, min_speedup=0, max_size="7XB", batch_size=0)
    assert sorted(said.split(" = ")[0] for said in str(fault.value).split("; ")) == [
        "batch_size",
        "max_size",
        "min_speedup",
    ]


def test_a_baseline_that_cannot_be_renewed_hides_no_verdict(results: Results, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "abc123.jsonl").write_text("mine")
    assert execute(["check", str(results(student())), *options(HOLDS), f"--update-baseline={tmp_path}/taken"]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("holds: ") and "line 1 is not valid JSON" in said.err


def test_the_tolerance_of_a_file_and_of_options(results: Results, tmp_path: Path) -> None:
    budgets = tmp_path / "budgets.toml"
    budgets.write_text("[baseline]\nmax_slowdown = 0.9\nmax_drop = 50\n")
    old = str(results(student(speedup=9.0, speedup_low=8.9, speedup_high=9.1), name="old.jsonl"))
    now = str(results(student()))
    asked = ["check", now, "--baseline", old, "--budgets", str(budgets)]
    assert execute(asked) == 0 and execute([*asked, "--max-baseline-slowdown", "0.1"]) == 1


def test_options_narrow_the_tolerance_of_a_file(results: Results, tmp_path: Path, capsys: Any) -> None:
    budgets = tmp_path / "budgets.toml"
    budgets.write_text('[baseline]\nmodel = "student"\n')
    lines = student(), student(model="other")
    path, old = str(results(*lines)), str(results(*lines, name="old.jsonl"))
    asked = ["check", path, "--baseline", old, "--budgets", str(budgets)]
    assert execute([*asked, "--runtime", "onnxruntime"]) in (0, 3)
    shown = capsys.readouterr().out
    assert "student in onnxruntime" in shown and "other" not in shown


# JUnit XML


def test_junit_has_a_case_for_every_judgement(results: Results) -> None:
    root = ElementTree.fromstring(to_junit(verdict_of(results)).encode())
    (suite,) = root.findall("testsuite")
    assert root.tag == "testsuites"
    for element in (root, suite):
        counts = [int(element.attrib[key]) for key in ("tests", "failures", "errors", "skipped")]
        assert counts == [3, 1, 0, 1]
    held, broken, undecided = suite.findall("testcase")
    assert [case.attrib["name"] for case in (held, broken, undecided)] == [
        "max_accuracy_drop 1",
        "min_speedup 6",
        "min_speedup 5.5",
    ]
    assert {case.attrib["classname"] for case in suite.findall("testcase")} == {"student in onnxruntime"}
    assert [[child.tag for child in case] for case in (held, broken, undecided)] == [
        ["system-out"],
        ["failure"],
        ["skipped"],
    ]
    failure = broken[0]
    assert "is broken" in failure.attrib["message"] and failure.text == failure.attrib["message"]


def test_names_of_large_limits_are_whole_numbers(results: Results) -> None:
    assert 'name="max_size 88000000"' in to_junit(check([results(student())], max_size="88MB"))
    cut = check([results(student(truncated_rows=10))], max_truncated=0)
    assert 'name="max_truncated 0"' in to_junit(cut) and "10 of 2,000 rows are longer" in "".join(
        github_annotations(cut)
    )


def test_junit_holds_hostile_names(results: Results) -> None:
    text = to_junit(verdict_of(results, model=HOSTILE))
    root = ElementTree.fromstring(text.encode())
    assert len(list(root.iter("testcase"))) == 3 and not list(root.iter("b"))
    assert all("x ::error::owned" in case.attrib["classname"] for case in root.iter("testcase"))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x85\u2028\u202e\ufffe]", text)


# GitHub


def test_annotations_are_commands_github_understands(results: Results) -> None:
    error, warning = github_annotations(verdict_of(results))
    assert error.startswith("::error title=min_speedup%3A student in onnxruntime::student in onnxruntime: the speed-up")
    assert warning.startswith("::warning title=min_speedup%3A student") and "cannot be decided" in warning
    assert "(95%25 interval" in error


def test_notes_are_notices(results: Results) -> None:
    baseline = line("majority", kind="baseline", runtime="sklearn", difference_low=-0.5, difference_high=0.5)
    verdict = check([results(student(), baseline)], max_accuracy_drop=1)
    (notice,) = github_annotations(verdict)
    assert notice.startswith("::notice title=compress check::A baseline is within the budget of 1 point of accuracy")


def test_hostile_names_start_no_command(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """GitHub takes a line that begins with :: for a command, and ##[ anywhere in one."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    path = results(student(model=HOSTILE), student(model="##[add-mask]student"))
    assert execute(["check", str(path), *options(BREAKS)]) == 1
    said = capsys.readouterr().out
    *verdict, first, second = said.splitlines()
    assert len(verdict) == 2 and not any(text.startswith("::") for text in verdict) and "##[" not in said
    for annotation in (first, second):
        command, title, message = re.fullmatch(r"::(\w+) title=([^:,]*)::(.*)", annotation).groups()  # type: ignore[union-attr]
        assert command == "error" and title and message
        assert "%" not in re.sub("%(25|3A|2C)", "", annotation)


def test_there_are_no_annotations_elsewhere(results: Results, capsys: Any) -> None:
    assert execute(["check", str(results(student())), *options(BREAKS)]) == 1
    assert "::" not in capsys.readouterr().out


def test_the_step_summary_is_appended_to(results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert execute(["check", str(results(student())), *options(BREAKS)]) == 1
    text = summary.read_text()
    assert text.startswith("before\n## compress check: a budget is broken") and "* ❌ student in onnxruntime" in text


# Markdown, text and JSON


def test_markdown_shows_then_now_and_difference(results: Results) -> None:
    old = results(student(predictions=predicted(1800), size_bytes=99_000_000), name="old.jsonl")
    now = student(predictions=predicted(1700), metric=0.85)
    text = to_markdown(check_module.check([results(now)], baseline=old))
    heading, rule, row = [text for text in text.splitlines() if text.startswith("|")]
    assert heading.count("|") == rule.count("|") == row.count("|") == 10
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["student in onnxruntime", "89.50%", "85.00%"] and cells[3].startswith("−5.00 (")
    assert cells[4:6] == ["×5.50", "×5.50"] and cells[6].startswith("1.00 (") and cells[7:] == ["99 MB", "88 MB"]


def test_a_change_without_a_then_or_a_now_has_dashes(results: Results) -> None:
    old = results(student(), student(model="gone"), name="old.jsonl")
    verdict = check_module.check([results(student(host_id="other"), student(model="new"))], baseline=old)
    rows = {
        text.split("|")[1].strip().split(" in ")[0]: text for text in to_markdown(verdict).splitlines() if "|" in text
    }
    assert rows["new"].split("|")[2].strip() == "–" and rows["gone"].split("|")[3].strip() == "–"
    assert rows["student"].split("|")[7].strip() == "–"  # speeds of two hosts have no ratio
    assert "since " in to_text(verdict) and "gone in onnxruntime: metric 89.50% then, – now" in to_text(verdict)


def test_markdown_holds_hostile_names(results: Results) -> None:
    old = results(student(model=HOSTILE), name="old.jsonl")
    text = to_markdown(
        check_module.check([results(student(model=HOSTILE))], [check_module.GateBudget(**BREAKS)], baseline=old)
    )
    rendered = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    named = [token for token in rendered if token.type == "inline" and "owned" in token.content]
    assert len(named) == 4  # the limit, two judgements against the baseline, and a cell of the table
    for token in named:
        assert {child.type for child in token.children or ()} == {"text"}
        said = "".join(child.content for child in token.children or ()).replace("\u200b", "")
        assert "[a](https://example.org)%0A,:@team #1 $x$ ~y~" in said and "]]><!--\"'&<b>|*_`" in said
    assert sum(token.type == "td_open" for token in rendered) == 9
    assert "@team" not in text and "#1" not in text and "\n::" not in text


def test_no_output_of_a_verdict_holds_what_cannot_be_printed(results: Results) -> None:
    """Names of models, metrics and data that a line may have, now and then, judged, noted or gone."""
    hostile = {"data": HOSTILE, "runtime": HOSTILE}
    baseline = line(HOSTILE, kind="baseline", difference_low=-0.5, difference_high=0.5)
    now = results(student(model=HOSTILE, **hostile), student(model="new", **hostile), baseline)
    then = [student(model="gone" + HOSTILE, **hostile), student(model=HOSTILE, **hostile, data_sha256="0" * 64)]
    old = results(*then, name="old.jsonl")
    verdict = check_module.check([now], [check_module.GateBudget(max_accuracy_drop=1.0)], baseline=old)
    assert len(verdict.judgements) == 3 and len(verdict.notes) == 3 and len(verdict.changes) == 3
    for text in (to_text(verdict), to_markdown(verdict), to_junit(verdict), to_json(verdict)):
        assert text.replace("\n", "").isprintable()
    for annotation in github_annotations(verdict):
        assert annotation.isprintable() and "##[" not in annotation
    assert json.loads(to_json(verdict))["judgements"][0]["subject"] == verdict.judgements[0].subject


def test_json_has_every_figure(results: Results) -> None:
    found = json.loads(to_json(verdict_of(results)))
    assert (found["schema"], found["outcome"], found["exit_code"]) == (1, "broken", 1)
    assert [one["outcome"] for one in found["judgements"]] == ["holds", "broken", "undecided"]
    first = found["judgements"][0]
    assert (first["gate"], first["limit"], first["value"], first["low"], first["high"]) == (
        "max_accuracy_drop",
        1.0,
        0.5,
        0.1,
        0.9,
    )
    assert first["count"] == 2000 and first["of"] == "examples" and first["sentence"].startswith("student in")


def test_files_are_written_whole_whatever_the_outcome(results: Results, tmp_path: Path) -> None:
    junit, found = tmp_path / "out" / "junit.xml", tmp_path / "out" / "verdict.json"
    words = ["check", str(results(student())), "--junit", str(junit), "--json", str(found)]
    for limits, code in ((HOLDS, 0), (BREAKS, 1), (STRADDLES, 3)):
        assert execute([*words, *options(limits)]) == code
        assert json.loads(found.read_text())["exit_code"] == code
        assert len(list(ElementTree.parse(junit).getroot().iter("testcase"))) == 1
    assert sorted(os.listdir(tmp_path / "out")) == ["junit.xml", "verdict.json"]
