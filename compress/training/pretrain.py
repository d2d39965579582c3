"""Stage: pre-train a compact student on unlabelled text, before any task.

Turc et al. 2019, "Well-Read Students Learn Better" (arXiv:1908.08962): masked language modelling of the student first,
then distillation. Paid once, it serves many tasks. General distillation from the pretrained encoder (Sanh et al. 2019;
Jiao et al. 2020; Wang et al. 2020) happens here too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress import plugins, recipes
from compress.data import ContentFingerprint, TextSource, data_entry
from compress.errors import CompressError
from compress.models.manifest import Manifest
from compress.models.model_dir import ModelDir, parent_entry
from compress.models.output_dir import WORK_FOLDER, writing
from compress.models.pretrained import load_classifier
from compress.progress import quiet_libraries
from compress.recipes import Choice, Phase, StudentRecipe, TeacherRecipe, Training, deciding, of_phases, resolved
from compress.training.distill import summary
from compress.training.finetune import open_encoder
from compress.training.tokenized_dataset import TrainingRow, collator, write_rows
from compress.training.training_data import Gold, Text, TrainingData

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from compress.training.loss_modules import VocabularyHead
    from compress.training.trainer import Outcome


logger = logging.getLogger("compress")

MASKED = Phase((Choice("mlm"),), name="masked language modelling", text="pool", masking=0.15)
WHOLE = StudentRecipe(
    description="The encoder itself, which goes on by masked language modelling.",
    architecture=Choice("transformer", options={"depth": 1.0}),
    phases=(MASKED,),
    training=Training(epochs=3.0, batch_size=32, learning_rate=3e-4),
    name="whole",
)
HEAD_ONLY = replace(
    WHOLE,
    description="The encoder as it is, and a new head for masked tokens.",
    phases=(replace(MASKED, frozen=("embeddings", "layers")),),
    training=replace(WHOLE.training, learning_rate=3e-3),
    name="head-only",
)
NO_LABELS = ("none", "other")  # of the head that an architecture gives a student, which is not kept
TASK = "classification"  # of rows without labels, which nothing reads
HELD_OUT_FILE = "held-out.arrow"


def pretrain(
    encoder: TeacherRecipe | str | Path,
    student: StudentRecipe | str,
    output: str | Path,
    *,
    unlabeled: TextSource,
    epochs: float | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int = 0,
    force: bool = False,
    quiet: bool = True,
) -> ModelDir:
    """Run the phases of a student that need no task, and return what they made: an ordinary encoder.

    The architecture starts from the pretrained encoder where it would start from a fine-tuned teacher. Masked language
    modelling leaves a whole masked language model with its head, whose loss and accuracy on held-out text the manifest
    states; general distillation alone leaves an encoder. The weights of the last step are kept. The recipe's
    augmentation varies the text of the task and is not used here.

    Args:
        encoder: a teacher's recipe, or an encoder's directory or hub name.
        student: a recipe, or its name or file. ``WHOLE`` is the encoder itself, which a head for masked tokens is added
            to; ``HEAD_ONLY`` trains that head alone. The last layer of a sentence encoder says little of single words,
            so that there the whole learns more in fewer steps.
        unlabeled: the text; a part is held out.
        epochs: passes over the text; by default what the recipe's shares give to these phases.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    from transformers import set_seed

    from compress.inference.compute import resolve_device
    from compress.models.saving import describe_architecture, write_model
    from compress.training.masked_lm import body_of, check_form, masked_lm, trained_head
    from compress.training.phases import Teachers, fit
    from compress.training.trainer import take_learned

    quiet_libraries()
    recipe = general_part(recipes.load("students", student) if isinstance(student, str) else student, epochs)
    source = open_encoder(encoder)
    device = resolve_device(device)
    tokenizer = source.load_tokenizer()
    fingerprint = ContentFingerprint()
    text = Text(unlabeled, sum(1 for _ in fingerprint.watch(unlabeled)))
    _check_text(text, unlabeled.name, recipe.phases, tokenizer)
    request = {
        "stage": "pretrain",
        "encoder": source.sha256,
        "recipe": deciding(recipe),
        "seed": seed,
        "unlabeled": [unlabeled.name, fingerprint.sha256()],
    }
    with writing(output, request, force=force) as working:
        set_seed(seed)
        teacher = load_classifier(source, NO_LABELS, "classification").eval()
        architecture = plugins.find("architectures", recipe.architecture.name).function
        built = architecture(teacher, tokenizer, unlabeled, **recipe.architecture.options)
        check_form(built, with_head="targets" in recipe.phases[-1].needs)
        outcomes = fit(
            built,
            tokenizer,
            TrainingData(text, Gold(), hold_out=True),
            None,
            phases=recipe.phases,
            teachers=Teachers(encoder=teacher),
            training=recipe.training,
            task=TASK,
            working=working,
            keep_learned=True,
            seed=seed,
            device=device,
            threads=threads,
            quiet=quiet,
        )
        head = trained_head(take_learned(built), built)
        metrics = _score(built, head, tokenizer, text, recipe, working, seed) if head else ()
        made = masked_lm(built.cpu(), head.cpu()) if head else body_of(built.cpu())
        manifest = Manifest(
            stage="pretrain",
            name=Path(output).name,
            task="fill-mask" if head else "feature-extraction",
            architecture=describe_architecture(made),
            parents=(parent_entry("encoder", source),),
            recipe=resolved(recipe),
            data=(data_entry("unlabeled", unlabeled.name, fingerprint),),
            metrics=metrics,
            notes={"recipe": recipe.name, **_notes(outcomes)},
            seeds={"seed": seed},
        )
        write_model(made, tokenizer, manifest, working)
    return ModelDir.open(output, classifier=False)


