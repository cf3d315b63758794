"""Limits the memory of a process that runs untrusted input."""

import resource
from contextlib import suppress
from pathlib import Path


def limit_memory(additional_bytes: int) -> None:
    """Limits this process's address space to its present size plus the given number of bytes, and forbids core files.
    On systems other than Linux, memory is not limited.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # other systems lack the file or the limit
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + additional_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
