"""What child processes need: environment variables, operating-system users, home folders, log files and ports."""
