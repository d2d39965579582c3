"""The folder is the registry: what every plug-in promises, and how others add theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from compress import cli, plugins
from compress.errors import CompressError
from compress.models.model_dir import Model
from compress.models.modeling.registration import is_known
from compress.recipes import Choice, StudentRecipe, catalogue
from tests.support.training_data import BILSTM, distilled, pool_file

EVERY = [(folder, name) for folder in plugins.KINDS for name in plugins.names(folder)]
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
        [*map(catalogue.explain, catalogue.known_as(name).values())]
heavy = {"torch", "transformers", "numpy", "onnx", "onnxruntime", "datasets"} & set(sys.modules)
folders = ["compress." + folder.replace("/", ".") for folder, *_ in plugins.KINDS.values()]
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


@pytest.mark.parametrize(("folder", "name"), EVERY)
def test_constants_are_what_the_file_says(folder: str, name: str) -> None:
    plugin = plugins.find(folder, name)
    module, kind = plugin.load(), plugins.KINDS[folder]
    assert all(hasattr(module, constant) for constant in kind.also)
    for constant in plugins.CONSTANTS.keys() & {*kind.also, *kind.optional} & vars(module).keys():
        value = getattr(module, constant)
        assert {value} if isinstance(value, str) else {*value} <= {*plugins.CONSTANTS[constant]}
    assert plugin.needs == getattr(module, "NEEDS", frozenset())


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
        (["x"], "list[int | float] | None", False),
        ([1, 0.5], "list[int | float] | None", True),
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
    assert plugin.check({}) == ["loss 'row-count' (their_losses) needs 'rows' (int)"]
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


BROKEN = {
    "def criterion(): ...": r"does not define importance; CONTRIBUTING\.md",
    "importance = None": "importance is not a function of this module",
    "def importance(:": r"is no Python module: .* in line 1",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_plugin_is_named_and_hides_no_others(text: str, others: list[EntryPoint], tmp_path: Path) -> None:
    (tmp_path / "their_criterion.py").write_text(text)
    others.append(EntryPoint("wrong", "their_criterion", "compress.criteria"))
    with pytest.raises(CompressError, match=rf"criterion 'wrong' \(their_criterion\).* {BROKEN[text]}"):
        plugins.find("criteria", "wrong")
    listed = dict(catalogue.entries("criteria"))
    assert listed["wrong"].startswith("cannot be used: criterion 'wrong'") and "cannot" not in listed["gradient"]
    assert catalogue.explain(catalogue.known_as("gradient")["criteria"]).startswith("gradient (criteria)")


def test_a_package_that_cannot_be_imported_hides_no_others(others: list[EntryPoint], tmp_path: Path) -> None:
    for name, text in {"raising": "1 / 0", "lacking": "import nowhere"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
        others.append(EntryPoint(name, f"{name}.loss", "compress.losses"))
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    others.append(EntryPoint("binary", "binary", "compress.losses"))
    listed = dict(catalogue.entries("losses"))
    assert "cannot be imported: ZeroDivisionError" in listed["raising"] and "package nowhere;" in listed["lacking"]
    assert "no text in UTF-8" in listed["binary"] and "cannot be used" not in listed["kl"]


@pytest.mark.parametrize(
    ("folder", "constants", "message"),
    [
        ("losses", "", "does not define NEEDS"),
        ("losses", "NEEDS = frozenset({'logit'})", r"NEEDS names logit; it may name logits, .*Did you mean 'logits'\?"),
        ("losses", "from kl import NEEDS", "imports NEEDS; write it out"),
        ("losses", "NEEDS = frozenset()\nMEAN_OVER = 'rows'", "MEAN_OVER names rows; it may name answers"),
        ("quantizers", "", "does not define WRITES"),
        ("runtimes", "OPENS = 'onnx'", "does not define DEVICES"),
        ("baselines", "def start(): ...", "does not define RUNTIME"),
    ],
)
def test_constants_of_plugins_are_checked(
    folder: str, constants: str, message: str, others: list[EntryPoint], tmp_path: Path
) -> None:
    (tmp_path / "theirs.py").write_text(f"{constants}\ndef {plugins.KINDS[folder].entry}(): ...\n")
    others.append(EntryPoint("mine", "theirs", f"compress.{folder}"))
    with pytest.raises(CompressError, match=message):
        plugins.find(folder, "mine")


def test_a_package_that_a_plugin_lacks_is_named(others: list[EntryPoint], tmp_path: Path) -> None:
    (tmp_path / "their_gone.py").write_text(f"import nowhere.inside\n{MINE}")
    others.append(EntryPoint("gone", "their_gone", "compress.losses"))
    with pytest.raises(CompressError, match=r"'gone' \(their_gone\) needs the Python package nowhere; install it$"):
        plugins.find("losses", "gone").load()


def test_an_error_in_a_plugin_is_said_to_be_its_own(others: list[EntryPoint]) -> None:
    others.append(EntryPoint("row_count", "their_losses", "compress.losses"))
    function = plugins.find("losses", "row-count").function
    with pytest.raises(TypeError) as raised:
        function(None, None, None, rows=None)
    said = cli._sentence(raised.value, [])
    assert "(a fault of loss 'row-count' (their_losses), not of compress: type 'compress -v'" in said
    with pytest.raises(TypeError) as own:
        plugins.fits(1, None)  # type: ignore[arg-type]
    assert "(a fault of compress, not yours" in cli._sentence(own.value, [])


# Of an architecture: what it builds, and what of it is registered with transformers.
THEIR_ARCHITECTURE = '''"""A class of one's own.

