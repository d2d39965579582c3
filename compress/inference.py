"""Logits for many rows with hardly any padding: rows of like length share a batch, whatever runs the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from compress.errors import CompressError
from compress.tokens import encode, pad

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from compress.data import Example

BATCH_ROWS = 64

# Token arrays [B, T] by input name -> logits [B, C].
Run = Callable[[dict[str, np.ndarray]], np.ndarray]


def logits_of(
    examples: Sequence[Example],
    run: Run,
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int,
    batch_rows: int = BATCH_ROWS,
) -> np.ndarray:
    """Return logits ``[N, C]`` float32 in the order of the examples."""
    tokens = encode(tokenizer, examples, max_length)
    lengths = [len(ids) for ids in tokens["input_ids"]]
    order = sorted(range(len(examples)), key=lambda row: (lengths[row], row))
    logits: np.ndarray | None = None
    for start in range(0, len(order), batch_rows):
        batch = order[start : start + batch_rows]
        rows = [{key: values[row] for key, values in tokens.items()} for row in batch]
        outputs = run(pad(rows, tokenizer.pad_token_id or 0))
        if logits is None:
            logits = np.empty((len(examples), outputs.shape[1]), dtype=np.float32)
        logits[batch] = outputs
    if logits is None or not np.isfinite(logits).all():
        raise CompressError("the model gave logits that are not finite numbers; its weights are damaged")
    return logits


def torch_run(model: PreTrainedModel) -> Run:
    """Return a function that runs a torch model where it lies."""
    import torch

    def run(arrays: dict[str, np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            inputs = {key: torch.from_numpy(values).to(model.device) for key, values in arrays.items()}
            logits: np.ndarray = model(**inputs).logits.float().cpu().numpy()
            return logits

    return run
