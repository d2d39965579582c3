"""Quantize models to int8 or packed low-bit weights, and accept the result only where it is good enough."""
