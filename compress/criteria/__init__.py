"""Criteria: ``importance(model, batches, masks, *, options) -> Tensor`` ``[L, H]``, raw and at least zero, one a file.

``batches`` are :class:`compress.types.Batch` with labels; ``masks`` are the heads that are still open, per layer, and
a closed head scores zero."""
