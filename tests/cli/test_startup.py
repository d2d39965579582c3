"""The command line answers before anything heavy is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "numpy", "onnx", "onnxruntime", "datasets", "scipy", "sklearn", "pyarrow", "fsspec")

SCRIPT = """
import json, sys
from compress.cli import main
try:
    main({arguments!r})
except SystemExit as end:
    code = end.code
print("\\n" + json.dumps([code, sorted({{name.split(".")[0] for name in sys.modules}})]))
"""


def run_and_list_modules(*arguments: str) -> tuple[int, set[str]]:
    script = SCRIPT.format(arguments=list(arguments))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("distill", "--help"),
        ("labels", "import", "--help"),
        ("benchmark", "--help"),
        ("check", "--help"),
        ("predict", "--help"),
        ("run", "--help"),
        ("list", "students"),
        ("list", "losses"),
        ("show", "bilstm"),
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported(arguments: tuple[str, ...]) -> None:
    code, modules = run_and_list_modules(*arguments)
    assert code == 0
    assert not modules & set(HEAVY)


def test_a_wrong_option_is_told_before_libraries_are_asked_about_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}})
    )
    for rest in (("--rounds", "1"), ("--seed", "1", "--seed", "2")):
        given = ("--teacher", str(tmp_path), "--model", str(tmp_path), "--data", "d.csv", "-o", "r.jsonl")
        code, modules = run_and_list_modules("benchmark", *given, *rest)
        assert code == 2 and not modules & set(HEAVY)


def test_help_imports_no_command() -> None:
    script = SCRIPT.format(arguments=["--help"]).replace('name.split(".")[0]', "name")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    light = {"compress.cli", "compress.cli.printing", "compress.errors", "compress.escaping", "compress.progress"}
    light |= {"compress.arrays", "compress.inference", "compress.inference.processes"}
    assert {n for n in modules if n.startswith("compress.")} == light


def test_import_compress_is_light() -> None:
    script = "import sys, compress; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {name.split(".")[0] for name in done.stdout.split()} & set(HEAVY)


@pytest.mark.parametrize("name", ["a.csv", "a-*.csv"])
def test_local_files_are_read_without_what_reads_remote_ones(name: str, tmp_path: Path) -> None:
    for file in ("a.csv", "a-1.csv", "a-2.csv"):
        (tmp_path / file).write_text("text,label\nno more,0\nso good,1\n")
    script = (
        "import sys; from compress.data import open_source; "
        f"print(len([*open_source({str(tmp_path / name)!r}, role='train', labelled=True)]), 'fsspec' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2" if name == "a.csv" else "4", "False"]
