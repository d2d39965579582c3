"""Audit stage: judge labels, copies and classes of labelled rows, before anything is trained on them.

Rows of all roles are judged together, each by a logistic regression that was fitted on other rows: five folds, which do
not part near copies. Its features are tf-idf of one and two words, or embeddings of an encoder as it is, of a pair
``[u, v, |u - v|, u * v]``. Rows of words or scores have no classes: only their copies are found.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from compress import tasks
from compress.auditing.copies import Repeats, describe, find_copies
from compress.auditing.label_errors import FOLDS, assign_folds, confused_pairs, cross_validated, find_suspects
from compress.benchmarking.baselines import _linear_head, tfidf
from compress.data import Example, content_sha256, describe_rows
from compress.data.near_copies import SIMILAR
from compress.data.tokenization import check_one_kind
from compress.errors import refuse
from compress.evaluation.metrics import Array, interval, score
from compress.files import write_atomically, write_json_lines
from compress.inference.compute import resolve_device
from compress.inference.embeddings import embeddings
from compress.inference.threads import using_threads
from compress.models.encoders import open_encoder
from compress.models.model_dir import Model
from compress.reporting.audit_page import audit_page
from compress.reporting.pages import as_csv, write_study
from compress.requests.measuring import Audit
from compress.tasks import Task

AUDIT_NAME, LABELS_NAME, COPIES_NAME, POOL_NAME = "audit.json", "labels.csv", "copies.csv", "unlabeled.jsonl"
ROLES = ("train", "validation", "test")


def audit(request: Audit) -> Path:
    """Write ``audit.json``, the page about it, and lists of suspect labels and of copies; return the directory.

    Raises:
        CompressError: for anything about the request that the user can correct.
    """
    roles = {role: rows for role in ROLES if (rows := request.read(role))}
    labelled = [row for each in roles.values() for row in each]
    task, encoder = tasks.of_rows(labelled), open_encoder(request.encoder) if request.encoder else None
    if encoder:
        _check_unseen(encoder, roles)
    if pool := request.open_text(read=task.row):
        roles["unlabeled"] = list(pool)
    rows = [row for each in roles.values() for row in each]
    check_one_kind(rows, by_word=task.by_word)
    judges = task.has_classes and not task.by_word
    labels = task.new_labels(roles["train"], labelled[len(roles["train"]) :]) if judges else ()
    given = describe_rows(roles)
    places = [
        {"role": role, "row": number, "where": row.where}
        for role, each in roles.items()
        for number, row in enumerate(each, 1)
    ]
    with (
        using_threads(request.threads),
        request.begin({"encoder": encoder}, data=given, keep=False, **dict.fromkeys(roles)) as stage,
    ):
        with request.progress("Finding copies", None):
            repeats, groups = find_copies(roles)
        content: dict[str, Any] = {
            "task": str(task),
            "rows": {role: len(each) for role, each in roles.items()},
            "features": encoder.name if encoder else "tf-idf",
            "seed": request.seed,
            "similarity": SIMILAR,
            "copies": [describe(one, rows) for one in repeats],
            "copied_rows": [one for each in repeats for one in _copied(each, places, rows)],
            "labels": None,
        }
        if judges:
            answers = task.column(task.gold(labelled, labels, "the rows"))
            folds = assign_folds(groups[: len(labelled)], answers, request.seed)
            different = len(np.unique(folds))
            refuse(
                (
                    different < FOLDS,
                    f"there are {different} rows that are no copies of each other; give {FOLDS} or more",
                )
            )
            features = _features(labelled, encoder, request)
            with request.progress("Fitting classifiers", None):
                logits = cross_validated(features, answers, task, len(labels), folds)
            content["labels"] = _judged(logits, answers, task, labels, places)
        write_study(content, partial(audit_page, rows=rows), stage.working / AUDIT_NAME)
        # The tables of the page have its first rows; these have all, and no text.
        for name, listed in (
            (LABELS_NAME, (content["labels"] or {}).get("suspects", [])),
            (COPIES_NAME, content["copied_rows"]),
        ):
            heading = list(listed[0]) if listed else []
            write_atomically(stage.working / name, as_csv([heading, *(one.values() for one in listed)]))
        if pool:
            write_json_lines(stage.working / POOL_NAME, _kept(repeats, rows, len(roles["unlabeled"])))
        stage.finish(kind="audit", task=task, labels=labels, recipe={"features": content["features"]})
    return stage.output


def _check_unseen(encoder: Model, roles: Mapping[str, Sequence[Example]]) -> None:
    seen = {entry.get(key) for entry in encoder.manifest.data for key in ("sha256", "given_sha256")}
    role = next((role for role, rows in roles.items() if content_sha256(rows) in seen), "")
    refuse(
        (
            role,
            f"{encoder.name} has learned from the rows of {role}, and repeats their labels, also wrong ones: give the "
            "encoder that it was fine-tuned from with --encoder",
        )
    )


def _features(rows: Sequence[Example], encoder: Model | None, request: Audit) -> Any:
    """Return the features of rows ``[N, D]``, dense or sparse."""
    if encoder is None:
        return tfidf.counted(rows)[1]
    sides = _linear_head.sides(rows)
    device = resolve_device(request.device)
    with request.progress("Running the encoder", len(sides) * len(rows)) as advance:
        return _linear_head.pair_features([embeddings(encoder, side, device=device, advance=advance) for side in sides])


def _copied(repeats: Repeats, places: Sequence[Mapping[str, Any]], rows: Sequence[Example]) -> list[dict[str, Any]]:
    columns = (repeats.rows.tolist(), repeats.copies.tolist(), repeats.similarities.tolist())
    return [
        {
            **places[row],
            **{f"copy_{key}": value for key, value in places[copy].items()},
            "similarity": round(alike, 4),
            "label": "|".join(rows[row].all_labels),
            "copy_label": "|".join(rows[copy].all_labels),
        }
        for row, copy, alike in zip(*columns, strict=True)
    ]


def _kept(repeats: Sequence[Repeats], rows: Sequence[Example], count: int) -> Iterator[dict[str, str]]:
    """Yield the last ``count`` rows, the pool, without those that repeat one of validation, test or the pool."""
    left_out = {
        row for one in repeats if one.role == "unlabeled" and one.within != "train" for row in one.rows.tolist()
    }
    for number, row in enumerate(rows[len(rows) - count :], len(rows) - count):
        if number not in left_out:
            yield {"text": row.text} | ({} if row.text_pair is None else {"text_pair": row.text_pair})


def _judged(
    logits: Array, answers: Array, task: Task, labels: Sequence[str], places: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what out-of-fold logits ``[N, C]`` say of gold answers ``[N]``."""
    chances = np.asarray(task.probabilities(logits))
    held, metric = task.members(answers, len(labels)), task.metric(None, labels)
    suspects, predicted = find_suspects(chances, answers), task.predictions(logits)
    pairs, judged, few = confused_pairs(chances, held)

    def name(label: int, number: int) -> str:
        if suspects.label is None:
            return labels[label]
        return f"{'' if label else 'not '}{labels[suspects.label[number]]}"

    low, high = interval(predicted, answers, metric=metric, classes=len(labels))
    listed = [
        {
            **places[row],
            "given": name(suspects.given[number], number),
            "suggested": name(suspects.suggested[number], number),
            "given_probability": round(float(suspects.given_chance[number]), 4),
            "suggested_probability": round(float(suspects.suggested_chance[number]), 4),
        }
        for number, row in enumerate(suspects.rows.tolist())
    ]
    return {
        "metric": metric.name,
        "value": score(predicted, answers, metric=metric, classes=len(labels)),
        "low": low,
        "high": high,
        "decisions": len(answers) * (1 if suspects.label is None else len(labels)),
        "estimated": suspects.estimated,
        "suspects": listed,
        "pairs_judged": judged,
        "pairs_of_few_rows": few,
        "pairs": [pair | {key: labels[pair[key]] for key in ("first", "second")} for pair in pairs],
    }
