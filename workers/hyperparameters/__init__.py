"""The hyperparameters of each kind of speculator: names, types, ranges and defaults.

The API uses these classes to check values before it creates a job, and the trainer uses them to read the values. The
package therefore imports no library that the web server does not have, such as torch.
"""
