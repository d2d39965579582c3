"""Losses: ``loss(student, teacher, batch, *, options) -> Tensor`` ``[]``, one a file. ``NEEDS`` names what of the
teacher they read: ``logits`` come from the label directory, ``hidden`` makes the teacher run live, ``labels`` are
gold."""
