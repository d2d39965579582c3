"""Runtimes: each module opens a model directory on a device and returns a function from token arrays to logits.

``start`` returns the function from int64 arrays ``[B, T]`` (``input_ids``, ``attention_mask``, ...) to logits
``[B, C]``. It takes a directory of the kind that ``OPENS`` names, ``torch`` or ``onnx``, the CPU threads for one batch,
a setting of the whole process in PyTorch (on a GPU they only start the work), and a device, one of ``DEVICES``.
"""
