"""What each kind of installation can do, with only the packages that it declares: the others are hidden."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from compress.requests.compression import export
from tests.support import REPOSITORY
from tests.support.report_study import study
from tests.support.results import write_lines
from tests.support.tiny import onnx_directory, torch_directory

TEXTS = ["the film is good", "dull and long"]
HIDE = """
import sys
from importlib import abc, metadata, util

class Hidden(abc.MetaPathFinder):
    names = set(sys.argv[1].split(","))

    def find_spec(self, name, path, target=None):
        if self.names & {name, name.partition(".")[0]}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    @staticmethod
    def is_there(name, package=None, find=util.find_spec):
        return None if name in Hidden.names else find(name, package)

sys.meta_path.insert(0, Hidden())
util.find_spec = Hidden.is_there
arguments = sys.argv[2:]
"""
COMMAND = HIDE + "from compress.cli import main\nmain(arguments)"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: list[str] | None, extra: str = "") -> list[str]:
    """Return the packages that are required always, and those that an extra adds."""
    wanted = [line for line in requirements or [] if "extra ==" not in line or (extra and f'"{extra}"' in line)]
    return [canonical(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in wanted]


@functools.cache
def hidden(extra: str = "") -> str:
    """Return the modules of every installed package that an installation with this extra does not bring."""
    brought = {"compress"}
    wanted = names(metadata.requires("compress"), extra)
    while wanted:
        if (name := wanted.pop()) in brought:
            continue
        brought.add(name)
        with suppress(metadata.PackageNotFoundError):  # for another system
            wanted += names(metadata.requires(name))
    owners = metadata.packages_distributions()
    return ",".join(sorted(module for module in owners if not set(map(canonical, owners[module])) & brought))


def python(script: str, *arguments: str, extra: str = "", given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, hidden(extra), *arguments],
        cwd=REPOSITORY,
        input=given,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_light_one_hides_what_it_should() -> None:
    names = set(hidden().split(","))
    assert {"torch", "transformers", "scipy", "onnx", "safetensors", "jinja2", "pyarrow"} <= names
    assert {"onnxruntime", "tokenizers", "numpy", "pydantic"} <= names and not {"click", "compress"} & names
    assert not {"onnxruntime", "tokenizers", "numpy"} & set(hidden("onnx").split(","))
    assert not {"scipy", "jinja2", "rich", "pydantic", "numpy"} & set(hidden("check").split(","))


@pytest.mark.skipif(not find_spec("compress.inference.native._core"), reason="the native library was not built")
@pytest.mark.parametrize(("kind", "form"), [("cnn", "onnx"), ("ngram", "onnx"), ("cnn", "native")])
def test_the_light_one_predicts_with_native_models(kind: str, form: str, tmp_path: Path) -> None:
    place = str(export(torch_directory(kind), tmp_path / "model", format=form).path)
    predicts("", place)
    model = ("predict", "-q", "--model", place, "--probabilities")
    expected = python(COMMAND, *model, *TEXTS)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *(f"{one},0" for one in TEXTS)]), encoding="utf-8")
    (tmp_path / "texts.jsonl").write_text("\n".join(f'{{"text": "{one}"}}' for one in TEXTS), encoding="utf-8")
    for name in ("texts.txt", "texts.csv", "texts.jsonl"):
        done = python(COMMAND, *model, "--data", str(tmp_path / name))
        assert (done.stdout, done.stderr) == (expected.stdout, "") and expected.stdout
    assert python(COMMAND, *model, "-", given="\n".join(TEXTS)).stdout == expected.stdout


@pytest.mark.parametrize("path", ["gone", "models/gone", "./gone"])
def test_the_light_one_says_of_a_mistyped_path_that_it_is_not_there(path: str) -> None:
    done = python(COMMAND, "predict", "--model", path, "a film")
    assert done.returncode == 2 and f"{path} does not exist; give a model directory" in done.stderr
    assert "this needs the Python package" not in done.stderr


def test_the_light_one_says_that_it_was_built_without_a_compiler() -> None:
    script = COMMAND.replace("names = set", "names = {'compress.inference.native._core'} | set")
    model = ("predict", "--model", str(onnx_directory("cnn").path), "a film")
    done = python(script, *model)
    assert done.returncode == 2 and "which installing builds with a C compiler" in done.stderr
    assert "pip install 'compress[onnx]'" in done.stderr and "Traceback" not in done.stderr
    assert python(script, *model, extra="onnx").returncode == 0


def predicts(extra: str, model: str) -> None:
    """Check that an installation predicts in the command line and in Python what the whole one predicts."""
    done = python(COMMAND, "predict", "--model", model, "--threads", "1", *TEXTS, extra=extra)
    assert done.returncode == 0, done.stderr
    script = HIDE + "import compress\nfor answer in compress.load(arguments[0]).predict(arguments[1:]): print(answer)"
    in_python = python(script, model, *TEXTS, extra=extra)
    assert in_python.returncode == 0, in_python.stderr
    whole = subprocess.run(
        [sys.executable, "-m", "compress", "predict", "--model", model, "--threads", "1", *TEXTS],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == whole.stdout and len(whole.stdout.splitlines()) == len(TEXTS)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert in_python.stdout.splitlines() == [str({k: a[k] for k in ("label", "probability")}) for a in answers]


@pytest.mark.parametrize("kind", ["bert", "roberta", "deberta-v2", "bilstm"])
def test_the_extra_onnx_predicts_with_onnx_models(kind: str) -> None:
    predicts("onnx", str(onnx_directory(kind).path))


def test_what_needs_the_extra_onnx_says_so() -> None:
    said = "which is not installed; type pip install 'compress[onnx]'"
    done = python(COMMAND, "predict", "--model", str(onnx_directory("bert").path), "a film")
    assert done.returncode == 2 and "Traceback" not in done.stderr and said in done.stderr
    script = HIDE + "import compress\ncompress.load(arguments[0]).predict_proba('a film')"
    for kind in ("bilstm", "cnn"):
        done = python(script, str(onnx_directory(kind).path))
        assert "compress.errors.MissingPackage: this needs the Python package" in done.stderr and said in done.stderr


def test_what_needs_the_extra_says_so(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a film\n" * 5, encoding="utf-8")
    model = str(torch_directory("bert").path)
    commands = (
        ("predict", "--model", model, "a film"),
        ("label", "--teacher", model, "--unlabeled", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "labels")),
        ("show", "bilstm"),
        ("report", str(write_lines(tmp_path / "results.jsonl", study())), "-o", str(tmp_path / "report")),
    )
    for command in commands:
        done = python(COMMAND, *command)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        assert "is not installed; type pip install 'compress[train]'" in done.stderr
    done = python(HIDE + "import compress\ncompress.distill('teacher', 'cnn', 'student', unlabeled='pool.txt')")
    assert "compress.errors.MissingPackage: this needs the Python package" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"texts.txt", "results.jsonl"}


def test_the_extra_check_judges_and_reports(tmp_path: Path) -> None:
    results = str(write_lines(tmp_path / "results.jsonl", study()))
    for command in (
        ("check", results, "--max-accuracy-drop", "50"),
        ("report", results, "-o", str(tmp_path / "report")),
        ("show", "bilstm"),
    ):
        done = python(COMMAND, *command, extra="check")
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "report" / "report.html").is_file()
