"""Sentences with tags and tiny taggers of words, made on the spot."""

from __future__ import annotations

import random
from typing import Any

import torch
from transformers import AutoModelForTokenClassification, PreTrainedModel

from compress.data.examples import Example, sentence
from compress.models.modeling.pruned import to_pruned
from compress.models.networks.bilstm.model import BiLSTMForTokenClassification
from compress.models.networks.cnn.model import CNNForSequenceClassification, CNNForTokenClassification
from compress.surgery.remove import remove_heads
from tests.support.tiny import BAD, GOOD, PLAIN, classifier, cnn, small, uneven

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


def entities(count: int = 60, *, seed: int = 0) -> list[Example]:
    """Return the same sentences, where words of praise, or of blame, that follow each other are an entity, in BIO."""
    found = []
    for row in sentences(count, seed=seed):
        before = ("PLAIN", *(row.tags or ()))
        tags = [
            "O" if tag == "PLAIN" else f"{'I' if tag == last else 'B'}-{tag}"
            for last, tag in zip(before, row.tags or (), strict=False)
        ]
        found.append(Example(row.text, tags=tuple(tags)))
    return found


def tagger(family: str = "bert", *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Return a random tagger whose logits differ visibly from token to token; ``changes`` are of its config."""
    config = classifier(family, **{"labels": TAGS, **changes}).config
    config.problem_type = None
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForTokenClassification.from_config(config)
    return model.eval()


def pruned_tagger(family: str = "bert") -> PreTrainedModel:
    """Return a tagger with fewer heads, as one of our own types."""
    model = tagger(family)
    remove_heads(model, uneven(family))
    return to_pruned(model).eval()


def bilstm_tagger(**options: Any) -> BiLSTMForTokenClassification:
    model: BiLSTMForTokenClassification = small(
        BiLSTMForTokenClassification, labels=TAGS, hidden_size=32, problem_type=None, **options
    )
    return model


def cnn_tagger(labels: tuple[str, ...] = TAGS, **options: Any) -> CNNForSequenceClassification:
    return cnn(CNNForTokenClassification, labels=labels, problem_type=None, **options)


def conllu(examples: list[Example]) -> str:
    """Return sentences as a treebank."""
    lines = []
    for number, example in enumerate(examples):
        lines.append(f"# sent_id = {number}")
        for place, (word, tag) in enumerate(zip(example.words, example.tags or (), strict=True), start=1):
            lines.append("\t".join([str(place), word, "_", tag, *"______"]))
        lines.append("")
    return "\n".join(lines) + "\n"
