"""A new speculator on a share of a deployment's traffic first: promoted or rolled back by what it does there."""
