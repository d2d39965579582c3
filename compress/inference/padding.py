"""Batches of several lengths for models whose logits depend on padding, such as XLNet, FNet and MobileBERT."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from compress.inference.batching import Run
from compress.progress import logger

# Families whose attention leaves padding out, which parity tests hold; others are tried.
_INDIFFERENT = frozenset(
    {"albert", "bert", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet", "roberta", "xlm-roberta"}
)
_OWN = frozenset({"compress-bilstm", "compress-cnn", "compress-ngram"})
# Largest difference of a logit that rounding makes, as a share of the row's largest logit.
_ROUNDING = {"float32": 1e-3, "": 5e-2}


def exact_batches(run: Run, config: Mapping[str, Any], precision: str = "") -> Run:
    """Return a run function whose logits of a row do not depend on the rows beside it.

    Args:
        run: the model in a runtime; rows are padded on the right.
        config: the ``config.json`` of the model.
        precision: ``float32`` where logits of a row are always the same but for their last digits.
    """
    return EqualLengths(run, _ROUNDING.get(precision, _ROUNDING[""])) if may_read_padding(config) else run


def may_read_padding(config: Mapping[str, Any]) -> bool:
    """Tell whether a model is to be tried, by its ``config.json``."""
    family = str(config.get("model_type", "")).removeprefix("compress-pruned-")
    return family not in _INDIFFERENT | _OWN


def is_transformer(config: Mapping[str, Any]) -> bool:
    """Tell by its ``config.json`` whether a model is of a family of transformers, and none of this project's own."""
    return config.get("model_type") not in _OWN


class EqualLengths:
    """A run function that tries once whether padding changes logits, and then runs rows of one length together.

    ``device_ms`` is that of all groups of a call together; what else the run function has is its own.
    """

    def __init__(self, run: Run, tolerance: float, padding_matters: bool | None = None) -> None:
        self._run = run
        self._tolerance = tolerance
        self._padding_matters = padding_matters
        self._earlier_ms = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    @property
    def device_ms(self) -> float | None:
        last: float | None = getattr(self._run, "device_ms", None)
        return None if last is None else self._earlier_ms + last

    def __call__(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        self._earlier_ms = 0.0
        lengths = arrays["attention_mask"].sum(axis=1)
        width = arrays["attention_mask"].shape[1]
        if lengths.min() == width:
            return self._run(arrays)
        if self._padding_matters is None:
            self._padding_matters = padding_changes(self._run, arrays, self._tolerance)
            if self._padding_matters:
                logger.info("padding changes the logits of this model: texts of one length are batched together")
        if not self._padding_matters:
            return self._run(arrays)
        answers: list[np.ndarray | None] = [None] * len(lengths)
        for number, length in enumerate(np.unique(lengths)):
            if number:
                self._earlier_ms = self.device_ms or 0.0
            rows = np.flatnonzero(lengths == length)
            for row, answer in zip(rows, self._run(_cut(arrays, rows, length)), strict=True):
                missing = width - length if answer.ndim == 2 else 0  # of a tagger, which answers tokens
                answers[row] = np.pad(answer, ((0, missing), (0, 0))) if missing else answer
        return np.stack([answer for answer in answers if answer is not None])


def padding_changes(run: Run, arrays: dict[str, np.ndarray], tolerance: float = _ROUNDING["float32"]) -> bool:
    """Tell whether the logits of the shortest row alone are others than padded to the longest."""
    lengths = arrays["attention_mask"].sum(axis=1)
    shortest, longest = int(lengths.argmin()), int(lengths.argmax())
    length = int(lengths[shortest])
    alone = run(_cut(arrays, np.array([shortest]), length))[0]
    try:
        beside = run(_cut(arrays, np.array([shortest, longest]), int(lengths[longest])))[0]
    except ValueError:  # decoders without a padding token refuse such batches
        return True
    beside = beside[:length] if beside.ndim == 2 else beside
    return bool(np.abs(alone - beside).max() > tolerance * np.abs(alone).max())


def _cut(arrays: dict[str, np.ndarray], rows: np.ndarray, length: int) -> dict[str, np.ndarray]:
    # Arrays with one value a row are counts of words, which the model does not read.
    return {name: values[rows, :length] for name, values in arrays.items() if values.ndim == 2}