Nobody 2026."""

from transformers import AutoConfig, AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification


class TheirConfig(BertConfig):
    model_type = "their-bert"


class TheirForSequenceClassification(BertForSequenceClassification):
    config_class = TheirConfig


{registers}


def build(teacher, tokenizer, examples):
    settings = {{**teacher.config.to_dict(), "model_type": "their-bert", "num_hidden_layers": 1}}
    return TheirForSequenceClassification(TheirConfig(**settings))
'''
THEIRS = "TheirForSequenceClassification"
REGISTERS_CONFIG = 'AutoConfig.register("their-bert", TheirConfig)'
REGISTERS_BOTH = (
    f"{REGISTERS_CONFIG}\nAutoModelForSequenceClassification.register(TheirConfig, TheirForSequenceClassification)"
)


@pytest.fixture
def their_architecture(others: list[EntryPoint], tmp_path: Path) -> Iterator[Callable[[str], StudentRecipe]]:
    """Offer an architecture that registers so much, and return a recipe of it."""
    before = dict(CONFIG_MAPPING._extra_content)

    def offer(registers: str) -> StudentRecipe:
        (tmp_path / "their_architecture.py").write_text(THEIR_ARCHITECTURE.format(registers=registers))
        others.append(EntryPoint("theirs", "their_architecture", "compress.architectures"))
        plugins._modules.cache_clear()
        return replace(BILSTM, architecture=Choice("theirs"))

    yield offer
    sys.modules.pop("their_architecture", None)
    CONFIG_MAPPING._extra_content = before


def test_a_model_of_an_architecture_of_another_package_opens(
    their_architecture: Callable[[str], StudentRecipe], teacher: Path, tmp_path: Path
) -> None:
    made = distilled(
        teacher, their_architecture(REGISTERS_BOTH), tmp_path / "out", unlabeled=pool_file(tmp_path / "pool.txt")
    )
    opened: Any = Model.open(made.path).load()
    assert type(opened).__name__ == "TheirForSequenceClassification" and opened.config.num_hidden_layers == 1


def test_a_model_type_that_is_not_known_is_looked_for_in_other_packages(
    their_architecture: Callable[[str], StudentRecipe], others: list[EntryPoint]
) -> None:
    assert not is_known("their-bert")
    their_architecture(REGISTERS_BOTH)
    assert "their_architecture" not in sys.modules
    assert is_known("bert") and "their_architecture" not in sys.modules
    others.append(EntryPoint("broken", "nowhere", "compress.architectures"))
    plugins._modules.cache_clear()
    assert is_known("their-bert") and "their_architecture" in sys.modules


def test_a_class_without_the_name_of_a_classifier_is_refused(
    their_architecture: Callable[[str], StudentRecipe], teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "THEIR_ARCHITECTURE", THEIR_ARCHITECTURE.replace(THEIRS, "TheirModel"))
    recipe, text = their_architecture(REGISTERS_BOTH.replace(THEIRS, "TheirModel")), pool_file(tmp_path / "pool.txt")
    with pytest.raises(CompressError, match="builds a TheirModel; the name of the class must end with ForSeq"):
        distilled(teacher, recipe, tmp_path / "out", unlabeled=text)


@pytest.mark.parametrize("registers", ["", REGISTERS_CONFIG])
def test_a_model_that_could_not_be_opened_again_is_refused(
    registers: str, their_architecture: Callable[[str], StudentRecipe], teacher: Path, tmp_path: Path
) -> None:
    message = (
        rf"architecture 'theirs' \(their_architecture\) builds a {THEIRS}, .*AutoConfig\.register\('their-bert', "
        rf"TheirConfig\) and AutoModelForSequenceClassification\.register\(TheirConfig, {THEIRS}\)"
    )
    text = pool_file(tmp_path / "pool.txt")
    with pytest.raises(CompressError, match=message):
        distilled(teacher, their_architecture(registers), tmp_path / "out", unlabeled=text)
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]
