"""Find the data sets of a study by name and open them by role; cut the validation slice and check overlap."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, cast

from compress.data import (
    Example,
    ExampleSource,
    TextSource,
    check_roles,
    grouped_split,
    join_sources,
    open_source,
    read_examples,
    row_key,
)
from compress.data.examples import label_map
from compress.data.formats.text_files import SPLITS
from compress.errors import CompressError, did_you_mean, refuse, some_of
from compress.progress import logger
from compress.recipes import DataSet, StudyRecipe
from compress.studies.journal import Stages


@dataclass(frozen=True)
class StudyRows:
    """The rows of a study by role, checked for overlap; ``unlabeled`` is empty where a study only prunes."""

    train: Sequence[Example]
    validation: Sequence[Example]
    test: Sequence[Example]
    data_name: str
    unlabeled: TextSource = ExampleSource((), "unlabeled")


def open_study_rows(recipe: StudyRecipe, stages: Stages, root: Path | None) -> StudyRows:
    """Open the sets of a study and check that no row plays two roles."""
    data = recipe.data
    if data.corpus:
        from compress.studies.docstring_corpus import SIZES, SUBJECTS, build_corpus

        stages.make(
            f"corpora/{data.corpus}",
            {"corpus": data.corpus, "subjects": SUBJECTS, "sizes": SIZES, "seed": recipe.seed},
            partial(build_corpus, seed=recipe.seed),
        )
        root = stages.directory / "corpora"
    train = read_examples(_joined(data.train, root, "train"))
    if data.validation_slice:
        train, validation = grouped_split(train, data.validation_slice.share_of_train, seed=recipe.seed)
    else:
        validation = read_examples(open_set(cast(DataSet, data.validation), root, "validation"))
    sources: dict[str, Sequence[Example] | TextSource] = {
        "train": train,
        "validation": validation,
        "test": read_examples(_joined(data.test, root, "test", recipe.benchmark.slice_columns)),
    }
    if data.unlabeled:
        sources["unlabeled"] = _joined(data.unlabeled, root, "unlabeled")
    checked = check_roles(sources, data.overlap)
    logger.info("rows: %s", checked.describe())
    sets: dict[str, Any] = dict(checked.sets)
    return StudyRows(**sets, data_name=" + ".join(f"{part.set} {part.split}".strip() for part in _several(data.test)))


def _several(sets: DataSet | tuple[DataSet, ...]) -> tuple[DataSet, ...]:
    return sets if isinstance(sets, tuple) else (sets,)


def _joined(
    sets: DataSet | tuple[DataSet, ...], root: Path | None, role: str, values: Sequence[str] = ()
) -> TextSource:
    return join_sources([open_set(part, root, role, values) for part in _several(sets)])


def open_set(part: DataSet, root: Path | None, role: str, values: Sequence[str] = ()) -> TextSource:
    """Open the rows of a set that a study names for a role, with the cells of these further columns as ``values``."""
    opened = open_source(
        find_set(root, part.set, part.split or role),
        role=role,
        labelled=role != "unlabeled",
        text_column=part.text_column or None,
        text_pair_column=part.text_pair_column or None,
        label_column=part.label_column or None,
        label_separator=part.label_separator or None,
        values=values,
    )
    if part.label_map and root is not None:
        opened.renamed = label_map(root / part.set / part.label_map)
    source: TextSource = opened
    if part.beyond:
        source = source.without(frozenset(map(row_key, source.sample(part.beyond))))
    if part.rows:
        source = source.sample(part.rows)
    logger.info("%s: %s", role, source.describe())
    return source


_NOT_DATA = re.compile(
    r"\..*|readme\.md|exclude_ids\.txt|mapping\.txt|categories\.json|domains\.json|.*_labels(\..*)?", re.IGNORECASE
)


def find_set(root: Path | None, set_name: str, split: str) -> Path:
    """Return the file (or the pattern of files with one label each) of a set's split.

    ``glue/SST-2`` is a folder below the root; ``sst_sentence_level/stsa.binary`` and ``clinc150/data_full`` are what
    file names in a folder start with. A file named exactly after the split wins over one that has it as a word of its
    name, and the split's own word (``dev``) over its synonyms (``val``, ``validation``). A file without a split in its
    name is found when it is the only one.

    Raises:
        CompressError: without a root, for a name that leaves it, for no or several matching files.
    """
    pure = PurePosixPath(set_name)
    if root is None:
        raise CompressError(
            f"The study needs the set {set_name!r}, but not where data lies: give --data-root or set COMPRESS_DATA."
        )
    leaves = not set_name or pure.is_absolute() or ".." in pure.parts or "\\" in set_name or ":" in set_name
    refuse(
        (leaves, f"The set name {set_name!r} is not a name below the data root, such as glue/SST-2."),
        (
            not re.fullmatch(r"\w[\w.-]*", split),
            f"The split {split!r} is not a name such as train, validation or test.",
        ),
        (not root.is_dir(), f"The data root {root} is not a folder: check --data-root and COMPRESS_DATA."),
    )
    folder, prefix = root / pure, ""
    if not folder.is_dir():
        folder, prefix = folder.parent, folder.name
    names = sorted(file.name for file in folder.iterdir() if file.is_file()) if folder.is_dir() else []
    files = {
        name: name[len(prefix) :].lower()
        for name in names
        if name.startswith(prefix)
        and not _NOT_DATA.fullmatch(name)
        and not (prefix and name[len(prefix) :][:1].isalnum())
    }
    found = _of_split(files, split.lower())
    closer = (PurePosixPath(set_name).parent if prefix else PurePosixPath(set_name)) / next(iter(found or files), "")
    known = [path.name for path in root.iterdir() if path.is_dir()]
    pattern = found[0] if len(found) == 1 else _pattern(found)
    refuse(
        (
            not files,
            f"There is no set {set_name!r} below the data root {root.name!r}: check the name, --data-root and "
            f"COMPRESS_DATA.{did_you_mean(set_name, known)}",
        ),
        (
            not found,
            f"The set {set_name!r} has no file for the split {split!r}; it has {some_of([*files])}: name the set more "
            f"closely, such as {closer}, or another split.",
        ),
        (
            not pattern,
            f"The split {split!r} of {set_name!r} may be any of {some_of(found)}: name the set more closely, such as "
            f"{closer}.",
        ),
    )
    return folder / pattern


def _of_split(files: Mapping[str, str], split: str) -> list[str]:
    """Return the files of the split, by the strictest rule that finds any; ``files`` by what tells them apart."""
    synonyms = next((names for names in SPLITS.values() if split in names), (split,))
    for words in ({split}, set(synonyms)):
        exact = [name for name, rest in files.items() if rest.lstrip("._-").split(".")[0] in words]
        if found := exact or [name for name, rest in files.items() if words & set(re.split(r"[^a-z0-9]+", rest))]:
            return found
    return [*files] if len(files) == 1 else []


def _pattern(names: list[str]) -> str:
    """Return one pattern for files that differ in their label only, such as ``sentiment.dev.0`` and ``.1``."""
    start = len(os.path.commonprefix(names))
    end = len(os.path.commonprefix([name[::-1] for name in names]))
    varying = [name[start : len(name) - end] for name in names]
    digits = all(part.isdigit() for part in varying) and end == 0
    words = all(part.isalpha() for part in varying) and start > 0 and end > 0 and len(names) > 2
    return f"{names[0][:start]}*{names[0][len(names[0]) - end :]}" if names and (digits or words) else ""
