"""Recipes as TOML: reading what was written gives the same recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compress import recipes
from compress.recipes.catalogue import student_toml


@pytest.mark.parametrize("name", recipes.recipe_names("students"))
def test_a_committed_student_is_read_back(name: str, tmp_path: Path) -> None:
    recipe = recipes.load_recipe("students", name)
    path = tmp_path / f"{name}.toml"
    path.write_text(student_toml(recipe), encoding="utf-8")
    assert recipes.load_recipe("students", str(path)) == recipe


def test_odd_characters_are_read_back(tmp_path: Path) -> None:
    recipe = replace(recipes.load_recipe("students", "ngram"), description='a "b" \\ \x7f\té\n', name="odd")
    (tmp_path / "odd.toml").write_text(student_toml(recipe), encoding="utf-8")
    assert recipes.load_recipe("students", str(tmp_path / "odd.toml")) == recipe
