"""Every name that the package offers is there, and is the function or class of the module that defines it."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import compress

LAZY = compress._LAZY


@pytest.mark.parametrize("name", LAZY)
def test_a_public_name_is_what_its_module_defines(name: str) -> None:
    found = getattr(compress, name)
    assert found is getattr(importlib.import_module(LAZY[name]), name)
    assert callable(found) and found.__name__ == name
    assert found.__module__ == LAZY[name] or found.__module__.startswith(f"{LAZY[name]}.")


def test_public_names_are_those_that_can_be_imported() -> None:
    assert sorted(compress.__all__) == sorted({*LAZY, "CompressError", "__version__"})


def test_type_checkers_see_every_public_name_where_it_is_defined() -> None:
    source = Path(compress.__file__).read_text(encoding="utf-8")
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in found for alias in node.names}
    assert {name: seen.get(name) for name in LAZY} == LAZY


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'distil'"):
        compress.distil  # noqa: B018
