"""The order of training rows, against that of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.trainer_pt_utils import get_length_grouped_indices

from compress.training.training_data import EpochSampler


@pytest.mark.parametrize("rows", [1, 7, 64, 65, 1000, 9000])
@pytest.mark.parametrize("longest", [3, 10_000])  # many of the same length, and few
def test_the_order_is_that_of_transformers(rows: int, longest: int) -> None:
    lengths = np.random.default_rng(rows).integers(1, longest, rows)
    sampler = EpochSampler(16, lengths, seed=5)
    for epoch in (0, 3):
        sampler.set_epoch(epoch)
        generator = torch.Generator().manual_seed(5 + epoch)
        assert list(sampler) == get_length_grouped_indices(lengths.tolist(), 16, generator=generator)
    assert len(sampler) == rows
