"""The hyperparameters of each kind of speculator: names, types, ranges and defaults.

The API uses these classes to check values before it creates a job, and the trainer uses them to read the values. The
package imports only the standard library, because the API must not load torch.
"""
