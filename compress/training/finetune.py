"""Fine-tuning stage: train a pretrained encoder with a new head on labelled text, to be a teacher."""

from dataclasses import asdict, replace

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, set_seed

from compress.data import check_roles
from compress.data.tokenization import check_length, maximum_length
from compress.data.windows import set_windows
from compress.evaluation.ranking import tell_queries
from compress.inference.compute import resolve_device
from compress.models.encoders import find_recipe, open_encoder
from compress.models.model_dir import Model
from compress.progress import quiet_libraries
from compress.recipes import Choice, Phase, Training, resolved
from compress.requests.training import Finetune
from compress.tasks import of_rows
from compress.training import few_shot
from compress.training.phases import balance_of, fit, with_length
from compress.training.trainer import TrainingRun
from compress.training.training_data import Gold, Selection, TrainingData

TRAINING = Training(min_steps=400, min_steps_per_class=20)  # of an encoder without a recipe


def finetune(request: Finetune) -> Model:
    """Fine-tune an encoder with a new head on gold labels and keep the best checkpoint, or make a model of few rows.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    quiet_libraries()
    data = request.labelled
    recipe = find_recipe(request.teacher)
    encoder = open_encoder(recipe or request.teacher)
    given = {"train": data.train, **({} if request.few_shot else {"validation": data.validation})}
    checked = check_roles(given, data.overlap)
    check_length(request.max_length, encoder.tokenizer, encoder.config, encoder.path)
    roles = {"validation": [], **{role: list(rows) for role, rows in checked.sets.items()}}
    task = of_rows([*roles["train"], *roles["validation"]])
    names = task.new_labels(roles["train"], roles["validation"])
    task = task.of_model(task.head_settings(names))
    measure = task.metric(data.metric, names)
    metric = measure.name
    usual = recipe.training if recipe else TRAINING
    training = request.adjusted(request.training or (few_shot.TRAINING if request.few_shot else usual))
    compute = replace(request.compute, device=resolve_device(request.device))
    if request.windows:
        longest = maximum_length(encoder.tokenizer, encoder.config)
        request.windows.check(encoder.path, longest, len(names), by_word=task.by_word)
    gold = {role: Gold(rows, task.gold(rows, names, role)) for role, rows in roles.items()}
    if measure.ranks and roles["validation"]:
        tell_queries(measure, task.column(gold["validation"].labels), task.clusters(roles["validation"], measure))
    balance = balance_of(training, task, gold["train"].labels, names)
    if request.few_shot:
        few_shot.check_few_shot(encoder, task, names, gold["train"])
    with request.begin(
        {"encoder": encoder},
        data=checked.described(),
        teacher=encoder,
        training=training,
        metric=metric,
        train=roles["train"],
        validation=roles["validation"],
    ) as stage:
        set_seed(compute.seed)
        run = TrainingRun(stage.working, training, task, compute, request.progress, "Fine-tuning")
        if request.few_shot:
            ways = few_shot.WAYS if request.few_shot == "chosen" else (request.few_shot,)
            model, outcome, notes = few_shot.fit_head(encoder, names, gold["train"], run, metric=metric, ways=ways)
            selection, tokenizer = Selection(roles["train"], few_shot.SPLIT, metric), encoder.tokenizer
        else:
            model = encoder.with_head(names, task)
            if not balance.weights:
                prior = task.prior(task.column(gold["train"].labels), len(names))
                start_from(model, prior - np.array(balance.shift or (0.0,)))
            set_windows(model.config, request.windows)
            tokenizer = encoder.word_tokenizer() if task.by_word else encoder.tokenizer
            selection, notes = Selection(list(gold["validation"].rows()), "validation", metric), {}
            (outcome,) = fit(
                model,
                tokenizer,
                TrainingData(None, gold["train"], selection),
                run,
                phases=(Phase((Choice("hard-label"),)),),
                teachers={},
            )
        tokenizer = with_length(tokenizer, outcome)
        stage.write_model(
            model,
            tokenizer,
            task=task,
            labels=names,
            recipe={**(resolved(recipe) if recipe else {}), "training": asdict(training)},
            metrics=(selection.score(outcome.best_score, task),),
            notes={"recipe": recipe.name if recipe else encoder.name, **outcome.noted, **notes},
        )
    return Model.open(stage.output)


def start_from(model: PreTrainedModel, logits: np.ndarray) -> None:
    """Give a new head with a bias of 0 that by which an untrained model answers every text with logits ``[C]``.

    As Lin et al. 2017 (arXiv:1708.02002, section 4.1): otherwise the first hundred steps teach the whole network that
    most labels are rare, and of 28 labels a MiniLM then learned nothing else.
    """
    body = set() if model.base_model is model else {*model.base_model.modules()}  # a small network is its own body
    *_, head = (part for part in model.modules() if isinstance(part, nn.Linear) and part not in body)
    if head.bias is not None and not head.bias.any():
        head.bias.data.copy_(torch.from_numpy(logits))
