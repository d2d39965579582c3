"""Run the teacher once over the text and keep its logits in a label directory."""
