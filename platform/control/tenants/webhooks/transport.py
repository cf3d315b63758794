"""Sends one POST request to a customer's URL.

The host name is resolved once, all of its addresses are checked, and the connection uses a checked address. A name that
resolves differently a moment later (DNS rebinding) therefore has no effect. Redirects, proxies and persistent
connections are not used. The whole exchange has one deadline. Only the status and `Retry-After` of the response are
used.
"""

import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import httpcore2

from control.tenants.webhooks.addresses import is_public

DEADLINE_SECONDS = 15.0
MAX_RESPONSE_BYTES = 64 * 1024

Resolve = Callable[[str, int], Sequence[str]]


class AddressRefused(httpcore2.ConnectError):
    """Not all addresses of the host are on the public internet."""


@dataclass(frozen=True, slots=True)
class ReceiverResponse:
    """What the receiver responded. Without a response, `status` is None and `error` is a code.

    The codes never change, because customers see them.
    """

    status: int | None
    retry_after: str | None = None
    error: str | None = None


def resolve(host: str, port: int) -> Sequence[str]:
    """Raises: OSError."""
    return list(dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))


class GuardedBackend(httpcore2.NetworkBackend):
    """Connects to checked addresses only. All reads and writes of a connection share one deadline."""

    def __init__(self, *, allow_private: bool, resolve: Resolve = resolve) -> None:
        self._allow_private = allow_private
        self._resolve = resolve
        self._sockets = httpcore2.SyncBackend()
        self._deadline = time.monotonic() + DEADLINE_SECONDS

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """Raises: AddressRefused; httpcore2.ConnectError, httpcore2.ConnectTimeout."""
        try:
            addresses = self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError("the name could not be resolved") from error
        if not addresses or not (self._allow_private or all(is_public(address) for address in addresses)):
            raise AddressRefused("the address is not on the public internet")
        stream = self._sockets.connect_tcp(
            addresses[0], port, _seconds_left(self._deadline), local_address, socket_options
        )
        return _DeadlineStream(stream, self._deadline)

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: object = None
    ) -> httpcore2.NetworkStream:
        raise AddressRefused("a webhook cannot use a Unix socket")


class _DeadlineStream(httpcore2.NetworkStream):
    """Applies one deadline to all reads and writes: a timeout per read would never end a slow response."""

    def __init__(self, stream: httpcore2.NetworkStream, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _seconds_left(self._deadline))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _seconds_left(self._deadline))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        stream = self._stream.start_tls(ssl_context, server_hostname, _seconds_left(self._deadline))
        return _DeadlineStream(stream, self._deadline)

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)


def _seconds_left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def post(
    url: str, body: bytes, headers: Mapping[str, str], *, allow_private: bool, resolve: Resolve = resolve
) -> ReceiverResponse:
    """Sends the request; errors of the receiver, the name server or the network are returned and not raised."""
    backend = GuardedBackend(allow_private=allow_private, resolve=resolve)
    raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
    try:
        with (
            httpcore2.ConnectionPool(network_backend=backend, max_keepalive_connections=0) as pool,
            pool.stream("POST", url, headers=raw_headers, content=body) as response,
        ):
            _drain(response)
            return ReceiverResponse(status=response.status, retry_after=_header(response, b"retry-after"))
    except AddressRefused:
        return ReceiverResponse(status=None, error="address_refused")
    except httpcore2.TimeoutException:
        return ReceiverResponse(status=None, error="timeout")
    except httpcore2.ConnectError as error:
        is_tls = isinstance(error.__cause__, ssl.SSLError)
        return ReceiverResponse(status=None, error="tls_error" if is_tls else "connection_failed")
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.UnsupportedProtocol):
        return ReceiverResponse(status=None, error="no_valid_answer")


def _drain(response: httpcore2.Response) -> None:
    """Reads up to `MAX_RESPONSE_BYTES`, so that only a receiver with a larger response sees a broken connection."""
    read = 0
    for part in response.iter_stream():
        read += len(part)
        if read > MAX_RESPONSE_BYTES:
            return


def _header(response: httpcore2.Response, name: bytes) -> str | None:
    found = next((value for key, value in response.headers if key.lower() == name), None)
    return None if found is None else found.decode("latin-1")
