"""Prometheus metrics of rows and engines, and health probes."""
