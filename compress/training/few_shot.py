"""Few labelled rows: a linear head on a sentence encoder, as it is or after contrastive fine-tuning.

The head reads the mean of the token states, which learns from a few rows a class, where fine-tuning lacks steps.
Contrastive fine-tuning first moves texts of a class together (SetFit, Tunstall et al. 2022, arXiv:2209.11055; here by
the loss ``contrastive``, which compares all texts of a batch). Which of the two, and how strongly the head is
regularised, is chosen by cross-validation: each row is judged by a model of the others.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel

from compress.benchmarking.baselines._linear_head import STRENGTHS, fit_linear_head
from compress.data.examples import row_keys
from compress.data.tokenization import maximum_length
from compress.data.truncation import count_stream, counting
from compress.errors import refuse, some_of
from compress.models.components import head_of, input_names
from compress.models.model_dir import Model
from compress.models.modeling.families import POOLED, PREFIX
from compress.models.modeling.pruned import to_pruned
from compress.models.output_dir import WORK_FOLDER
from compress.progress import logger
from compress.recipes import Choice, Phase, Training
from compress.tasks import Task
from compress.training.phases import chosen_length, fit
from compress.training.trainer import Outcome, TrainingRun
from compress.training.training_data import Gold, TrainingData, batches_by_length, collator, column, tokenized

FOLDS = 3
WAYS = ("frozen", "contrastive")  # the cheaper first: of equal scores it is taken
TRAINING = Training(epochs=8.0, batch_size=128, learning_rate=5e-5, min_steps=50, max_steps=400)  # contrastive
PHASE = Phase((Choice("contrastive"),))
SPLIT = "train (cross-validation)"
ENCODED_ROWS = 64  # at once


def check_few_shot(encoder: Model, task: Task, labels: Sequence[str], gold: Gold) -> None:
    """Refuse what no head is chosen for by cross-validation: tasks, encoders, and classes of too few rows."""
    refuse((task.no_few_shot, task.no_few_shot))
    family, counts = str(encoder.config.get("model_type")).removeprefix(PREFIX), Counter(gold.labels)
    rare = [f"{label!r} ({counts[number]})" for number, label in enumerate(labels) if counts[number] < FOLDS]
    refuse(
        (
            family not in POOLED,
            f"--few-shot reads the mean of all tokens, and {encoder.name} is a {family!r} encoder; use a sentence "
            f"encoder of {', '.join(POOLED)}, such as the teachers minilm-l6 and mpnet-base",
        ),
        (
            rare,
            f"--few-shot judges each row by a model of the others, which takes {FOLDS} rows of each class, and train "
            f"has fewer of {some_of(rare)}; label more rows of these, or leave the classes out",
        ),
    )


def fit_head(
    encoder: Model, labels: tuple[str, ...], gold: Gold, run: TrainingRun, *, metric: str, ways: Sequence[str] = WAYS
) -> tuple[PreTrainedModel, Outcome, dict[str, Any]]:
    """Choose encoder and head by cross-validation, make them of all rows, and return notes on the choice.

    The best score of the outcome is that of the choice.

    Args:
        run: its folder is the stage's, its training that of contrastive fine-tuning.
        metric: what chooses.
        ways: those of :data:`WAYS` to choose from.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    work, task, answers = run.folder / WORK_FOLDER, run.task, np.asarray(gold.labels)
    tokenizer, limit = encoder.tokenizer, maximum_length(encoder.tokenizer, encoder.config)
    length = min(run.training.max_length, limit)
    length = length or chosen_length(tokenizer, TrainingData(None, gold), len(answers), limit, run)
    run = replace(run, training=replace(run.training, max_length=length))
    rows = tokenized(work / "few-shot.arrow", gold.rows(), tokenizer, max_length=length, task=task)
    cut = int(column(rows, "truncated").sum())
    count_stream(length, len(rows), cut)
    clusters = task.clusters(gold.examples, task.metric(metric, labels))

    frozen: list[tuple[PreTrainedModel, np.ndarray, Outcome]] = []

    def encoded(way: str, numbers: np.ndarray, folder: Path) -> tuple[PreTrainedModel, np.ndarray, Outcome]:
        """Return a network that learned, if it learns, from the rows of these numbers, and features of all."""
        if way == "frozen" and frozen:
            return frozen[0]
        model = pooled_classifier(encoder, task, labels)
        outcome = Outcome(0, 0, None, None, SPLIT, "float32", 0.0, max_length=length, truncated_rows=cut)
        if way == "contrastive":
            title = folder.name if folder.parent == work else "all rows"
            part = Gold([gold.examples[number] for number in numbers], answers[numbers].tolist())
            own = replace(run, folder=folder, title=f"{run.title}, {title}")
            with counting():  # for itself
                (outcome,) = fit(model, tokenizer, TrainingData(None, part), own, phases=(PHASE,), teachers={})
        made = model, head_inputs(model, rows, tokenizer.pad_token_id or 0, run.compute.device), outcome
        frozen.extend([made] if way == "frozen" else [])
        return made

    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=run.compute.seed)
    parts = list(folds.split(answers, answers, row_keys(gold.examples)))
    scores: dict[str, dict[float, float]] = {}
    for way in ways:
        logits = {strength: np.zeros((len(answers), len(labels)), np.float32) for strength in STRENGTHS}
        for number, (others, held) in enumerate(parts, 1):
            _, states, _ = encoded(way, others, work / f"fold-{number}")
            for strength, found in logits.items():
                head = fit_linear_head(states[others], answers[others], task, len(labels), (strength,))
                found[held] = head(states[held])
        scores[way] = {one: task.evaluate(found, answers, labels, metric, clusters) for one, found in logits.items()}
        best = max(scores[way].values())
        logger.info("%s: %s encoder: %s %.4f by cross-validation", run.title, way, metric, best)
    way, strength = max(itertools.product(ways, STRENGTHS), key=lambda one: scores[one[0]][one[1]])
    logger.info("%s: the %s encoder is taken, its head with C = %g", run.title, way, strength)
    model, states, outcome = encoded(way, np.arange(len(answers)), run.folder)
    head = fit_linear_head(states, answers, task, len(labels), (strength,))
    _, output = head_of(model)
    with torch.no_grad():
        output.weight.copy_(torch.from_numpy(head.weights.T))
        output.bias.copy_(torch.from_numpy(head.bias))
    tried = {one: {f"C = {strength:g}": score for strength, score in own.items()} for one, own in scores.items()}
    chosen = {"encoder": way, "strength": strength, "folds": FOLDS, "scores": tried}
    outcome = replace(outcome, best_score=scores[way][strength], score_name=SPLIT)
    return model, outcome, {"few_shot": chosen}


