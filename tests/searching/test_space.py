"""The search space: every point is a recipe that its architecture takes, and that a file keeps."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from compress import plugins, recipes
from compress.recipes import Pruning
from compress.recipes.catalogue import student_toml
from compress.searching.making import pruning_of
from compress.searching.space import FAMILIES, Shape, committed, space_for
from compress.searching.trials import RUNGS

MINILM = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
BERT = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
DISTILBERT = {"n_layers": 6, "dim": 768, "n_heads": 12, "hidden_dim": 3072}
TINY = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}


def drawn(count: int, config: dict[str, int] = MINILM) -> list[Shape]:
    draw, space = Random(0), space_for(config)
    families = [draw.choice(list(space)) for _ in range(count)]
    return [
        Shape(
            family, {name: draw.choice(values) for name, values in space[family].items()}, draw.choice(("fp32", "int8"))
        )
        for family in families
    ]


@pytest.mark.parametrize("shape", drawn(40), ids=lambda shape: shape.key)
def test_a_point_is_a_recipe_that_a_file_keeps_or_a_pruning(shape: Shape, tmp_path: Path) -> None:
    if shape.is_pruned:
        assert Pruning(**pruning_of(shape, 0)).recover == RUNGS[0]  # which is refused where something is wrong with it
        return
    recipe = shape.recipe()
    plugin = plugins.find("architectures", recipe.architecture.name)
    assert not [*recipe.faults()] and not plugin.check(recipe.architecture.options)
    (tmp_path / "best.toml").write_text(student_toml(recipe))
    assert recipes.resolved(recipes.load_recipe("students", str(tmp_path / "best.toml"))) == recipes.resolved(recipe)


@pytest.mark.parametrize("config", [MINILM, BERT, DISTILBERT, TINY])
def test_widths_are_multiples_of_the_heads_and_at_most_the_teachers(config: dict[str, int]) -> None:
    layers, width, heads, inner = config.values()
    values = space_for(config)["transformer"]
    assert (
        all(not size % heads and 0 < size <= width for size in values["hidden_size"]) and width in values["hidden_size"]
    )
    assert all(0 < depth < layers for depth in values["depth"]) and inner in values["ffn_size"]
    for options in space_for(config).values():
        assert all(len(set(own)) == len(own) for own in options.values())


def test_a_teacher_without_layers_has_students_of_the_other_families() -> None:
    assert list(space_for({"model_type": "fnet"})) == ["cnn", "ngram", "bilstm"]


@pytest.mark.parametrize("config", [MINILM, BERT])
def test_a_search_begins_with_the_committed_recipes(config: dict[str, int]) -> None:
    *recipes_of, pruned = committed(space_for(config))
    assert pruned.is_pruned and pruned.options == {"layers": "", "heads": "50%", "ffn": "50%"}
    assert pruned.name == "pruned int8, heads 50%, ffn 50%"
    for shape in recipes_of:
        base = recipes.load_recipe("students", FAMILIES[shape.family].recipe)
        options: dict[str, Any] = {**base.architecture.options}
        made = shape.recipe()
        assert {name: made.architecture.options[name] for name in options} == {
            name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
        }
        assert made.training == base.training and made.phases == base.phases and made.vocabulary == base.vocabulary
    defaults = {shape.family: shape.options for shape in committed(space_for(config))}
    assert defaults["cnn"]["second_filters"] == 0 and defaults["cnn"]["pooling"] == "max"
    assert defaults["transformer"] == {
        "depth": 3,
        "hidden_size": config["hidden_size"],
        "ffn_size": config["intermediate_size"],
        "vocabulary": 0,
    }


def test_shapes_have_keys_of_their_own() -> None:
    first = committed(space_for(MINILM))[0]
    assert first.key == Shape(first.family, dict(reversed(first.options.items())), "int8").key
    assert first.key != Shape(first.family, first.options, "fp32").key
    assert "int8" in first.name and "embedding_size 300" in first.name
