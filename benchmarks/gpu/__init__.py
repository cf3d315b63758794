"""Modules of the GPU benchmarks: clock, peak rates, poisoned memory, model shapes, records and tables."""
