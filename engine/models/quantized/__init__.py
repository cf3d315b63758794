"""Reads the weights of quantized checkpoints: one module for each format, and `source`, which chooses the module."""
