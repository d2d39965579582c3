"""How models become ONNX: each module knows a kind of model (``supports``) and writes its graph (``export``)."""
