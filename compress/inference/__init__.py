"""Batched logits of many texts, on every runtime, and their timing."""
