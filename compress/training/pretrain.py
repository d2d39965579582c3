"""Pre-training stage: train a compact student on unlabelled text, independently of a task.

Turc et al. 2019, "Well-Read Students Learn Better" (arXiv:1908.08962): masked language modelling of the student first,
then distillation. One pre-training serves many tasks. General distillation from the pretrained encoder (Sanh et al.
2019; Jiao et al. 2020; Wang et al. 2020) is part of this stage.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    set_seed,
)

from compress import recipes, tasks
from compress.data import ContentFingerprint, TextSource, data_entry
from compress.errors import CompressError, refuse
from compress.inference.compute import resolve_device
from compress.models.components import example_inputs, input_embeddings
from compress.models.encoders import open_encoder
from compress.models.model_dir import Model
from compress.models.output_dir import PREPARED, WORK_FOLDER
from compress.progress import logger, quiet_libraries
from compress.recipes import Choice, Phase, StudentRecipe, Training, of_phases, resolved
from compress.requests.training import Pretrain
from compress.training.build_student import build_student, try_student
from compress.training.losses._common import VocabularyHead, masked_tokens
from compress.training.phases import fit
from compress.training.teacher_signal import ActivationRecorder
from compress.training.trainer import TrainingRun, detach_loss_modules, summary
from compress.training.training_data import (
    Masker,
    TrainingData,
    TrainingRow,
    batches_by_length,
    check_held_out,
    collator,
    held_out,
    tokenized,
)

MASKED = Phase((Choice("mlm"),), name="masked language modelling", text="pool", masking=0.15)
WHOLE = StudentRecipe(
    description="The encoder itself, trained further by masked language modelling.",
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
TASK = tasks.default()  # of rows without labels, which nothing reads
EVALUATED_ROWS = 64  # a batch
TASK_KEYS = (*tasks.HEAD_KEYS, "num_labels", "architectures")
TOLERANCE = 1e-4  # of the largest logit
SELECTION_NOTES = {"best_score", "best_step", "score_name"}  # no checkpoint is selected here


def pretrain(request: Pretrain) -> Model:
    """Run the task-independent phases of a student, and return the resulting encoder.

    The architecture starts from the pretrained encoder in place of a fine-tuned teacher. Masked language modelling
    writes a masked language model with its head, and its loss and accuracy on held-out text into the manifest; general
    distillation alone writes an encoder. The weights of the last step are kept. The recipe's augmentation varies the
    text of the task and is not used here.

    Without a student the encoder is trained with a new head for masked tokens, or that head alone: the last layer of a
    sentence encoder predicts single words badly, so that training all of it needs fewer steps.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    quiet_libraries()
    unlabeled = cast(TextSource, request.open_text(rows=request.rows))
    student = request.student or (HEAD_ONLY if request.head_only else WHOLE)
    recipe = general_part(recipes.load_recipe("students", student), request.epochs)
    source = open_encoder(request.encoder)
    compute = replace(request.compute, device=resolve_device(request.device))
    tokenizer = source.tokenizer
    fingerprint = ContentFingerprint()
    number = sum(1 for _ in fingerprint.watch(unlabeled))
    refuse((not number, f"{unlabeled.name} holds no text; give a file with one text a line"))
    check_held_out(unlabeled, number, remedy="give more text")

    def rows(held: bool) -> Iterator[TrainingRow]:
        return (TrainingRow(example) for example in unlabeled if held_out(example, number) == held)

    set_seed(compute.seed)  # the encoder gets a random head
    teachers = {"encoder": source.with_head(NO_LABELS, TASK)}
    tried = try_student(recipe, teachers, tokenizer, lambda: unlabeled, TASK)
    check_form(tried, with_head="targets" in recipe.phases[-1].needs)
    del tried
    with request.begin({"encoder": source}, student=recipe, unlabeled=[unlabeled.name, fingerprint.sha256()]) as stage:
        set_seed(compute.seed)
        built, *_ = build_student(recipe, teachers["encoder"], tokenizer, lambda: unlabeled, seed=compute.seed)
        run = TrainingRun(stage.working, recipe.training, TASK, compute, request.progress, "Pre-training")
        outcomes = fit(
            built,
            tokenizer,
            TrainingData(partial(rows, held=False)),
            run,
            phases=recipe.phases,
            teachers=teachers,
            keep_loss_modules=True,
        )
        head = _trained_head(detach_loss_modules(built), built)
        masking, length = recipe.phases[-1].masking, outcomes[-1].max_length
        metrics = _score(built, head, tokenizer, rows(held=True), run, masking, length) if head else ()
        notes = {key: value for key, value in summary(outcomes).items() if key not in SELECTION_NOTES}
        stage.write_model(
            masked_lm(built.cpu(), head.cpu()) if head else _body_of(built.cpu()),
            tokenizer,
            task="fill-mask" if head else "feature-extraction",
            labels=(),
            recipe=resolved(recipe),
            data=(data_entry("unlabeled", unlabeled.name, fingerprint),),
            metrics=metrics,
            notes={"recipe": recipe.name, **notes},
        )
    return Model.open(stage.output, classifier=False)


