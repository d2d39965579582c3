"""Distillation stage: train a student to match its teacher."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, cast

from transformers import set_seed

from compress import plugins, recipes
from compress.data import (
    Example,
    check_roles,
    grouped_split,
    row_key,
)
from compress.errors import CompressError
from compress.inference.compute import resolve_device
from compress.inference.predict import check_gold
from compress.labelling.label import label, teacher_logits
from compress.labelling.label_dir import LabelDir, combine_labels, open_labels
from compress.models.model_dir import ModelDir
from compress.models.pretrained import check_vocabulary, load_body, load_classifier
from compress.models.resumption import is_whole
from compress.progress import logger
from compress.recipes import Choice, Phase, StudentRecipe, of_phases, resolved
from compress.requests import Model, is_given
from compress.requests.training import Distill
from compress.tasks import Task
from compress.training.augmentation import augmented, one_of
from compress.training.build_student import build_student, try_student
from compress.training.finetune import encoder_of
from compress.training.phases import check_batch_sizes, fit, keep_length
from compress.training.teaching_labels import check_foreign_labels, open_teacher
from compress.training.trainer import TrainingRun, summary
from compress.training.training_data import (
    Gold,
    LabelledPool,
    Selection,
    TrainingData,
    TrainingRow,
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
    labelled, unlabeled, progress = request.labelled, request.open_text(), request.progress
    labels, variants = open_labels(request.labels), open_labels(request.variants)
    opened = cast("list[LabelDir]", [*labels, *variants])
    model = open_teacher(request.teacher, opened)
    recipe = open_student(request.student)
    if request.max_length:
        recipe = replace(recipe, training=replace(recipe.training, max_length=request.max_length))
    pretrained = None
    if request.start is not None:
        pretrained, recipe = _pretrained(request.start, recipe)
    _check_request(model, recipe, request, opened)
    label_dirs = [directory.for_model(model) for directory in opened]
    if request.combine:
        combined = len(labels)
        label_dirs = [combine_labels(label_dirs[:combined], request.weights), *label_dirs[combined:]]
    foreign = [directory for directory in label_dirs if directory.teacher_sha256 != model.sha256]
    for directory in foreign:
        logger.info("labels: %s, whose logits are not of %s", directory.teacher_name, model.name)
    validation = labelled.validation
    compute = replace(request.compute, device=resolve_device(request.device))
    model.task.metric(labelled.metric, len(model.labels))  # refuses an unknown one before the work
    tokenizer = model.load_tokenizer()
    if pretrained:
        check_vocabulary(pretrained, tokenizer)
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
    gold = Gold(train, model.task.gold(train, model.labels, "train"))
    selecting = Gold(validation, model.task.gold(validation, model.labels, "validation"))
    there = checked.rows.get("unlabeled", 0)
    pool_size = min(request.rows or there, there)
    if not validation and not request.control:
        check_held_out(pool, pool_size, has_others=bool(train))
    described = checked.described()
    left_out = checked.left_out.get("unlabeled", {})
    phases = CONTROL_PHASES if request.control else possible_phases(recipe, train)
    check_batch_sizes(recipe.training, phases)
    if not request.control:
        check_foreign_labels(model, phases, foreign, recipe.name)
    built_from = replace(recipe, phases=phases)
    encoder = encoder_of(model, request.encoder) if any(phase.teacher == "encoder" for phase in phases) else None

    def teachers() -> dict[str, Any]:
        general = load_classifier(encoder, model.labels, model.task) if encoder else None
        return {"task": model.load(), "encoder": general}

    tried = try_student(built_from, teachers(), tokenizer, lambda: chain(pool, train), model.task, selects=True)
    if pretrained:
        load_body(tried, pretrained)  # refuses another shape
    del tried
    if not foreign and not request.control:
        for role, rows in (("train", train), ("validation", validation)):
            check_gold(model, rows, role, compute)
    with request.begin(
        {"teacher": model, "encoder": encoder, "start": pretrained},
        data=described,
        dropped=left_out,
        student=recipe,
        labels=labels,
        variants=variants,
        unlabeled=unlabeled,
        train=train,
        validation=validation,
    ) as stage:
        if recipe.augmentation and unlabeled:
            # Without validation rows the pool's own select. There are at least so many; more hold out fewer of them.
            least = max(1, pool_size - len(train))
            selects = one_of(validation) if validation else partial(held_out, rows=least)
            pool = augmented(pool, recipe.augmentation, model, tokenizer, seed=compute.seed, held_out=selects)
        if unlabeled and not request.control:
            folder = stage.scratch / POOL_FOLDER
            if not is_whole(folder):
                label(model, pool, folder, compute=compute, progress=progress)
            pool = LabelledPool((LabelDir.open(folder),))
        if train and not request.control:
            logits = teacher_logits(
                model, train, labels=label_dirs, complete=bool(foreign), compute=compute, progress=progress
            )
            gold = replace(gold, logits=logits)
        pool_rows = pool.rows if isinstance(pool, LabelledPool) else sum(1 for _ in pool)
        planned_rows = pool_rows + len(gold.examples)  # the control's too: as many steps
        taught = None if request.control else pool
        training_data, selection = _training_rows(taught, gold, selecting, model.task, labelled.metric, compute.seed)
        set_seed(compute.seed)
        networks = teachers()
        built, tokenizer, mixer = build_student(
            built_from,
            networks["task"],
            tokenizer,
            lambda: chain(pool, train),
            seed=compute.seed,
            progress=progress,
        )
        if pretrained:
            load_body(built, pretrained)
        outcomes = fit(
            built,
            tokenizer,
            replace(training_data, selection=selection, planned_rows=planned_rows, texts=chain(pool, train)),
            TrainingRun(stage.working, recipe.training, model.task, compute, progress, "Distilling"),
            phases=phases,
            teachers=networks,
            mixer=mixer,
        )
        keep_length(tokenizer, outcomes[-1])
        labelled_by = pool.labels if isinstance(pool, LabelledPool) else ()
        stage.write_model(
            built,
            tokenizer,
            recipe=resolved(recipe),
            data=(*described, *(entry | left_out for directory in labelled_by for entry in directory.manifest.data)),
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


def open_student(student: Any) -> StudentRecipe:
    """Return the recipe of a student, given itself, by its name or as a file."""
    if isinstance(student, StudentRecipe):
        return student
    return cast(StudentRecipe, recipes.load_recipe("students", os.fspath(student)))


def _pretrained(start: Model, recipe: StudentRecipe) -> tuple[ModelDir, StudentRecipe]:
    """Open the output of ``compress pretrain``; return the recipe without the phases that have run there.

    The other phases keep their steps.
    """
    opened = ModelDir.open(start, classifier=False)
    if opened.manifest.stage != "pretrain":
        raise CompressError(
            f"{start} was not made by 'compress pretrain', which --start needs; to start from another checkpoint use a "
            "student of the architecture checkpoint"
        )
    if recipe.vocabulary:
        raise CompressError(
            f"the student {recipe.name!r} learns a vocabulary of its own, which {opened.path} does not read; "
            "leave --start out"
        )
    left = [phase for phase in recipe.phases if resolved(phase) not in opened.manifest.recipe["phases"]]
    if not left:
        raise CompressError(f"{opened.path} has gone through all phases of the student {recipe.name!r} already")
    for phase in recipe.phases:
        if phase not in left:
            logger.info("phase %s: done in %s", phase.name or "without a name", opened.name)
    return opened, of_phases(recipe, left)


def possible_phases(recipe: StudentRecipe, train: Sequence[Example]) -> tuple[Phase, ...]:
    """Return the phases of a recipe; without gold rows those that use nothing else are left out, with a warning.

    There is also a warning where a loss on gold labels, beside other losses, has no effect.
    """
    if train:
        return recipe.phases
    left = []
    for phase in recipe.phases:
        gold = [choice.name for choice in phase.losses if "labels" in plugins.find("losses", choice.name).needs]
        of_phase = f"the phase {phase.name} of {recipe.name}" if phase.name else recipe.name
        if phase.text == "gold" or phase.needs == {"labels"}:
            logger.warning("%s learns from gold rows and there are none (--train FILE): it is left out", of_phase)
            continue
        if gold:
            logger.warning("%s: no gold rows (--train FILE), so that %s adds nothing", of_phase, ", ".join(gold))
        left.append(phase)
    return tuple(left)


def _training_rows(
    pool: Any, gold: Gold, validation: Gold, task: Task, metric: str | None, seed: int
) -> tuple[TrainingData, Selection]:
    """Return the rows to train on and the rows to select by: validation rows, else a part of the pool or of gold rows.

    Args:
        pool: text with the teacher's logits; None for a control.
        seed: of the draw of gold rows.
    """
    if validation.examples:
        return TrainingData(pool, gold), Selection(list(validation.rows()), "validation", metric)
    if pool is not None:
        return TrainingData(pool.part(held=False), gold), agreement_rows(pool, task)
    kept, held = grouped_split(gold.examples, CONTROL_HELD_OUT_SHARE, seed=seed)
    labels: dict[Example, Any] = dict(zip(gold.examples, gold.labels, strict=True))
    selection = Selection([TrainingRow(e, None, labels[e]) for e in held], "slice of train", metric)
    return TrainingData(None, Gold(kept, [labels[e] for e in kept])), selection


def _check_request(model: ModelDir, recipe: StudentRecipe, request: Distill, opened: Sequence[LabelDir]) -> None:
    """Refuse what this teacher and this student do not allow."""
    control, train, encoder = request.control, is_given(request.train), request.encoder
    has_pool, validation = is_given(request.unlabeled), is_given(request.validation)
    if not has_pool and not opened:
        if recipe.reads_pool or recipe.vocabulary or not train:
            raise CompressError("distill needs text: give --unlabeled FILE, which it labels first, or --labels DIR")
        if not validation and not control:
            raise CompressError(
                "without unlabelled text the best checkpoint is selected by labelled rows; give --validation FILE"
            )
    reads_text = recipe.reads_pool or recipe.vocabulary or request.start  # whose phases read it, and it plans the steps
    if has_pool and validation and not reads_text:
        raise CompressError(f"no phase of the student {recipe.name!r} reads unlabelled text; leave --unlabeled out")
    for choice in () if control else recipe.losses:
        needs = plugins.find("losses", choice.name).needs
        for reason in (reason for need, reason in model.task.unfit_losses.items() if need in needs):
            said = reason.format(loss=choice.name, model=model.name)
            raise CompressError(f"the student {recipe.name!r} {said}")
    if encoder is not None and not control and all(phase.teacher != "encoder" for phase in recipe.phases):
        left = " that --start leaves" if request.start else ""
        raise CompressError(f"no phase of the student {recipe.name!r}{left} reads the encoder; leave --encoder out")
    for directory in opened:
        if directory.teacher_sha256 not in {model.sha256, ""} and not request.combine:
            raise CompressError(
                f"{directory.path} was labelled by another teacher ({directory.teacher_name}) than {model.name}; label "
                "the text again with 'compress label --teacher ...', or average several teachers of the same text with "
                "--combine mean"
            )
    if request.labels and recipe.augmentation and not request.variants:
        raise CompressError(
            f"the student {recipe.name!r} varies the text before the teacher labels it, so that it cannot use "
            "finished labels; give the text with --unlabeled FILE"
        )
    if not control and not train and all(phase.text == "gold" or phase.needs == {"labels"} for phase in recipe.phases):
        raise CompressError(
            f"the student {recipe.name!r} learns from gold labels, and there are none; give --train FILE"
        )
