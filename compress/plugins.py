"""The folder is the registry: one method, one file, and the file name is the name a user types.

A plug-in is a module of a plug-in folder. Its docstring is the help and cites the paper; the keyword-only typed
parameters of its entry function are its schema. Listing and checking parse the file and import nothing; loading
imports that one file. Other packages add plug-ins through the entry-point group ``compress.<folder>``.
"""

import ast
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from compress.errors import CompressError, MissingPackage, did_you_mean, refuse


class Kind(NamedTuple):
    """A kind of plug-in: its folder in the package, its entry function, what else its modules must and may define.

    ``of_networks`` is the module of the kind in the folder of a small network, whose name is that of the plug-in.
    """

    folder: str
    entry: str
    also: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    of_networks: str = ""


KINDS: Mapping[str, Kind] = {
    "losses": Kind("training/losses", "loss", ("NEEDS",), ("STUDENT_NEEDS", "MEAN_OVER", "COMPUTES_IN")),
    "modifiers": Kind("training/modifiers", "attach"),
    "augmenters": Kind("training/augmenters", "augmenter"),
    "criteria": Kind("pruning/criteria", "importance"),
    "quantizers": Kind("quantization/quantizers", "quantize", ("WRITES",)),
    "runtimes": Kind("inference/runtimes", "start", ("OPENS", "DEVICES")),
    "architectures": Kind("training/architectures", "build", of_networks="build"),
    "exporters": Kind("exporting/exporters", "export", ("MODEL_TYPES",)),
    "baselines": Kind("benchmarking/baselines", "fit", ("start", "RUNTIME")),
    "competitors": Kind("benchmarking/competitors", "start", ("DEVICES", "REQUIRES")),
}
NETWORKS = "models/networks"  # a folder each

# What the constants of plug-ins may name, where they are literals.
CONSTANTS: Mapping[str, tuple[str, ...]] = {
    "NEEDS": ("logits", "exact", "classes", "labels", "targets", "first", "hidden", "attention", "mixed"),
    "STUDENT_NEEDS": ("hidden", "attention"),
    "MEAN_OVER": ("answers", "texts", "tokens", "pairs", "labels", "targets"),
    "COMPUTES_IN": ("float32", "run"),
    "WRITES": ("onnx", "torch"),
    "OPENS": ("onnx", "torch"),
    "DEVICES": ("cpu", "cuda"),
}

