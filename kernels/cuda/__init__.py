"""Triton kernels and their launchers, one file per operation; maths and references are in kernels/."""
