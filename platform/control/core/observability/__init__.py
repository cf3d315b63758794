"""What operators see from outside: logs, metrics, traces and whether a process can serve."""
