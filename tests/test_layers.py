"""Imports go down one ordered list of packages, without circles, those inside functions and for types included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import compress
from compress.plugins import KINDS, NETWORKS

PACKAGE = Path(compress.__file__).parent
# From the top down. Packages of one line do not import each other; the order is drawn in docs/design.md.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("",),  # the front door, compress/__init__.py
    ("studies", "searching"),
    ("pruning", "calibration", "cascades", "auditing"),
    ("training", "reporting", "gating"),
    ("benchmarking", "labelling", "quantization"),
    ("exporting",),
    ("inference", "surgery"),
    ("requests",),
    ("models",),
    ("recipes", "tasks"),
    ("evaluation",),
    ("data", "plugins"),
    ("files", "fields"),
    ("arrays",),
    ("errors", "progress", "host"),
    ("escaping",),
)
SOURCES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if "_recipes" not in path.parts
}


def package(module: str) -> str:
    """Return the package or loose module of ``compress`` that a module is in; ``""`` for its front door."""
    return module.partition(".")[2].partition(".")[0]


def imports(source: str, module: str, *, is_package: bool = False) -> Iterator[tuple[str, int]]:
    """Yield every module of this package that a source imports, with its line: inside functions too, and for types."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parents = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parents, *([base] if base else [])])
            found = [_submodule(base, alias.name) for alias in node.names]
        else:
            continue
        yield from ((name, node.lineno) for name in found if name.split(".")[0] == "compress")


def _submodule(base: str, name: str) -> str:
    path = PACKAGE.parent.joinpath(*base.split("."), name)
    return f"{base}.{name}" if path.is_dir() or path.with_suffix(".py").is_file() else base


def allowed(importer: str, imported: str) -> bool:
    """Tell whether one module may import another: inside a package anything, otherwise downwards only."""
    levels = {name: level for level, layer in enumerate(LAYERS) for name in layer}
    upper, lower = package(importer), package(imported)
    if upper == lower:
        return not _is_plugin(importer) or not _is_plugin(imported) or _folder(importer) != _folder(imported)
    return levels[upper] < levels[lower]


def _folder(module: str) -> str:
    return module.rpartition(".")[0]


def _is_plugin(module: str) -> bool:
    folder, _, name = module.rpartition(".")
    if folder.startswith(f"compress.{NETWORKS.replace('/', '.')}."):
        return name in {kind.of_networks for kind in KINDS.values()}
    return folder in {f"compress.{place.replace('/', '.')}" for place, *_ in KINDS.values()} and name[:1] != "_"


@pytest.mark.parametrize("module", SOURCES)
def test_imports_go_down_the_list(module: str) -> None:
    path = SOURCES[module]
    found = imports(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
    wrong = [f"line {line} imports {imported}" for imported, line in found if not allowed(module, imported)]
    assert not wrong, f"{module}: {', '.join(wrong)}"


def test_the_modules_import_each_other_without_circles() -> None:
    graph = {
        module: {
            name
            for name, _ in imports(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
            if name != module
        }
        for module, path in SOURCES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def test_the_list_names_exactly_the_packages_there_are() -> None:
    assert sorted(name for layer in LAYERS for name in layer) == sorted({package(module) for module in SOURCES})


MOST_STATEMENTS = 27_983  # raised only by a commit that says in its message what the growth buys
MOST_RAISES = 347  # weights of classes that cannot be read, an encoder that is not there, what servers answer


def count(kind: type[ast.AST]) -> int:
    sources = (path.read_text("utf-8") for path in SOURCES.values())
    return sum(isinstance(node, kind) for source in sources for node in ast.walk(ast.parse(source)))


def test_the_package_stays_within_its_budget_of_statements() -> None:
    assert count(ast.stmt) <= MOST_STATEMENTS


def test_the_package_stays_within_its_budget_of_refusals() -> None:
    assert count(ast.Raise) <= MOST_RAISES


def definitions(module: str) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Yield the public functions and classes at the top of a module."""
    for node in ast.parse(SOURCES[module].read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


def parameters(node: ast.FunctionDef) -> list[str]:
    given = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return [name for name in given if name not in {"self", "cls"}]


def test_no_public_function_has_more_than_8_parameters() -> None:
    """Plug-in entry functions, whose options are keys of recipes, and commands of click are their own schema."""
    found = []
    for module in SOURCES:
        entries = {kind.entry for kind in KINDS.values()} if _is_plugin(module) else set()
        for node in definitions(module):
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
            for function in methods if isinstance(node, ast.ClassDef) else [node]:
                exempt = function.name.startswith("_") or function.name in entries or function.name == "command"
                if not exempt and len(parameters(function)) > 8:
                    found.append(f"{module}.{node.name}")
    assert not found


def test_no_public_name_stands_in_two_packages() -> None:
    places: dict[str, set[str]] = {}
    for module in SOURCES:
        for node in definitions(module):
            if not _is_plugin(module) and node.name != "command":
                places.setdefault(node.name, set()).add(package(module))
    assert not {name: sorted(found) for name, found in places.items() if len(found) > 1}


@pytest.mark.parametrize(
    ("source", "importer", "expected"),
    [
        ("from compress.training.distill import distill", "compress.x.kl", ["compress.training.distill"]),
        ("def f():\n    import compress.models.saving", "compress.x", ["compress.models.saving"]),
        ("from compress import plugins, recipes", "compress.studies.run", ["compress.plugins", "compress.recipes"]),
        ("from . import kl", "compress.training.losses.mse", ["compress.training.losses.kl"]),
        ("from ..distill import distill", "compress.training.losses.mse", ["compress.training.distill"]),
        ("import torch\nfrom compressor import x", "compress.studies.run", []),
    ],
)
def test_imports_are_read_as_python_reads_them(source: str, importer: str, expected: list[str]) -> None:
    assert [name for name, _ in imports(source, importer)] == expected


@pytest.mark.parametrize(
    ("importer", "imported", "expected"),
    [
        ("compress.cli.commands", "compress.studies.run", True),
        ("compress.cli", "compress", True),
        ("compress.studies.run", "compress.training.distill", True),
        ("compress.training.distill", "compress.training.losses.kl", True),
        ("compress.training.losses.kl", "compress.models.batch", True),
        ("compress.training.losses.kl", "compress.training.losses._common", True),
        ("compress.training.losses.kl", "compress.training.losses.logit_mse", False),
        ("compress.training.distill", "compress.reporting.report", False),
        ("compress.benchmarking.benchmark", "compress.pruning.prune", False),
        ("compress.models.batch", "compress.surgery.unit_masks", False),
        ("compress.errors", "compress.progress", False),
        ("compress.training.distill", "compress.cli.values", False),
        ("compress.training.distill", "compress", False),
    ],
)
def test_the_rule_itself(importer: str, imported: str, expected: bool) -> None:
    assert allowed(importer, imported) is expected
