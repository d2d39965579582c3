"""Distillation stage: train a student to match its teacher."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

from transformers import set_seed

from compress import plugins, recipes
from compress.data import (
    Example,
    LabelledData,
    TextSource,
    check_roles,
    encode_gold,
    grouped_split,
    row_key,
)
from compress.errors import CompressError
from compress.evaluation.metrics import find_metric
from compress.inference.compute import Compute, resolve_device
from compress.inference.predict import check_gold
from compress.labelling.label import label, teacher_logits
from compress.labelling.label_dir import LabelDir, combine_labels, open_labels
from compress.models.model_dir import ModelDir
from compress.models.output_dir import keep_apart, places_of
from compress.models.pretrained import check_vocabulary, load_body, load_classifier
from compress.models.resumption import is_whole
from compress.models.stage import Stage
from compress.progress import Progress, logger, silent
from compress.recipes import Choice, Phase, StudentRecipe, deciding, of_phases, resolved
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


@dataclass(frozen=True)
class DistillationData:
    """Text and labels of a distillation.

    Args:
        unlabeled: text that is labelled first; or ``labels``, label directories of this teacher, or imported ones with
            its classes. A recipe all of whose phases read gold rows needs neither.
        labels: directories, or their paths.
        combine: ``mean`` where ``labels`` are of several teachers of the same texts, in the same order; otherwise they
            add up, and are of one teacher or imported.
        weights: of each of the ``labels`` that are combined; by default the same.
        variants: with ``labels``, label directories of the variants that the recipe's augmentation makes of that text.
        labelled: ``train`` are trained on with the teacher's logits too (from ``labels`` where they hold them), and
            losses that read gold labels use these. ``validation`` selects the best checkpoint; without any it is
            selected by agreement with the teacher on held-out text of the pool.
        rows: of the text without labels, so many are read, spread evenly; 0 for all.
    """

    unlabeled: TextSource | None = None
    labels: Sequence[LabelDir | str | Path] = ()
    combine: Literal["", "mean"] = ""
    weights: Sequence[float] = ()
    variants: Sequence[LabelDir | str | Path] = ()
    labelled: LabelledData = LabelledData()
    rows: int = 0


@dataclass(frozen=True)
class DistillationOptions:
    """Pretrained models that a distillation uses beside the teacher, and whether it trains the control.

    Args:
        encoder: the pretrained model that the teacher was fine-tuned from, or its recipe, for phases with this teacher;
            by default the one that the teacher's manifest names.
        start: output of ``compress pretrain`` for the same student: it starts from these weights, with the head that
            its architecture gives it, and runs the later phases.
        control: train the control instead: the same student, from the same start, planned for the same number of steps,
            on the gold labels of ``train`` alone (selected on a slice of it when there is no ``validation``).
        max_length: tokens that texts are cut to, instead of what the recipe says.
    """

    encoder: str | Path | None = None
    start: str | Path | None = None
    control: bool = False
    max_length: int = 0


def distill(
    teacher: ModelDir | str | Path,
    student: StudentRecipe | str,
    output: str | Path,
    data: DistillationData,
    *,
    options: DistillationOptions = DistillationOptions(),
    compute: Compute = Compute(),
    force: bool = False,
    progress: Progress = silent,
) -> ModelDir:
    """Train a student to match the teacher on unlabelled text, and return its directory.

    Args:
        teacher: a classifier. Where all labels are imported, it gives tokenizer, start and hidden states, and no
            logits; a pretrained encoder without a head will do.
        student: a recipe, or its name or file.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    data = replace(data, labels=open_labels(data.labels), variants=open_labels(data.variants))
    opened = cast("list[LabelDir]", [*data.labels, *data.variants])
    model = open_teacher(teacher, opened)
    recipe = recipes.load_recipe("students", student) if isinstance(student, str) else student
    if options.max_length:
        recipe = replace(recipe, training=replace(recipe.training, max_length=options.max_length))
    pretrained = None
    if options.start is not None:
        pretrained, recipe = _pretrained(options.start, recipe)
    _check_request(model, recipe, data, options)
    keep_apart(places_of(output), [directory.path for directory in opened])
    label_dirs = [directory.for_model(model) for directory in opened]
    if data.combine:
        combined = len(data.labels)
        label_dirs = [combine_labels(label_dirs[:combined], data.weights), *label_dirs[combined:]]
    foreign = [directory for directory in label_dirs if directory.teacher_sha256 != model.sha256]
    for directory in foreign:
        logger.info("labels: %s, whose logits are not of %s", directory.teacher_name, model.name)
    unlabeled, labelled, validation = data.unlabeled, data.labelled, data.labelled.validation
    compute = replace(compute, device=resolve_device(compute.device))
    find_metric(labelled.metric, task=model.task, classes=len(model.labels))  # refuses an unknown one before the work
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
    if data.rows:
        pool = pool.sample(data.rows)
    gold = Gold(train, encode_gold(train, model.labels, task=model.task, name="train"))
    selecting = Gold(validation, encode_gold(validation, model.labels, task=model.task, name="validation"))
    there = checked.rows.get("unlabeled", 0)
    pool_size = min(data.rows or there, there)
    if not validation and not options.control:
        check_held_out(pool, pool_size, has_others=bool(train))
    described = checked.described()
    left_out = checked.left_out.get("unlabeled", {})
    phases = CONTROL_PHASES if options.control else possible_phases(recipe, train)
    check_batch_sizes(recipe.training, phases)
    if not options.control:
        check_foreign_labels(model, phases, foreign, recipe.name)
    built_from = replace(recipe, phases=phases)
    encoder = encoder_of(model, options.encoder) if any(phase.teacher == "encoder" for phase in phases) else None

    def teachers() -> dict[str, Any]:
        general = load_classifier(encoder, model.labels, model.task) if encoder else None
        return {"task": model.load(), "encoder": general}

    tried = try_student(built_from, teachers(), tokenizer, lambda: chain(pool, train), model.task, selects=True)
    if pretrained:
        load_body(tried, pretrained)  # refuses another shape
    del tried
    if not foreign and not options.control:
        for role, rows in (("train", train), ("validation", validation)):
            check_gold(model, rows, role, compute)
    with Stage.begin(
        "distill",
        output,
        parents={"teacher": model, "encoder": encoder, "start": pretrained},
        settings={
            "recipe": deciding(recipe),
            "control": options.control,
            "labels": [directory.manifest.files for directory in opened],
            **({"combine": [data.combine, *data.weights]} if data.combine else {}),
            "metric": labelled.metric,
            "unlabeled": sorted(map(str, unlabeled.identity)) if unlabeled else None,
            "dropped": left_out,
            "rows": data.rows,
            **compute.asked,
        },
        data=described,
        seed=compute.seed,
        force=force,
    ) as stage:
        if recipe.augmentation and unlabeled:
            # Without validation rows the pool's own select. There are at least so many; more hold out fewer of them.
            least = max(1, pool_size - len(train))
            selects = one_of(validation) if validation else partial(held_out, rows=least)
            pool = augmented(pool, recipe.augmentation, model, tokenizer, seed=compute.seed, held_out=selects)
        if unlabeled and not options.control:
            folder = stage.scratch / POOL_FOLDER
            if not is_whole(folder):
                label(model, pool, folder, compute=compute, progress=progress)
            pool = LabelledPool((LabelDir.open(folder),))
        if train and not options.control:
            logits = teacher_logits(
                model, train, labels=label_dirs, complete=bool(foreign), compute=compute, progress=progress
            )
            gold = replace(gold, logits=logits)
        pool_rows = pool.rows if isinstance(pool, LabelledPool) else sum(1 for _ in pool)
        planned_rows = pool_rows + len(gold.examples)  # the control's too: as many steps
        taught = None if options.control else pool
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
                "control": options.control,
                "pool_rows": 0 if options.control else pool_rows,
                **({"labels_of": [directory.origin for directory in foreign]} if foreign else {}),
                **summary(outcomes),
            },
        )
    return ModelDir.open(output)


