"""ONNX exporters: ``export`` writes the graph of a model of one of its ``MODEL_TYPES``, stock or pruned.

An optional ``refusal(config)`` says why a model of a transformers config has no graph, or nothing where it has one.
"""