def general_part(recipe: StudentRecipe, epochs: float | None = None) -> StudentRecipe:
    """Return a recipe of the task-independent phases alone, with their share of its epochs or with so many.

    Raises:
        CompressError: there is no such phase, or the student has a vocabulary that it learns from the task's text.
    """
    kept = [phase for phase in recipe.phases if phase.general]
    if not kept:
        every = (recipes.load_recipe("students", name) for name in recipes.recipe_names("students"))
        known = [
            one.name
            for one in every
            if not one.learns_vocabulary("WordPiece") and any(phase.general for phase in one.phases)
        ]
        raise CompressError(
            f"the student {recipe.name!r} has no phase that comes before a task: one with text = 'pool' whose losses "
            "read neither logits nor labels and whose teacher, if they read one, is 'encoder'; students that have one: "
            f"{', '.join(known)}"
        )
    refuse(
        (
            recipe.learns_vocabulary("WordPiece"),
            f"the student {recipe.name!r} learns its vocabulary from the text of its task, so that it cannot be "
            "pre-trained apart; use a student without [vocabulary]",
        ),
        (epochs is not None and not epochs > 0, f"epochs = {epochs} must be above 0, such as 3"),
    )
    for phase in kept:
        logger.info("phase %s: %s", phase.name or "without a name", ", ".join(loss.name for loss in phase.losses))
    part = replace(of_phases(recipe, kept), vocabulary=None)
    if epochs is None:
        return part
    return replace(
        part, training=replace(part.training, epochs=epochs, min_steps=0, min_steps_per_class=0, max_steps=0)
    )


@torch.no_grad()
def _score(
    student: PreTrainedModel,
    head: VocabularyHead,
    tokenizer: PreTrainedTokenizerFast,
    held: Iterable[TrainingRow],
    run: TrainingRun,
    masking: float,
    length: int,
) -> tuple[dict[str, Any], ...]:
    """Return the metrics of the masked language model on the held-out rows, which are masked once, by the seed.

    Raises:
        CompressError: no token of these rows was masked.
    """
    folder = run.folder / WORK_FOLDER / PREPARED
    rows = tokenized(folder / "held-out.arrow", held, tokenizer, max_length=length, task=TASK)
    collate, masker = collator(tokenizer.pad_token_id or 0), Masker(tokenizer, masking)
    student.train(False)
    recorder = ActivationRecorder(student, frozenset({"hidden"}))
    loss, right, tokens = 0.0, 0, 0
    with torch.random.fork_rng():
        torch.manual_seed(run.compute.seed)
        for whole in batches_by_length(rows, collate, EVALUATED_ROWS, student.device):
            batch = masker(whole)
            hidden, targets = masked_tokens(recorder(batch)[1], batch)
            logits = head(hidden)
            loss += float(cross_entropy(logits, targets, reduction="sum"))
            right += int((logits.argmax(dim=-1) == targets).sum())
            tokens += len(targets)
    refuse((not tokens, "no token of the held-out text was masked, so that nothing can be measured; give more text"))
    about = {"split": "held-out text", "rows": len(rows), "tokens": tokens}
    return (
        {"name": "masked-token accuracy", "value": right / tokens, **about},
        {"name": "masked-token loss", "value": loss / tokens, **about},
    )


