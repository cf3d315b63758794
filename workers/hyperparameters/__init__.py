"""The hyperparameters of each kind of speculator: names, types, ranges, defaults. Standard library only.

The API refuses wrong values before a job begins; the trainer reads the same classes.
"""
