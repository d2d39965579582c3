"""The stock pipeline of transformers: texts in and labels out.

``pipeline("text-classification")`` with all rows in one batch and every class returned. It is asked for logits
(``function_to_apply="none"``) instead of probabilities, which loses no digits.

Source: https://huggingface.co/docs/transformers/main_classes/pipelines
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compress.data.examples import Example
from compress.data.tokenization import maximum_length
from compress.inference.torch_run import open_torch
from compress.models.model_dir import ModelDir

REQUIRES = {"transformers.pipelines": "transformers>=5.23,<6"}
DEVICES = ("cpu", "cuda")


@dataclass
class PipelineRunner:
    """The pipeline tokenises whole texts, pads, runs and sorts classes by score, which is undone here."""

    pipeline: Any
    index: Mapping[str, int]
    parameters: int
    max_length: int
    tokenizer_inside: bool = True

    def prepare(self, examples: Sequence[Example]) -> list[Any]:
        return [e.text if e.text_pair is None else {"text": e.text, "text_pair": e.text_pair} for e in examples]

    def run(self, inputs: list[Any]) -> np.ndarray:
        answers = self.pipeline(
            inputs,
            batch_size=len(inputs),
            top_k=None,
            function_to_apply="none",
            truncation=True,
            max_length=self.max_length,
        )
        logits = np.empty((len(inputs), len(self.index)), dtype=np.float32)
        for row, scores in enumerate(answers):
            for score in scores:
                logits[row, self.index[score["label"]]] = score["score"]
        return logits


def start(directory: Path, *, threads: int, device: str) -> PipelineRunner:
    from transformers import pipeline

    placed = ModelDir(directory)
    model = open_torch(directory, threads=threads, device=device)
    tokenizer = placed.tokenizer
    made: Any = pipeline("text-classification", model=model, tokenizer=tokenizer, device=device)
    index = {label: number for number, label in made.model.config.id2label.items()}
    return PipelineRunner(made, index, placed.parameters, maximum_length(tokenizer, placed.config))
