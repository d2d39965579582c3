"""The folder is the registry: what every plug-in promises, and how others add theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from compress import plugins
from compress.errors import CompressError

EVERY = [(folder, name) for folder in plugins.FOLDERS for name in plugins.names(folder)]
MINE = '''"""Count the rows.

Nobody 2026."""

NEEDS = frozenset({"logits"})


def loss(student, teacher, batch, *, weight: float = 1.0, rows: int):
    return weight * rows
'''
LIST_EVERYTHING = """
import sys
before = set(sys.modules)
from compress import plugins
from compress.recipes import catalogue
for kind in catalogue.LISTED_KINDS:
    for name, line in catalogue.entries(kind):
        catalogue.describe(name)
heavy = {"torch", "transformers", "numpy", "onnx", "onnxruntime", "datasets"} & set(sys.modules)
folders = ["compress." + folder.replace("/", ".") for folder, _ in plugins.FOLDERS.values()]
loaded = {name for name in sys.modules if name.rpartition(".")[0] in folders}
print(sorted(heavy | loaded))
"""


def test_listing_and_describing_imports_no_plugin() -> None:
    run = subprocess.run([sys.executable, "-c", LIST_EVERYTHING], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(("folder", "name"), EVERY)
def test_every_plugin_defines_its_entry_and_says_what_it_is(folder: str, name: str) -> None:
    plugin = plugins.find(folder, name)
    assert plugin.name == name and len(plugin.summary) > 20
    assert callable(plugin.function)
    assert all(parameter.annotation != "Any" for parameter in plugin.parameters.values())


@pytest.mark.parametrize("name", plugins.names("losses"))
def test_every_loss_names_what_it_needs(name: str) -> None:
    plugin = plugins.find("losses", name)
    module = plugin.load()
    assert plugin.needs == module.NEEDS
    assert module.NEEDS <= {"logits", "exact", "classes", "hidden", "first", "attention", "labels", "targets", "mixed"}
    assert getattr(module, "STUDENT_NEEDS", frozenset()) <= {"hidden", "attention"}


@pytest.mark.parametrize(
    ("folder", "name", "message"),
    [
        ("losses", "kll", r"unknown loss 'kll'; there is .*Did you mean 'kl'\?"),
        ("criteria", "gradeint", r"unknown criterion 'gradeint'; there is .*Did you mean 'gradient'\?"),
        ("architectures", "transfomer", r"unknown architecture 'transfomer'; .*Did you mean 'transformer'\?"),
        ("runtimes", "zzz", r"unknown runtime 'zzz'; there is [a-z0-9, -]*\.$"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(folder: str, name: str, message: str) -> None:
    with pytest.raises(CompressError, match=message):
        plugins.find(folder, name)


def test_dashes_and_underscores_are_the_same() -> None:
    assert plugins.find("losses", "logit_mse") is plugins.find("losses", "logit-mse")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"temprature": 1.0}, "has no option 'temprature'; it has temperature. Did you mean 'temperature'?"),
        ({"temperature": "hot"}, "temperature = 'hot' is not of type float"),
    ],
)
def test_options_are_checked_against_the_signature(options: dict[str, Any], fault: str) -> None:
    assert [fault in found for found in plugins.find("losses", "kl").check(options)] == [True]
    assert plugins.find("losses", "kl").check({"temperature": 4}) == []


@pytest.mark.parametrize(
    ("value", "annotation", "fits"),
    [
        (1, "int", True),
        (1.0, "int", False),
        (True, "int", False),
        (1, "float", True),
        (True, "float", False),
        ("a", "str", True),
        (1, "str", False),
        (True, "bool", True),
        (1, "bool", False),
        (None, "int | None", True),
        ("a", "int | None", False),
        ([1, 2], "list[int]", True),
        ([1, "a"], "list[int] | None", False),
        ((1.5,), "tuple[float, ...]", True),
        ("12", "list[str]", False),
    ],
)
def test_which_values_fit_an_annotation(value: Any, annotation: str, fits: bool) -> None:
    assert plugins.fits(value, annotation) is fits


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Plug-ins that another distribution offers: append to the list."""
    offered: list[EntryPoint] = []
    (tmp_path / "their_losses.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [e for e in offered if e.group == group])
    plugins._modules.cache_clear()
    yield offered
    monkeypatch.undo()
    plugins._modules.cache_clear()
    plugins._parse.cache_clear()


def test_another_package_adds_a_loss(others: list[EntryPoint]) -> None:
    others.append(EntryPoint("row_count", "their_losses", "compress.losses"))
    assert "row-count" in plugins.names("losses") and "kl" in plugins.names("losses")
    plugin = plugins.find("losses", "row-count")
    assert plugin.summary == "Count the rows."
    assert "their_losses" not in sys.modules  # reading a plug-in does not run it
    assert plugin.check({}) == ["loss 'row-count' needs 'rows' (int)"]
    assert plugin.function(None, None, None, rows=3) == 3


@pytest.mark.parametrize("name", ["kl", "logit-mse", "logit_mse"])
def test_a_name_that_is_taken_is_refused(name: str, others: list[EntryPoint]) -> None:
    others.append(EntryPoint(name, "their_losses", "compress.losses"))
    with pytest.raises(CompressError, match="exists already; rename it"):
        plugins.names("losses")


@pytest.mark.parametrize("module", ["gone", "gone.away"])
def test_a_plugin_whose_module_is_gone(module: str, others: list[EntryPoint]) -> None:
    others.append(EntryPoint("lost", module, "compress.losses"))
    with pytest.raises(CompressError, match=f"names the module {module}, which is not installed"):
        plugins.find("losses", "lost")


def test_a_plugin_without_its_entry(others: list[EntryPoint]) -> None:
    others.append(EntryPoint("wrong", "their_losses", "compress.criteria"))
    with pytest.raises(CompressError, match=r"does not define importance\(\)"):
        plugins.find("criteria", "wrong")
