"""Quantizers: each module reads a model and writes a quantized one, in the format that its constant ``WRITES`` names.

``onnx``: ``quantize(source, target, ...)`` reads an fp32 ``model.onnx`` and writes an int8 one. ``torch``:
``quantize(model, target, ...)`` writes a loaded model into a directory. ``CANDIDATES``, where there are any, are the
sets of options that ``--method auto`` tries; they are for ``onnx`` alone.
"""
