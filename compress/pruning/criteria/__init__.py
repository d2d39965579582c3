"""Criteria: ``importance(model, batches, masks, *, options) -> Tensor`` ``[L, U]``, raw: the largest matters most.

One a file. ``batches`` are :class:`compress.models.batch.Batch` with labels; ``masks`` are the units that are still
open, per layer, and a closed or missing one scores zero. A criterion with the option ``part`` scores ``neurons`` too.
"""
