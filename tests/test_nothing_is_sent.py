"""No library reports to its maker: commands, workers and ``compress.load`` without a network and in an empty home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPOSITORY, tiny
from tests.support.no_network import WATCHED, forbid_network

VARIABLES = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
}
COMMANDS = """
import compress
from compress.cli import main

def run(*arguments):
    try:
        main(list(arguments))
    except SystemExit as end:
        assert not end.code, (arguments, end.code)

run("quantize", "--model", {model!r}, "--validation", "validation.csv", "-o", "small", "--threads", "1")
run("predict", "--model", "small", "a good film")
assert compress.load("small").predict(["a good film"])
run("benchmark", "--teacher", {model!r}, "--model", "small", "--data", "test.csv", "--rounds", "3", "--batch-size", "1",
    "--threads", "1", "--no-baselines", "--no-padded-teacher", "-o", "results.jsonl")
"""


def run_python(script: str, home: Path, folder: Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that has this home and no setting of this one."""
    environment = {name: value for name, value in os.environ.items() if name not in {*VARIABLES, "XDG_CACHE_HOME"}}
    environment |= {"HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=environment | settings.pop("variables", {}),
        capture_output=True,
        text=True,
        **settings,
    )


@pytest.mark.skipif(not WATCHED, reason="the watch knows the system calls of Linux on x86-64 and arm64")
def test_commands_reach_no_network_and_write_nothing_into_the_home(tmp_path: Path) -> None:
    home, folder, temporary = (tmp_path / name for name in ("home", "folder", "temporary"))
    for made in (home, folder, temporary):
        made.mkdir()
    rows = tiny.examples(80)
    for name, part in (("validation", rows[:40]), ("test", rows[40:])):
        lines = [f"{row.text},{row.label}" for row in part]
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *lines]))
    script = COMMANDS.format(model=str(tiny.torch_directory("cnn").path))
    done = run_python(script, home, folder, preexec_fn=forbid_network, variables={"TMPDIR": str(temporary)})
    assert done.returncode == 0, done.stderr
    assert not list(home.iterdir())
    assert not list(temporary.iterdir())
    kept = {"small", "results.jsonl", "results.lock.json", "validation.csv", "test.csv"}
    assert {path.name for path in folder.iterdir() if not path.name.endswith(".lock")} == kept


@pytest.mark.skipif(not WATCHED, reason="the watch knows the system calls of Linux on x86-64 and arm64")
def test_the_watch_ends_a_process_that_connects() -> None:
    attempt = "import socket; {0}.socketpair(); {0}.create_connection(('127.0.0.1', 9), 1)".format("socket")
    done = subprocess.run([sys.executable, "-c", attempt], preexec_fn=forbid_network, capture_output=True)
    assert done.returncode < 0


def test_what_libraries_report_by_is_off(tmp_path: Path) -> None:
    script = f"import compress, json, os; print(json.dumps({{name: os.environ.get(name) for name in {[*VARIABLES]}}}))"
    assert json.loads(run_python(script, tmp_path, tmp_path).stdout) == VARIABLES


@pytest.mark.parametrize(("given", "kept"), [(None, "1"), ("", "1"), ("0", "0")])
def test_onnx_runtime_is_told_before_it_is_imported(given: str | None, kept: str, tmp_path: Path) -> None:
    script = "import compress, os, sys; print(os.environ['ORT_DISABLE_TELEMETRY'], 'onnxruntime' in sys.modules)"
    variables = {} if given is None else {"ORT_DISABLE_TELEMETRY": given}
    assert run_python(script, tmp_path, tmp_path, variables=variables).stdout.split() == [kept, "False"]


def test_openvino_finds_no_package_to_report_with(tmp_path: Path) -> None:
    (tmp_path / "openvino_telemetry.py").write_text("raise SystemExit('it reports')")
    script = "import compress\ntry:\n    import openvino_telemetry\nexcept ImportError:\n    print('none')"
    assert run_python(script, tmp_path, tmp_path).stdout == "none\n"
