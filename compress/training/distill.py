"""Stage: train a small student to say what its teacher says."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from compress import plugins, recipes
from compress.data import Example, TextSource, check_roles, describe_rows, encode_gold, grouped_split, row_key
from compress.errors import CompressError
from compress.evaluation.metrics import find_metric
from compress.labelling.label import label, teacher_logits
from compress.labelling.label_dir import LabelDir, open_labels
from compress.models.manifest import Manifest
from compress.models.model_dir import ModelDir, parent_entry
from compress.models.modeling import auto_class
from compress.models.output_dir import WORK_FOLDER, writing
from compress.models.pretrained import check_vocabulary, load_body
from compress.progress import Progress, silent
from compress.recipes import Choice, Phase, StudentRecipe, deciding, of_phases, resolved
from compress.training.augmentation import augmented
from compress.training.finetune import encoder_of
from compress.training.tokenized_dataset import TrainingRow
from compress.training.training_data import Gold, Pool, Selection, TrainingData, agreement_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from compress.training.trainer import Outcome


logger = logging.getLogger("compress")

CONTROL_PHASES = (Phase((Choice("hard-label"),), name="control", text="gold"),)
CONTROL_HELD_OUT_SHARE = 0.1
POOL_FOLDER = "pool-labels"


def distill(
    teacher: ModelDir | str | Path,
    student: StudentRecipe | str,
    output: str | Path,
    *,
    unlabeled: TextSource | None = None,
    labels: Sequence[LabelDir | str | Path] = (),
    variants: Sequence[LabelDir | str | Path] = (),
    train: Sequence[Example] = (),
    validation: Sequence[Example] = (),
    encoder: str | Path | None = None,
    start: str | Path | None = None,
    control: bool = False,
    drop_overlap: bool = False,
    metric: str | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int = 0,
    force: bool = False,
    quiet: bool = True,
    progress: Progress = silent,
) -> ModelDir:
    """Train a student to match the teacher on unlabelled text, and return its directory.

    Args:
        student: a recipe, or its name or file.
        unlabeled: text that is labelled first; or ``labels``, label directories of this teacher. A recipe all of whose
            phases read gold rows needs neither.
        variants: with ``labels``, label directories of the variants that the recipe's augmentation makes of that text.
        train: gold rows; they are taught with the teacher's logits too (from ``labels`` where they hold them), and
            losses that read gold labels learn from these.
        validation: gold rows by which the best checkpoint is selected; without any it is selected by agreement with
            the teacher on held-out text of the pool.
        encoder: the pretrained model that the teacher was fine-tuned from, or its recipe, for phases that it teaches;
            by default what the teacher's manifest names.
        start: what ``compress pretrain`` made of the same student: it starts from these weights, with the head that its
            architecture gives it, and goes through the phases that come after.
        control: train the control instead: the same student, from the same start, planned for the same number of steps,
            on the gold labels of ``train`` alone (and selected on a slice of it when there is no ``validation``).
        drop_overlap: leave out rows of the pool and of ``train`` that occur in ``validation`` instead of refusing.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    from transformers import set_seed

    from compress.inference.compute import resolve_device
    from compress.models.saving import describe_architecture, write_model
    from compress.training.learned_vocabulary import Mixer, learn_vocabulary, re_embed
    from compress.training.phases import Teachers, fit
    from compress.training.trainer import steps_for

    model = ModelDir.open(teacher)
    recipe = recipes.load("students", student) if isinstance(student, str) else student
    pretrained = _open_pretrained(start) if start is not None else None
    if pretrained:
        recipe = _after(pretrained, recipe)
    label_dirs, variant_dirs = open_labels(labels), open_labels(variants)
    _check_request(model, recipe, unlabeled, label_dirs, variant_dirs, train, validation, control)
    label_dirs += variant_dirs
    device = resolve_device(device)
    find_metric(metric, task=model.task, classes=len(model.labels))  # a wrong name shows before the first hour
    tokenizer = model.load_tokenizer()
    if pretrained:
        check_vocabulary(pretrained, tokenizer)
    pool: Any = unlabeled or Pool(label_dirs)  # of no rows where all phases read gold ones
    roles = {"train": train, "unlabeled": pool if unlabeled or label_dirs else (), "validation": validation}
    checked = check_roles({role: rows for role, rows in roles.items() if rows}, drop_overlap=drop_overlap)
    if validation:
        logger.info("rows: %s", checked.describe())
    train = cast(Sequence[Example], checked.sets.get("train", ()))
    # Gold rows teach once, with their labels, also where the pool holds their text.
    pool = checked.sets.get("unlabeled", pool).without(frozenset(map(row_key, train)))
    gold = Gold(train, encode_gold(train, model.labels, task=model.task, name="train"))
    chosen = Gold(validation, encode_gold(validation, model.labels, task=model.task, name="validation"))
    data = describe_rows({"train": train, "validation": validation})
    phases = CONTROL_PHASES if control else possible_phases(recipe, train)
    general = encoder_of(model, encoder) if any(phase.teacher == "encoder" for phase in phases) else None
    request = {
        "stage": "distill",
        "teacher": model.sha256,
        "recipe": deciding(recipe),
        "control": control,
        "seed": seed,
        "labels": [directory.manifest.files for directory in label_dirs],
        "data": data,
        "metric": metric,
        "unlabeled": sorted(map(str, unlabeled.identity)) if unlabeled else None,
        "dropped": checked.dropped,
        "encoder": general.sha256 if general else None,
        "start": pretrained.sha256 if pretrained else None,
    }
    with writing(output, request, force=force) as working:
        if recipe.augmentation and unlabeled:
            held_out = frozenset(map(row_key, validation))
            pool = augmented(pool, recipe.augmentation, model, tokenizer, seed=seed, held_out=held_out)
        if unlabeled and not control:
            folder = working / WORK_FOLDER / POOL_FOLDER
            made = (
                LabelDir.open(folder)
                if folder.is_dir()
                else label(model, pool, folder, device=device, threads=threads, progress=progress)
            )
            pool = Pool((made,))
        if train and not control:
            logits = teacher_logits(model, train, labels=label_dirs, device=device, threads=threads)
            gold = Gold(train, gold.labels, logits)
        training_plan = _lesson(pool, gold, chosen, control=control, metric=metric, task=model.task, seed=seed)
        set_seed(seed)
        source: Any = model.load()
        mixer, started = None, source
        if recipe.vocabulary:
            learned = learn_vocabulary(tokenizer, chain(pool, train), recipe.vocabulary.size)
            if any("mixed" in phase.needs for phase in phases):
                mixer = Mixer(tokenizer, learned, source.get_input_embeddings().num_embeddings, seed)
            started, tokenizer = re_embed(source, tokenizer, learned), learned
        architecture = plugins.find("architectures", recipe.architecture.name).function
        built = architecture(started, tokenizer, chain(pool, train), **recipe.architecture.options)
        if pretrained:
            load_body(built, pretrained)
        outcomes = fit(
            built,
            tokenizer,
            training_plan.training_data,
            training_plan.selection,
            phases=phases,
            teachers=Teachers(source, _load_encoder(general, model) if general else None),
            training=recipe.training,
            task=model.task,
            working=working,
            steps=steps_for(training_plan.planned_rows, recipe.training),
            mixer=mixer,
            seed=seed,
            device=device,
            threads=threads,
            quiet=quiet,
        )
        name = Path(output).name
        parents = {"teacher": model, "encoder": general, "start": pretrained}
        manifest = Manifest(
            stage="distill",
            name=name,
            task=model.task,
            labels=model.labels,
            architecture=describe_architecture(built),
            parents=tuple(parent_entry(role, parent) for role, parent in parents.items() if parent),
            recipe=resolved(recipe),
            data=(*data, *_pool_data(pool)),
            metrics=(
                {
                    "name": find_metric(training_plan.selection.metric, task=model.task).name,
                    "value": outcomes[-1].best_score,
                    "split": outcomes[-1].score_name,
                    "rows": len(training_plan.selection.rows),
                },
            ),
            notes={"recipe": recipe.name, "control": control, **summary(outcomes)},
            seeds={"seed": seed},
        )
        write_model(built, tokenizer, manifest, working)
    return ModelDir.open(output)


