"""Modules of the GPU benchmarks `benchmarks.kernels` and `benchmarks.decode`."""
