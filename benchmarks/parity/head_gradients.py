"""What every example says of every head, one backward for each, and the scores that common implementations make of it.

Nothing here uses this project's masks. With xi_h a factor on what head h gives, the chain rule makes dL/dxi_h =
<context_h, dL/dcontext_h>, the sum over tokens and width of the input of the attention's output projection times its
gradient. A factor that all rows of a batch share has the sum of the rows' gradients (their mean, of a mean loss), so
that whatever an implementation does with batches follows from the gradients of single examples. The implementations
were read in public repositories and are described here, not copied:

* ``pmichel31415/pytorch-pretrained-BERT``, branch ``paul``, ``examples/classifier_eval.py``, which the README of
  ``pmichel31415/are-16-heads-really-better-than-1`` (Michel et al. 2019) checks out: absolute values of each token's
  product; the last layer divided by examples, the others by tokens.
* ``huggingface/transformers``, ``examples/research_projects/bertology/run_bertology.py`` (today
  ``huggingface/transformers-research-projects``, ``bertology/run_bertology.py``): one factor a head for all batches,
  whose gradient is never set to zero; its absolute value is added after every batch, and the sum divided by tokens.
* ``microsoft/fastformers``, ``examples/fastformers/run_superglue.py``: the same.
* ``huawei-noah/Pretrained-Language-Model``, ``DynaBERT/run_glue.py``: the same, not divided.
* ``airaria/TextPruner``, ``src/textpruner/pruners/transformer_pruner.py``: the absolute value of what a batch sums up
  to (read from the weights of the output projection, which gives the same), set to zero after every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

# What the names of attention output projections end with, in BERT and its like and in other families.
OUTPUT_PROJECTION = "attention.output.dense"
OUTPUT_PROJECTIONS = {
    "albert": "attention.dense",
    "distilbert": "attention.out_lin",
    "modernbert": "attn.Wo",
    "mpnet": "attention.attn.o",
}
BATCH_SIZES = (1, 8, 32)


@dataclass(frozen=True)
class HeadGradients:
    """N examples, L layers, H heads.

    ``signed`` ``[N, L, H]`` are dL/dxi of each example; ``by_token`` ``[N, L, H]`` is what they are if absolute values
    are taken before the sum over tokens; ``tokens`` ``[N]`` are the lengths.
    """

    signed: Tensor
    by_token: Tensor
    tokens: Tensor

    def of(self, rows: Tensor) -> HeadGradients:
        """Return those of some examples, in that order."""
        return HeadGradients(self.signed[rows], self.by_token[rows], self.tokens[rows])


@dataclass(frozen=True)
class Variant:
    """A way to make scores ``[L, H]`` of gradients; ``resampled``: of rows drawn again with replacement."""

    name: str
    scores: Callable[[HeadGradients], Tensor]
    batch_size: int | None = None
    resampled: bool = False


def head_gradients(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    labels: Sequence[int],
    *,
    max_length: int = 128,
) -> HeadGradients:
    """Run one example at a time through a model in eval mode, and its own loss back.

    A layer that is used several times (ALBERT) has the sum over its uses, since they share the factor.
    """
    heads = model.config.num_attention_heads
    signed, by_token, lengths = [], [], []
    with _contexts(output_projections(model)) as contexts:
        for text, label in zip(texts, labels, strict=True):
            for uses in contexts:
                uses.clear()
            inputs = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
            loss = model(**inputs, labels=torch.tensor([label])).loss
            gradients = iter(torch.autograd.grad(loss, [context for uses in contexts for context in uses]))
            products = [  # of each layer [uses * T, H]
                torch.cat([(use * next(gradients)).reshape(-1, heads, use.shape[-1] // heads).sum(-1) for use in uses])
                for uses in contexts
            ]
            signed.append(torch.stack([product.detach().sum(dim=0) for product in products]))
            by_token.append(torch.stack([product.detach().abs().sum(dim=0) for product in products]))
            lengths.append(inputs["input_ids"].shape[1])
    return HeadGradients(torch.stack(signed).double(), torch.stack(by_token).double(), torch.tensor(lengths).double())


@torch.no_grad()
def finite_differences(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    labels: Sequence[int],
    *,
    layer: int,
    head: int,
    step: float = 1e-4,
    max_length: int = 128,
) -> Tensor:
    """Return ``[N]``: (L(1 + step) - L(1 - step)) / 2 step of each example, for a factor on one head.

    The factor is put on the head's columns of the output projection: no masks and no backward.
    """
    weight = output_projections(model)[layer].weight
    size = weight.shape[1] // model.config.num_attention_heads
    columns = slice(head * size, (head + 1) * size)
    before, losses = weight[:, columns].clone(), []
    for factor in (1 + step, 1 - step):
        weight[:, columns] = before * factor
        losses.append(
            [
                float(
                    model(
                        **tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt"),
                        labels=torch.tensor([label]),
                    ).loss
                )
                for text, label in zip(texts, labels, strict=True)
            ]
        )
    weight[:, columns] = before
    more, less = torch.tensor(losses, dtype=torch.float64)
    return (more - less) / (2 * step)


def output_projections(model: PreTrainedModel) -> list[nn.Linear]:
    """Return the linear layer that reads the heads of each layer, found by its name."""
    ending = OUTPUT_PROJECTIONS.get(model.config.model_type, OUTPUT_PROJECTION)
    return [module for name, module in model.named_modules() if name.endswith(ending) and isinstance(module, nn.Linear)]


@contextmanager
def _contexts(projections: Sequence[nn.Linear]) -> Iterator[list[list[Tensor]]]:
    """Collect what each of the linear layers reads, a tensor for each use."""
    contexts: list[list[Tensor]] = [[] for _ in projections]

    def keep(layer: int, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        contexts[layer].append(inputs[0])

    hooks = [module.register_forward_pre_hook(partial(keep, layer)) for layer, module in enumerate(projections)]
    try:
        yield contexts
    finally:
        for hook in hooks:
            hook.remove()


def exact(gradients: HeadGradients) -> Tensor:
    """Return Michel et al. 2019 (arXiv:1905.10650), equation 3: the mean over examples of ``|dL/dxi_h|``."""
    return gradients.signed.abs().mean(dim=0)


def summed_first(gradients: HeadGradients, batch_size: int) -> Tensor:
    """Return the mean over batches of the absolute value of a batch's mean gradient."""
    return _batch_means(gradients, batch_size).abs().mean(dim=0)


