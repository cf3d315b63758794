"""Logs, metrics, traces and liveness of a process, for operators."""
