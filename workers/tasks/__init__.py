"""Celery tasks: claim, supervise a child process, commit. Never imports torch."""
