"""The limit on open files of this process."""

import resource


def raise_file_limit() -> None:
    """Raises the soft limit, often 1,024, to the hard limit: a stream holds two sockets."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
