"""Workloads of typical services, and the command that measures speculators on them."""
