"""Remove heads, neurons, layers, hidden size and vocabulary from a model, or mask its units."""
