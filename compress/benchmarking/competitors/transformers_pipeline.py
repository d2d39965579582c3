"""The stock pipeline of transformers: texts in and labels out.

``pipeline("text-classification")`` with all rows in one batch and every class returned. It is asked for logits
(``function_to_apply="none"``) instead of probabilities, which loses no digits.

Source: https://huggingface.co/docs/transformers/main_classes/pipelines
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compress.data.examples import Example
from compress.data.tokenization import maximum_length
from compress.inference.runners import Runner
from compress.inference.torch_run import open_torch
from compress.models.model_dir import Model

REQUIRES = {"transformers.pipelines": "transformers>=5.23,<6"}
DEVICES = ("cpu", "cuda")


def start(directory: Path, *, threads: int, device: str) -> Runner:
    """The pipeline tokenises whole texts, pads, runs and sorts classes by score, which is undone here."""
    from transformers import pipeline

    placed = Model(directory)
    model = open_torch(directory, threads=threads, device=device)
    tokenizer = placed.tokenizer
    opened: Any = pipeline("text-classification", model=model, tokenizer=tokenizer, device=device)
    index = {label: number for number, label in opened.model.config.id2label.items()}

    def prepare(examples: Sequence[Example]) -> list[Any]:
        return [e.text if e.text_pair is None else {"text": e.text, "text_pair": e.text_pair} for e in examples]

    def run(inputs: list[Any]) -> np.ndarray:
        answers = opened(
            inputs,
            batch_size=len(inputs),
            top_k=None,
            function_to_apply="none",
            truncation=True,
            max_length=runner.max_length,
        )
        logits = np.empty((len(inputs), len(index)), dtype=np.float32)
        for row, scores in enumerate(answers):
            for score in scores:
                logits[row, index[score["label"]]] = score["score"]
        return logits

    longest = maximum_length(tokenizer, placed.config)
    runner = Runner(prepare, run, placed.parameters, tokenizer_inside=True, max_length=longest, labels_inside=True)
    return runner