def general_part(recipe: StudentRecipe, epochs: float | None = None) -> StudentRecipe:
    """Return a recipe of the phases alone that need no task, with their part of its epochs or with so many.

    Raises:
        CompressError: there is no such phase, or the student has a vocabulary that it learns from the task's text.
    """
    kept = [phase for phase in recipe.phases if phase.general]
    if not kept:
        known = [name for name in recipes.names("students") if _has_general_phase(name)]
        raise CompressError(
            f"the student {recipe.name!r} has no phase that comes before a task: one with text = 'pool' whose losses "
            "read neither logits nor labels and whose teacher, if they read one, is 'encoder'; students that have one: "
            + ", ".join(known)
        )
    if recipe.vocabulary:
        raise CompressError(
            f"the student {recipe.name!r} learns its vocabulary from the text of its task, so that it cannot be "
            "pre-trained apart; use a student without [vocabulary]"
        )
    if epochs is not None and not epochs > 0:
        raise CompressError(f"epochs = {epochs} must be above 0, such as 3")
    for phase in kept:
        logger.info("phase %s: %s", phase.name or "without a name", ", ".join(loss.name for loss in phase.losses))
    part = of_phases(recipe, kept)
    return part if epochs is None else replace(part, training=replace(part.training, epochs=epochs, max_steps=0))


def _has_general_phase(name: str) -> bool:
    recipe: StudentRecipe = recipes.load("students", name)
    return recipe.vocabulary is None and any(phase.general for phase in recipe.phases)


def _check_text(text: Text, name: str, phases: Sequence[Phase], tokenizer: PreTrainedTokenizerFast) -> None:
    """Refuse text of which nothing can be held out, and a tokenizer that cannot mask where a phase does."""
    from compress.training.token_masking import Masker

    if not text.rows:
        raise CompressError(f"{name} holds no text; give a file with one text a line")
    if not any(text.held_out(example) for example in text.source):
        raise CompressError(f"{name} has only {text.rows} rows, too few to hold some out; give more text")
    for phase in phases:
        if phase.masking:
            Masker(tokenizer, phase.masking)


def _notes(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return how the training went; nothing was selected, so that there is no best score."""
    of_selection = {"best_score", "best_step", "score_name"}
    return {key: value for key, value in summary(outcomes).items() if key not in of_selection}


def _score(
    student: PreTrainedModel,
    head: VocabularyHead,
    tokenizer: PreTrainedTokenizerFast,
    text: Text,
    recipe: StudentRecipe,
    working: Path,
    seed: int,
) -> tuple[dict[str, Any], ...]:
    """Return the metrics of the masked language model on the rows that were held out."""
    from compress.data.tokenization import maximum_length
    from compress.training.masked_lm import masked_score
    from compress.training.token_masking import Masker

    held = [TrainingRow(example) for example, _ in text.labelled() if text.held_out(example)]
    length = min(recipe.training.max_length, maximum_length(tokenizer, student.config.to_dict()))
    path = working / WORK_FOLDER / HELD_OUT_FILE
    rows = write_rows(path, iter(held), tokenizer, max_length=length, task=TASK)
    masker = Masker(tokenizer, recipe.phases[-1].masking)
    score = masked_score(student, head, rows, collator(tokenizer.pad_token_id or 0, TASK), masker, seed=seed)
    measured = {"masked-token accuracy": score.accuracy, "masked-token loss": score.loss}
    about = {"split": "held-out text", "rows": len(held), "tokens": score.tokens}
    return tuple({"name": name, "value": value, **about} for name, value in measured.items())
