"""Power iteration against Hessians that are written out, and what follows from the ranking of layers."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, hessian
from torch.nn import functional

from compress.errors import CompressError
from compress.models.components import example_inputs
from compress.models.modeling.families import layers_of
from compress.quantization.hessian_sensitivity import (
    assign_bits,
    layer_sensitivities,
    most_sensitive,
    sensitivity,
    top_eigenvalue,
)
from tests.support.tiny import PRUNABLE, classifier


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_top_eigenvalue_of_a_quadratic(sign: float) -> None:
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0))).Q
    matrix = rotation @ torch.diag(sign * torch.tensor([5.0, -2.0, 1.0, 0.5, 0.1, 0.0])) @ rotation.T
    one, other = torch.randn(2, 2, requires_grad=True), torch.randn(2, requires_grad=True)
    joined = torch.cat([one.flatten(), other])
    gradients = torch.autograd.grad(joined @ matrix @ joined / 2, [one, other], create_graph=True)
    found = top_eigenvalue(gradients, [one, other], iterations=100, tolerance=1e-6)
    assert found == pytest.approx(sign * 5, rel=1e-3)


def test_a_flat_loss_has_no_curvature() -> None:
    weight = torch.ones(3, requires_grad=True)
    gradients = torch.autograd.grad((weight**3).sum() * 0, [weight], create_graph=True)
    assert top_eigenvalue(gradients, [weight]) == 0


@pytest.mark.parametrize("regression", [False, True])
def test_layers_of_a_model_against_the_explicit_hessian(regression: bool) -> None:
    model = classifier("bert", labels=("score",) if regression else ("a", "b"))
    model.requires_grad_(False).train()
    inputs = example_inputs(model, batch_size=3)
    answers = torch.tensor([0.5, -1.0, 2.0]) if regression else torch.tensor([0, 1, 1])
    found = layer_sensitivities(model, [(inputs, answers)] * 2, iterations=300)
    assert model.training and not any(weight.requires_grad for weight in model.parameters())
    # The Hessian of all of a layer's matrices is too large to write out: the block of one of them bounds it from below.
    layer = layers_of(model.eval())[1]
    name = next(n for n, p in model.named_parameters() if p is layer.attention.self.value.weight)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            logits = functional_call(model, {name: weight}, kwargs=inputs).logits
        if regression:
            return functional.mse_loss(logits[:, 0], answers)
        return functional.cross_entropy(logits, answers)

    weight = layer.attention.self.value.weight
    explicit = hessian(loss)(weight).reshape(weight.numel(), weight.numel())
    largest = float(torch.linalg.eigvalsh(explicit).abs().max())
    weight.requires_grad_(True)
    gradients = torch.autograd.grad(loss(weight), [weight], create_graph=True)
    one = top_eigenvalue(gradients, [weight], iterations=300, tolerance=1e-5)
    assert abs(one) == pytest.approx(largest, rel=1e-2)
    assert len(found) == 2 and found[1] >= largest * 0.98


@pytest.mark.parametrize("family", PRUNABLE)
def test_every_family_can_be_differentiated_twice(family: str) -> None:
    model = classifier(family)
    found = layer_sensitivities(model, [(example_inputs(model), torch.tensor([0, 1]))], iterations=3)
    assert all(value > 0 for value in found)


def test_sensitivity_is_the_mean_and_the_deviation() -> None:
    assert sensitivity((1.0, 3.0)) == 2 + 1
    assert sensitivity((-3.0, 1.0)) == 1 + 2  # the mean's magnitude


def test_more_bits_for_sensitive_layers() -> None:
    ranking = [0.1, 9.0, 2.0, 5.0, 0.5, 7.0]
    assert most_sensitive(ranking) == [1, 5, 3, 2, 4, 0]
    assert assign_bits(ranking, [2, 3]) == [2, 3, 2, 3, 2, 3]
    assert assign_bits(ranking, [2, 4, 8]) == [2, 8, 4, 4, 2, 8]
    assert assign_bits(ranking, [3]) == [3] * 6


def test_no_rows_are_an_error() -> None:
    with pytest.raises(CompressError, match="training rows.*--train FILE"):
        layer_sensitivities(classifier("bert"), [])
