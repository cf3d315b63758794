"""Datasets: files whose rows have all been checked before any cost arises."""
