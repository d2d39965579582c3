"""Distillation stage: train a student to match its teacher.

Labels from elsewhere are the only source of logits then: the teacher gives tokenizer, start and hidden states, and its
own logits never mix with them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from typing import Any, cast

from transformers import PreTrainedModel, set_seed

from compress import plugins
from compress.data import Example, check_roles, row_key
from compress.data.tokenization import maximum_length
from compress.data.windows import set_windows
from compress.errors import refuse
from compress.evaluation.ranking import tell_queries
from compress.fields import is_given
from compress.inference.compute import resolve_device
from compress.inference.predict import check_gold
from compress.labelling.label import label, teacher_logits
from compress.labelling.label_dir import LabelDir, combine_labels, open_labels
from compress.models.encoders import encoder_of, open_encoder
from compress.models.manifest import is_whole
from compress.models.model_dir import Model
from compress.progress import logger
from compress.recipes import Choice, Phase, StudentRecipe, load_recipe, of_phases, resolved
from compress.requests import AnyModel
from compress.requests.labelling import Label
from compress.requests.training import Distill
from compress.tasks import Task, find_task
from compress.training.build_student import build_student, try_student
from compress.training.phases import balance_of, check_batch_sizes, fit, with_length
from compress.training.trainer import TrainingRun, summary
from compress.training.training_data import (
    Gold,
    LabelledPool,
    Selection,
    augmented,
    check_held_out,
    held_out,
    one_of,
    with_selection,
)

CONTROL_PHASES = (Phase((Choice("hard-label"),), name="control", text="gold"),)
POOL_FOLDER = "pool-labels"


def distill(request: Distill) -> Model:
    """Train a student to match the teacher on unlabelled text, and return its directory.

    Where all labels are imported, the teacher gives tokenizer, start and hidden states, and no logits; a pretrained
    encoder without a head will do.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    # Open.
    labelled, progress = request.labelled, request.progress
    labels, variants = open_labels(request.labels), open_labels(request.variants)
    opened = cast("list[LabelDir]", [*labels, *variants])
    model = open_teacher(request.teacher, opened)
    if len(read_by := {str(one.manifest.notes.get("windows") or "") for one in opened}) == 1:
        model = model.with_windows(max(read_by) or None)  # gold rows are labelled as the others were
    if request.windows:
        longest = maximum_length(model.tokenizer, model.config)
        request.windows.check(model.path, longest, len(model.labels), by_word=model.task.by_word)
    unlabeled = request.open_text(read=model.task.row)
    recipe: StudentRecipe = load_recipe("students", request.student)
    recipe = replace(recipe, training=request.adjusted(recipe.training))
    start, recipe = (None, recipe) if request.start is None else open_start(request.start, recipe)
    compute = replace(request.compute, device=resolve_device(request.device))

    # Check, before any work.
    check_request(model, recipe, request, opened)
    label_dirs = [directory.for_model(model) for directory in opened]
    if request.combine:
        label_dirs = [combine_labels(label_dirs[: len(labels)], request.weights), *label_dirs[len(labels) :]]
    foreign = [directory for directory in label_dirs if directory.teacher_sha256 != model.sha256]
    for directory in foreign:
        logger.info("labels: %s, whose logits are not of %s", directory.teacher_name, model.name)
    validation, metric = labelled.validation, labelled.metric
    measure = model.task.metric(metric, model.labels)
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
    balance_of(recipe.training, model.task, gold.labels, model.labels)  # refuses what does not fit
    selecting = Gold(validation, model.task.gold(validation, model.labels, "validation"))
    if measure.ranks and validation:
        tell_queries(measure, model.task.column(selecting.labels), model.task.clusters(validation, measure))
    phases = CONTROL_PHASES if request.control else possible_phases(recipe, train)
    check_batch_sizes(recipe.training, phases)
    if not request.control:
        check_foreign_labels(model, phases, foreign, recipe.name)
    encoder = None
    if any(phase.teacher == "encoder" for phase in phases):
        encoder = open_encoder(request.encoder) if request.encoder is not None else encoder_of(model)

    def texts() -> Iterable[Example]:
        return chain(pool, train)

    built_from, tokenizer = replace(recipe, phases=phases), model.tokenizer
    set_seed(compute.seed)  # an encoder gets a random head
    network: Any = model.network.cpu()  # type: ignore[no-untyped-call, unused-ignore]  # wherever it ran before
    networks = {"task": network, "encoder": encoder and encoder.with_head(model.labels, model.task)}
    try_student(built_from, networks, tokenizer, texts, model.task, start=start, max_length=request.max_length)
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
            held = one_of(validation) if validation else partial(held_out, rows=max(1, pool_size - len(train)))
            pool = augmented(pool, recipe.augmentation, model, tokenizer, seed=compute.seed, held_out=held)
        if unlabeled and not request.control:
            folder = stage.scratch / POOL_FOLDER
            asked = Label(model, pool, folder, device=request.device, threads=compute.threads, progress=progress)
            pool = LabelledPool((LabelDir.open(folder) if is_whole(folder) else label(asked),))
        if train and not request.control:
            gold = replace(
                gold,
                logits=teacher_logits(
                    model, train, labels=label_dirs, complete=bool(foreign), compute=compute, progress=progress
                ),
            )

        # Build.
        pool_rows = pool.rows if isinstance(pool, LabelledPool) else sum(1 for _ in pool)
        set_seed(compute.seed)
        built, tokenizer, mixed_ids = build_student(
            built_from, network, tokenizer, texts, seed=compute.seed, start=start, progress=progress
        )

        set_windows(built.config, request.windows)

        # Train; a control, on its gold rows, takes as many steps.
        labelled_pool = None if request.control else pool
        rows = with_selection(labelled_pool, gold, selecting, model.task, metric, compute.seed)
        rows = replace(rows, planned_rows=pool_rows + len(train), texts=texts())
        run = TrainingRun(stage.working, recipe.training, model.task, compute, progress, "Distilling")
        outcomes = fit(built, tokenizer, rows, run, phases=phases, teachers=networks, mixed_ids=mixed_ids)
        tokenizer = with_length(tokenizer, outcomes[-1])

        # Write.
        own = pool.labels if isinstance(pool, LabelledPool) else ()
        stage.write_model(
            built,
            tokenizer,
            recipe=resolved(recipe),
            data=(*checked.described(), *(entry | left_out for part in own for entry in part.manifest.data)),
            metrics=(cast(Selection, rows.selection).score(outcomes[-1].best_score, model.task),),
            notes={
                "recipe": recipe.name,
                "control": request.control,
                "pool_rows": 0 if request.control else pool_rows,
                **({"labels_of": [directory.origin for directory in foreign]} if foreign else {}),
                **summary(outcomes),
            },
        )
    return Model.open(stage.output)


