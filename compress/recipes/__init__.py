"""Recipes: the only configuration. TOML files become frozen dataclasses; every fault is reported at once."""

from compress.recipes.benchmark_settings import BenchmarkSettings
from compress.recipes.catalogue import (
    RECIPE_KINDS,
    Kind,
    folder,
    known_student,
    load_recipe,
    recipe_names,
)
from compress.recipes.parsing import Choice, deciding, parse, resolved
from compress.recipes.pruning import Pruning
from compress.recipes.student import (
    UNPUBLISHED,
    Augmentation,
    Phase,
    Published,
    StudentRecipe,
    Survey,
    Vocabulary,
    control_key,
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
from compress.recipes.training import (
    LEAST_MAX_LENGTH,
    MOST_MAX_LENGTH,
    ClassWeights,
    TeacherRecipe,
    Training,
    replace_training,
)

__all__ = [
    "Augmentation",
    "BenchmarkSettings",
    "Budget",
    "Choice",
    "ClassWeights",
    "DataSet",
    "Kind",
    "LEAST_MAX_LENGTH",
    "MOST_MAX_LENGTH",
    "Phase",
    "Pruning",
    "Published",
    "RECIPE_KINDS",
    "StudentRecipe",
    "StudyData",
    "StudyPrune",
    "StudyRecipe",
    "StudyStudent",
    "StudyTeacher",
    "Survey",
    "TeacherRecipe",
    "Training",
    "UNPUBLISHED",
    "Vocabulary",
    "control_key",
    "deciding",
    "folder",
    "in_phases",
    "known_student",
    "load_recipe",
    "needs_of",
    "of_phases",
    "parse",
    "recipe_names",
    "replace_training",
    "resolved",
]
