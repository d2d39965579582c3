"""Every loss keeps the contract of its folder, and gives the value that a hand computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from compress import plugins
from compress.errors import CompressError
from compress.types import Batch, Outputs

LOSSES = plugins.names("losses")
DIVERGENCES = [name for name in LOSSES if plugins.find("losses", name).load().NEEDS <= {"logits", "hidden"}]
ROWS, TOKENS, CLASSES, WIDTH = 4, 5, 3, 6


def loss(name: str) -> Callable[..., Tensor]:
    return plugins.find("losses", name).function


def case(padding: int = 0) -> tuple[Outputs, Outputs, Batch]:
    """Random outputs of a student and a teacher; ``padding`` columns more hold noise under a closed mask."""
    generator = torch.Generator().manual_seed(1)
    sides = []
    for _ in range(2):
        logits = torch.randn(ROWS, CLASSES, generator=generator)
        hidden = [torch.randn(ROWS, TOKENS, WIDTH, generator=generator) for _ in range(3)]
        noise = [9 * torch.randn(ROWS, padding, WIDTH, generator=torch.Generator().manual_seed(2)) for _ in hidden]
        sides.append((logits, tuple(torch.cat(parts, dim=1) for parts in zip(hidden, noise, strict=True))))
    mask = torch.ones(ROWS, TOKENS + padding, dtype=torch.long)
    mask[:, TOKENS:] = 0
    mask[0, 3:] = 0
    batch = Batch(torch.ones_like(mask), mask, labels=torch.tensor([0, 2, -100, 1]))
    student = Outputs(sides[0][0].requires_grad_(), tuple(h.requires_grad_() for h in sides[0][1]))
    return student, Outputs(*sides[1]), batch


def two_classes(student: list[list[float]], teacher: list[list[float]] | None = None, **batch: Any) -> tuple[Any, ...]:
    ids = torch.ones(len(student), 2, dtype=torch.long)
    gold = Outputs(torch.tensor(teacher if teacher is not None else student))
    return Outputs(torch.tensor(student)), gold, Batch(ids, torch.ones_like(ids), **batch)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_reaches_the_student(name: str) -> None:
    student, teacher, batch = case()
    value = loss(name)(student, teacher, batch)
    assert value.shape == () and value > 0
    value.backward()
    grads = [t.grad for t in (student.logits, *student.hidden) if t.grad is not None]
    assert grads and all(torch.isfinite(grad).all() for grad in grads) and any(grad.abs().sum() > 0 for grad in grads)


@pytest.mark.parametrize("name", LOSSES)
def test_padding_does_not_count(name: str) -> None:
    torch.testing.assert_close(loss(name)(*case(padding=4)), loss(name)(*case()))


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_divergence_is_zero_only_where_student_and_teacher_agree(name: str) -> None:
    student, teacher, batch = case()
    assert abs(loss(name)(teacher, teacher, batch).item()) < 1e-6
    assert loss(name)(student, teacher, batch).item() > 1e-3


@pytest.mark.parametrize("name", LOSSES)
def test_order_of_rows_does_not_count(name: str) -> None:
    student, teacher, batch = case()
    order = torch.tensor([2, 0, 3, 1])

    def moved(side: Outputs) -> Outputs:
        return Outputs(side.logits[order], tuple(h[order] for h in side.hidden))

    assert batch.labels is not None
    again = Batch(batch.input_ids[order], batch.attention_mask[order], labels=batch.labels[order])
    torch.testing.assert_close(loss(name)(moved(student), moved(teacher), again), loss(name)(student, teacher, batch))


def test_logit_mse_is_the_mean_over_rows_and_classes() -> None:
    # ((1-0)^2 + (2-0)^2 + (3-3)^2 + (4-1)^2) / 4
    assert loss("logit-mse")(*two_classes([[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [3.0, 1.0]])).item() == 3.5


def test_kl_by_hand() -> None:
    # Teacher (ln 3, 0) is p = (3/4, 1/4), student (0, 0) is (1/2, 1/2).
    by_hand = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    value = loss("kl")(*two_classes([[0.0, 0.0]], [[math.log(3), 0.0]]), temperature=1.0)
    assert value.item() == pytest.approx(by_hand, rel=1e-6)


def test_kl_at_temperature_two_carries_its_square() -> None:
    # Divided by 2 the teacher (2 ln 3, 0) is again (3/4, 1/4): the same divergence, times 4.
    by_hand = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    value = loss("kl")(*two_classes([[0.0, 0.0]], [[2 * math.log(3), 0.0]]), temperature=2.0)
    assert value.item() == pytest.approx(4 * by_hand, rel=1e-6)


def test_kl_is_averaged_over_rows_not_classes() -> None:
    one = loss("kl")(*two_classes([[0.0, 0.0]], [[1.0, 0.0]]), temperature=1.0)
    two = loss("kl")(*two_classes([[0.0, 0.0], [5.0, 1.0]], [[1.0, 0.0], [5.0, 1.0]]), temperature=1.0)
    assert two.item() == pytest.approx(one.item() / 2, rel=1e-6)


@given(
    st.lists(st.floats(-8, 8), min_size=6, max_size=6),
    st.lists(st.floats(-8, 8), min_size=6, max_size=6),
    st.floats(0.5, 10),
)
def test_kl_agrees_with_torch(ours: list[float], theirs: list[float], temperature: float) -> None:
    student, teacher = torch.tensor(ours).view(2, 3), torch.tensor(theirs).view(2, 3)
    reference = temperature**2 * torch.nn.KLDivLoss(reduction="batchmean")(
        torch.log_softmax(student / temperature, -1), torch.softmax(teacher / temperature, -1)
    )
    ids = torch.ones(2, 1, dtype=torch.long)
    value = loss("kl")(Outputs(student), Outputs(teacher), Batch(ids, ids), temperature=temperature)
    torch.testing.assert_close(value, reference, atol=2e-4, rtol=1e-4)


def test_the_gradient_of_kl_hardly_depends_on_a_high_temperature() -> None:
    """For large T it tends to (z_s - z_t) / C of the centred logits (Hinton et al. 2015, equation 4)."""
    student, teacher, batch = two_classes([[1.0, -1.0]], [[3.0, -3.0]])
    logits = student.logits.requires_grad_()
    for temperature in (100.0, 1000.0):
        (gradient,) = torch.autograd.grad(loss("kl")(student, teacher, batch, temperature=temperature), logits)
        torch.testing.assert_close(gradient, torch.tensor([[-1.0, 1.0]]), atol=1e-2, rtol=1e-2)


def test_kl_of_a_regression_is_refused() -> None:
    with pytest.raises(CompressError, match="regression; use the loss logit-mse"):
        loss("kl")(*two_classes([[0.5]], [[0.1]]))


def test_hard_label_by_hand_skips_rows_without_a_label() -> None:
    # softmax (ln 3, 0) = (3/4, 1/4); the middle row does not count.
    case = two_classes([[math.log(3), 0.0], [9.0, -9.0], [0.0, 0.0]], labels=torch.tensor([0, -100, 1]))
    assert loss("hard-label")(*case).item() == pytest.approx((-math.log(0.75) - math.log(0.5)) / 2, rel=1e-6)


def test_hard_label_of_a_regression_skips_rows_without_a_score() -> None:
    case = two_classes([[1.0], [7.0], [2.0]], labels=torch.tensor([3.0, float("nan"), 2.5]))
    assert loss("hard-label")(*case).item() == pytest.approx((4.0 + 0.25) / 2)


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        ([[1.0, 2.0]], None),
        ([[1.0, 2.0]], torch.tensor([-100])),
        ([[1.0]], torch.tensor([float("nan")])),
    ],
)
def test_hard_label_without_any_label_is_zero_and_still_has_a_gradient(
    logits: list[list[float]], labels: Tensor | None
) -> None:
    student, teacher, batch = two_classes(logits, labels=labels)
    student.logits.requires_grad_()
    value = loss("hard-label")(student, teacher, batch)
    value.backward()
    assert value.item() == 0 and student.logits.grad is not None and student.logits.grad.abs().sum() == 0


def hidden_case() -> tuple[Outputs, Outputs, Batch]:
    """Cosines 0 and 1 in the first row, 0.6 in the second, whose other token is padding with cosine -1."""
    ours = torch.tensor([[[1.0, 0.0], [2.0, 2.0]], [[3.0, 4.0], [1.0, 0.0]]])
    theirs = torch.tensor([[[0.0, 5.0], [1.0, 1.0]], [[2.0, 0.0], [-1.0, 0.0]]])
    ignored = torch.zeros(2, 2, 2)
    mask = torch.tensor([[1, 1], [1, 0]])
    logits = torch.zeros(2, 2)
    return Outputs(logits, (ignored, ours)), Outputs(logits, (ignored, ignored, theirs)), Batch(mask, mask)


def test_hidden_cosine_by_hand_is_the_mean_over_real_tokens_of_the_last_layer() -> None:
    assert loss("hidden-cosine")(*hidden_case()).item() == pytest.approx((1.0 + 0.0 + 0.4) / 3, abs=1e-6)


def test_hidden_cosine_of_the_first_tokens() -> None:
    assert loss("hidden-cosine")(*hidden_case(), tokens="first").item() == pytest.approx((1.0 + 0.4) / 2, abs=1e-6)


@pytest.mark.parametrize(
    ("student", "options", "message"),
    [
        ({"hidden": ()}, {}, "this student has none; use logit-mse"),
        ({"hidden": (torch.zeros(2, 2, 3),)}, {}, "the student has 3 and the teacher 2"),
        ({}, {"tokens": "last"}, "tokens = 'last' is not allowed; use 'all' or 'first'"),
    ],
)
def test_what_hidden_cosine_refuses(student: dict[str, Any], options: dict[str, Any], message: str) -> None:
    ours, theirs, batch = hidden_case()
    with pytest.raises(CompressError, match=message):
        loss("hidden-cosine")(replace(ours, **student), theirs, batch, **options)


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_logits_are_compared_in_full(name: str) -> None:
    student, teacher, batch = case()
    half = Outputs(student.logits.bfloat16(), tuple(h.bfloat16() for h in student.hidden))
    value = loss(name)(half, teacher, batch)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(name)(student, teacher, batch), atol=2e-2, rtol=2e-2)
