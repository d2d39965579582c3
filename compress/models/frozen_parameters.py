"""Freeze the weights of a model, or unfreeze all of them, for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel


@contextmanager
def fixed_weights(model: PreTrainedModel, *, learning: bool = False) -> Iterator[None]:
    """Put a model into eval mode with all its weights frozen, or (``learning``) none; restore both afterwards."""
    was_training = model.training
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    model.eval().requires_grad_(learning)
    try:
        yield
    finally:
        model.train(was_training)
        for parameter, learns in zip(model.parameters(), wanted, strict=True):
            parameter.requires_grad_(learns)