def _pretrained(start: str | Path, recipe: StudentRecipe) -> tuple[ModelDir, StudentRecipe]:
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
    pool: Any, gold: Gold, validation: Gold, task: str, metric: str | None, seed: int
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


def _check_request(
    model: ModelDir, recipe: StudentRecipe, data: DistillationData, options: DistillationOptions
) -> None:
    train, control, encoder = data.labelled.train, options.control, options.encoder
    if data.unlabeled is not None and data.labels:
        raise CompressError("--unlabeled FILE, which is labelled first, and --labels DIR exclude each other; give one")
    if data.unlabeled is None and not data.labels:
        if recipe.reads_pool or recipe.vocabulary or not train:
            raise CompressError("distill needs text: give --unlabeled FILE, which it labels first, or --labels DIR")
        if not data.labelled.validation and not control:
            raise CompressError(
                "without unlabelled text the best checkpoint is selected by labelled rows; give --validation FILE"
            )
    reads_text = recipe.reads_pool or recipe.vocabulary or options.start  # whose phases read it, and it plans the steps
    if data.unlabeled is not None and data.labelled.validation and not reads_text:
        raise CompressError(f"no phase of the student {recipe.name!r} reads unlabelled text; leave --unlabeled out")
    if data.variants and not data.labels:
        raise CompressError("variants are label directories of varied text of labels, and there are none; give labels")
    if data.weights and not data.combine:
        raise CompressError("--weight is of label directories that are combined; add --combine mean")
    for choice in () if control else recipe.losses:
        needs = plugins.find("losses", choice.name).needs
        if model.task == "regression" and "classes" in needs:
            raise CompressError(
                f"the student {recipe.name!r} compares classes (the loss {choice.name}), and {model.name} is a "
                "regression; use a student that learns by logit-mse, such as minilm-3"
            )
        if model.task == "tagging" and "mixed" in needs:
            raise CompressError(
                f"the student {recipe.name!r} reads texts in two vocabularies (the loss {choice.name}), whose words do "
                f"not begin at the same subword tokens, and {model.name} tags words; use a student without that loss"
            )
    if encoder is not None and not control and all(phase.teacher != "encoder" for phase in recipe.phases):
        left = " that --start leaves" if options.start else ""
        raise CompressError(f"no phase of the student {recipe.name!r}{left} reads the encoder; leave --encoder out")
    if control and not train:
        raise CompressError("--control trains on gold labels alone, and there are none; give them with --train FILE")
    for directory in cast("Sequence[LabelDir]", (*data.labels, *data.variants)):
        if directory.teacher_sha256 not in {model.sha256, ""} and not data.combine:
            raise CompressError(
                f"{directory.path} was labelled by another teacher ({directory.teacher_name}) than {model.name}; label "
                "the text again with 'compress label --teacher ...', or average several teachers of the same text with "
                "--combine mean"
            )
    if data.labels and recipe.augmentation and not data.variants:
        raise CompressError(
            f"the student {recipe.name!r} varies the text before the teacher labels it, so that it cannot use "
            "finished labels; give the text with --unlabeled FILE"
        )
    if not control and not train and all(phase.text == "gold" or phase.needs == {"labels"} for phase in recipe.phases):
        raise CompressError(
            f"the student {recipe.name!r} learns from gold labels, and there are none; give --train FILE"
        )
