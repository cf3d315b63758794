"""The embedded stack: one command that starts and stops everything on one machine."""
