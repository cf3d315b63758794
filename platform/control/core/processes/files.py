"""The limit on open files of this process."""

import resource
from contextlib import suppress


def raise_file_limit() -> None:
    """Raises the soft limit, often 1,024, to the hard limit: the gateway holds two sockets for each stream."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # macOS reports a hard limit that it does not allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
