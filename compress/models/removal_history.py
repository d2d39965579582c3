"""Read the removals of a pruned model from its manifest."""

from collections.abc import Mapping
from typing import Any

from compress.errors import CompressError
from compress.models.model_dir import ModelDir

# What compress prune takes, and what there is less of then.
REMOVALS: Mapping[str, str] = {
    "vocabulary": "word pieces",
    "layers": "layers",
    "heads": "heads",
    "neurons": "neurons",
    "hidden": "hidden dimensions",
}
NOT_REMOVALS = ("nothing", "recovery")


def removals_of(model: ModelDir) -> tuple[str, ...]:
    """Return what compress prune took from a model, in turn; nothing where its manifest does not say.

    Raises:
        CompressError: the manifest says what no compress prune writes.
    """
    return tuple(removal for removal, _ in _shapes(model))


def _shapes(model: ModelDir) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each removal with the config of what it left; the last one's is that of the model."""
    shapes = model.manifest.notes.get("shapes", [])
    if not isinstance(shapes, list) or not all(map(_is_shape, shapes)):
        raise CompressError(
            f"the manifest of {model.path} notes shapes that no 'compress prune' writes; make the model again"
        )
    return [(shape["removal"], shape["config"]) for shape in shapes if shape["removal"] in REMOVALS]


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, dict)
        and shape.get("removal") in (*REMOVALS, *NOT_REMOVALS)
        and isinstance(shape.get("config"), dict)
    )
