"""Loops that retrain the speculator of a deployment by themselves, in rounds."""
