"""A command that checks every family of models in every format of weights; see benchmarks/models/__main__.py."""
