"""Runners: a program for each compared engine that answers prompts, in its own process and Python environment."""
