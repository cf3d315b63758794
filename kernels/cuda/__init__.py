"""Triton kernels and their launchers, one file per operation. The formulas and references are in kernels/."""
