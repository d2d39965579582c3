"""What needs no teacher: each module fits one cheap classifier on the training rows, to be measured beside models."""
