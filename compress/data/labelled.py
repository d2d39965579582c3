"""Labelled training and validation rows of a stage."""

from collections.abc import Sequence
from dataclasses import dataclass

from compress.data.examples import Example


@dataclass(frozen=True)
class LabelledData:
    """Labelled rows by role.

    Args:
        train: rows to fit on, to score heads on, or to calibrate with.
        validation: rows to select by.
        metric: the metric of the selection; by default accuracy, or Pearson's correlation for regression.
        drop_overlap: leave rows of ``train`` out that occur in ``validation`` too, instead of refusing them.
    """

    train: Sequence[Example] = ()
    validation: Sequence[Example] = ()
    metric: str | None = None
    drop_overlap: bool = False
