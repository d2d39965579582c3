"""Losses, one a file; what such a file defines: CONTRIBUTING.md, "A loss" and "A loss with weights of its own"."""
