"""One file per operation: the reference in torch, the launcher that checks its arguments, the kernels."""