def _open_pretrained(start: str | Path) -> ModelDir:
    opened = ModelDir.open(start, classifier=False)
    if opened.manifest is None or opened.manifest.stage != "pretrain":
        raise CompressError(
            f"{start} was not made by 'compress pretrain', which --start needs; to start from another checkpoint use a "
            "student of the architecture checkpoint"
        )
    return opened


def _after(pretrained: ModelDir, recipe: StudentRecipe) -> StudentRecipe:
    """Return a recipe without the phases that pre-training has done; the others keep their steps."""
    if recipe.vocabulary:
        raise CompressError(
            f"the student {recipe.name!r} learns a vocabulary of its own, which {pretrained.path} does not read; "
            "leave --start out"
        )
    done = pretrained.manifest.recipe["phases"] if pretrained.manifest else []
    left = [phase for phase in recipe.phases if resolved(phase) not in done]
    if not left:
        raise CompressError(f"{pretrained.path} has gone through all phases of the student {recipe.name!r} already")
    for phase in recipe.phases:
        if phase not in left:
            logger.info("phase %s: done in %s", phase.name or "without a name", pretrained.name)
    return of_phases(recipe, left)


def possible_phases(recipe: StudentRecipe, train: Sequence[Example]) -> tuple[Phase, ...]:
    """Return the phases of a recipe; without gold rows those are left out, and said to be, that learn from them alone.

    A loss on gold labels beside others says nothing then, which is said too.
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


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return how a whole training went, for the manifest: the last stretch's score, the steps and seconds of all."""
    totals = {
        "planned_steps": sum(outcome.planned_steps for outcome in outcomes),
        "steps": sum(outcome.steps for outcome in outcomes),
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
    }
    before = sum(outcome.steps for outcome in outcomes[:-1])
    best = before + (outcomes[-1].best_step or 0)
    stretches = [outcome.noted for outcome in outcomes] if len(outcomes) > 1 else []
    return {**outcomes[-1].noted, **totals, "best_step": best, **({"stretches": stretches} if stretches else {})}


