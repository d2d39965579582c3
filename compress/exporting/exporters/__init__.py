"""ONNX exporters: ``export`` writes the graph of a model of one of its ``MODEL_TYPES``, stock or pruned.

Inputs are int64 ``[batch, length]``, the output is ``logits`` ``[batch, C]``, or ``[batch, length, C]`` of a tagger. An
optional ``refusal(config)`` says why a model of a transformers config has no graph, or nothing where it has one.
"""
