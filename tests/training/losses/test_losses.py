"""Every loss keeps the contract of its folder, and gives the value that a hand computes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import PreTrainedModel

from compress import plugins
from compress.errors import CompressError
from compress.models.batch import NO_TARGET, Batch, Outputs
from compress.tasks import find_task
from tests.support import tiny

LOSSES = plugins.names("losses")
COMPARISONS = frozenset({"logits", "exact", "classes", "hidden", "first", "attention"})
NEEDS = {name: plugins.find("losses", name).needs for name in LOSSES}
DIVERGENCES = [name for name in LOSSES if NEEDS[name] and NEEDS[name] <= COMPARISONS]
LAYERED = [name for name in LOSSES if "layers" in plugins.find("losses", name).parameters]
ROWS, TOKENS, CLASSES, WIDTH, HEADS = 4, 5, 2, 32, 4
STUDENT_LAYERS, TEACHER_LAYERS = 2, 4


@functools.cache
def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    """A student and a teacher of two layers and equal widths, whose weights some losses read."""
    return tiny.classifier(seed=1), tiny.classifier(seed=2)


@functools.cache
def learned(name: str) -> nn.Module | None:
    module = plugins.find("losses", name).load()
    torch.manual_seed(0)
    return module.learned(*models()) if hasattr(module, "learned") else None


def loss(name: str) -> Callable[..., Tensor]:
    """Return a loss, with what it learns, if it does, already in its place."""
    function, part = plugins.find("losses", name).function, learned(name)
    if part is None:
        return function
    return lambda student, teacher, batch, **options: function(student, teacher, batch, part, **options)


def case(padding: int = 0) -> tuple[Outputs, Outputs, Batch]:
    """Random outputs of a student and a deeper teacher; ``padding`` columns more hold noise under a closed mask."""
    generator, noise = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)

    def drawn(*shape: int) -> Tensor:
        """``shape`` ends in tokens and width."""
        tail = 9 * torch.randn(*shape[:-2], padding, shape[-1], generator=noise)
        return torch.cat([torch.randn(*shape, generator=generator), tail], dim=-2)

    def side(layers: int) -> Outputs:
        vectors = [tuple(drawn(ROWS, HEADS, TOKENS, WIDTH // HEADS) for _ in range(layers)) for _ in range(3)]
        logits = torch.randn(ROWS, CLASSES, generator=generator)
        return Outputs(logits, tuple(drawn(ROWS, TOKENS, WIDTH) for _ in range(layers + 1)), *vectors)

    student, teacher = side(STUDENT_LAYERS), side(TEACHER_LAYERS)
    for tensor in tensors(student):
        tensor.requires_grad_()
    vocabulary = len(tiny.tokenizer())
    mask = torch.ones(ROWS, TOKENS + padding, dtype=torch.long)
    mask[:, TOKENS:] = 0
    mask[0, 3:] = 0
    targets = torch.full_like(mask, NO_TARGET)
    targets[:, 1:3] = torch.randint(5, vocabulary, (ROWS, 2), generator=generator)
    whole = torch.randint(5, 2 * vocabulary, (ROWS, TOKENS), generator=generator)
    mixed = torch.cat([whole, torch.randint(5, 2 * vocabulary, (ROWS, padding), generator=noise)], dim=1)
    labels = torch.tensor([0, 1, NO_TARGET, 1])
    batch = Batch(torch.ones_like(mask), mask, labels=labels, targets=targets, mixed_ids=mixed, mixed_mask=mask)
    return student, teacher, batch


def tensors(side: Outputs) -> list[Tensor]:
    return [side.logits, *side.hidden, *side.queries, *side.keys, *side.values]


def changed(side: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return outputs or a batch with every tensor changed."""

    def one(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(one, value))
        return change(value) if isinstance(value, Tensor) else value

    return type(side)(**{field.name: one(getattr(side, field.name)) for field in fields(side)})


def two_classes(student: list[list[float]], teacher: list[list[float]] | None = None, **batch: Any) -> tuple[Any, ...]:
    ids = torch.ones(len(student), 2, dtype=torch.long)
    gold = Outputs(torch.tensor(teacher if teacher is not None else student))
    return Outputs(torch.tensor(student)), gold, Batch(ids, torch.ones_like(ids), **batch)


