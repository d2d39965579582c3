"""Dropout of a training on the CPU against PyTorch's, and what oneDNN keeps meanwhile."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from compress.training.cpu_steps import FastDropout, dropout, fast_steps
from tests.support.tiny import classifier

N = 100_000


def within(share: float, p: float) -> bool:
    return abs(share - p) < 5 * math.sqrt(p * (1 - p) / N)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_share_is_dropped_and_the_others_keep_the_mean(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ones = torch.ones(N, dtype=dtype, requires_grad=True)
    with FastDropout():
        out = functional.dropout(ones, p)
    kept = out != 0
    assert within(1 - kept.float().mean().item(), p)
    assert torch.allclose(
        out[kept], torch.tensor(1 / (1 - p), dtype=dtype), rtol=1e-2 if dtype == torch.bfloat16 else 1e-4
    )
    out.sum().backward()
    assert torch.equal(ones.grad, out.detach())  # the gradient has the same mask


def test_values_that_share_a_random_number_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = (dropout(torch.ones(4 * N), 0.3) != 0).view(N, 4).double()
    together = kept.T @ kept / N
    for i in range(4):
        for j in range(i):
            assert within(together[i, j].item(), 0.49)


def test_any_number_of_values_in_any_shape() -> None:
    torch.manual_seed(0)
    for shape in ((), (1,), (3, 5), (2, 0, 3)):
        assert dropout(torch.ones(shape), 0.5).shape == shape
    rows = torch.ones(30, 50).T  # not contiguous
    assert dropout(rows, 0.5).unique().tolist() == [0.0, 2.0]


def test_none_and_all_and_none_in_evaluation() -> None:
    ones = torch.ones(8)
    with FastDropout():
        assert torch.equal(functional.dropout(ones, 0.0), ones)
        assert torch.equal(functional.dropout(ones, 1.0), torch.zeros(8))
        assert torch.equal(functional.dropout(ones, 0.5, training=False), ones)
        assert torch.equal(nn.Dropout(0.5).eval()(ones), ones)


@pytest.mark.parametrize("masked", ["not", "bool", "float"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_is_that_of_pytorch_in_the_mean(masked: str, scale: float | None) -> None:
    torch.manual_seed(0)
    queries, keys, values = (torch.randn(1, 2, 5, 8, dtype=torch.float64) for _ in range(3))
    seen = torch.tensor([True, True, True, False, True]).expand(1, 1, 5, 5)
    mask = {"not": None, "bool": seen, "float": torch.where(seen, 0.0, -1e9).double()}[masked]
    expected = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
    many = [one.expand(4000, -1, -1, -1) for one in (queries, keys, values)]
    with FastDropout():
        found = functional.scaled_dot_product_attention(*many, attn_mask=mask, scale=scale, dropout_p=0.1)
        least = functional.scaled_dot_product_attention(*many, attn_mask=mask, scale=scale, dropout_p=1e-9)
    assert torch.allclose(least[0], expected[0], atol=1e-12)
    error = found.std(dim=0) / math.sqrt(len(found))
    assert found.std(dim=0).min() > 0
    assert ((found.mean(dim=0) - expected[0]).abs() < 5 * error).all()


def test_padding_that_may_look_at_nothing_has_numbers() -> None:
    """As in ModernBERT, whose windows end before the padding of a much longer text does."""
    queries, keys, values = (torch.randn(1, 1, 2, 4) for _ in range(3))
    mask = torch.tensor([[True, True], [False, False]]).expand(1, 1, 2, 2)
    with FastDropout():
        found = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=0.1)
    assert found.isfinite().all()


def test_causal_attention_stays_that_of_pytorch() -> None:
    queries, keys, values = (torch.randn(1, 2, 5, 8) for _ in range(3))
    options = {"is_causal": True, "dropout_p": 1e-9}
    expected = functional.scaled_dot_product_attention(queries, keys, values, **options)
    with FastDropout():
        found = functional.scaled_dot_product_attention(queries, keys, values, **options)
    assert torch.allclose(found, expected, atol=1e-6)


def test_steps_on_the_cpu_use_it_for_states_and_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier("bert")
    calls: list[torch.Size] = []

    def counted(values: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        calls.append(values.shape)
        return values

    monkeypatch.setattr("compress.training.cpu_steps.dropout", counted)
    ids = torch.ones(2, 7, dtype=torch.int64)
    with fast_steps("cpu") as forward, forward:
        model.train()(input_ids=ids)
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    assert calls.count(torch.Size((2, heads, 7, 7))) == layers
    assert calls.count(torch.Size((2, 7, model.config.hidden_size))) == 1 + 2 * layers
    calls.clear()
    with fast_steps("cuda") as forward, forward:
        model.train()(input_ids=ids)
    assert not calls


ACTIVATIONS = """
import os, torch
from compress.training.cpu_steps import fast_steps
with fast_steps("cpu"):
    for length in [*range(1, 101)] * 2:
        torch.nn.functional.gelu(torch.ones(length, 64))
assert os.environ.get("ONEDNN_PRIMITIVE_CACHE_CAPACITY") in (None, "128")
"""


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no oneDNN")
@pytest.mark.parametrize(("capacity", "found_again"), [({}, 0), ({"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}, 100)])
def test_kernels_of_few_shapes_are_kept_and_the_user_decides(capacity: dict[str, str], found_again: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", ACTIVATIONS],
        env={**os.environ, "ONEDNN_VERBOSE": "all", **capacity},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in run.stdout.splitlines() if "eltwise_gelu" in line]
    assert sum("create:cache_hit" in line for line in lines) == found_again
    assert sum("create:cache_miss" in line for line in lines) == 200 - found_again
