"""Datasets: the results of checking all rows of a file before any cost arises."""
