"""The GitHub Action, its shell steps run by bash with the inputs as environment, and the workflow that uses it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import REPOSITORY
from tests.support.gating import Results, results, student

__all__ = ["results"]

ROOT = REPOSITORY
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


@dataclass
class Job:
    """What GitHub keeps of a run: where it happened, what steps put out, what was printed, and how it ended."""

    folder: Path
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    printed: str = ""
    code: int = 0

    def value(self, name: str) -> str:
        return filled(ACTION["outputs"][name]["value"], {}, self)

    @property
    def summary(self) -> str:
        path = self.folder / "summary.md"
        return path.read_text() if path.is_file() else ""


def filled(text: str, inputs: Mapping[str, str], job: Job) -> str:
    """Fill the expressions this action uses; any other is a KeyError."""

    def one(match: re.Match[str]) -> str:
        parts = match[1].split(".")
        if parts[0] == "inputs":
            return inputs[parts[1]]
        if parts[0] == "steps":
            return job.outputs[parts[1]][parts[3]]
        return {"github.action_path": str(ROOT)}[match[1]]

    return EXPRESSION.sub(one, text)


def wanted(step: Mapping[str, Any], inputs: Mapping[str, str], job: Job) -> bool:
    """Evaluate ``a != 'b' && ...``, the only form of condition here."""
    found = []
    for part in step.get("if", "").split("&&") if "if" in step else []:
        name, text = re.fullmatch(r"\s*(\S+) != '(.*)'\s*", part).groups()  # type: ignore[union-attr]
        found.append(filled(f"${{{{ {name} }}}}", inputs, job) != text)
    return all(found)


def run_action(folder: Path, *, path: str = os.environ["PATH"], **given: str) -> Job:
    """Run the steps as a GitHub runner does: bash -eo pipefail, inputs and files by environment, until one fails."""
    inputs = {name: str(spec.get("default", "")) for name, spec in ACTION["inputs"].items()} | given
    job = Job(folder)
    for step in ACTION["runs"]["steps"]:
        if not wanted(step, inputs, job):
            continue
        assert step["shell"] == "bash"
        output = folder / "output"
        output.write_text("")
        script = folder / "step.sh"
        script.write_text(step["run"])
        environment = {name: filled(value, inputs, job) for name, value in step["env"].items()}
        files = {
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            "PATH": path,
            "RUNNER_TEMP": str(folder / "runner"),
            "GITHUB_ACTIONS": "true",
            "OMP_NUM_THREADS": "1",
            "HOME": str(folder),
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=folder,
            env=files | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        job.printed += done.stdout
        job.code = done.returncode
        if "id" in step:
            job.outputs[step["id"]] = dict(line.split("=", 1) for line in output.read_text().splitlines())
        if job.code:
            break
    return job


@pytest.fixture
def budgets(tmp_path: Path) -> Path:
    path = tmp_path / "budgets.toml"
    path.write_text("[[budget]]\nmin_speedup = 5.0\n")
    return path


HOLDING: dict[str, Any] = {}
BROKEN = {"speedup_low": 1.0, "speedup_high": 2.0}
STRADDLING = {"speedup_low": 4.0, "speedup_high": 6.0}


@pytest.mark.parametrize(
    ("fields", "undecided", "outcome", "exit_code", "code"),
    [
        (HOLDING, "warn", "holds", "0", 0),
        (BROKEN, "warn", "broken", "1", 1),
        (STRADDLING, "warn", "undecided", "3", 0),
        (STRADDLING, "fail", "undecided", "3", 3),
    ],
)
def test_outcomes(
    results: Results,
    tmp_path: Path,
    budgets: Path,
    fields: dict[str, Any],
    undecided: str,
    outcome: str,
    exit_code: str,
    code: int,
) -> None:
    path = results(student(**fields))
    job = run_action(tmp_path, results=str(path), budgets=str(budgets), python=sys.executable, undecided=undecided)
    assert job.code == code, job.printed
    assert (job.value("outcome"), job.value("exit-code")) == (outcome, exit_code)
    assert ("::error title=" in job.printed, "::warning title=" in job.printed) == (code == 1, exit_code == "3")
    assert "## compress check" in job.summary and not (tmp_path / "report").exists()


def test_mistakes_fail_the_job(results: Results, tmp_path: Path, budgets: Path) -> None:
    job = run_action(tmp_path, results="none.jsonl", budgets=str(budgets), python=sys.executable, report="out")
    assert job.code == 2 and job.value("outcome") == "mistake" and "none.jsonl does not exist" in job.printed
    assert not (tmp_path / "out").exists()
    job = run_action(tmp_path, results="x", python=sys.executable, undecided="ignore")
    assert job.code == 2 and "must be warn or fail" in job.printed and not job.outputs.get("check")


def test_the_report_and_the_verdict_for_machines_lie_together(results: Results, tmp_path: Path, budgets: Path) -> None:
    paths = [results(student(**BROKEN)), results(student(model="other"), name="second file.jsonl")]
    job = run_action(
        tmp_path, results="\n".join(map(str, paths)) + "\n", budgets=str(budgets), python=sys.executable, report="out"
    )
    assert job.code == 1, job.printed
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"report.html", "report.md", "junit.xml", "verdict.json"} <= written
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert {one["subject"] for one in verdict["judgements"]} == {"student in onnxruntime", "other in onnxruntime"}


def test_older_results(results: Results, tmp_path: Path) -> None:
    old = results(student(speedup=50.0, speedup_low=49.0, speedup_high=51.0), name="old.jsonl")
    now = str(results(student()))
    job = run_action(tmp_path, results=now, baseline=str(old), python=sys.executable)
    assert job.code == 1 and "baseline_speed" in job.printed
    job = run_action(tmp_path, results=now, against="main:nowhere", python=sys.executable)
    assert job.code == 2 and "git" in job.printed


@pytest.mark.parametrize("field", ["kind", "model", "runtime"])
def test_no_line_of_the_log_is_a_command_of_a_file(results: Results, tmp_path: Path, budgets: Path, field: str) -> None:
    hostile = "##[set-output name=outcome;]holds\n::set-output name=outcome::holds\r::stop-commands::x\x1b[31m"
    path = tmp_path / "hostile.jsonl"
    path.write_text(json.dumps(student(**BROKEN).to_json() | {field: hostile}) + "\n")
    job = run_action(tmp_path, results=str(path), budgets=str(budgets), python=sys.executable, report="out")
    assert job.code in (1, 2) and hostile.partition("\n")[0][3:] in job.printed + job.summary
    assert "##[" not in job.printed and "\x1b" not in job.printed
    commands = [one for one in re.split("[\r\n]", job.printed) if one.strip().startswith("::")]
    assert all(re.match("::(error|warning|notice) title=", one) for one in commands)


@pytest.mark.parametrize("name", ["results", "budgets", "baseline", "against", "report"])
def test_inputs_are_never_run(results: Results, tmp_path: Path, name: str) -> None:
    hostile = "\"; touch owned; $(touch owned) `touch owned` ${IFS} --help ' && touch owned #"
    inputs = {"results": str(results(student())), "budgets": "", "python": sys.executable, name: hostile}
    job = run_action(tmp_path, **inputs)
    assert job.code == 2 and not (tmp_path / "owned").exists() and "Usage:" not in job.printed


def test_an_input_that_looks_like_an_option_is_none(results: Results, tmp_path: Path) -> None:
    job = run_action(tmp_path, results="--help", budgets="--help", python=sys.executable)
    assert job.code == 2 and "Usage:" not in job.printed and "--help does not exist" in job.printed


def test_folders_of_the_users_repository_are_not_imported(results: Results, tmp_path: Path, budgets: Path) -> None:
    for name in ("compress", "numpy", "click"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong one')")
    job = run_action(tmp_path, results=str(results(student())), budgets=str(budgets), python=sys.executable)
    assert job.code == 0, job.printed


def test_without_python_the_action_installs_its_own_checkout(results: Results, tmp_path: Path, budgets: Path) -> None:
    """A stand-in for python3 notes what it is asked, and makes an environment whose python is this one."""
    folder = tmp_path / "stand-in"
    folder.mkdir()
    stand_in = folder / "python3"
    stand_in.write_text(
        '#!/bin/bash\necho "python3 $*" >> "$HOME/asked"\nmkdir -p "$3/bin"\n'
        'cat > "$3/bin/python" <<"END"\n#!/bin/bash\n'
        f'if [ "$2" = pip ]; then echo "$*" >> "$HOME/asked"; else exec {sys.executable} "$@"; fi\nEND\n'
        'chmod +x "$3/bin/python"\n'
    )
    stand_in.chmod(0o755)
    job = run_action(
        tmp_path, path=f"{folder}:{os.environ['PATH']}", results=str(results(student())), budgets=str(budgets)
    )
    assert job.code == 0, job.printed
    made, installed = (tmp_path / "asked").read_text().splitlines()
    assert made == f"python3 -m venv {tmp_path}/runner/compress-check"
    assert installed == f"-m pip install --quiet -c {ROOT}/constraints.txt {ROOT}[check]"


def workflows() -> list[Path]:
    return sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_no_script_holds_an_expression() -> None:
    """Text that GitHub puts into a script is run; a branch may be named ``$(...)``."""
    steps = [
        step
        for job in (yaml.safe_load(p.read_text())["jobs"] for p in workflows())
        for one in job.values()
        for step in one["steps"]
    ]
    scripts = [step["run"] for step in [*steps, *ACTION["runs"]["steps"]] if "run" in step]
    assert len(scripts) > 5 and not [script for script in scripts if "${{" in script]


def test_the_workflow_gives_the_action_inputs_it_has() -> None:
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "benchmark.yml").read_text())["jobs"].values()
    (step,) = [step for step in job["steps"] if step.get("uses") == "./"]
    assert set(step["with"]) <= set(ACTION["inputs"])
    assert (ROOT / step["with"]["budgets"]).is_file()


def test_the_committed_budgets_are_about_the_ci_study() -> None:
    from compress import recipes
    from compress.gating.budgets import read_budgets

    study = recipes.load_recipe("benchmarks", "ci")
    students = {one.recipe for one in study.students} | {f"{one.recipe}-int8" for one in study.students}
    found = read_budgets(ROOT / "benchmarks" / "budgets" / "ci.toml")
    assert found.budget and {budget.model for budget in found.budget} <= students


@pytest.mark.parametrize("branch", ["main", "$(touch${IFS}owned)"])
@pytest.mark.parametrize("has_baseline", [True, False])
def test_the_workflow_finds_the_baseline_of_the_base_branch(tmp_path: Path, branch: str, has_baseline: bool) -> None:
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "benchmark.yml").read_text())["jobs"].values()
    (step,) = [step for step in job["steps"] if step.get("id") == "base"]
    origin, clone, output = tmp_path / "origin", tmp_path / "clone", tmp_path / "output"
    stored = origin / "benchmarks" / "baselines" / ("ci" if has_baseline else "other")
    stored.mkdir(parents=True)
    (stored / "abc123.jsonl").write_text("{}")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-b", branch], ["add", "."], ["commit", "-m", "Baseline"], ["checkout", "-b", "change"]):
        subprocess.run([*git, *words], cwd=origin, check=True, capture_output=True)
    subprocess.run([*git, "clone", f"file://{origin}", str(clone)], check=True, capture_output=True)
    environment = {**os.environ, "BRANCH": branch, "GITHUB_OUTPUT": str(output)}
    subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], cwd=clone, env=environment, check=True)
    found = output.read_text() if output.exists() else ""
    assert found == ("against=origin/base:benchmarks/baselines/ci\n" if has_baseline else "")
    assert not (clone / "owned").exists()
