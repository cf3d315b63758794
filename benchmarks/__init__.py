"""Benchmarks, each of which is a command."""
