"""A proxy that injects faults in front of an HTTP server: errors, truncated responses and delays."""

import random
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

CHUNK_BYTES = 1 << 14
_UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """For each fault, the share of requests that get it (0 to 1)."""

    errors: float = 0.0  # answered with 503 without reaching the server
    cuts: float = 0.0  # the connection is closed in the middle of the response
    delays: float = 0.0
    delay_seconds: float = 0.0


@dataclass
class FaultProxy:
    """Listens from `start` to `stop`. Adds `Connection: close` to requests, so that each has its own connection."""

    upstream_port: int
    faults: Faults
    seed: int = 0
    num_requests: Counter[str] = field(default_factory=Counter)  # by fault

    def start(self) -> int:
        """Starts to listen. Returns: the port."""
        self._random = random.Random(self.seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        return int(self._listener.getsockname()[1])

    def stop(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # `stop` has closed the listener
            threading.Thread(target=self._serve, args=(client, self._draw_fault()), daemon=True).start()

    def _draw_fault(self) -> str:
        drawn, faults = self._random.random(), self.faults
        for fault, share in (("error", faults.errors), ("cut", faults.cuts), ("delay", faults.delays)):
            if drawn < share:
                return fault
            drawn -= share
        return "none"

    def _serve(self, client: socket.socket, fault: str) -> None:
        self.num_requests[fault] += 1
        try:
            with client, socket.create_connection(("127.0.0.1", self.upstream_port)) as server:
                client.settimeout(30)
                server.settimeout(30)
                head = _head(client)
                if not head:
                    return
                if fault == "delay":
                    time.sleep(self.faults.delay_seconds)
                if b"expect: 100-continue" in head.lower():
                    client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = _body(client, head)
                if fault == "error":
                    client.sendall(_UNAVAILABLE)
                    return
                server.sendall(_with_connection_close(head.partition(b"\r\n\r\n")[0]) + body)
                _forward_response(server, client, cut=fault == "cut")
        except OSError:
            pass  # one side has closed its connection


def _head(client: socket.socket) -> bytes:
    """Reads the header including the empty line, and possibly the beginning of the body."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = client.recv(CHUNK_BYTES)
        if not chunk:
            return b""
        received += chunk
    return received


def _body(client: socket.socket, head: bytes) -> bytes:
    lines, _, body = head.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in lines.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    num_bytes = int(lengths[0]) if lengths else 0
    while len(body) < num_bytes:
        chunk = client.recv(CHUNK_BYTES)
        if not chunk:
            raise ConnectionError("the client disconnected in the middle of its request")
        body += chunk
    return body


def _with_connection_close(head: bytes) -> bytes:
    dropped = (b"connection:", b"expect:")
    kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(dropped)]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


def _forward_response(server: socket.socket, client: socket.socket, *, cut: bool) -> None:
    response = b""
    while chunk := server.recv(CHUNK_BYTES):
        response += chunk
    client.sendall(response[: len(response) // 2] if cut else response)
