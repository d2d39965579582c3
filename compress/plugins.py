"""The folder is the registry: one method, one file, and the file name is the name a user types.

A plug-in is a module of a plug-in folder. Its docstring is the help and cites the paper; the keyword-only typed
parameters of its entry function are its schema. Listing and checking parse the file and import nothing; loading
imports that one file. Other packages add plug-ins through the entry-point group ``compress.<folder>``.
"""

import ast
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from compress.errors import CompressError, MissingPackage, did_you_mean

# Kind of plug-in -> its folder in the package, and the function that every module in it defines.
FOLDERS: Mapping[str, tuple[str, str]] = {
    "losses": ("training/losses", "loss"),
    "modifiers": ("training/modifiers", "attach"),
    "augmenters": ("training/augmenters", "augmenter"),
    "criteria": ("pruning/criteria", "importance"),
    "quantizers": ("quantization/quantizers", "quantize"),
    "runtimes": ("inference/runtimes", "start"),
    "architectures": ("training/architectures", "build"),
    "exporters": ("exporting/exporters", "export"),
    "baselines": ("benchmarking/baselines", "fit"),
    "competitors": ("benchmarking/competitors", "build"),
}

# Names that files of earlier versions use -> today's: keys of recipes and of locks.
RENAMED: Mapping[str, str] = {
    "floors": "baselines",
    "peers": "competitors",
    "peer_models": "competitor_models",
    "bodies": "reference_models",
    "body": "reference_model",
    "structure": "pruning_steps",
    "intervention": "modifier",
}

SINGULAR: Mapping[str, str] = {name: name.removesuffix("s") for name in FOLDERS} | {
    "criteria": "criterion",
    "losses": "loss",
}

# Annotation of an option -> the types that it takes; any other annotation takes everything.
TOML_TYPES: Mapping[str, Any] = {"None": type(None), "bool": bool, "int": int, "float": int | float, "str": str}


@dataclass(frozen=True)
class Parameter:
    """One option of a plug-in: its annotation as written, and whether it may be left out."""

    annotation: str
    required: bool
    default: str


@dataclass(frozen=True)
class Plugin:
    """What a plug-in's file says about it, read without importing it; ``needs`` is a loss's constant ``NEEDS``."""

    name: str
    folder: str
    module: str
    description: str
    parameters: Mapping[str, Parameter]
    needs: frozenset[str] = frozenset()

    @property
    def summary(self) -> str:
        return self.description.split("\n\n")[0].replace("\n", " ")

    def load(self) -> ModuleType:
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            raise MissingPackage(error) from None

    @property
    def function(self) -> Callable[..., Any]:
        """The plug-in's entry function; this imports the module."""
        function: Callable[..., Any] = getattr(self.load(), FOLDERS[self.folder][1])
        return function

    def check(self, options: Mapping[str, Any]) -> list[str]:
        """Return every fault of the options as a sentence; an empty list when they are right."""
        called = f"{SINGULAR[self.folder]} {self.name!r}"
        faults = [
            f"{called} has no option {key!r}; it has {', '.join(self.parameters) or 'none'}."
            + did_you_mean(key, self.parameters)
            for key in options
            if key not in self.parameters
        ]
        faults += [
            f"{called} needs {key!r} ({parameter.annotation})"
            for key, parameter in self.parameters.items()
            if parameter.required and key not in options
        ]
        faults += [
            f"{called}: {key} = {options[key]!r} is not of type {parameter.annotation}"
            for key, parameter in self.parameters.items()
            if key in options and not fits(options[key], parameter.annotation)
        ]
        return faults


def names(folder: str) -> tuple[str, ...]:
    """Return the names in a plug-in folder, in order."""
    return tuple(sorted(_modules(folder)))


def find(folder: str, name: str) -> Plugin:
    """Return a plug-in by the name a user types; ``-`` and ``_`` are the same.

    Raises:
        CompressError: there is none of that name.
    """
    modules = _modules(folder)
    key = name.replace("_", "-")
    if key not in modules:
        raise CompressError(
            f"unknown {SINGULAR[folder]} {name!r}; there is {', '.join(sorted(modules))}.{did_you_mean(key, modules)}"
        )
    return _parse(folder, key, modules[key])


@cache
def _modules(folder: str) -> dict[str, str]:
    place = FOLDERS[folder][0]
    found = {
        file.stem.replace("_", "-"): f"compress.{place.replace('/', '.')}.{file.stem}"
        for file in Path(__file__).parent.joinpath(place).glob("[!_]*.py")
    }
    for entry in entry_points(group=f"compress.{folder}"):
        name = entry.name.replace("_", "-")
        if name in found:
            raise CompressError(
                f"{entry.value} offers the {SINGULAR[folder]} {entry.name!r}, which exists already; rename it"
            )
        found[name] = entry.module
    return found


@cache
def _parse(folder: str, name: str, module: str) -> Plugin:
    tree = ast.parse(_source(folder, name, module).read_text(encoding="utf-8"))
    entry = FOLDERS[folder][1]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == entry:
            pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            parameters = {
                argument.arg: Parameter(
                    annotation=ast.unparse(argument.annotation) if argument.annotation else "Any",
                    required=default is None,
                    default=ast.unparse(default) if default is not None else "",
                )
                for argument, default in pairs
            }
            return Plugin(name, folder, module, ast.get_docstring(tree) or "", parameters, _needs(tree))
    raise CompressError(f"{SINGULAR[folder]} {name!r} ({module}) does not define {entry}()")


def _needs(tree: ast.Module) -> frozenset[str]:
    """Return the strings of a module's ``NEEDS = frozenset({...})``."""
    values = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(node).startswith(("NEEDS =", "NEEDS:"))
    )
    return frozenset(
        str(part.value) for value in values if value for part in ast.walk(value) if isinstance(part, ast.Constant)
    )


def _source(folder: str, name: str, module: str) -> Path:
    """Return the file of a module. Python imports the packages around it, so that our own are found by their path."""
    if module.startswith("compress."):
        return Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise CompressError(f"{SINGULAR[folder]} {name!r} names the module {module}, which is not installed")
    return Path(spec.origin)


def fits(value: Any, annotation: str) -> bool:
    """Tell whether a TOML value fits an annotation such as ``int | float | None`` or ``list[int]``."""
    return any(_fits_one(value, part) for part in annotation.split(" | "))


def _fits_one(value: Any, annotation: str) -> bool:
    name, _, inner = annotation.partition("[")
    if name in {"list", "tuple"}:
        inner = inner.removesuffix("]").removesuffix(", ...")
        return isinstance(value, list | tuple) and all(fits(item, inner) for item in value)
    if isinstance(value, bool):  # which Python counts as an int
        return name == "bool" or name not in TOML_TYPES
    return isinstance(value, TOML_TYPES.get(name, object))
