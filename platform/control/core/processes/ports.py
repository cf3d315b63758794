"""A port that nobody listens on."""

import socket


def free_port(host: str = "127.0.0.1") -> int:
    """Somebody may take it before its user does, who then has to draw another."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
