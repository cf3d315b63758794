"""A dataset is the result of checking all rows of a file before any cost arises."""
