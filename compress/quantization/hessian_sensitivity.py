"""How sensitive each encoder layer is: the largest eigenvalue of its block of the loss's Hessian, over parts of data.

Dong et al. 2019, HAWQ (arXiv:1905.03696) for the matrix-free power iteration; Shen et al. 2020, Q-BERT
(arXiv:1909.05840), section 3.1, for ``|mean| + standard deviation`` over parts of the data, because the mean alone
misleads for BERT.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from compress.errors import refuse
from compress.models.batch import NO_TARGET
from compress.models.components import fixed_weights, has_units
from compress.models.modeling.families import layers_of
from compress.tasks import of_network

# The paper has 10 parts of a tenth of the training rows each; a part here is one batch.
PARTS, PART_ROWS = 4, 16
ITERATIONS, TOLERANCE = 12, 0.02


# One batch: the arguments of the model's ``forward``, and the target labels, ``[B]`` or ``[B, T]``.
SensitivityBatch = tuple[Mapping[str, Tensor], Tensor]


def layer_sensitivities(
    model: PreTrainedModel, parts: Sequence[SensitivityBatch], *, iterations: int = ITERATIONS, seed: int = 0
) -> list[float]:
    """Return the sensitivity of every encoder layer, from the first; only the matrices of a layer count.

    The model is left as it was found. Costs one product with the Hessian (about one backward pass through the gradient)
    for every layer, part and iteration.

    Raises:
        CompressError: there is no part, or the model is no transformer.
    """
    refuse(
        (
            not has_units(model),
            f"sensitivity is of encoder layers, and a {model.config.model_type!r} model has none",
        ),
        (not parts, "sensitivity is measured on training rows, and there are none; give --train FILE"),
    )
    matrices = [[weight for weight in layer.parameters() if weight.dim() == 2] for layer in layers_of(model)]
    flat = [weight for layer in matrices for weight in layer]
    found = []  # by part, then by layer
    # torch's fused attention cannot be differentiated twice on any device; its plain one can.
    with fixed_weights(model, learning=True), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        for number, part in enumerate(parts):
            gradients = iter(torch.autograd.grad(_loss(model, part), flat, create_graph=True))
            by_layer = [([next(gradients) for _ in layer], layer) for layer in matrices]
            found.append([top_eigenvalue(*pair, iterations=iterations, seed=seed + number) for pair in by_layer])
    return [sensitivity(eigenvalues) for eigenvalues in zip(*found, strict=True)]


def sensitivity(eigenvalues: Sequence[float]) -> float:
    """Return ``|mean| + standard deviation`` of a layer's largest eigenvalues by part of the data (equation 2)."""
    values = torch.tensor(eigenvalues, dtype=torch.float64)
    return float(values.mean().abs() + values.std(correction=0))


def top_eigenvalue(
    gradients: Sequence[Tensor],
    weights: Sequence[Tensor],
    *,
    iterations: int = ITERATIONS,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> float:
    """Return the eigenvalue of the Hessian that is largest in magnitude, with its sign, by power iteration.

    The Hessian is never formed: its product with a vector v is the gradient of ``g . v`` (Pearlmutter 1994).

    Args:
        gradients: of a loss by ``weights``, made with ``create_graph=True``.
        iterations: at most so many products; fewer when the value changes by less than ``tolerance`` of itself.
    """
    generator = torch.Generator().manual_seed(seed)
    vector = _normalised([torch.randn(weight.shape, generator=generator).to(weight) for weight in weights])
    value = 0.0
    for _ in range(iterations):
        product = torch.autograd.grad(gradients, weights, grad_outputs=vector, retain_graph=True)
        previous, value = value, float(sum((v * p).sum() for v, p in zip(vector, product, strict=True)))
        if not any(bool(part.any()) for part in product):
            return 0.0
        vector = _normalised(product)
        if abs(value - previous) <= tolerance * abs(value):
            break
    return value


def most_sensitive(sensitivities: Sequence[float]) -> list[int]:
    return sorted(range(len(sensitivities)), key=lambda layer: -sensitivities[layer])


def assign_bits(sensitivities: Sequence[float], bits: Sequence[int]) -> list[int]:
    """Return bits for every layer: of n numbers the largest goes to the most sensitive n-th of the layers, and on."""
    given, ranked = sorted(bits, reverse=True), most_sensitive(sensitivities)
    by_layer = {layer: given[rank * len(given) // len(ranked)] for rank, layer in enumerate(ranked)}
    return [by_layer[layer] for layer in range(len(ranked))]


def _loss(model: PreTrainedModel, part: SensitivityBatch) -> Tensor:
    # The class's own forward: mixed precision, where a trainer wraps it in, has too few digits for second derivatives.
    inputs, answers = part
    logits = type(model).forward(model, **inputs).logits
    if logits.dim() > 2:
        logits, answers = logits.flatten(0, -2), answers.flatten()
    total, known = of_network(model).hard_loss(logits, answers.to(logits.device))
    return total / known.sum()


def _normalised(vector: Sequence[Tensor]) -> list[Tensor]:
    length = torch.sqrt(sum(((part**2).sum() for part in vector), torch.zeros(())))
    return [part / length for part in vector]


def answers_of(model: PreTrainedModel, inputs: Mapping[str, Any]) -> Tensor:
    """Return a model's predictions as targets of a batch: classes, labels, or scores for regression.

    Tokens that are padding have no target.
    """
    with torch.no_grad():
        logits: Tensor = model(**inputs).logits
    classes = of_network(model).own_labels(logits)
    return classes if logits.dim() == 2 else classes.masked_fill(inputs["attention_mask"] == 0, NO_TARGET)
