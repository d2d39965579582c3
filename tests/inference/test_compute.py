"""Products of float32 matrices by oneDNN, where MKL is slow and they are exact; bfloat16, where it is faster."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import pytest
import torch

from compress.errors import MissingPackage
from compress.inference import compute
from compress.inference.compute import fast_float32, resolve_device, resolve_precision, supports_bfloat16


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


def test_a_gpu_that_emulates_bfloat16_has_no_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    supported = lambda including_emulation=True: including_emulation  # noqa: E731  # what torch says of a T4
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert not supports_bfloat16("cuda") and resolve_precision("auto", "cuda") == "float32"


def test_the_device_of_an_onnx_model_is_told_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(compute, "torch", type(compute.torch)("torch"))  # as it is before its first use
    assert [resolve_device(device, for_onnx=True) for device in ("auto", "cpu", "cuda")] == ["cpu", "cpu", "cuda"]
    assert resolve_device("cpu") == "cpu"
    with pytest.raises(MissingPackage, match="torch"):
        resolve_device("auto")


@pytest.fixture
def new_trial() -> Iterator[None]:
    compute.multiplies_bfloat16_faster.cache_clear()
    yield
    compute.multiplies_bfloat16_faster.cache_clear()


@pytest.mark.usefixtures("new_trial")
@pytest.mark.parametrize(
    ("has_it", "bfloat16_s", "chosen"),
    [(True, 0.5, "bfloat16"), (True, 0.9, "float32"), (True, 1.8, "float32"), (False, 0.5, "float32")],
)
@pytest.mark.parametrize("disturbed", ["float32", "bfloat16"])
def test_precision_is_bfloat16_where_products_are_faster_for_certain(
    disturbed: str, has_it: bool, bfloat16_s: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest product of each precision counts: other work on the machine makes single ones slow."""
    times = itertools.cycle([9.0, 1.0, 3.0])

    def product_s(dtype: str) -> float:
        return (next(times) if dtype == disturbed else 1.0) * {"float32": 1.0, "bfloat16": bfloat16_s}[dtype]

    monkeypatch.setattr(compute, "has_bfloat16", lambda: has_it)
    monkeypatch.setattr(compute, "_product_s", product_s)
    assert resolve_precision("auto", "cpu") == chosen
    assert resolve_precision("bfloat16", "cpu") == "bfloat16"


@pytest.mark.usefixtures("new_trial")
def test_the_trial_multiplies_on_one_thread_as_trainings_do(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, before = set(), torch.get_num_threads()
    product_s = compute._product_s

    def watched(dtype: str) -> float:
        tried.add((dtype, torch.get_num_threads(), setting()))
        return product_s(dtype)

    monkeypatch.setattr(compute, "_product_s", watched)
    monkeypatch.setattr(compute, "has_slow_mkl", lambda: True)
    monkeypatch.setattr(compute, "_is_exact", lambda: True)
    torch.set_num_threads(2)
    try:
        compute.multiplies_bfloat16_faster()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert tried == {("float32", 1, "bf16"), ("bfloat16", 1, "bf16")}


def test_a_gpu_gets_neither_tf32_nor_attention_that_plans_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    before = cuda.cudnn_sdp_enabled(), cudnn.allow_tf32, cuda.matmul.allow_tf32
    try:
        cuda.enable_cudnn_sdp(True)
        cudnn.allow_tf32 = cuda.matmul.allow_tf32 = True
        assert resolve_device("auto") == "cuda"
        assert (cuda.cudnn_sdp_enabled(), cudnn.allow_tf32, cuda.matmul.allow_tf32) == (False, False, False)
    finally:
        cuda.enable_cudnn_sdp(before[0])
        cudnn.allow_tf32, cuda.matmul.allow_tf32 = before[1:]
