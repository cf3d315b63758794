"""Reads the weights of quantized checkpoints: one module for each format, and `source` that chooses among them."""
