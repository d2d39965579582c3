"""Win back what was lost: a pruned model learns to say what the unpruned one says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.artifact import ModelDir
from compress.errors import CompressError
from compress.labels import LabelDir
from compress.recipes import Choice, Phase, Training
from compress.transfer import Gold, Lessons, Pool, Selection, agreement_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from compress.training import Outcome

RECOVERY = Training(epochs=1.0, learning_rate=5e-5, evaluations=8, patience=4)


def check_labels(source: ModelDir, label_dirs: Sequence[LabelDir], recover: float, validation: bool) -> None:
    """Refuse a recovery that has nothing to be selected by, and labels that nothing reads or another model made."""
    if recover and not validation and not label_dirs:
        raise CompressError(
            "--recover needs rows to select the checkpoint by; give --validation FILE, or --labels DIR"
        )
    if label_dirs and not recover:
        raise CompressError("--labels is for recovery, which was not asked for; add --recover 1")
    parents = source.manifest.parents if source.manifest else ()
    known = {source.sha256, *(str(parent["sha256"]) for parent in parents)}
    for directory in label_dirs:
        if directory.teacher_sha256 not in known:
            raise CompressError(
                f"{directory.path} was labelled by {directory.manifest.parents[0]['name']}, which is neither "
                f"{source.name} nor its teacher; label the text again with 'compress label --teacher ...'"
            )


def losses_of(recovery: str, head_size: int) -> tuple[Choice, ...]:
    """Return what ``--recovery`` names: logits, and beside them hidden states or the relations of tokens.

    As many relation heads as a head is wide divide any number of heads that a layer has left.
    """
    beside = {
        "logits": (),
        "hidden": (Choice("hidden-mse"),),
        "relations": (Choice("relations", options={"relation_heads": head_size}),),
    }
    return (Choice("logit-mse"), *beside[recovery])


def selection_for(pool: Pool | None, validation: Gold, metric: str, task: str) -> Selection:
    """Return what the recovered checkpoint is selected by."""
    if validation.examples:
        return Selection(list(validation.rows()), "validation", metric)
    assert pool is not None
    return agreement_rows(pool, task)


def recover(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    teacher: PreTrainedModel,
    lessons: Lessons,
    selection: Selection,
    *,
    epochs: float,
    losses: Sequence[Choice],
    training: Training,
    working: Path,
    **settings: Any,
) -> Outcome:
    """Train a pruned model, in place, to say what the unpruned ``teacher`` says, which reads the same tokens."""
    from compress.phases import Teachers, fit

    (outcome,) = fit(
        model, tokenizer, lessons, selection, phases=(Phase(tuple(losses)),), teachers=Teachers(teacher),
        training=replace(training, epochs=epochs), working=working, **settings,
    )  # fmt: skip
    return outcome
