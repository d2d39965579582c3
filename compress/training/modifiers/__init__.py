"""What happens inside a student's forward pass while a phase trains it: ``attach(student, teacher, *, options)``, one a
file, returns an :class:`compress.training.modifier.Modifier`."""
