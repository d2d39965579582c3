"""Losses, one a file; what such a file defines: CONTRIBUTING.md, "A loss"."""
