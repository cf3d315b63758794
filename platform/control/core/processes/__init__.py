"""The environment variables and the ports of child processes."""
