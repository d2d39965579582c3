"""Sentences with tags and tiny taggers of words, made on the spot."""

from __future__ import annotations

import random
from typing import Any

import torch
from tiny import BAD, GOOD, PLAIN, POSITIONS, UNEVEN, tokenizer
from transformers import AutoConfig, AutoModelForTokenClassification, PreTrainedModel

from compress.attention import remove_heads
from compress.examples import Example, sentence
from compress.modeling.bilstm import BiLSTMConfig, BiLSTMForTokenClassification
from compress.modeling.pruned import to_pruned

TAGS = ("BAD", "GOOD", "PLAIN")


def tag_of(word: str) -> str:
    return "GOOD" if word in GOOD else "BAD" if word in BAD else "PLAIN"


def sentences(count: int = 60, *, seed: int = 0) -> list[Example]:
    """Return sentences of one to nine words; a word's tag follows from the word, and some are of several pieces."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        words = [draw.choice([*GOOD, *BAD, *PLAIN, *PLAIN, "plotless", "filmic"]) for _ in range(draw.randint(2, 9))]
        found.append(Example(sentence(words), tags=tuple(map(tag_of, words))))
    return found


def tagger(family: str = "bert", *, seed: int = 0) -> PreTrainedModel:
    """Return a random tagger whose logits differ visibly from token to token."""
    tokens = tokenizer(family)
    offset = 2 if family in {"roberta", "xlm-roberta", "mpnet"} else 0
    settings: dict[str, Any] = {
        "vocab_size": len(tokens), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": POSITIONS + offset, "pad_token_id": tokens.pad_token_id,
        "initializer_range": 0.3, "id2label": dict(enumerate(TAGS)),
        "label2id": {label: index for index, label in enumerate(TAGS)},
    }  # fmt: skip
    if family == "distilbert":
        settings["hidden_dim"] = settings.pop("intermediate_size")
    if family in {"roberta", "xlm-roberta"}:
        settings["type_vocab_size"] = 1
    if family == "electra":
        settings["embedding_size"] = 16
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForTokenClassification.from_config(AutoConfig.for_model(family, **settings))
    return model.eval()


def pruned_tagger(family: str = "bert") -> PreTrainedModel:
    """Return a tagger with uneven heads, 2 and 3 of 4, as one of our own types."""
    model = tagger(family)
    remove_heads(model, UNEVEN)
    return to_pruned(model).eval()


def bilstm_tagger(*, seed: int = 0) -> BiLSTMForTokenClassification:
    """Return a random BiLSTM tagger over the BERT tokenizer."""
    size = len(tokenizer("bert"))
    torch.manual_seed(seed)
    config = BiLSTMConfig(
        tokenizer_size=size, vocab_size=size // 2, embedding_size=48, hidden_size=32, dense_size=24,
        id2label=dict(enumerate(TAGS)), label2id={label: index for index, label in enumerate(TAGS)},
    )  # fmt: skip
    return BiLSTMForTokenClassification(config).eval()


def conllu(examples: list[Example]) -> str:
    """Return sentences as a treebank."""
    lines = []
    for number, example in enumerate(examples):
        lines.append(f"# sent_id = {number}")
        for place, (word, tag) in enumerate(zip(example.words, example.tags or (), strict=True), start=1):
            lines.append("\t".join([str(place), word, "_", tag, *"______"]))
        lines.append("")
    return "\n".join(lines) + "\n"
