"""Runnable examples; `examples.demo` is what `make demo` runs."""