def _trained_head(loss_modules: nn.Module | None, student: PreTrainedModel) -> VocabularyHead | None:
    """Return the student's vocabulary head among the modules of the losses; None without one."""
    modules = loss_modules.modules() if loss_modules else ()
    heads = (one for one in modules if isinstance(one, VocabularyHead))
    return next((head for head in heads if head.tied[0] is input_embeddings(student)), None)


@torch.no_grad()
def masked_lm(student: PreTrainedModel, head: VocabularyHead) -> PreTrainedModel:
    """Return the masked language model of the student's family with its body and this head, in eval mode.

    The trained head becomes the one of the family (``BertForMaskedLM`` and so on), so that transformers opens the
    directory as any masked language model. Its output matrix is the input embeddings.

    Raises:
        CompressError: the family has none, or one with a head of another form (MobileBERT).
    """
    kind, config = student.config.model_type, _without_task(student)
    config.tie_word_embeddings = True
    refuse(
        (
            type(config) not in MODEL_FOR_MASKED_LM_MAPPING,
            f"transformers has no masked language model of the type {kind!r}; use another student",
        )
    )
    made: Any = AutoModelForMaskedLM.from_config(config).float().eval()  # type: ignore[no-untyped-call, unused-ignore]
    missing, _ = made.base_model.load_state_dict(student.base_model.state_dict(), strict=False)
    output = made.get_output_embeddings()
    inside = {*made.base_model.modules(), output}
    outside = [module for module in made.modules() if module not in inside]
    dense = [module for module in outside if isinstance(module, nn.Linear)]
    norms = [module for module in outside if isinstance(module, nn.LayerNorm)]
    same_form = [m.weight.shape for m in (*dense, *norms)] == [head.dense.weight.shape, head.norm.weight.shape]
    if same_form and not missing and output.bias is not None:
        dense[0].load_state_dict(head.dense.state_dict())
        norms[0].load_state_dict(head.norm.state_dict())
        output.bias.copy_(head.bias)
        inputs = example_inputs(student)
        student.train(False)
        expected = head(student(**inputs, output_hidden_states=True).hidden_states[-1]).cpu()
        got = made(**{name: value.cpu() for name, value in inputs.items()}).logits
        if not (got - expected).abs().max() > TOLERANCE * expected.abs().max():
            return cast(PreTrainedModel, made)
    raise CompressError(
        f"the masked language model of the type {kind!r} has a head of another form than BERT's, which is what is "
        "trained here; use a student of another family, or one without masked language modelling"
    )


def _body_of(student: PreTrainedModel) -> PreTrainedModel:
    """Return the student's encoder, without class labels in its config."""
    body: Any = student.base_model
    body.config = _without_task(student)
    return cast(PreTrainedModel, body.eval())


def check_form(student: PreTrainedModel, *, with_head: bool) -> None:
    """Refuse, before it is trained, a student that cannot be written without classes, or with a head for masked tokens.

    Raises:
        CompressError: it has no body apart from its head, or its family has no such head.
    """
    refuse(
        (
            student.base_model is student,
            f"a student of the type {student.config.model_type!r} has no encoder that could be pre-trained apart from "
            "a task; use the architecture transformer",
        )
    )
    if with_head:
        masked_lm(student, VocabularyHead(student))


def _without_task(student: PreTrainedModel) -> Any:
    settings = {key: value for key, value in student.config.to_dict().items() if key not in TASK_KEYS}
    return type(student.config).from_dict(settings)
