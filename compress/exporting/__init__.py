"""Export models to ONNX graphs whose attention layers stay fused."""
