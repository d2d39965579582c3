"""Modifiers of a student's forward pass during a phase: ``attach(student, teacher, *, options)``, one a file.

What it returns has ``step(done)``, called before every optimiser step with the share of the phase that is done, from 0
up to below 1, and ``detach()``, which leaves the student's forward pass as it was found. One that observes batches also
has ``gather()``, called after every backward, as often in all processes: it brings together what they observed. One
that masks heads or neurons permanently has ``masks``: for ``heads`` and ``neurons`` a tensor ``[U]`` a layer, 1 for
kept. Scores from before its last unit is masked are those of another model, so that a later phase must select.
"""
