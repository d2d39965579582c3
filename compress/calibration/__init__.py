"""Calibrated probabilities and the confidence from which a prediction is accepted: ``compress calibrate``."""
