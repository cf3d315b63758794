"""Requests to an endpoint, kept for some hours where its owner opts in, to train the next speculator on."""