@dataclass(frozen=True)
class BareEncoder(Model):
    """A pretrained encoder in the place of a teacher, with a random head of the classes that imported labels have."""

    classes: tuple[str, ...] = ()
    labelled_for: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        return self.classes

    @property
    def task(self) -> Task:
        return find_task(self.labelled_for)

    def load(self, *, plain: bool = False) -> PreTrainedModel:
        return cast(PreTrainedModel, self.with_head(self.classes, self.task).eval())


def open_teacher(path: AnyModel, labels: Sequence[LabelDir]) -> Model:
    """Open a teacher; where no labels are of a model here, a pretrained encoder will do, or the recipe that has it."""
    if not labels or any(directory.teacher_sha256 for directory in labels):
        return Model.open(path)
    opened = open_encoder(path, trainable=False)
    if opened.is_classifier:
        return Model.open(opened.path, verify=False)
    given = labels[0].manifest
    return BareEncoder(opened.path, opened.manifest, classes=given.labels, labelled_for=given.task)


def open_start(start: AnyModel, recipe: StudentRecipe) -> tuple[Model, StudentRecipe]:
    """Open the output of ``compress pretrain``; return the recipe without the phases that have run there.

    The other phases keep their steps.
    """
    opened = Model.open(start, classifier=False)
    pretrained = opened.manifest.stage == "pretrain"
    done = opened.manifest.recipe["phases"] if pretrained else ()
    left = [phase for phase in recipe.phases if resolved(phase) not in done]
    refuse(
        (
            not pretrained,
            f"{start} was not made by 'compress pretrain', which --start needs; to start from another checkpoint use a "
            "student of the architecture checkpoint",
        ),
        (
            recipe.learns_vocabulary("WordPiece"),
            f"the student {recipe.name!r} learns a vocabulary of its own, which {opened.path} does not read; leave "
            "--start out",
        ),
        (not left, f"{opened.path} has gone through all phases of the student {recipe.name!r} already"),
    )
    for phase in recipe.phases:
        if phase not in left:
            logger.info("phase %s: done in %s", phase.name or "without a name", opened.name)
    return opened, replace(of_phases(recipe, left), vocabulary=None)


