"""Modules of the GPU benchmarks: clock, ceilings, poisoned memory, model shapes, records and tables."""