def _load_encoder(encoder: ModelDir, teacher: ModelDir) -> PreTrainedModel:
    """Open a pretrained encoder with the head of a classifier, which is not read."""
    loaded: PreTrainedModel = auto_class(teacher.task).from_pretrained(
        encoder.path, num_labels=len(teacher.labels), dtype="float32", ignore_mismatched_sizes=True
    )
    return loaded.eval()


@dataclass(frozen=True)
class TrainingPlan:
    """What one training run reads, and how many rows its number of steps is planned from."""

    training_data: TrainingData
    selection: Selection
    planned_rows: int


def _lesson(
    pool: Any, gold: Gold, chosen: Gold, *, control: bool, metric: str | None, task: str, seed: int
) -> TrainingPlan:
    """Return the rows of the student, or of its control, planned for the same number of steps."""
    planned = sum(1 for _ in pool) + len(gold.examples)
    if chosen.examples:
        selection = Selection(list(chosen.rows()), "validation", metric)
        training_data = TrainingData(None if control else pool, gold)
    elif control:
        kept, held = grouped_split(gold.examples, CONTROL_HELD_OUT_SHARE, seed=seed)
        labels: dict[Example, Any] = dict(zip(gold.examples, gold.labels, strict=True))
        selection = Selection([TrainingRow(e, None, labels[e]) for e in held], "slice of train", metric)
        training_data = TrainingData(None, Gold(kept, [labels[e] for e in kept]))
    else:
        selection = agreement_rows(pool, task)
        training_data = TrainingData(pool, gold, hold_out=True)
    return TrainingPlan(training_data, selection, planned)


def _pool_data(pool: Any) -> list[dict[str, Any]]:
    return [entry for directory in pool.labels for entry in directory.manifest.data] if isinstance(pool, Pool) else []


def _check_request(
    model: ModelDir,
    recipe: StudentRecipe,
    unlabeled: TextSource | None,
    label_dirs: Sequence[LabelDir],
    variant_dirs: Sequence[LabelDir],
    train: Sequence[Example],
    validation: Sequence[Example],
    control: bool,
) -> None:
    if unlabeled is not None and label_dirs:
        raise CompressError("--unlabeled FILE, which is labelled first, and --labels DIR exclude each other; give one")
    if unlabeled is None and not label_dirs:
        if recipe.reads_pool or recipe.vocabulary or not train:
            raise CompressError("distill needs text: give --unlabeled FILE, which it labels first, or --labels DIR")
        if not validation and not control:
            raise CompressError(
                "without unlabelled text the best checkpoint is selected by labelled rows; give --validation FILE"
            )
    if not control:
        _check_task(model, recipe)
    if control and not train:
        raise CompressError("--control trains on gold labels alone, and there are none; give them with --train FILE")
    for directory in (*label_dirs, *variant_dirs):
        if directory.teacher_sha256 != model.sha256:
            raise CompressError(
                f"{directory.path} was labelled by another teacher ({directory.manifest.parents[0]['name']}) than "
                f"{model.name}; label the text again with 'compress label --teacher ...'"
            )
    if label_dirs and recipe.augmentation and not variant_dirs:
        raise CompressError(
            f"the student {recipe.name!r} varies the text before the teacher labels it, so that it cannot use "
            "finished labels; give the text with --unlabeled FILE"
        )
    if not control and not train and all(phase.text == "gold" or phase.needs == {"labels"} for phase in recipe.phases):
        raise CompressError(
            f"the student {recipe.name!r} learns from gold labels, and there are none; give --train FILE"
        )


def _check_task(model: ModelDir, recipe: StudentRecipe) -> None:
    for choice in recipe.losses:
        needs = plugins.find("losses", choice.name).needs
        if model.task == "regression" and "classes" in needs:
            raise CompressError(
                f"the student {recipe.name!r} compares classes (the loss {choice.name}), and {model.name} is a "
                "regression; use a student that learns by logit-mse, such as minilm-3"
            )
        if model.task == "tagging" and "mixed" in needs:
            raise CompressError(
                f"the student {recipe.name!r} reads texts in two vocabularies (the loss {choice.name}), whose words do "
                f"not begin at the same pieces, and {model.name} tags words; use a student without that loss"
            )
