"""Whether rows are some that a model was fitted on, by the hashes in its manifest."""

from collections.abc import Collection, Iterable, Sequence

from compress.data import Example, content_sha256
from compress.data.examples import without_label
from compress.errors import CompressError
from compress.models.model_dir import ModelDir

FITTING_ROLES = ("train", "unlabeled")
TRAINING_ROLES = (*FITTING_ROLES, "validation")  # with those that chose a checkpoint


def check_unseen(
    models: Iterable[ModelDir],
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
    # A pool is fingerprinted without labels.
    fingerprints = {content_sha256(rows), content_sha256(map(without_label, rows))}
    for model in models:
        entries = (entry for entry in model.manifest.data if entry.get("role") in seen)
        if found := next((entry["role"] for entry in entries if entry.get("sha256") in fingerprints), None):
            raise CompressError(
                f"the {role} rows are the {found} rows of {model.path}, so that they would say nothing; "
                f"give rows that no model has seen with --{option or role}"
            )
