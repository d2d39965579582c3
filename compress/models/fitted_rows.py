"""Whether rows are some that a model was fitted on, by the hashes in its manifest.

A manifest knows the sets of a training as wholes. Keys of single rows would tell more, and tell everybody who has the
model whether a text was among them. So rows of a set are recognised where this set itself is given here too.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from compress.data import Example, among, content_sha256, row_key, row_keys
from compress.data.examples import without_label
from compress.errors import CompressError, some_of
from compress.models.model_dir import Model
from compress.progress import logger

FITTING_ROLES = ("train", "unlabeled")
TRAINING_ROLES = (*FITTING_ROLES, "validation")  # with those that chose a checkpoint


def check_unseen(
    models: Iterable[Model],
    rows: Sequence[Example],
    role: str = "validation",
    seen: Collection[str] = FITTING_ROLES,
    *,
    option: str = "",
) -> None:
    """Refuse rows that a model has seen in one of these roles, with labels or without (DESIGN, decision 8).

    Args:
        option: what the rows are given with, if not with the option of their role.
    """
    for model in models:
        if found := _role_of(rows, model, seen):
            raise CompressError(
                f"the {role} rows are the {found} rows of {model.path}, so that they would say nothing; "
                f"give rows that no model has seen with --{option or role}"
            )


def tell_seen(
    models: Sequence[Model], rows: Sequence[Example], given: Mapping[str, Sequence[Example]], role: str = "test"
) -> None:
    """Say which rows are also in other sets that are given here, where a model was fitted on these or chosen by them.

    Args:
        given: these sets by role, whole.
    """
    keys = row_keys(rows)
    for name, own in given.items():
        numbers = (among(keys, map(row_key, own)).nonzero()[0] + 1).tolist()
        models_of = [model.name for model in models if _role_of(own, model, TRAINING_ROLES)] if numbers else []
        if models_of:
            logger.warning(
                "%s of the %s rows of %s (row %s) are in the %s rows that %s was made with: what is measured on them "
                "says nothing of new text",
                *(f"{len(numbers):,}", f"{len(rows):,}", role, some_of(numbers), name, some_of(models_of)),
            )


def _role_of(rows: Sequence[Example], model: Model, roles: Collection[str]) -> str | None:
    """Return in which of these roles a model has seen exactly these rows, as they were given or as they were used."""
    # A pool is fingerprinted without labels.
    fingerprints = [content_sha256(rows), content_sha256(map(without_label, rows))]
    entries = (entry for entry in model.manifest.data if entry["role"] in roles)
    hashes = ((entry["role"], entry.get(name)) for entry in entries for name in ("sha256", "given_sha256"))
    return next((role for role, found in hashes if found in fingerprints), None)
