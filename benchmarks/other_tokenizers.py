"""What a WordPiece vocabulary of its own costs a small student whose teacher has another tokenizer.

    python benchmarks/other_tokenizers.py --teacher DIR --train FILE --validation FILE --unlabeled FILE --work DIR
        -o RESULTS.jsonl [--only KIND ...] [--student NAME ...] [--seeds 2] [--steps 3000] [--threads 1]

A teacher of RoBERTa's kind (byte-level BPE) and one of XLM-R's (Unigram) are made of the layers of a BERT teacher: its
embeddings are averaged for 30,000 subword tokens that are learned from the text, and all of it is fine-tuned. Each
labels the unlabelled text once. The students of the recipes then learn with a vocabulary of their own, and with the
teacher's. Checkpoints are selected by held-out unlabelled text, so that the validation rows decide. What was made lies
in the working folder, and the same command goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from script import provenance, read_options, read_rows, replace_line
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaTokenizer,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaTokenizer,
)

from compress.data import Example
from compress.evaluation.metrics import bootstrap
from compress.inference.predict import load
from compress.models.model_dir import Model
from compress.models.saving import save_model
from compress.progress import for_terminal
from compress.recipes import Training, load_recipe
from compress.requests.labelling import label
from compress.requests.training import distill, finetune

SIZE, LEARNED_ROWS, OFFSET = 30_000, 200_000, 2  # RoBERTa's positions begin behind that of the padding
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
TUNING = Training(epochs=1.0, batch_size=32, learning_rate=5e-5, warmup_share=0.06, evaluations=4)
VOCABULARIES = ("own", "teacher's")
KINDS = {
    "roberta": (RobertaConfig, RobertaForSequenceClassification),
    "xlm-roberta": (XLMRobertaConfig, XLMRobertaForSequenceClassification),
}


def learned_tokenizer(kind: str, texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the kind's own class."""
    settings: dict[str, Any] = {"vocab_size": SIZE, "special_tokens": [*SPECIALS], "show_progress": False}
    if kind == "roberta":
        learned = Tokenizer(models.BPE())
        learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer: Any = trainers.BpeTrainer(**settings, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    else:
        learned = Tokenizer(models.Unigram())
        learned.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(**settings, unk_token="<unk>")
    learned.train_from_iterator(texts, trainer)
    stored = json.loads(learned.to_str())["model"]
    made: Any = (
        RobertaTokenizer(stored["vocab"], [tuple(merge) for merge in stored["merges"]])
        if kind == "roberta"
        else XLMRobertaTokenizer([tuple(one) for one in stored["vocab"]])
    )
    made.model_max_length = 512
    found: PreTrainedTokenizerFast = made
    return found


@torch.no_grad()
def encoder_of(kind: str, teacher: Model, texts: Sequence[str], folder: Path) -> Path:
    """Write the layers of a BERT teacher as an encoder of another kind, which reads a tokenizer of its own."""
    if folder.is_dir():
        return folder
    tokenizer, bert, theirs = learned_tokenizer(kind, texts), teacher.load().base_model, teacher.tokenizer
    config_class, model_class = KINDS[kind]
    config = config_class(
        **{
            name: getattr(bert.config, name)
            for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        },
        vocab_size=len(tokenizer),
        max_position_embeddings=bert.config.max_position_embeddings + OFFSET,
        layer_norm_eps=bert.config.layer_norm_eps,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    made = model_class(config)
    body = made.base_model
    body.encoder.load_state_dict(bert.encoder.state_dict())
    body.embeddings.LayerNorm.load_state_dict(bert.embeddings.LayerNorm.state_dict())
    body.embeddings.token_type_embeddings.weight[:] = bert.embeddings.token_type_embeddings.weight[0]
    body.embeddings.position_embeddings.weight[OFFSET:] = bert.embeddings.position_embeddings.weight
    made.classifier.dense.load_state_dict(bert.pooler.dense.state_dict())
    words = bert.embeddings.word_embeddings.weight
    special = dict(zip(SPECIALS, ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"), strict=True))
    for token, number in tokenizer.get_vocab().items():
        text = special.get(token) or tokenizer.convert_tokens_to_string([token])
        ids = theirs(text, add_special_tokens=False)["input_ids"] or [theirs.unk_token_id]
        body.embeddings.word_embeddings.weight[number] = words[ids].mean(dim=0)
    save_model(made, tokenizer, folder)
    return folder


def main() -> None:
    options = read_options(
        __doc__,
        teacher=str,
        train=str,
        validation=str,
        unlabeled=str,
        work=Path,
        only=([*KINDS],),
        student=(["cnn", "ngram"],),
        seeds=2,
        steps=3000,
        threads=1,
    )
    texts = [row.text for row in read_rows(options.unlabeled, "unlabeled", labelled=False)]
    for kind in options.only:
        for line in of_kind(kind, texts, options):
            replace_line(options.output, line, "teacher", "student")


def of_kind(kind: str, texts: Sequence[str], options: argparse.Namespace) -> list[dict[str, object]]:
    validation, folder = read_rows(options.validation, "validation"), options.work / kind
    shared: dict[str, Any] = {"device": "cpu", "threads": options.threads, "progress": for_terminal()}
    encoder = encoder_of(kind, Model.open(options.teacher), texts[:LEARNED_ROWS], folder.with_name(f"{kind}-encoder"))
    place, labels = folder.with_name(f"{kind}-teacher"), folder.with_name(f"{kind}-labels")
    if not place.is_dir():
        data = {"train": options.train, "validation": options.validation, "overlap": "drop"}
        finetune(str(encoder), place, training=TUNING, **data, **shared)
    if not labels.is_dir():
        label(str(place), options.unlabeled, labels, **shared)
    lines = []
    for name in options.student:
        recipe = load_recipe("students", name)
        recipe = replace(recipe, training=replace(recipe.training, max_steps=options.steps))
        right: dict[str, list[Any]] = {vocabulary: [] for vocabulary in VOCABULARIES}
        for seed in range(options.seeds):
            for vocabulary in VOCABULARIES:
                output = folder.with_name(f"{kind}-{name}-{vocabulary[:3]}-{seed}")
                asked = recipe if vocabulary == "own" else replace(recipe, vocabulary=None)
                if not output.is_dir():
                    distill(str(place), asked, output, labels=[str(labels)], seed=seed, **shared)
                right[vocabulary].append(labels_of(output, validation))
        gold, teacher = [row.label for row in validation], labels_of(place, validation)
        lines.append(compared(kind, name, right, teacher, gold, options.seeds))
    return lines


def labels_of(directory: Path, rows: Sequence[Example]) -> list[str]:
    return [one["label"] for one in load(directory).predict([row.text for row in rows])]


def compared(
    kind: str, student: str, found: dict[str, list[Any]], teacher: Sequence[str], gold: Sequence[Any], seeds: int
) -> dict[str, object]:
    """Return a line of accuracies in percent, and the difference of both vocabularies over the rows of all seeds."""
    names = sorted({*teacher, *gold})
    of = {name: number for number, name in enumerate(names)}
    numbers = {key: np.array([[of[label] for label in run] for run in runs]) for key, runs in found.items()}
    right = np.array([of[label] for label in gold])
    both = tuple((numbers[key] == right).mean(axis=0) for key in VOCABULARIES)  # of a row, the mean of its seeds
    low, high = bootstrap(both, lambda own, other: 100 * (own.mean(axis=-1) - other.mean(axis=-1)))
    accuracy = {key: 100 * float((runs == right).mean()) for key, runs in numbers.items()}
    difference = {"value": accuracy["own"] - accuracy["teacher's"], "low": low, "high": high}
    print(kind, student, accuracy, difference)
    return {
        "teacher": kind,
        "student": student,
        "rows": len(gold),
        "seeds": seeds,
        "teacher_accuracy": 100 * float(np.mean([of[label] for label in teacher] == right)),
        "accuracy": accuracy,
        "difference": difference,
        **provenance(),
    }


if __name__ == "__main__":
    main()
