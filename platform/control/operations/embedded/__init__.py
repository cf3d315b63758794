"""The embedded stack: one command that starts and stops all processes on one machine."""
