"""Recipes: the only configuration. TOML files become frozen dataclasses; every fault is reported at once."""

import dataclasses
import json
import os
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from compress.errors import CompressError, did_you_mean
from compress.files import read_toml
from compress.recipes.benchmark_settings import BenchmarkSettings
from compress.recipes.parsing import Choice, parse
from compress.recipes.pruning import Pruning
from compress.recipes.student import (
    Augmentation,
    Phase,
    Published,
    StudentRecipe,
    Survey,
    Vocabulary,
    in_phases,
    needs_of,
    of_phases,
)
from compress.recipes.study import (
    Budget,
    DataSet,
    StudyData,
    StudyPrune,
    StudyRecipe,
    StudyStudent,
    StudyTeacher,
)
from compress.recipes.training import TeacherRecipe, Training, replace_training

__all__ = [
    "Augmentation",
    "BenchmarkSettings",
    "Budget",
    "Choice",
    "DataSet",
    "Kind",
    "Phase",
    "Pruning",
    "Published",
    "StudentRecipe",
    "StudyData",
    "StudyPrune",
    "StudyRecipe",
    "StudyStudent",
    "StudyTeacher",
    "Survey",
    "TeacherRecipe",
    "Training",
    "Vocabulary",
    "deciding",
    "folder",
    "in_phases",
    "load_file",
    "load_recipe",
    "recipe_names",
    "needs_of",
    "of_phases",
    "parse",
    "replace_training",
    "resolved",
]

Kind = Literal["teachers", "students", "benchmarks"]
RECIPE_KINDS: Mapping[str, type] = {"teachers": TeacherRecipe, "students": StudentRecipe, "benchmarks": StudyRecipe}
PROSE = frozenset(("description", "paper", "missing", "limits", "published", "survey"))
# Keys that recipes did not have before: where they are empty a study that was begun then goes on.
LATER = frozenset(("beyond", "package_graph", "package_like"))
RECIPE_SINGULAR: Mapping[str, str] = {"teachers": "teacher", "students": "student", "benchmarks": "study"}
RECIPE_COMMANDS: Mapping[str, str] = {
    "teachers": "compress finetune --teacher",
    "students": "compress distill --student",
    "benchmarks": "compress run",
}


def folder(kind: Kind) -> Path:
    """Return where the recipes of a kind lie: in the installed package, else beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "_recipes" / kind
    return installed if installed.is_dir() else package.parent / kind


def recipe_names(kind: Kind) -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in folder(kind).glob("*.toml")))


def load_recipe(kind: Kind, name_or_path: str) -> Any:
    """Read a recipe by name, or from a ``.toml`` file.

    Raises:
        CompressError: no such recipe (with a did-you-mean), or every fault of the file at once.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = folder(kind) / f"{name_or_path}.toml"
        if name_or_path not in recipe_names(kind):
            there = recipe_names(kind)
            raise CompressError(
                f"unknown {RECIPE_SINGULAR[kind]} {name_or_path!r}; there is {', '.join(there)}, or give a .toml file."
                f"{did_you_mean(name_or_path, there)}"
            )
    if not os.path.exists(path):
        raise CompressError(
            f"{name_or_path} does not exist; {RECIPE_SINGULAR[kind]} recipes here: {', '.join(recipe_names(kind))}"
        )
    table = read_toml(path)
    if (other := _kind_of(table, kind)) != kind:
        raise CompressError(
            f"{path.name} is the recipe of a {RECIPE_SINGULAR[other]}, which '{RECIPE_COMMANDS[other]}' takes; give "
            f"that of a {RECIPE_SINGULAR[kind]} here"
        )
    if kind == "benchmarks" and "like" in table:
        table = {**_study_like(table["like"], path.name), **table}
        del table["like"]
    return parse(RECIPE_KINDS[kind], {**table, "name": path.stem}, source=path.name)


def known_student(name: str) -> StudentRecipe | None:
    """Return the student recipe of a name; None where there is none here, or where it has since been broken."""
    if name not in recipe_names("students"):  # names come from result files, and no other file is opened
        return None
    try:
        found: StudentRecipe = load_recipe("students", name)
    except CompressError:
        return None
    return found


def load_file(path: str) -> Any:
    """Read a recipe file of any kind: that of which it has most keys. The recipe is called what the file is.

    Raises:
        CompressError: there is no such file, or as :func:`load_recipe`.
    """
    kind = _kind_of(read_toml(Path(path)))
    return dataclasses.replace(load_recipe(typing.cast(Kind, kind), path), name=path)


def _kind_of(table: Mapping[str, Any], likely: str = "") -> str:
    """Return the kind of recipe of which a table has most keys, of several the likely one."""
    known = {kind: {f.name for f in dataclasses.fields(of)} for kind, of in RECIPE_KINDS.items()}
    known["benchmarks"].add("like")
    return max(known, key=lambda kind: (len(known[kind] & set(table)), kind == likely))


def _study_like(name: Any, source: str) -> dict[str, Any]:
    """Read the study that another one names with ``like``, which has all that the other does not say."""
    there = recipe_names("benchmarks")
    if name not in there:
        raise CompressError(
            f"{source} has 1 fault: like = {name!r} is no study; there is {', '.join(there)}."
            f"{did_you_mean(str(name), there)}"
        )
    table = read_toml(folder("benchmarks") / f"{name}.toml")
    if "like" in table:
        raise CompressError(f"{source} has 1 fault: like = {name!r} is itself like another; name {table['like']!r}")
    return table


def resolved(recipe: Any) -> dict[str, Any]:
    """Return a recipe as plain JSON values, for the manifest."""
    return typing.cast(dict[str, Any], json.loads(json.dumps(dataclasses.asdict(recipe))))


def deciding(recipe: Any) -> dict[str, Any]:
    """Return what of a recipe or a set decides the model: all but what is only there for people to read."""
    known = resolved(recipe).items()
    return {key: value for key, value in known if key not in PROSE and (value or key not in LATER)}
