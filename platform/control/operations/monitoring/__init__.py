"""Prometheus metrics of database tables and engines, and health probes."""
