"""Rollouts: a new speculator first serves a share of a deployment's traffic and is then promoted or rolled back."""
