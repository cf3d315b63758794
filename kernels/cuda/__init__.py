"""Triton kernels: a launcher and the kernels of one operation each; maths and reference stand in kernels/ itself."""
