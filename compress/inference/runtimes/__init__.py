"""Runtimes: each module opens a model directory on a device and returns a function from token ids to logits."""
