"""Students that start from the layers of a transformer, or from a checkpoint."""
