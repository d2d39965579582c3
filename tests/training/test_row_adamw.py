"""Updating the rows of a table that were read: compared with Adam on all of them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from compress.recipes import Choice, StudentRecipe, load_recipe
from compress.training import trainer as trainer_module
from compress.training.trainer import RowAdamW, clip_gradients, sparse_gradients
from tests.support.training_data import BILSTM, TRAINING, distilled, pool_file, state


def batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 6 + 4 * step, (5,), generator=generator) for step in range(count)]


def loss(model: nn.Sequential, ids: torch.Tensor) -> torch.Tensor:
    return (model(ids) - torch.arange(2.0)).square().sum()


def two_models() -> tuple[nn.Sequential, nn.Sequential]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(40, 3), nn.Linear(3, 2))
    return model, copy.deepcopy(model)


def train(model: nn.Sequential, optimizer: torch.optim.Optimizer, rows: list[torch.Tensor], limit: float) -> None:
    for ids in rows:
        optimizer.zero_grad()
        loss(model, ids).backward()
        clip_gradients(model.parameters(), limit)
        optimizer.step()


def test_a_table_is_trained_as_by_adam_without_momentum_and_the_rest_as_by_adamw() -> None:
    ours, theirs = two_models()
    sparse_gradients(ours, on=True)
    settings = {"lr": 0.05, "eps": 1e-8, "weight_decay": 0.1}
    table = {"params": theirs[0].parameters(), "betas": (0.0, 0.999), "weight_decay": 0.0}
    reference = torch.optim.AdamW([table, {"params": theirs[1].parameters()}], **settings)
    train(ours, RowAdamW(ours.parameters(), **settings), batches(8), limit=1.0)
    train(theirs, reference, batches(8), limit=1.0)
    untouched = two_models()[0]
    for found, expected, before in zip(ours.parameters(), theirs.parameters(), untouched.parameters(), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
        assert not torch.equal(found, before)


def test_training_goes_on_from_a_saved_state() -> None:
    ours, stopped = two_models()
    rows = batches(8)
    sparse_gradients(ours, on=True)
    sparse_gradients(stopped, on=True)
    train(ours, RowAdamW(ours.parameters(), lr=0.05), rows, limit=1.0)
    first = RowAdamW(stopped.parameters(), lr=0.05)
    train(stopped, first, rows[:5], limit=1.0)
    second = RowAdamW(stopped.parameters(), lr=0.05)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(stopped, second, rows[5:], limit=1.0)
    for found, expected in zip(stopped.parameters(), ours.parameters(), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("limit", [0.5, 1e9])
def test_sparse_gradients_are_clipped_as_dense_ones(limit: float) -> None:
    ours, theirs = two_models()
    sparse_gradients(ours, on=True)
    ids = torch.tensor([1, 1, 5])
    for model in (ours, theirs):
        loss(model, ids).backward()
    norm = clip_gradients(ours.parameters(), limit)
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), limit)
    torch.testing.assert_close(norm, expected)
    for found, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found.grad.to_dense(), reference.grad)


CNN = Choice("cnn", options={"embedding_size": 16, "filters": 8, "dense_size": 8})
NGRAM = Choice("ngram", options={"embedding_size": 16, "buckets": 50, "dense_size": 8})
STATIC = load_recipe("students", "static").architecture


@pytest.mark.parametrize(
    ("student", "weight_decay", "sparse"),
    [(CNN, 0.0, 1), (NGRAM, 0.0, 2), (NGRAM, 0.01, 0), (STATIC, 0.0, 1), (BILSTM.architecture, 0.0, 0)],
)
def test_students_that_are_tables_learn_by_rows(
    student: Choice, weight_decay: float, sparse: int, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()

    def clip(parameters: Iterable[nn.Parameter], limit: float) -> torch.Tensor:
        learning = list(parameters)
        seen.add(sum(one.grad is not None and one.grad.is_sparse for one in learning))
        return clip_gradients(learning, limit)

    monkeypatch.setattr(trainer_module, "clip_gradients", clip)
    training = replace(TRAINING, weight_decay=weight_decay)
    recipe: StudentRecipe = replace(BILSTM, architecture=student, training=training)
    untrained = replace(recipe, training=replace(training, learning_rate=1e-12))
    data = {"unlabeled": pool_file(tmp_path / "pool.txt")}
    trained, before = (
        state(distilled(teacher, one, tmp_path / name, **data).path)
        for one, name in ((recipe, "trained"), (untrained, "untrained"))
    )
    assert seen == {sparse}
    assert (trained["embedding.weight"] - before["embedding.weight"]).abs().max() > 0.01
