"""Training of speculators, in the child process."""
