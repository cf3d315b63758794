"""The hyperparameters of each kind of speculator: names, types, ranges and defaults.

The API checks values with these classes before a job is created, so this package imports only the standard library; the
trainer reads the same classes.
"""
