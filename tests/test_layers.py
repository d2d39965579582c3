"""The layers of docs/design.md, read from the imports: cli, stages, plug-ins, core, then types and errors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import compress

PACKAGE = Path(compress.__file__).parent
STAGES = frozenset(
    (
        "pretrain",
        "finetune",
        "label",
        "distill",
        "prune",
        "quantize",
        "export",
        "measure",
        "report",
        "gate",
        "replay",
        "run",
        "predict",
    )
)
PLUGINS = frozenset(
    (
        "architectures",
        "losses",
        "interventions",
        "augmenters",
        "criteria",
        "quantizers",
        "exporters",
        "runtimes",
        "floors",
        "peers",
    )
)
GROUND = frozenset(("types", "errors"))
LEVELS = {"ground": 0, "core": 1, "plug-in": 2, "stage": 3, "package": 4, "cli": 5}


def layer(module: str) -> str:
    """Return the layer of ``compress.<...>``: ``cli``, ``package`` (its front door), ``stage``, ``plug-in``, ..."""
    parts = module.split(".")
    first = parts[1] if len(parts) > 1 else ""
    if not first:
        return "package"
    if first in {"cli", "__main__"}:
        return "cli"
    if first in PLUGINS:
        return "plug-in"
    if first in STAGES:
        return "stage"
    return "ground" if first in GROUND else "core"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


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


def fault(importer: str, imported: str) -> str | None:
    """Say what is wrong with one module importing another; None if nothing is."""
    upper, lower = layer(importer), layer(imported)
    if upper == lower == "plug-in":
        # A folder's own front door and its plug-ins are one room; two plug-ins are not.
        own_package = importer.rpartition(".")[0] == imported
        return None if importer == imported or own_package else "plug-ins do not import each other"
    if LEVELS[lower] > LEVELS[upper]:
        return f"{upper} does not import {lower}"
    return None


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "_recipes" not in path.parts)


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_go_downward_only(path: Path) -> None:
    module = module_name(path)
    source = path.read_text(encoding="utf-8")
    found = imports(source, module, is_package=path.name == "__init__.py")
    faults = [
        f"{path.relative_to(PACKAGE.parent)}:{line} imports {imported}: {wrong}"
        for imported, line in found
        if (wrong := fault(module, imported))
    ]
    assert not faults, "\n".join(faults)


def test_every_named_stage_and_folder_exists() -> None:
    assert all((PACKAGE / f"{stage}.py").is_file() for stage in STAGES)
    assert all((PACKAGE / folder / "__init__.py").is_file() for folder in PLUGINS)
    assert all((PACKAGE / f"{name}.py").is_file() for name in GROUND)


def test_the_plug_in_folders_are_those_of_the_registry() -> None:
    from compress.plugins import FOLDERS

    assert set(FOLDERS) == PLUGINS


@pytest.mark.parametrize(
    ("source", "importer", "expected"),
    [
        ("from compress.distill import distill", "compress.losses.kl", ["compress.distill"]),
        ("def f():\n    import compress.architectures", "compress.artifact", ["compress.architectures"]),
        ("from compress import plugins, recipes", "compress.run", ["compress.plugins", "compress.recipes"]),
        ("from . import kl", "compress.losses.mse", ["compress.losses.kl"]),
        ("from ..run import run", "compress.losses.mse", ["compress.run"]),
        ("import torch\nfrom compressor import x", "compress.run", []),
    ],
)
def test_imports_are_read_as_python_reads_them(source: str, importer: str, expected: list[str]) -> None:
    assert [name for name, _ in imports(source, importer)] == expected


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("compress.cli.run", "compress.run", True),
        ("compress.cli", "compress", True),
        ("compress.run", "compress.distill", True),
        ("compress.distill", "compress.losses.kl", True),
        ("compress.losses.kl", "compress.types", True),
        ("compress.losses.kl", "compress.losses.logit_mse", False),
        ("compress.losses.kl", "compress.distill", False),
        ("compress.criteria.gradient", "compress.losses", False),
        ("compress.training", "compress.losses.kl", False),
        ("compress.training", "compress.distill", False),
        ("compress.types", "compress.artifact", False),
        ("compress.errors", "compress.types", True),
        ("compress.distill", "compress.cli.options", False),
        ("compress.distill", "compress", False),
    ],
)
def test_the_rule_itself(importer: str, imported: str, allowed: bool) -> None:
    assert (fault(importer, imported) is None) is allowed
