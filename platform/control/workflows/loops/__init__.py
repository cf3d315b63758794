"""Loops, which retrain the speculator of a deployment automatically, in rounds."""
