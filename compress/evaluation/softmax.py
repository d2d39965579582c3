"""Logits to probabilities, in NumPy alone. N rows, C classes."""

import numpy as np

from compress.evaluation.cluster_bootstrap import Array


def log_probabilities(logits: Array) -> Array:
    """Return the logarithms of the softmax probabilities of logits ``[N, C]``."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def probabilities(logits: Array) -> Array:
    """Return the softmax probabilities of logits ``[N, C]``, float64."""
    return np.exp(log_probabilities(logits.astype(float)))


def confidence(logits: Array) -> Array:
    """Return the probability of the likeliest class of logits ``[N, C]``, float64 ``[N]``."""
    shifted = logits.astype(float)
    shifted -= shifted.max(axis=1, keepdims=True)
    return np.asarray(1.0 / np.exp(shifted, out=shifted).sum(axis=1))
