"""Open the data sets of a study by role, cut the validation slice, and check overlap."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from compress.data import (
    Example,
    ExampleSource,
    TextSource,
    check_roles,
    content_sha256,
    describe_rows,
    grouped_split,
    join_sources,
    open_source,
    read_examples,
)
from compress.recipes import DataSet, StudyRecipe
from compress.studies.dataset_files import find_set
from compress.studies.journal import Stages

logger = logging.getLogger("compress")


@dataclass(frozen=True)
class StudyRows:
    """The rows of a study by role, checked for overlap; ``unlabeled`` is empty where a study only prunes."""

    train: Sequence[Example]
    validation: Sequence[Example]
    test: Sequence[Example]
    data_name: str
    unlabeled: TextSource = ExampleSource((), "unlabeled")

    @cached_property
    def unlabeled_sha256(self) -> str:
        """Fingerprint of the unlabelled text, which takes seconds of a large pool."""
        return content_sha256(self.unlabeled)

    def described(self) -> list[dict[str, Any]]:
        """Return what a stage that fits and selects was made from."""
        return describe_rows({"train": self.train, "validation": self.validation})


def open_rows(recipe: StudyRecipe, stages: Stages, root: Path | None) -> StudyRows:
    """Open the sets of a study and check that no row plays two roles."""
    data = recipe.data
    if data.corpus:
        from compress.studies.docstring_corpus import build_corpus

        stages.make(
            f"corpora/{data.corpus}",
            {"corpus": data.corpus, "seed": recipe.seed},
            partial(build_corpus, seed=recipe.seed),
        )
        root = stages.directory / "corpora"
    train = read_examples(_joined(data.train, root, "train"))
    if data.validation_slice:
        train, validation = grouped_split(train, data.validation_slice.share_of_train, seed=recipe.seed)
    else:
        validation = read_examples(_open(cast(DataSet, data.validation), root, "validation"))
    sources: dict[str, Sequence[Example] | TextSource] = {
        "train": train,
        "validation": validation,
        "test": read_examples(_joined(data.test, root, "test")),
    }
    if data.unlabeled:
        sources["unlabeled"] = _joined(data.unlabeled, root, "unlabeled")
    checked = check_roles(sources, drop_overlap=data.drop_overlap)
    logger.info("rows: %s", checked.describe())
    sets: dict[str, Any] = dict(checked.sets)
    return StudyRows(**sets, data_name=" + ".join(f"{part.set} {part.split}".strip() for part in _parts(data.test)))


def _parts(sets: DataSet | tuple[DataSet, ...]) -> tuple[DataSet, ...]:
    return sets if isinstance(sets, tuple) else (sets,)


def _joined(sets: DataSet | tuple[DataSet, ...], root: Path | None, role: str) -> TextSource:
    return join_sources([_open(part, root, role) for part in _parts(sets)])


def _open(part: DataSet, root: Path | None, role: str) -> TextSource:
    source = open_source(
        find_set(root, part.set, part.split or role),
        role=role,
        labelled=role != "unlabeled",
        text_column=part.text_column or None,
        text_pair_column=part.text_pair_column or None,
        label_column=part.label_column or None,
    )
    if part.rows:
        source = source.sample(part.rows)
    logger.info("%s: %s", role, source.describe())
    return source