SINGULAR: Mapping[str, str] = {name: name.removesuffix("s") for name in KINDS} | {
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

    @property
    def is_own(self) -> bool:
        """Whether it is part of this package."""
        return _is_own(self.module)

    @property
    def called(self) -> str:
        """The plug-in as messages name it; one of another package with its module."""
        return _called(self.folder, self.name, self.module)

    def load(self) -> ModuleType:
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if self.is_own:
                raise MissingPackage(error) from None
            raise CompressError(f"{self.called} needs the Python package {error.name}; install it") from None

    @property
    def function(self) -> Callable[..., Any]:
        """The plug-in's entry function; this imports the module."""
        return cast(Callable[..., Any], getattr(self.load(), KINDS[self.folder].entry))

    def check(self, options: Mapping[str, Any]) -> list[str]:
        """Return every fault of the options as a sentence; an empty list when they are right."""
        called, known = self.called, self.parameters
        return [
            *(
                f"{called} has no option {key!r}; it has {', '.join(known) or 'none'}.{did_you_mean(key, known)}"
                for key in options
                if key not in known
            ),
            *(
                f"{called} needs {key!r} ({parameter.annotation})"
                for key, parameter in known.items()
                if parameter.required and key not in options
            ),
            *(
                f"{called}: {key} = {options[key]!r} is not of type {parameter.annotation}"
                for key, parameter in known.items()
                if key in options and not fits(options[key], parameter.annotation)
            ),
        ]


def names(folder: str) -> tuple[str, ...]:
    """Return the names in a plug-in folder, in order."""
    return tuple(sorted(_modules(folder)))


def find(folder: str, name: str, *, also: Iterable[str] = ()) -> Plugin:
    """Return a plug-in by the name a user types; ``-`` and ``_`` are the same.

    Args:
        also: further names that the caller takes, for the message.

    Raises:
        CompressError: there is none of that name.
    """
    modules = _modules(folder)
    key = name.replace("_", "-")
    if key not in modules:
        known = sorted([*modules, *also])
        raise CompressError(
            f"unknown {SINGULAR[folder]} {name!r}; there is {', '.join(known)}.{did_you_mean(key, known)}"
        )
    return _parse(folder, key, modules[key])


@cache
def _modules(folder: str) -> dict[str, str]:
    package, kind = Path(__file__).parent, KINDS[folder]
    files = {file.stem: file for file in package.glob(f"{kind.folder}/[!_]*.py")}
    if kind.of_networks:
        files |= {file.parent.name: file for file in package.glob(f"{NETWORKS}/*/{kind.of_networks}.py")}
    found = {
        name.replace("_", "-"): ".".join(file.relative_to(package.parent).with_suffix("").parts)
        for name, file in files.items()
    }
    for entry in entry_points(group=f"compress.{folder}"):
        name = entry.name.replace("_", "-")
        taken = f"{entry.value} offers the {SINGULAR[folder]} {entry.name!r}, which exists already; rename it"
        refuse((name in found, taken))
        found[name] = entry.module
    return found


@cache
def _parse(folder: str, name: str, module: str) -> Plugin:
    kind, called = KINDS[folder], _called(folder, name, module)
    try:
        tree = ast.parse(_source(called, module).read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise CompressError(f"{called} is no Python module: {error.msg} in line {error.lineno}") from None
    except ValueError:
        raise CompressError(f"{called} is no Python module: it is no text in UTF-8") from None
    defined = _defined(tree)
    missing = ", ".join(one for one in (kind.entry, *kind.also) if one not in defined)
    refuse(
        (missing, f"{called} does not define {missing}; CONTRIBUTING.md says what it must"),
        (
            isinstance(defined.get("NEEDS"), ast.ImportFrom),
            f"{called} imports NEEDS; write it out, as the file is read without importing it",
        ),
    )
    for constant in (one for one in (*kind.also, *kind.optional) if one in defined):
        allowed = CONSTANTS.get(constant)
        if allowed and (wrong := sorted(_strings(defined[constant]).difference(allowed))):
            raise CompressError(
                f"{called}: {constant} names {', '.join(wrong)}; it may name {', '.join(allowed)}."
                f"{did_you_mean(wrong[0], allowed)}"
            )
    entry = defined[kind.entry]
    if not isinstance(entry, ast.FunctionDef):
        raise CompressError(f"{called}: {kind.entry} is not a function of this module")
    pairs = zip(entry.args.kwonlyargs, entry.args.kw_defaults, strict=True)
    parameters = {
        argument.arg: Parameter(
            annotation=ast.unparse(argument.annotation) if argument.annotation else "Any",
            required=default is None,
            default=ast.unparse(default) if default is not None else "",
        )
        for argument, default in pairs
    }
    needs = _strings(defined["NEEDS"]) if "NEEDS" in defined else frozenset[str]()
    return Plugin(name, folder, module, ast.get_docstring(tree) or "", parameters, needs)


def _defined(tree: ast.Module) -> dict[str, ast.stmt]:
    """Return what a module defines at its top, by name: functions, constants, and what it imports by name."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
    return found


def _strings(node: ast.stmt) -> frozenset[str]:
    """Return the strings of a constant such as ``NEEDS = frozenset({...})``."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    parts = ast.walk(value) if value else ()
    return frozenset(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))


def _is_own(module: str) -> bool:
    return module.startswith("compress.")


def _called(folder: str, name: str, module: str) -> str:
    return f"{SINGULAR[folder]} {name!r}" + ("" if _is_own(module) else f" ({module})")


def _source(called: str, module: str) -> Path:
    """Return the file of a module. Python imports the packages around it, so that our own are found by their path."""
    if _is_own(module):
        return Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
    try:
        spec = importlib.util.find_spec(module)  # imports the packages around it
    except ModuleNotFoundError as error:
        if error.name and not f"{module}.".startswith(f"{error.name}."):
            raise CompressError(f"{called} needs the Python package {error.name}; install it") from None
        spec = None
    except Exception as error:
        raise CompressError(f"the package of {called} cannot be imported: {type(error).__name__}: {error}") from error
    if spec is None or spec.origin is None:
        raise CompressError(f"{called} names the module {module}, which is not installed")
    return Path(spec.origin)


def of_another_package(module: str) -> str:
    """Return how the plug-in of a module is called, or one of its package; empty where no other package has any."""
    for folder in () if _is_own(module) else KINDS:
        with suppress(CompressError):  # two of one name
            package = module.partition(".")[0]
            alike = [one for one in _modules(folder).items() if one[1].partition(".")[0] == package]
            if alike:
                return _called(folder, *min(alike, key=lambda one: one[1] != module))
    return ""


def fits(value: Any, annotation: str) -> bool:
    """Tell whether a TOML value fits an annotation such as ``int | float | None`` or ``list[int]``."""
    return any(_fits_one(value, part) for part in re.split(r" \| (?![^\[]*\])", annotation))


def _fits_one(value: Any, annotation: str) -> bool:
    name, _, inner = annotation.partition("[")
    if name in {"list", "tuple"}:
        inner = inner.removesuffix("]").removesuffix(", ...")
        return isinstance(value, list | tuple) and all(fits(item, inner) for item in value)
    if isinstance(value, bool):  # which Python counts as an int
        return name == "bool" or name not in TOML_TYPES
    return isinstance(value, TOML_TYPES.get(name, object))
