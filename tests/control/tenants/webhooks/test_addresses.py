"""Promise S7 of docs/reliability.md: a customer's URL never makes the sender connect to this machine or its network.

The tests call the sender's function `post`. A listener on all addresses of this machine counts connections.
"""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from control.core.api.errors import ApiError
from control.tenants.webhooks import transport
from control.tenants.webhooks.addresses import check_url, is_public
from control.tenants.webhooks.transport import ReceiverResponse, post, resolve

# All spellings of "this machine" or "this network" that a resolver, a socket or a parser may accept.
HOSTILE_HOSTS = [
    "127.0.0.1",
    "127.0.0.2",
    "127.255.255.254",
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0x7f.0x0.0x0.0x1",
    "0177.0.0.1",
    "017700000001",
    "00000177.0.0.1",
    "0",
    "0.0.0.0",
    "0x0",
    "localhost",
    "localhost.",
    "LOCALHOST",
    "ip6-localhost",
    "localhost.localdomain",
    "foo.localhost",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",  # NAT64 of 127.0.0.1
    "[64:ff9b::a9fe:a9fe]",  # NAT64 of the metadata service
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",  # 6to4 of 127.0.0.1
    "[2002:a9fe:a9fe::]",
    "[2001:0:7f00:1::]",  # Teredo
    "[fe80::1]",
    "[fe80::1%25lo]",
    "[fec0::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
    "[2001:db8::1]",
    "[100::1]",
    "[3fff::1]",
    "10.0.0.1",
    "10.255.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "100.64.0.1",  # CGNAT
    "100.127.255.255",
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
]
HOSTILE_URLS = [
    "file:///etc/passwd",
    "gopher://example.com/",
    "ftp://example.com/",
    "unix:///run/docker.sock",
    "//example.com/",
    "http:/127.0.0.1/",
    "http:///127.0.0.1/",
    "http://",
    "http://@/",
    "http://example.com@127.0.0.1/",
    "http://127.0.0.1@example.com/",
    "http://user:password@example.com/",
    "http://example.com:22/",
    "http://example.com:6379/",
    "http://example.com:0/",
    "http://example.com:99999/",
    "http://example.com:80:80/",
    "http://example.com#@127.0.0.1/",
    "http://127.0.0.1\\@example.com/",
    "http://example.com\t.127.0.0.1/",
    "http://example.com/\r\nHost: 127.0.0.1",
    "http://①②⑦.⓪.⓪.①/",
    "http://127。0。0。1/",
    "http://intranet/",
    "http://metadata.google.internal/",
    "http://printer.local/",
    "http://1.1.168.192.in-addr.arpa/",
    "http://example.com./",
    "http://-example.com/",
    "http://[127.0.0.1]/",
    "http://[::1/",
    "http://example.com/" + "a" * 3000,
]
PUBLIC_URLS = [
    "https://example.com/hook",
    "http://example.com:80/",
    "https://a.b-c.example.co.uk:443/x?y=z",
    "https://xn--bcher-kva.example/",
    "https://8.8.8.8/",
    "https://[2606:4700:4700::1111]/",
]


@dataclass
class Listener:
    """Counts the connections to one port of this machine, and sends `response` to each."""

    response: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    connections: int = 0
    server: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def port(self) -> int:
        return int(self.server.getsockname()[1])

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return  # the listener was closed
            self.connections += 1
            with closing(connection):
                connection.settimeout(5)
                connection.recv(65536)
                connection.sendall(self.response)


def listening(listener: Listener) -> Iterator[Listener]:
    """Yields the listener once, while a thread serves its connections."""
    thread = threading.Thread(target=listener.serve)
    thread.start()
    yield listener
    listener.server.shutdown(socket.SHUT_RDWR)
    listener.server.close()
    thread.join()


