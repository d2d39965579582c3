"""Whether rows are some that a model was fitted on, by the hashes in its manifest."""

from collections.abc import Collection, Sequence

from compress.data import Example, content_sha256
from compress.data.examples import without_label
from compress.errors import CompressError
from compress.models.model_dir import ModelDir

FITTING_ROLES = ("train", "unlabeled")


def fitted_role(model: ModelDir, fingerprints: Collection[str], roles: Collection[str]) -> str | None:
    """Return the role, one of ``roles``, that data with one of these hashes had when a model was made."""
    entries = (entry for entry in model.manifest.data if entry.get("role") in roles)
    return next((str(entry["role"]) for entry in entries if entry.get("sha256") in fingerprints), None)


def check_unseen(model: ModelDir, rows: Sequence[Example], what: str, option: str) -> None:
    """Refuse rows that a model was trained on, with labels or without."""
    # A pool is fingerprinted without labels.
    fingerprints = {content_sha256(rows), content_sha256(map(without_label, rows))}
    if role := fitted_role(model, fingerprints, FITTING_ROLES):
        raise CompressError(
            f"{what} are the {role} rows of {model.name}, so that they would say nothing; give other rows with {option}"
        )