def possible_phases(recipe: StudentRecipe, train: Sequence[Example]) -> tuple[Phase, ...]:
    """Return the phases of a recipe; without gold rows those that use nothing else are left out, with a warning.

    There is also a warning where a loss on gold labels, beside other losses, has no effect.
    """
    if train:
        return recipe.phases
    for phase in recipe.phases:
        gold = [choice.name for choice in phase.losses if "labels" in plugins.find("losses", choice.name).needs]
        of_phase = f"the phase {phase.name} of {recipe.name}" if phase.name else recipe.name
        if reads_gold_alone(phase):
            logger.warning("%s learns from gold rows and there are none (--train FILE): it is left out", of_phase)
        elif gold:
            logger.warning("%s: no gold rows (--train FILE), so that %s adds nothing", of_phase, ", ".join(gold))
    return tuple(phase for phase in recipe.phases if not reads_gold_alone(phase))


def reads_gold_alone(phase: Phase) -> bool:
    return phase.text == "gold" or phase.needs == {"labels"}


def check_request(model: Model, recipe: StudentRecipe, request: Distill, opened: Sequence[LabelDir]) -> None:
    control, train, student = request.control, is_given(request.train), f"the student {recipe.name!r}"
    has_pool, has_validation = is_given(request.unlabeled), is_given(request.validation)
    has_text, reads_pool = has_pool or opened, recipe.reads_pool or recipe.vocabulary
    losses = () if control else [plugins.find("losses", choice.name) for choice in recipe.losses]
    learns_gold = control or "labels" in recipe.needs
    balanced = recipe.training.class_weights or recipe.training.logit_adjustment
    no_gold = f"{student} has no such loss; use one that has, such as q8bert, or fine-tune the teacher with them"
    refuse(
        (
            not has_text and (reads_pool or not train),
            "distill needs text: give --unlabeled FILE, which it labels first, or --labels DIR",
        ),
        (
            not has_text and not has_validation and not control,
            "without unlabelled text the best checkpoint is selected by labelled rows; give --validation FILE",
        ),
        (  # the text of phases that have run plans the steps of those that are left
            has_pool and has_validation and not reads_pool and not request.start,
            f"no phase of {student} reads unlabelled text; leave --unlabeled out",
        ),
        *(
            (need in loss.needs, f"{student} {reason.format(loss=loss.name, model=model.name)}")
            for loss in losses
            for need, reason in model.task.unfit_losses.items()
        ),
        (
            request.encoder is not None and not control and all(phase.teacher != "encoder" for phase in recipe.phases),
            f"no phase of {student}{' that --start leaves' * bool(request.start)} reads the encoder; leave --encoder "
            "out",
        ),
        *(
            (
                directory.teacher_sha256 not in {model.sha256, ""} and not request.combine,
                f"{directory.path} was labelled by another teacher ({directory.teacher_name}) than {model.name}; label "
                "the text again with 'compress label --teacher ...', or average several teachers of the same text with "
                "--combine mean",
            )
            for directory in opened
        ),
        (
            request.labels and recipe.augmentation and not request.variants,
            f"{student} varies the text before the teacher labels it, so that it cannot use finished labels; give the "
            "text with --unlabeled FILE",
        ),
        (
            not control and not train and all(map(reads_gold_alone, recipe.phases)),
            f"{student} learns from gold labels, and there are none; give --train FILE",
        ),
        (
            balanced and not (learns_gold and train),
            "class weights and logit adjustment change the loss on gold labels, and "
            f"{'there are none; give --train FILE' if learns_gold else no_gold}",
        ),
    )


def check_foreign_labels(model: Model, phases: Sequence[Phase], labels: Sequence[LabelDir], student: str) -> None:
    """Refuse phases that need logits which labels from elsewhere do not hold.

    Raises:
        CompressError: the model would have to say something of a changed text, or a loss compares logits and the labels
            have probabilities of 0.
    """
    for phase, directory in product(phases, labels):
        refuse(
            (
                "mixed" in phase.needs or phase.masking and "logits" in phase.needs,
                f"the student {student!r} learns from the logits of changed text (masked, or in two vocabularies), and "
                f"{directory.path} holds logits that are not of {model.name}, which cannot label that text; use a "
                "student without it, such as distilbert-6",
            ),
            *(
                (
                    directory.has_zeros and "exact" in plugins.find("losses", choice.name).needs,
                    f"the student {student!r} compares logits (the loss {choice.name}), and {directory.path} has "
                    "classes with a probability of 0, whose logit is minus infinity; import the file again with "
                    "--smoothing 0.01, which gives every class a share, or use a student that learns by kl, such as pd",
                )
                for choice in phase.losses
            ),
        )
