"""Metrics with bootstrap intervals, and calibration error."""
