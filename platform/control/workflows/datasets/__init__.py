"""Datasets: a file that has been looked at, row by row, before anybody spends money on it."""
