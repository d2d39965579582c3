"""Score the heads of a model and decide, step by step, which ones may go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compress import plugins
from compress.data import Example, encode_gold
from compress.errors import CompressError
from compress.heads import close_lowest, normalised, step_sizes
from compress.inference import TorchRun, logits_of
from compress.metrics import evaluate
from compress.progress import Progress
from compress.tokens import encode, maximum_length, pad
from compress.transfer import Gold
from compress.words import one_column

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from compress.types import Batch

SCORING_BATCH_ROWS = 32


def head_importance(
    model: PreTrainedModel,
    examples: Sequence[tuple[str, int | str]],
    *,
    tokenizer: PreTrainedTokenizerFast,
    criterion: str = "gradient",
    normalise: bool = False,
    max_length: int = 128,
    **options: Any,
) -> Tensor:
    """Return importance scores ``[L, H]`` of every head of a model.

    Args:
        examples: ``(text, label)`` pairs; a label is a class index or name.
        criterion: a plug-in of ``compress list criteria``; ``options`` are its own.
        normalise: divide each layer's scores by their L2 norm.
    """
    id2label: Any = model.config.id2label
    names = [str(id2label[index]) for index in sorted(id2label)]
    task = "regression" if len(names) == 1 else "classification"
    rows = [Example(text, None, str(label)) for text, label in examples]
    gold = encode_gold(rows, names, task=task, name="examples")
    limit = min(max_length, maximum_length(tokenizer, model.config.to_dict()))
    batches = scoring_batches(rows, gold, tokenizer, max_length=limit, task=task, device=str(model.device))
    plugin = plugins.find("criteria", criterion)
    if faults := plugin.check(options):
        raise CompressError("; ".join(faults))
    scores: Tensor = plugin.function(model, batches, **options)
    return normalised(scores) if normalise else scores


def check_scoring(train: Sequence[Example], examples: int, step: float) -> None:
    """Refuse a request to score heads that has no rows, or no sensible number of them or share of heads a step."""
    if not train:
        raise CompressError("there are no rows to score the heads on; give labelled rows with --train FILE")
    if examples < 1:
        raise CompressError(f"--examples {examples} is not a number of rows; give 1 or more, such as 1024")
    if not 0 < step <= 1:
        raise CompressError(f"--step {step} is not a share of the heads; give one above 0 and at most 1, such as 0.1")


@dataclass(frozen=True)
class Judge:
    """The rows on which the curve is drawn: validation, or the scoring sample where there is none."""

    gold: Gold
    split: str
    tokenizer: PreTrainedTokenizerFast
    task: str
    metric: str
    max_length: int

    @classmethod
    def of(cls, gold: dict[str, Gold], tokenizer: PreTrainedTokenizerFast, **settings: Any) -> Judge:
        split = "validation" if gold["validation"].examples else "sample"
        shown = "validation" if split == "validation" else "train (the scoring rows)"
        return cls(gold[split], shown, tokenizer, **settings)

    def logits(self, model: PreTrainedModel) -> np.ndarray:
        return logits_of(
            self.gold.examples, TorchRun(model), self.tokenizer, max_length=self.max_length, task=self.task
        )

    def point(self, removed: int, total: int, model: PreTrainedModel, *, recovered: bool = False) -> dict[str, Any]:
        """Return one point of the curve."""
        value = evaluate(self.logits(model), one_column(self.gold.labels), task=self.task, metric=self.metric)
        return {
            "heads_removed": removed, "heads_kept": total - removed, "share_removed": round(removed / total, 4),
            "metric": self.metric, "value": value, "split": self.split, "rows": len(self.gold.examples),
            "recovered": recovered,
        }  # fmt: skip


def choose_heads(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    sample: Gold,
    judge: Judge,
    count: int,
    *,
    criterion: str,
    normalise: bool,
    step: int,
    max_length: int,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    """Choose the heads to remove, step by step, and return the kept head numbers, first scores and curve."""
    from compress.gates import gates_work, masked
    from compress.units import kept_heads

    if not gates_work(model):
        raise CompressError(
            f"gates on the heads of a {model.config.model_type!r} model do not reach its logits; it cannot be pruned"
        )
    numbers = kept_heads(model)
    total = sum(map(len, numbers))
    batches = list(
        scoring_batches(
            sample.examples, sample.labels, tokenizer, max_length=max_length, task=judge.task, device=str(model.device)
        )
    )
    first: list[list[float]] = []
    masks: list[Tensor] = []
    curve = [judge.point(0, total, model)]
    before = 0
    with progress("Scoring heads", count) as advance:
        path = removal_path(model, batches, count, criterion=criterion, normalise=normalise, step=step, seed=seed)
        for removed, masks, scores in path:
            first = first or scores.tolist()
            with masked(model, masks):
                curve.append(judge.point(removed, total, model))
            advance(removed - before)
            before = removed
    kept = [
        [head for head, on in zip(heads, mask.tolist(), strict=True) if on]
        for heads, mask in zip(numbers, masks, strict=True)
    ]
    return {"kept": kept, "importance": first, "curve": curve}


def removal_path(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    count: int,
    *,
    criterion: str,
    step: int,
    normalise: bool = True,
    recompute: bool = True,
    seed: int = 0,
    fixed: Tensor | None = None,
) -> Iterator[tuple[int, list[Tensor], Tensor]]:
    """Yield after each step how many heads are closed, the masks, and the scores ``[L, H]`` that chose them.

    Args:
        count: heads to close in all; every layer keeps its best one.
        step: heads closed at a time.
        normalise: divide each layer's scores by their L2 norm.
        recompute: score again with the closed heads closed after each step (Michel et al. 2019, section 4.1).
        fixed: scores to use instead of computing any.
    """
    import torch

    from compress.units import units_of

    plugin = plugins.find("criteria", criterion)
    options = {"seed": seed} if "seed" in plugin.parameters else {}
    masks = [torch.ones(units.count) for units in units_of(model)]
    scores, removed = fixed, 0
    for size in step_sizes(count, step):
        if scores is None or (recompute and fixed is None):
            scores = plugin.function(model, batches, masks, **options)
        masks = close_lowest(normalised(scores) if normalise else scores, masks, size)
        removed += size
        yield removed, masks, scores


def scoring_batches(
    examples: Sequence[Example],
    gold: Sequence[int] | Sequence[float] | Sequence[list[int]],
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int,
    task: str,
    device: str,
) -> Iterator[Batch]:
    """Yield batches of like length with gold labels; of sentences to tag those of the words that the model reads."""
    import torch

    from compress.types import Batch

    tokens = encode(tokenizer, examples, max_length, task=task)
    order = sorted(range(len(examples)), key=lambda row: len(tokens["input_ids"][row]))
    for start in range(0, len(order), SCORING_BATCH_ROWS):
        chosen = order[start : start + SCORING_BATCH_ROWS]
        arrays = pad([{k: v[row] for k, v in tokens.items()} for row in chosen], tokenizer.pad_token_id or 0)
        labels: list[Any] = [gold[row] for row in chosen]
        if task == "tagging":
            arrays["words"], starts = arrays["words"] > 0, arrays["words"]
            labels = [labels[row][starts[row, token] - 1] for row, token in zip(*np.nonzero(starts), strict=True)]
        tensors = {key: torch.from_numpy(values).to(device) for key, values in arrays.items()}
        kind = torch.float32 if task == "regression" else torch.long
        yield Batch(**tensors, labels=torch.tensor(labels, dtype=kind, device=device))
