"""Losses: ``loss(student, teacher, batch, *, options) -> Tensor`` ``[]``, one a file.

``NEEDS`` names what they read of the teacher and the batch: ``logits`` come from the label directory; ``hidden``,
``attention`` (queries, keys, values) and ``first`` (hidden states of the first token, which can be cached) make the
teacher run live; ``labels`` are gold, ``targets`` masked tokens, ``mixed`` the text in two vocabularies. ``classes``
says that they compare classes, of which a regression has none.
``STUDENT_NEEDS`` names the activations of the student that they read and ``NEEDS`` does not name: ``hidden``,
``attention``. ``MEAN_OVER`` names what they are means over, of :func:`compress.training.batches.counts_of`, by default
``answers``: processes that share a batch weight their parts by it.

A loss with weights of its own also defines ``learned(student, teacher, *, options) -> Module`` and takes that module as
its fourth argument. It is trained with the student and discarded at the end; neither model is a submodule of it.
"""