def never_zeroed(gradients: HeadGradients, batch_size: int) -> Tensor:
    """Return the mean over batches of the absolute value of all that has piled up until then."""
    return _batch_means(gradients, batch_size).cumsum(dim=0).abs().mean(dim=0)


def divided_by_tokens(gradients: HeadGradients) -> Tensor:
    """Return the sum of the absolute values divided by the tokens of all examples."""
    return gradients.signed.abs().sum(dim=0) / gradients.tokens.sum()


def authors_code(gradients: HeadGradients) -> Tensor:
    """Return the sum of each token's absolute values, of the last layer by example and of the others by token."""
    scores = gradients.by_token.sum(dim=0) / gradients.tokens.sum()
    scores[-1] = gradients.by_token[:, -1].mean(dim=0)
    return scores


def _batch_means(gradients: HeadGradients, batch_size: int) -> Tensor:
    """Return the gradients ``[batches, L, H]`` of mean losses, for a factor that the rows of a batch share."""
    return torch.stack([rows.mean(dim=0) for rows in gradients.signed.split(batch_size)])


VARIANTS = (
    Variant("exact", exact),
    Variant("exact, rows drawn again", exact, resampled=True),
    *(Variant("never zeroed", partial(never_zeroed, batch_size=size), size) for size in BATCH_SIZES),
    *(Variant("summed over the batch first", partial(summed_first, batch_size=size), size) for size in BATCH_SIZES),
    Variant("divided by all tokens", divided_by_tokens),
    Variant("authors' code", authors_code),
)
