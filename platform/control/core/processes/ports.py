"""Finds a free TCP port."""

import socket


def free_port(host: str = "127.0.0.1") -> int:
    """Returns a port that is free now. If another process takes it first, the caller must call this again."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
