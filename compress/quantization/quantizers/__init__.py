"""How weights lose bits: each module reads a model and writes another, as its constant ``WRITES`` says.

``onnx``: ``quantize(source, target, ...)`` reads an fp32 ``model.onnx`` and writes an int8 one. ``torch``:
``quantize(model, target, ...)`` writes a loaded model into a directory.
"""
