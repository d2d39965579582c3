"""Pruning criteria: ``importance(model, batches, masks, *, options) -> Tensor`` ``[L, U]`` of raw scores.

One criterion per file; the highest score is the most important unit. ``batches`` are labelled
:class:`compress.models.batch.Batch`. ``masks`` are 1 for a kept and 0 for a removed unit of a layer;
removed and missing units score zero. A criterion with the option ``part`` scores ``neurons`` too.
"""
