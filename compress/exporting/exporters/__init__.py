"""ONNX exporters: each module states which model types it supports (``supports``) and writes a graph (``export``)."""