def pooled_classifier(encoder: Model, task: Task, labels: Sequence[str]) -> PreTrainedModel:
    """Return an encoder with a head on the tanh of the mean state, of length 1: nearly the mean state itself.

    The components of such a vector are small, so that the tanh that the families' heads have hardly bends them.
    """
    model = encoder.with_head(labels, task)
    model.config.pooling = "mean"
    model = to_pruned(model)
    dense, _ = head_of(model)
    torch.nn.init.eye_(dense.weight)
    torch.nn.init.zeros_(dense.bias)
    return model


@torch.no_grad()
def head_inputs(model: PreTrainedModel, rows: Dataset, padding_id: int, device: str) -> np.ndarray:
    """Return what the last layer of the head reads of tokenised rows, in their order: ``[N, D]`` float32."""
    model.to(device).eval()  # type: ignore[arg-type]
    names, output, seen = input_names(model), head_of(model)[1], list[torch.Tensor]()
    found = np.zeros((len(rows), output.in_features), np.float32)
    hook = output.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for batch in batches_by_length(rows, collator(padding_id), ENCODED_ROWS, device):
        model(**{name: tensor for name, tensor in batch.inputs().items() if name in names})
        found[np.asarray(batch.rows.cpu())] = seen.pop().float().cpu().numpy()  # type: ignore[union-attr]
    hook.remove()
    return found
