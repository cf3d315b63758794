"""Quotes estimate the cost of a batch of a dataset's rows, or of a pipeline with these rows, and can cap this cost."""
