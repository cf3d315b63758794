"""Distillations: batches whose answers are kept as training data for speculators."""
