"""Runtimes: each module opens a model directory on a device and returns a function from token ids to logits.

``start`` takes a directory of the kind that ``OPENS`` names, ``torch`` or ``onnx``, the CPU threads for one batch, a
setting of the whole process in PyTorch (on a GPU they only start the work), and a device, one of ``DEVICES``.
"""
