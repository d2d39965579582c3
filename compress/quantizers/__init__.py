"""How the weights of an ONNX graph become int8: each module reads one file and writes another."""
