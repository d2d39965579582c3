"""Import stage: a label directory from a table that says of each text how probable its classes are.

Annotators' votes, the probabilities of a model that is not here, true logits, or labels. Probabilities become logits
that give them back; no logits give a probability of 0, so that it counts as ``LEAST_PROBABILITY``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compress.data import (
    ContentFingerprint,
    Example,
    FileSource,
    batched,
    data_entry,
    open_source,
    sort_labels,
)
from compress.data.examples import NUMBER, label_map, without_label
from compress.errors import CompressError, refuse
from compress.labelling.label_dir import SHARD_ROWS, LabelDir, write_shard
from compress.progress import logger
from compress.requests import FileList
from compress.requests.labelling import ImportLabels
from compress.tasks import Task, check_count, default, of_rows

LEAST_PROBABILITY = 1e-12
SUM_TOLERANCE = 0.01  # how far rounded probabilities may sum from 1
SHARE = "a number from 0 to 1"
MOST_CLASSES = 10_000  # as many as a file may have columns


def import_labels(request: ImportLabels) -> LabelDir:
    """Write a label directory from files whose columns say what each text is, and return it.

    Files are streamed, and read twice where they hold labels. Rows of the same text stay rows.

    Raises:
        CompressError: for a row without numbers, with numbers that are no probabilities, or with an unknown label.
    """
    files = request.files if isinstance(request.files, FileList) else (request.files,)
    columns = [*request.probabilities, *request.logits, *filter(None, [request.confidence])]
    opened: dict[str, Any] = {"role": "unlabeled", "values": columns, **request.columns}
    meanings = opened.pop("label_map")
    sources = [open_source(file, labelled=bool(request.label_column), **opened) for file in files]
    for source in sources:
        source.renamed = label_map(meanings) if meanings else None
    name = " + ".join(source.name for source in sources)
    with request.begin({}, files=sources, keep=False) as stage:
        classes, several = (
            _labels_of(sources) if request.label_column else (request.value_columns, request.several_labels)
        )
        task = of_rows([Example("", labels=())]) if several else default()
        refuse(
            (several and request.confidence, "--confidence is of one label, and these texts have several; leave it out")
        )
        classes = request.classes or classes
        if several:
            check_count(len(classes), f"different labels in {name}")
        refuse((len(classes) < 2, _one_class(classes)))
        texts, whole = ContentFingerprint(), ContentFingerprint()
        zeros = 0
        with request.progress("Importing", None) as advance:
            for number, rows in enumerate(batched(_read(sources), SHARD_ROWS)):
                logits, with_zeros = _as_logits(rows, request, classes, task)
                zeros += with_zeros
                plain = [*map(without_label, rows)]
                write_shard(stage.working, number, plain, logits, {"values": request.values}, task)
                for row, text in zip(rows, plain, strict=True):
                    texts.add(text)
                    whole.add(replace(text, tags=(*row.all_labels, *row.values)))
                advance(len(rows))
        refuse((not texts.rows, f"{name} holds no text; give a file with at least one row"))
        if zeros:
            logger.warning(
                "%s of %s rows give a class a probability below %g%s, which counts as that: losses that compare logits "
                "refuse these labels (--smoothing 0.01 gives every class a share)",
                f"{zeros:,}",
                f"{texts.rows:,}",
                LEAST_PROBABILITY,
                ", or as near to 1" if several else "",
            )
        stage.finish(
            kind="labels",
            labels=tuple(classes),
            task=task,
            data=(data_entry("unlabeled", name, texts),),
            notes={
                "values": request.values,
                "columns": list(request.value_columns),
                "confidence": request.confidence,
                "smoothing": request.smoothed,
                "values_sha256": whole.sha256(),
                "rows_with_zeros": zeros,
            },
        )
    for source in sources:
        logger.info("labels: %s", source.describe())
    return LabelDir.open(stage.output)


def _read(sources: Sequence[FileSource]) -> Iterator[Example]:
    for source, row in ((one, row) for one in sources for row in one):
        if source.of_words or row.tags is not None:
            raise CompressError(
                f"{row.where} holds words with tags, and imported labels are of whole texts; use others"
            )
        yield row


def _labels_of(sources: Sequence[FileSource]) -> tuple[tuple[str, ...], bool]:
    """Return the names of all labels, in order, and whether a text has several."""
    found, several = dict[str, None](), False
    for row in _read(sources):
        found.update(dict.fromkeys(row.all_labels))
        several = several or row.has_set
        if len(found) > MOST_CLASSES:
            raise CompressError(
                f"{row.where} has one label more than {MOST_CLASSES:,} different ones, which are the most: is "
                "--label-column the column of the labels?"
            )
    return sort_labels(found), several


def _one_class(classes: Sequence[str]) -> str:
    found = f"all labels are {classes[0]!r}" if classes else "no row has a label"
    return f"{found}; name all classes with --classes"


def _as_logits(
    rows: Sequence[Example], request: ImportLabels, classes: Sequence[str], task: Task
) -> tuple[np.ndarray, int]:
    """Return logits ``[N, C]`` float32, and how many rows give a class no probability, or all of it."""
    if request.values == "logits":
        logits = _numbers(rows, request.logits, lambda found: np.isfinite(found.astype(np.float32)), "a finite number")
        return logits.astype(np.float32), 0
    if request.label_column:
        probabilities = _from_labels(rows, request, classes, task)
    else:
        probabilities = _from_columns(rows, request)
    unread = np.asarray(task.probabilities(np.zeros((1, len(classes)))))  # of an answer that knows nothing
    probabilities = (1 - request.smoothed) * probabilities + request.smoothed * unread
    small = np.minimum(probabilities, 1 - probabilities) < LEAST_PROBABILITY
    logits = task.logits(np.clip(probabilities, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY))
    return logits.astype(np.float32), int(small.any(axis=1).sum())


def _from_columns(rows: Sequence[Example], request: ImportLabels) -> np.ndarray:
    """Return probabilities ``[N, C]`` of columns that hold these, or whole numbers: how often each class was chosen."""
    columns = request.probabilities
    if request.several_labels:
        return _numbers(rows, columns, lambda found: (found >= 0) & (found <= 1), SHARE)
    found = _numbers(rows, columns, lambda found: np.isfinite(found) & (found >= 0), "a number of 0 or more")
    sums = found.sum(axis=1)
    counted = (found == found.round()).all(axis=1)
    right = (sums > 0) & np.isfinite(sums) & (counted | (abs(sums - 1) <= SUM_TOLERANCE))
    if not right.all():
        row = int(np.argmin(right))
        raise CompressError(
            f"{rows[row].where} has values that sum to {sums[row]:g}; probabilities sum to 1, and counts are whole "
            "numbers of which one is above 0: name a column for every class, or divide each row by its sum, or give "
            "--several-labels where a text has several"
        )
    return np.asarray(found / sums[:, None])


def _from_labels(rows: Sequence[Example], request: ImportLabels, classes: Sequence[str], task: Task) -> np.ndarray:
    """Return probabilities ``[N, C]``: the confidence, or 1, for the label, and the rest evenly for the others."""
    held = task.members(task.column(task.gold(rows, classes, "the table")), len(classes))
    if not request.confidence:
        return held.astype(float)
    sure = _numbers(rows, [request.confidence], lambda found: (found >= 0) & (found <= 1), SHARE)
    return np.where(held, sure, (1 - sure) / (len(classes) - 1))


def _numbers(
    rows: Sequence[Example],
    columns: Sequence[str],
    allowed: Callable[[np.ndarray], np.ndarray],
    what: str,
) -> np.ndarray:
    """Return the values as numbers ``[N, columns]`` float64, all of them as ``allowed``."""
    cells = [row.values for row in rows]
    found = np.array([[cell if NUMBER.fullmatch(cell) else "nan" for cell in row] for row in cells], dtype=float)
    with np.errstate(all="ignore"):
        right = allowed(found)
    if not right.all():
        row, column = np.argwhere(~right)[0]
        raise CompressError(
            f"{rows[row].where} has {cells[row][column][:40]!r} in column {columns[column]!r}, and {what} is needed; "
            "correct or remove that row"
        )
    return found
