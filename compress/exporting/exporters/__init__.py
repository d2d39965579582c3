"""ONNX exporters: ``export`` writes the graph of a model of one of its ``MODEL_TYPES``, stock or pruned."""
