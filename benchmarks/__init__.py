"""Measurements as commands, each printing one line of JSON."""
