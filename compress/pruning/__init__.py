"""Choose what to remove from a model, remove it, evaluate each step, and recover accuracy."""