def listen_on_all_addresses() -> socket.socket:
    """A listener on all addresses of this machine, including IPv6 if available."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", 0))


@pytest.fixture
def listener() -> Iterator[Listener]:
    yield from listening(Listener(server=listen_on_all_addresses()))


def send(url: str, *, allow_private: bool = False, resolve: transport.Resolve = resolve) -> ReceiverResponse:
    return post(url, b"{}", {"Content-Type": "application/json"}, allow_private=allow_private, resolve=resolve)


def is_accepted(url: str) -> bool:
    try:
        check_url(url, allow_private=False)
    except ApiError as error:
        return (error.status, error.code, error.param) != (400, "invalid_url", "url")
    return True


@pytest.mark.parametrize("host", HOSTILE_HOSTS)
def test_a_hostile_host_is_refused_at_registration_and_before_a_connection(host: str, listener: Listener) -> None:
    """The second check is independent of the first, because a host's addresses can change after the registration."""
    assert not is_accepted(f"http://{host}/")

    response = send(f"http://{host}:{listener.port}/")

    assert response.status is None
    assert listener.connections == 0


def test_the_listener_counts_connections_that_are_allowed(listener: Listener) -> None:
    assert send(f"http://127.0.0.1:{listener.port}/", allow_private=True).status == 200
    assert listener.connections == 1


@pytest.mark.parametrize("url", HOSTILE_URLS, ids=lambda url: ascii(url)[:40])
def test_a_hostile_url_is_refused(url: str) -> None:
    assert not is_accepted(url)


@pytest.mark.parametrize("url", PUBLIC_URLS)
def test_an_ordinary_url_is_accepted(url: str) -> None:
    assert is_accepted(url)


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["::1"],
        ["8.8.8.8", "127.0.0.1"],
        ["127.0.0.1", "8.8.8.8"],
        ["169.254.169.254"],
        ["::ffff:10.0.0.1"],
        ["64:ff9b::7f00:1"],
        [],
    ],
)
def test_a_public_name_with_a_private_address_is_refused(addresses: list[str], listener: Listener) -> None:
    response = send(f"http://hooks.example.com:{listener.port}/", resolve=lambda host, port: addresses)

    assert response == ReceiverResponse(status=None, error="address_refused")
    assert listener.connections == 0


def test_a_name_is_resolved_only_once_so_that_rebinding_has_no_effect(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the address of the name is public when it is checked, and private a moment later."""
    resolved_names: list[str] = []
    connected_addresses: list[object] = []

    def rebinding(host: str, port: int) -> Sequence[str]:
        resolved_names.append(host)
        return ["8.8.8.8"] if len(resolved_names) == 1 else ["127.0.0.1"]

    def no_network(address: tuple[str, int], *args: object, **kwargs: object) -> socket.socket:
        connected_addresses.append(address)
        raise OSError("unreachable")

    monkeypatch.setattr(socket, "create_connection", no_network)
    response = send(f"http://rebind.example.com:{listener.port}/", resolve=rebinding)

    assert response == ReceiverResponse(status=None, error="connection_failed")
    assert (resolved_names, connected_addresses) == (["rebind.example.com"], [("8.8.8.8", listener.port)])
    assert listener.connections == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int, listener: Listener) -> None:
    location = f"http://127.0.0.1:{listener.port}/".encode()
    response = b"HTTP/1.1 %d Moved\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % (status, location)
    for receiver in listening(Listener(response)):
        assert send(f"http://127.0.0.1:{receiver.port}/", allow_private=True).status == status
        assert receiver.connections == 1
    assert listener.connections == 0


def test_a_proxy_in_the_environment_is_not_used(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{listener.port}")

    send("http://192.0.2.1/")

    assert listener.connections == 0


def test_an_endless_response_is_not_read_to_its_end() -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n" + b"x" * 200_000
    for receiver in listening(Listener(endless)):
        assert send(f"http://127.0.0.1:{receiver.port}/", allow_private=True).status == 200


def test_a_receiver_that_does_not_respond_causes_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "DEADLINE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        response = send(f"http://127.0.0.1:{silent.getsockname()[1]}/", allow_private=True)

    assert response == ReceiverResponse(status=None, error="timeout")


@pytest.mark.parametrize("garbage", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 999999 X\r\n\r\n"])
def test_a_response_that_is_not_http_is_a_failure(garbage: bytes) -> None:
    for receiver in listening(Listener(garbage)):
        response = send(f"http://127.0.0.1:{receiver.port}/", allow_private=True)
        assert response == ReceiverResponse(status=None, error="no_valid_answer")


@pytest.mark.parametrize("text", ["", "example.com", "1", "::g", "8.8.8.8/32", " 8.8.8.8", "8.8.8.8\n"])
def test_text_that_is_not_an_address_is_not_public(text: str) -> None:
    assert not is_public(text)
