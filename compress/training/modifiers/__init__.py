"""Modifiers of a student's forward pass during a phase: ``attach(student, teacher, *, options)``, one a file, returns a
:class:`compress.training.modifier.Modifier`."""
