"""Products of float32 matrices by oneDNN: chosen where MKL is slow and they are exact, and for a block alone."""

from __future__ import annotations

import pytest
import torch

from compress.inference import compute
from compress.inference.compute import fast_float32


def setting() -> str:
    return torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined, no-any-return, unused-ignore]


@pytest.mark.parametrize(("slow", "exact", "chosen"), [(True, True, True), (True, False, False), (False, True, False)])
def test_is_chosen_where_mkl_is_slow_and_nothing_is_rounded(
    slow: bool, exact: bool, chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "has_slow_mkl", lambda: slow)
    monkeypatch.setattr(compute, "_is_exact", lambda: exact)
    before = setting()
    with pytest.raises(KeyError), fast_float32():
        assert (setting() == "bf16") == chosen
        raise KeyError
    assert setting() == before


def test_a_trial_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> bool:
        raise KeyError

    monkeypatch.setattr(compute, "has_slow_mkl", lambda: True)
    monkeypatch.setattr(compute, "_is_exact", failing)
    before = setting()
    with pytest.raises(KeyError), fast_float32():
        pass
    assert setting() == before


def test_products_within_the_block_have_the_digits_of_float32() -> None:
    torch.manual_seed(0)
    left, right = torch.randn(200, 384), torch.randn(384, 300)
    with fast_float32():
        torch.testing.assert_close(left @ right, (left.double() @ right.double()).float(), rtol=1e-5, atol=1e-4)


def test_bfloat16_is_told_from_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compute._is_exact()
    multiply = torch.Tensor.__matmul__
    rounded = lambda a, b: multiply(a.bfloat16(), b.bfloat16()).float() if a.dtype == torch.float32 else multiply(a, b)  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert not compute._is_exact()
