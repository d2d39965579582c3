"""Score the heads of a model by a criterion, and batch the rows that criteria read."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from compress import plugins
from compress.data import Example, encode_gold
from compress.data.tokenization import encode, maximum_length, pad
from compress.errors import CompressError
from compress.models.batch import Batch
from compress.models.modeling import is_tagger
from compress.surgery.unit_masks import normalised

SCORING_BATCH_ROWS = 32


def head_importance(
    model: PreTrainedModel,
    examples: Sequence[tuple[str, int | str | None]],
    *,
    tokenizer: PreTrainedTokenizerFast,
    criterion: str = "gradient",
    normalise: bool = False,
    max_length: int | None = None,
    **options: Any,
) -> Tensor:
    """Return importance scores ``[L, H]`` of every head of a model.

    Args:
        examples: ``(text, label)`` pairs; a label is a class index or name, or None in all of them for a criterion that
            reads none: gradient and taylor with ``labels="own"``, magnitude, confidence, random.
        criterion: a plug-in of ``compress list criteria``; ``options`` are its own.
        normalise: divide each layer's scores by their L2 norm.
        max_length: tokens of a text that are read; None for as many as the model can.

    Raises:
        CompressError: a model, criterion, option or label that does not fit, or no examples.
    """
    check_rows(examples)
    if is_tagger(model):
        raise CompressError(
            "head_importance scores classifiers of whole texts, and this model tags words; use 'compress heads'"
        )
    id2label: Any = model.config.id2label
    names = [str(id2label[index]) for index in sorted(id2label)]
    task = "regression" if len(names) == 1 else "classification"
    rows = [Example(text, None, None if label is None else str(label)) for text, label in examples]
    labelled = any(row.label is not None for row in rows)
    gold = encode_gold(rows, names, task=task, name="examples") if labelled else None
    most = maximum_length(tokenizer, model.config.to_dict())
    limit = min(max_length or most, most)
    batches = scoring_batches(rows, gold, tokenizer, max_length=limit, task=task, device=str(model.device))
    plugin = plugins.find("criteria", criterion)
    if faults := plugin.check(options):
        raise CompressError("; ".join(faults))
    scores: Tensor = plugin.function(model, batches, **options)
    return normalised(scores) if normalise else scores


def check_rows(train: Sequence[object]) -> None:
    """Raise an error without rows to score on."""
    if not train:
        raise CompressError("there are no rows to score the heads on; give labelled rows with --train FILE")


def scoring_batches(
    examples: Sequence[Example],
    gold: Sequence[int] | Sequence[float] | Sequence[list[int]] | None,
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int,
    task: str,
    device: str,
) -> Iterator[Batch]:
    """Yield batches of rows of similar length, labelled where ``gold`` is given; for a tagger by word."""
    tokens = encode(tokenizer, examples, max_length, task=task)
    order = sorted(range(len(examples)), key=lambda row: len(tokens["input_ids"][row]))
    for start in range(0, len(order), SCORING_BATCH_ROWS):
        chosen = order[start : start + SCORING_BATCH_ROWS]
        arrays = pad([{k: v[row] for k, v in tokens.items()} for row in chosen], tokenizer.pad_token_id or 0)
        labels: list[Any] = [gold[row] for row in chosen] if gold is not None else []
        if task == "tagging":
            arrays["words"], starts = arrays["words"] > 0, arrays["words"]
            labels = [labels[row][starts[row, token] - 1] for row, token in zip(*np.nonzero(starts), strict=True)]
        tensors = {key: torch.from_numpy(values).to(device) for key, values in arrays.items()}
        kind = torch.float32 if task == "regression" else torch.long
        yield Batch(**tensors, labels=torch.tensor(labels, dtype=kind, device=device) if labels else None)
