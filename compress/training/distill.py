"""Distillation stage: train a student to match its teacher."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, cast

from transformers import set_seed

from compress.data import Example, check_roles, grouped_split, row_key
from compress.inference.compute import resolve_device
from compress.inference.predict import check_gold
from compress.labelling.label import teacher_logits
from compress.labelling.label_dir import LabelDir, combine_labels, open_labels
from compress.models.manifest import is_whole
from compress.models.model_dir import ModelDir
from compress.progress import logger
from compress.recipes import Choice, Phase, resolved
from compress.requests.labelling import label
from compress.requests.training import Distill
from compress.tasks import Task
from compress.training.augmentation import augmented, one_of
from compress.training.build_student import build_student, try_student
from compress.training.distill_inputs import (
    check_foreign_labels,
    check_request,
    open_start,
    open_student,
    open_teacher,
    possible_phases,
)
from compress.training.finetune import encoder_of
from compress.training.phases import check_batch_sizes, fit, with_length
from compress.training.trainer import TrainingRun, summary
from compress.training.training_data import (
    Gold,
    LabelledPool,
    Selection,
    TrainingData,
    agreement_rows,
    check_held_out,
    held_out,
)

CONTROL_PHASES = (Phase((Choice("hard-label"),), name="control", text="gold"),)
CONTROL_HELD_OUT_SHARE = 0.1
POOL_FOLDER = "pool-labels"


def distill(request: Distill) -> ModelDir:
    """Train a student to match the teacher on unlabelled text, and return its directory.

    Where all labels are imported, the teacher gives tokenizer, start and hidden states, and no logits; a pretrained
    encoder without a head will do.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    # Open.
    labelled, unlabeled, progress = request.labelled, request.open_text(), request.progress
    labels, variants = open_labels(request.labels), open_labels(request.variants)
    opened = cast("list[LabelDir]", [*labels, *variants])
    model = open_teacher(request.teacher, opened)
    recipe = open_student(request.student)
    if request.max_length:
        recipe = replace(recipe, training=replace(recipe.training, max_length=request.max_length))
    start, recipe = (None, recipe) if request.start is None else open_start(request.start, recipe)
    compute = replace(request.compute, device=resolve_device(request.device))

    # Check, before any work.
    check_request(model, recipe, request, opened)
    label_dirs = [directory.for_model(model) for directory in opened]
    if request.combine:
        combined = len(labels)
        label_dirs = [combine_labels(label_dirs[:combined], request.weights), *label_dirs[combined:]]
    foreign = [directory for directory in label_dirs if directory.teacher_sha256 != model.sha256]
    for directory in foreign:
        logger.info("labels: %s, whose logits are not of %s", directory.teacher_name, model.name)
    validation, metric = labelled.validation, labelled.metric
    model.task.metric(metric, len(model.labels))  # refuses an unknown one
    tokenizer = model.tokenizer
    if start:
        start.check_vocabulary(tokenizer)
    pool: Any = unlabeled or LabelledPool(tuple(label_dirs))  # of no rows where all phases read gold ones
    roles = {"train": labelled.train, "unlabeled": pool if unlabeled or label_dirs else (), "validation": validation}
    checked = check_roles({role: rows for role, rows in roles.items() if rows}, labelled.overlap)
    if validation:
        logger.info("rows: %s", checked.describe())
    train = cast("Sequence[Example]", checked.sets.get("train", ()))
    # Gold rows are read once, with their labels, also where the pool holds their text.
    pool = checked.sets.get("unlabeled", pool).without(frozenset(map(row_key, train)))
    if request.rows:
        pool = pool.sample(request.rows)
    there = checked.rows.get("unlabeled", 0)
    pool_size = min(request.rows or there, there)
    if not validation and not request.control:
        check_held_out(pool, pool_size, has_others=bool(train))
    gold = Gold(train, model.task.gold(train, model.labels, "train"))
    selecting = Gold(validation, model.task.gold(validation, model.labels, "validation"))
    phases = CONTROL_PHASES if request.control else possible_phases(recipe, train)
    check_batch_sizes(recipe.training, phases)
    if not request.control:
        check_foreign_labels(model, phases, foreign, recipe.name)
    encoder = encoder_of(model, request.encoder) if any(phase.teacher == "encoder" for phase in phases) else None

    def teachers() -> dict[str, Any]:
        return {"task": model.load(), "encoder": encoder and encoder.with_head(model.labels, model.task)}

    def texts() -> Iterable[Example]:
        return chain(pool, train)

    built_from = replace(recipe, phases=phases)
    tried = try_student(built_from, teachers(), tokenizer, texts, model.task, selects=True)
    if start:
        start.give_body(tried)  # refuses another shape
    del tried
    if not foreign and not request.control:
        check_gold(model, train, "train", compute)
        check_gold(model, validation, "validation", compute)

    left_out = checked.left_out.get("unlabeled", {})
    with request.begin(
        {"teacher": model, "encoder": encoder, "start": start},
        data=checked.described(),
        dropped=left_out,
        student=recipe,
        labels=labels,
        variants=variants,
        unlabeled=unlabeled,
        train=train,
        validation=validation,
    ) as stage:
        # Label.
        if recipe.augmentation and unlabeled:
            # Without validation rows the pool's own select. There are at least so many; more hold out fewer of them.
            least = max(1, pool_size - len(train))
            selects = one_of(validation) if validation else partial(held_out, rows=least)
            pool = augmented(pool, recipe.augmentation, model, tokenizer, seed=compute.seed, held_out=selects)
        if unlabeled and not request.control:
            folder = stage.scratch / POOL_FOLDER
            if not is_whole(folder):
                label(model, pool, folder, device=request.device, threads=compute.threads, progress=progress)
            pool = LabelledPool((LabelDir.open(folder),))
        if train and not request.control:
            logits = teacher_logits(
                model, train, labels=label_dirs, complete=bool(foreign), compute=compute, progress=progress
            )
            gold = replace(gold, logits=logits)

        # Build.
        pool_rows = pool.rows if isinstance(pool, LabelledPool) else sum(1 for _ in pool)
        set_seed(compute.seed)
        networks = teachers()
        built, tokenizer, mixer = build_student(
            built_from, networks["task"], tokenizer, texts, seed=compute.seed, progress=progress
        )
        if start:
            start.give_body(built)

        # Train; a control, on its gold rows, takes as many steps.
        taught = None if request.control else pool
        taught, gold, selection = _with_selection(taught, gold, selecting, model.task, metric, compute.seed)
        rows = TrainingData(taught, gold, selection, planned_rows=pool_rows + len(train), texts=texts())
        run = TrainingRun(stage.working, recipe.training, model.task, compute, progress, "Distilling")
        outcomes = fit(built, tokenizer, rows, run, phases=phases, teachers=networks, mixer=mixer)
        tokenizer = with_length(tokenizer, outcomes[-1])

        # Write.
        own = pool.labels if isinstance(pool, LabelledPool) else ()
        stage.write_model(
            built,
            tokenizer,
            recipe=resolved(recipe),
            data=(*checked.described(), *(entry | left_out for part in own for entry in part.manifest.data)),
            metrics=(selection.score(outcomes[-1].best_score, model.task),),
            notes={
                "recipe": recipe.name,
                "control": request.control,
                "pool_rows": 0 if request.control else pool_rows,
                **({"labels_of": [directory.origin for directory in foreign]} if foreign else {}),
                **summary(outcomes),
            },
        )
    return ModelDir.open(stage.output)


def _with_selection(
    pool: Any, gold: Gold, validation: Gold, task: Task, metric: str | None, seed: int
) -> tuple[Any, Gold, Selection]:
    """Return the pool and the gold rows to train on, and the rows to select by: of validation, the pool or gold rows.

    Args:
        pool: text with the teacher's logits; None for a control.
        seed: of the draw of gold rows.
    """
    if validation.examples:
        return pool, gold, Selection(list(validation.rows()), "validation", metric)
    if pool is not None:
        return pool.part(held=False), gold, agreement_rows(pool, task)
    labels = dict(zip(gold.examples, gold.labels, strict=True))
    kept, held = (
        Gold(part, [labels[example] for example in part])
        for part in grouped_split(gold.examples, CONTROL_HELD_OUT_SHARE, seed=seed)
    )
    return None, kept, Selection(list(held.rows()), "slice of train", metric)
