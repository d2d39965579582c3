"""Baselines: each module fits one cheap classifier on gold labels, which is measured beside the models.

A baseline states ``RUNTIME``, the library that runs it; a task names those that can answer it, and one of another
package names its tasks in ``TASKS``. ``fit(directory, train, gold, task, classes, teacher)`` fills an empty directory
with safetensors and JSON; ``start(directory, threads=, device=)`` opens it as a ``compress.inference.runners.Runner``
that gives logits ``[B, C]``, scores ``[B, 1]`` for regression, or ``[W, C]`` for the words of sentences to
tag. Baselines run on the CPU.
"""
