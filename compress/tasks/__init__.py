"""Tasks: what kind of answer a model gives. The folder is the registry, one file a task with its object ``TASK``.

Everything that differs between tasks is a method or an attribute of :class:`Task`, and stages call it. Adding a task is
one file and its tests. Nothing here imports NumPy before a task is looked for.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from compress.errors import did_you_mean, refuse

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from compress.data.examples import Example
    from compress.evaluation.metrics import Metric
    from compress.tasks._base import NO_LABEL as NO_LABEL
    from compress.tasks._base import Task as Task


# What a config says of a head; LEGAL_TAGS is ours, of taggers that were trained on legal tags of a scheme alone.
LEGAL_TAGS = "legal_tags"
HEAD_KEYS = ("id2label", "label2id", "problem_type", LEGAL_TAGS)
# Of texts with several labels, of entities, and of what a language model is asked for: each row has a number for each.
MOST_LABELS = 1000


def __getattr__(name: str) -> Any:
    if name in {"Task", "NO_LABEL"}:
        return getattr(importlib.import_module(f"{__name__}._base"), name)
    raise AttributeError(name)


@cache
def everything() -> Mapping[str, Task]:
    """Return all tasks by name, that of everything else last."""
    modules = (
        importlib.import_module(f"{__name__}.{one.name}")
        for one in pkgutil.iter_modules(__path__)
        if one.name[0] != "_"
    )
    found = sorted((module.TASK for module in modules), key=lambda task: (task.fallback, task))
    return {str(task): task for task in found}


def find_task(name: str) -> Task:
    """Return a task by its name in manifests.

    Raises:
        CompressError: there is none.
    """
    known = everything()
    refuse((name not in known, f"unknown task {name!r}; there is {', '.join(known)}.{did_you_mean(name, known)}"))
    return known[name]


def default() -> Task:
    """Return the task of models and rows that say nothing else."""
    return next(task for task in everything().values() if task.fallback)


def of_config(config: Mapping[str, Any]) -> Task:
    """Return the task of a ``config.json``."""
    return next(task for task in everything().values() if task.reads_config(config)).of_model(config)


def of_network(model: PreTrainedModel | type[PreTrainedModel]) -> Task:
    """Return the task of a model, by its class and its config; of a class alone, by its name."""
    if isinstance(model, type):
        return of_config({"architectures": [model.__name__]})
    return of_config({**model.config.to_dict(), "architectures": [type(model).__name__]})


def of_rows(rows: Sequence[Example]) -> Task:
    """Return the task that the labels of rows are for."""
    return next(task for task in everything().values() if task.reads_rows(rows))


def check_count(labels: int, what: str, check: str = "the column of labels and --label-separator") -> None:
    """Refuse more labels than :data:`MOST_LABELS`, and say what to check."""
    advice = f"leave out rare ones, or check {check}"
    refuse((labels > MOST_LABELS, f"there are {labels:,} {what}, and at most {MOST_LABELS:,} are learned; {advice}"))


def head_fields(config: object) -> dict[str, Any]:
    """Return what a config of transformers says of a head, for another model with the same answers."""
    return {name: getattr(config, name) for name in HEAD_KEYS if hasattr(config, name)}


def metrics_by_name() -> Mapping[str, Metric]:
    """Return the metrics of all tasks by name."""
    return {metric.name: metric for task in reversed([*everything().values()]) for metric in task.metrics}


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the labels of a ``config.json`` in the order of the logits."""
    if id2label := config.get("id2label"):
        return tuple(str(id2label[key]) for key in sorted(id2label, key=int))
    return tuple(f"LABEL_{index}" for index in range(int(config.get("num_labels", 2))))
