"""Runners: for each compared engine, a program that answers prompts in its own process and Python environment."""
