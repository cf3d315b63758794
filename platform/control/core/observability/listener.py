"""HTTP server for /livez and /metrics in processes that serve nothing else: workers and the deployment supervisor."""

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CONTENT_TYPE_LATEST

from control.core.observability.access import may_read_metrics
from control.core.observability.metrics import render
from control.core.settings.config import get_config

_STATUSES = {200: "200 OK", 404: "404 Not Found", 503: "503 Service Unavailable"}


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = 10  # seconds that a caller may take to send its request

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the library's name
        """Logs nothing, because probes come every few seconds."""


def listen(is_alive: Callable[[], bool]) -> int | None:
    """Starts a daemon thread that serves until the process ends.

    Args:
        is_alive: returns whether the main loop of the process is running; if not, /livez responds with 503.

    Returns: the port, or None if SLIPSTREAM_METRICS_PORT is not set.
    """
    port = get_config().metrics_port
    if port is None:
        return None

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        status, body = _respond(environ, is_alive)
        start(_STATUSES[status], [("Content-Type", CONTENT_TYPE_LATEST), ("Content-Length", str(len(body)))])
        return [body]

    server = make_server("0.0.0.0", port, application, _Server, _Handler)  # noqa: S104  # Prometheus runs elsewhere
    threading.Thread(target=server.serve_forever, name="listener", daemon=True).start()
    return int(server.server_address[1])


def _respond(environ: dict[str, Any], is_alive: Callable[[], bool]) -> tuple[int, bytes]:
    match environ["PATH_INFO"]:
        case "/livez":
            return (200, b"ok\n") if is_alive() else (503, b"the main loop is not running\n")
        case "/metrics" if may_read_metrics(
            authorization=environ.get("HTTP_AUTHORIZATION", ""),
            address=environ.get("REMOTE_ADDR", ""),
            is_forwarded="HTTP_X_FORWARDED_FOR" in environ,
        ):
            return 200, render()
    return 404, b""
