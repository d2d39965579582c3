"""What runs a model directory: each module opens one on a device and returns a function from token ids to logits."""
