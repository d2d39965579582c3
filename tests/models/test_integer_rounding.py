"""Rounding to few bits by hand-computed values, its gradients, and codes without gaps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compress.models.integer_rounding import fake_symmetric, grid_of, pack, symmetric_codes, unpack


def test_symmetric_codes_by_hand() -> None:
    codes, step = symmetric_codes(torch.tensor([-2.0, -0.5, 0.0, 0.2, 1.0, 3.0]), 2.0, bits=3)
    assert step == pytest.approx(2 / 3)  # 3 steps on either side of 0
    assert codes.tolist() == [-3, -1, 0, 0, 2, 3]  # -0.75 and 1.5 (to even) are rounded, 4.5 is cut
    codes, step = symmetric_codes(torch.tensor([127.0, -127.0, 1.4, 1.6]), 127.0)
    assert step == 1 and codes.tolist() == [127, -127, 1, 2]


def test_zeros_stay_zeros() -> None:
    assert fake_symmetric(torch.zeros(3), 0.0).tolist() == [0, 0, 0]
    assert grid_of(torch.zeros(2, 2), 2, 1).fake(torch.zeros(2, 2)).tolist() == [[0, 0], [0, 0]]


def test_gradients_pass_straight_through_clipped_values() -> None:
    values = torch.tensor([0.3, -5.0, 0.9], requires_grad=True)
    (fake_symmetric(values, 1.0) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert values.grad is not None and values.grad.tolist() == [1, 2, 3]
    matrix = torch.tensor([[0.3, 1.0], [-5.0, 2.0]], requires_grad=True)
    (grid_of(matrix, 2, 1).fake(matrix) * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    assert matrix.grad is not None and matrix.grad.tolist() == [[1, 2], [3, 4]]


def test_a_group_has_its_own_range() -> None:
    matrix = torch.tensor([[0.0, 3.0], [1.0, 1.6], [10.0, 40.0], [20.0, 26.0], [-7.0, -7.0]])
    grid = grid_of(matrix, bits=2, groups=3)
    assert grid.rows_per_group == 2
    assert grid.low.flatten().tolist() == [0, 10, -7]
    assert grid.step.flatten().tolist()[:2] == [1, 10]
    rows = torch.arange(5)
    assert grid.codes(matrix, rows).tolist() == [[0, 3], [1, 2], [0, 3], [1, 2], [0, 0]]
    assert grid.fake(matrix).tolist() == [[0, 3], [1, 2], [10, 40], [20, 30], [-7, -7]]
    # Rows by number, as an embedding reads them, are rounded as in the whole matrix.
    assert torch.equal(grid.fake(matrix[[3, 0, 3]], torch.tensor([3, 0, 3])), grid.fake(matrix)[[3, 0, 3]])


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_no_number_moves_by_more_than_half_a_step(bits: int) -> None:
    matrix = torch.randn(37, 19, generator=torch.Generator().manual_seed(bits))
    grid = grid_of(matrix, bits, groups=8)
    error = (grid.fake(matrix) - matrix).abs()
    assert (error <= grid.step[torch.arange(37) // 5] / 2 + 1e-6).all()
    assert error.max() > 0
    assert int(grid.codes(matrix, torch.arange(37)).max()) == 2**bits - 1


@given(st.sampled_from([2, 3, 4, 5, 8]), st.integers(0, 70), st.integers(0, 2**32 - 1))
def test_packed_codes_come_back(bits: int, count: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 2**bits, count).astype(np.uint8)
    packed = pack(codes, bits)
    assert packed.nbytes == -(-count * bits // 8)
    assert np.array_equal(unpack(packed, bits, count), codes)


def test_codes_are_packed_lowest_bit_first() -> None:
    assert pack(np.array([1, 2, 3, 0], dtype=np.uint8), 2).tolist() == [0b00111001]
    assert pack(np.array([5, 7, 1], dtype=np.uint8), 3).tolist() == [0b01111101, 0b0]
