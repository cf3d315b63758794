"""Inference in the child process: batches, and the evaluation of a speculator."""
