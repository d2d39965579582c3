"""Import stage: a label directory from a table that says of each text how probable its classes are.

Annotators' votes, the probabilities of a model that is not here, true logits, or one label a text. Probabilities become
``log p`` minus its mean over the classes: ``softmax`` gives them back, and whoever gave them, equal probabilities have
equal logits. No logits give a probability of 0, so that it counts as ``LEAST_PROBABILITY``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from compress.data import (
    ContentFingerprint,
    Example,
    FileSource,
    LabelIndex,
    batched,
    data_entry,
    open_source,
    sort_labels,
)
from compress.data.examples import NUMBER
from compress.errors import CompressError, did_you_mean, refuse
from compress.labelling.label_dir import SHARD_ROWS, LabelDir, write_shard
from compress.progress import logger
from compress.requests import FileList
from compress.requests.labelling import ImportLabels
from compress.tasks import default

LEAST_PROBABILITY = 1e-12
SUM_TOLERANCE = 0.01  # how far rounded probabilities may sum from 1
MOST_CLASSES = 10_000  # as many as a file may have columns


def import_labels(request: ImportLabels) -> LabelDir:
    """Write a label directory from files whose columns say what each text is, and return it.

    Files are streamed, and read twice where the labels' names have to be found. Rows of the same text stay rows.

    Raises:
        CompressError: for a row without numbers, with numbers that are no probabilities, or with an unknown label.
    """
    files = request.files if isinstance(request.files, FileList) else (request.files,)
    columns = (*request.value_columns, *([request.confidence] if request.confidence else []))
    opened = {"role": "unlabeled", "labelled": False, "values": columns, **request.columns}
    sources = [open_source(file, **opened) for file in files]
    name = " + ".join(source.name for source in sources)
    with request.begin({}, files=sources, keep=False) as stage:
        classes = request.classes or (_labels_of(sources) if request.label else request.value_columns)
        texts, whole = ContentFingerprint(), ContentFingerprint()
        zeros = 0
        with request.progress("Importing", None) as advance:
            for number, rows in enumerate(batched(_read(sources), SHARD_ROWS)):
                logits, with_zeros = _as_logits(rows, request, classes)
                zeros += with_zeros
                write_shard(stage.working, number, rows, logits, {"values": request.values}, default())
                for row in rows:
                    texts.add(row)
                    whole.add(replace(row, tags=row.values))
                advance(len(rows))
        refuse((not texts.rows, f"{name} holds no text; give a file with at least one row"))
        if zeros:
            logger.warning(
                "%s of %s rows give a class a probability below %g, which counts as that: losses that compare logits "
                "refuse these labels (--smoothing 0.01 gives every class a share)",
                f"{zeros:,}",
                f"{texts.rows:,}",
                LEAST_PROBABILITY,
            )
        stage.finish(
            kind="labels",
            labels=tuple(classes),
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
        if source.of_words or row.tags is not None or not row.values:
            raise CompressError(
                f"{row.where} holds words with tags, and imported labels are of whole texts; use others"
            )
        yield row


def _labels_of(sources: Sequence[FileSource]) -> tuple[str, ...]:
    """Return the names of the labels in the first of the values' columns, in order."""
    found = dict[str, None]()
    for row in _read(sources):
        found.setdefault(row.values[0])
        if not row.values[0] or len(found) > MOST_CLASSES:
            what = "no label" if not row.values[0] else f"the {len(found):,}th different label"
            raise CompressError(f"{row.where} has {what}: name the column of the labels with --label")
    refuse((len(found) == 1, f"all labels are {next(iter(found), '')!r}; name all classes with --classes"))
    return sort_labels(found)


def _as_logits(rows: Sequence[Example], request: ImportLabels, classes: Sequence[str]) -> tuple[np.ndarray, int]:
    """Return logits ``[N, C]`` float32, and how many rows give a class no probability."""
    if request.values == "logits":
        logits = _numbers(
            rows, request.value_columns, lambda found: np.isfinite(found.astype(np.float32)), "a finite number"
        )
        return logits.astype(np.float32), 0
    make = _from_labels if request.values == "labels" else _from_columns
    probabilities = make(rows, request, classes)
    probabilities = (1 - request.smoothed) * probabilities + request.smoothed / len(classes)
    small = probabilities < LEAST_PROBABILITY
    logits = np.log(np.maximum(probabilities, LEAST_PROBABILITY))
    return (logits - logits.mean(axis=-1, keepdims=True)).astype(np.float32), int(small.any(axis=1).sum())


def _from_columns(rows: Sequence[Example], request: ImportLabels, classes: Sequence[str]) -> np.ndarray:
    """Return probabilities ``[N, C]`` of columns that hold these, or whole numbers: how often each class was chosen."""
    found = _numbers(
        rows, request.value_columns, lambda found: np.isfinite(found) & (found >= 0), "a number of 0 or more"
    )
    sums = found.sum(axis=1)
    counted = (found == found.round()).all(axis=1)
    right = (sums > 0) & np.isfinite(sums) & (counted | (abs(sums - 1) <= SUM_TOLERANCE))
    if not right.all():
        row = int(np.argmin(right))
        raise CompressError(
            f"{rows[row].where} has values that sum to {sums[row]:g}; probabilities sum to 1, and counts are whole "
            "numbers of which one is above 0: name a column for every class, or divide each row by its sum"
        )
    return np.asarray(found / sums[:, None])


def _from_labels(rows: Sequence[Example], request: ImportLabels, classes: Sequence[str]) -> np.ndarray:
    """Return probabilities ``[N, C]``: the confidence, or 1, for the label, and the rest evenly for the others."""
    index = LabelIndex(classes)
    labels = [index.find(row.values[0]) for row in rows]
    if -1 in labels:
        row = rows[labels.index(-1)]
        raise CompressError(
            f"{row.where} has the label {row.values[0]!r}, which is none of {', '.join(classes[:10])}"
            f"{', ...' * (len(classes) > 10)}; correct it, or name all classes with --classes"
            f"{did_you_mean(row.values[0], classes)}"
        )
    sure = np.ones(len(rows))
    if request.confidence:
        what = "a number from 0 to 1"
        sure = _numbers(rows, [request.confidence], lambda found: (found >= 0) & (found <= 1), what, skipped=1)[:, 0]
    probabilities = np.repeat((1 - sure)[:, None] / (len(classes) - 1), len(classes), axis=1)
    probabilities[np.arange(len(rows)), labels] = sure
    return probabilities


def _numbers(
    rows: Sequence[Example],
    columns: Sequence[str],
    allowed: Callable[[np.ndarray], np.ndarray],
    what: str,
    skipped: int = 0,
) -> np.ndarray:
    """Return the values after those ``skipped`` as numbers ``[N, columns]`` float64, all of them as ``allowed``."""
    cells = [row.values[skipped:] for row in rows]
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
