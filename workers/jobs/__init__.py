"""What the child process does: batch inference and evaluation."""