@pytest.mark.parametrize("padding", [0, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_gradient_reaches_the_student_and_what_the_loss_learns(name: str, padding: int) -> None:
    student, teacher, batch = case(padding)
    pupil, part = models()[0], learned(name)
    parts = list(part.parameters()) if part is not None else []
    for parameter in (*pupil.parameters(), *parts):
        parameter.grad = None
    value = loss(name)(student, teacher, batch)
    assert value.shape == () and value > 0
    value.backward()
    gradients = [tensor.grad for tensor in (*tensors(student), *pupil.parameters()) if tensor.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert any(gradient.abs().sum() > 0 for gradient in gradients)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in parts)
    assert not parts or any(parameter.grad.abs().sum() > 0 for parameter in parts if parameter.grad is not None)


@pytest.mark.parametrize("name", LOSSES)
def test_no_gradient_reaches_the_teacher(name: str) -> None:
    student, teacher, batch = case()
    module, model = plugins.find("losses", name).load(), tiny.classifier(seed=2)  # which no other loss has frozen
    parts = (module.learned(tiny.classifier(seed=1), model),) if hasattr(module, "learned") else ()
    module.loss(student, teacher, batch, *parts).backward()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", LOSSES)
def test_padding_does_not_count(name: str) -> None:
    torch.testing.assert_close(loss(name)(*case(padding=4)), loss(name)(*case()))


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_divergence_is_zero_only_for_equal_predictions(name: str) -> None:
    student, teacher, batch = case()
    assert abs(loss(name)(teacher, teacher, batch).item()) < 1e-6
    assert loss(name)(student, teacher, batch).item() > 1e-3


@pytest.mark.parametrize("name", LOSSES)
def test_order_of_rows_does_not_count(name: str) -> None:
    here = case()
    order = torch.tensor([2, 0, 3, 1])
    moved = [changed(part, lambda tensor: tensor[order]) for part in here]
    torch.testing.assert_close(loss(name)(*moved), loss(name)(*here))


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_is_compared_in_full(name: str) -> None:
    student, teacher, batch = case()
    value = loss(name)(changed(student, lambda tensor: tensor.detach().bfloat16()), teacher, batch)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(name)(student, teacher, batch), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("name", LAYERED)
def test_the_loss_is_the_sum_over_trained_layers(name: str) -> None:
    student, teacher, batch = case()

    def value(*trained: int) -> Tensor:
        return loss(name)(replace(student, trained_layers=trained), teacher, batch, layers="uniform")

    assert value(1) > 0 and value(2) > 0
    torch.testing.assert_close(value(1) + value(2), loss(name)(student, teacher, batch, layers="uniform"))
    nothing = value()
    nothing.backward()
    assert nothing == 0 and student.logits.grad is not None


@pytest.mark.parametrize("name", LAYERED)
def test_an_unknown_layer_map_is_refused(name: str) -> None:
    with pytest.raises(CompressError, match="layers = 'first' is not known; use uniform, skip, last, final"):
        loss(name)(*case(), layers="first")


@pytest.mark.parametrize("name", [name for name in LOSSES if NEEDS[name] & {"hidden", "first"}])
def test_a_student_without_hidden_states_is_refused(name: str) -> None:
    student, teacher, batch = case()
    with pytest.raises(CompressError, match=f"the loss {name} compares hidden states, and this student has none"):
        loss(name)(replace(student, hidden=()), teacher, batch)


@pytest.mark.parametrize("name", [name for name in LOSSES if "attention" in NEEDS[name]])
def test_a_model_without_heads_is_refused(name: str) -> None:
    student, teacher, batch = case()
    with pytest.raises(CompressError, match=f"the loss {name} compares attention heads .* this teacher has none"):
        loss(name)(student, replace(teacher, queries=()), batch)


@pytest.mark.parametrize("name", [name for name in LOSSES if learned(name) is not None])
def test_what_is_learned_holds_no_model(name: str) -> None:
    part = learned(name)
    assert part is not None
    of_models = {id(parameter) for model in models() for parameter in model.parameters()}
    assert not of_models & {id(parameter) for parameter in part.parameters()}


def test_logit_mse_is_the_mean_over_rows_and_classes() -> None:
    # ((1-0)^2 + (2-0)^2 + (3-3)^2 + (4-1)^2) / 4
    assert loss("logit-mse")(*two_classes([[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [3.0, 1.0]])).item() == 3.5


def test_kl_by_hand() -> None:
    # Teacher (ln 3, 0) is p = (3/4, 1/4), student (0, 0) is (1/2, 1/2).
    by_hand = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    value = loss("kl")(*two_classes([[0.0, 0.0]], [[math.log(3), 0.0]]), temperature=1.0)
    assert value.item() == pytest.approx(by_hand, rel=1e-6)


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


def test_hard_label_by_hand_skips_rows_without_a_label() -> None:
    # softmax (ln 3, 0) = (3/4, 1/4); the middle row does not count.
    case = two_classes([[math.log(3), 0.0], [9.0, -9.0], [0.0, 0.0]], labels=torch.tensor([0, -100, 1]))
    assert loss("hard-label")(*case).item() == pytest.approx((-math.log(0.75) - math.log(0.5)) / 2, rel=1e-6)


def test_hard_label_of_a_regression_skips_rows_without_a_score() -> None:
    case = two_classes(
        [[1.0], [7.0], [2.0]], labels=torch.tensor([3.0, float("nan"), 2.5]), task=find_task("regression")
    )
    assert loss("hard-label")(*case).item() == pytest.approx((4.0 + 0.25) / 2)


@pytest.mark.parametrize(
    ("logits", "labels", "task"),
    [
        ([[1.0, 2.0]], None, "classification"),
        ([[1.0, 2.0]], torch.tensor([-100]), "classification"),
        ([[1.0]], torch.tensor([float("nan")]), "regression"),
    ],
)
def test_hard_label_without_labels_is_zero_with_a_gradient(
    logits: list[list[float]], labels: Tensor | None, task: str
) -> None:
    student, teacher, batch = two_classes(logits, labels=labels, task=find_task(task))
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


def test_hidden_cosine_is_the_mean_over_real_tokens() -> None:
    assert loss("hidden-cosine")(*hidden_case()).item() == pytest.approx((1.0 + 0.0 + 0.4) / 3, abs=1e-6)


@pytest.mark.parametrize(
    ("student", "message"),
    [
        ({"hidden": ()}, "this student has none; use logit-mse"),
        ({"hidden": (torch.zeros(2, 2, 3),)}, "the student has 3 and the teacher 2"),
    ],
)
def test_what_hidden_cosine_refuses(student: dict[str, Any], message: str) -> None:
    ours, theirs, batch = hidden_case()
    with pytest.raises(CompressError, match=message):
        loss("hidden-cosine")(replace(ours, **student), theirs, batch)
