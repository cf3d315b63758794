"""A caller without a valid key cannot make the service read a large body, neither in the gateway nor in the rest of the
service."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import httpx2
import pytest
from django.test import Client

from control.tenants.accounts.keys import new_token
from control.tenants.accounts.models import ApiKey, Organization, User
from control.tenants.administration.services import api_key_revoke

MIB = 2**20
LARGE = 150 * MIB
PATHS = [("/v1/files", LARGE), ("/v1/uploads/upload_1/parts", LARGE), ("/v1/batches", 5 * MIB)]
GATEWAY = [("/v1/chat/completions", 5 * MIB), ("/v1/completions", 5 * MIB), ("/v1/audit", 5 * MIB)]


class Caller:
    """Sends the head of a request and then as many bytes of its body as the test wants."""

    def __init__(self, base_url: str, path: str, *headers: str) -> None:
        address = urlsplit(base_url)
        self.socket = socket.create_connection((address.hostname, address.port), timeout=10)
        lines = (f"POST {path} HTTP/1.1", f"Host: {address.netloc}", *headers)
        self.socket.sendall("\r\n".join((*lines, "", "")).encode())

    def response(self) -> str:
        """Returns all that the server sends before it closes the connection, or resets it because of unread bytes."""
        parts = []
        with self.socket, suppress(ConnectionResetError):
            while part := self.socket.recv(65536):
                parts.append(part)
        return b"".join(parts).decode()


@pytest.fixture(params=["missing", "wrong", "revoked"])
def authorization(request: pytest.FixtureRequest, caller: Organization, token: str) -> Iterator[tuple[str, ...]]:
    match request.param:
        case "missing":
            yield ()
        case "wrong":
            yield (f"Authorization: Bearer {new_token()}",)
        case _:
            api_key_revoke(key=ApiKey.objects.get(organization=caller))
            yield (f"Authorization: Bearer {token}",)


@pytest.mark.parametrize(("path", "num_bytes"), PATHS + GATEWAY)
def test_an_invalid_key_is_refused_before_any_byte_of_a_large_body_arrives(
    base_url: str, authorization: tuple[str, ...], path: str, num_bytes: int
) -> None:
    caller = Caller(base_url, path, f"Content-Length: {num_bytes}", *authorization)

    response = caller.response()

    assert response.startswith("HTTP/1.1 401 ")
    assert "connection: close" in response.lower()
    assert "www-authenticate: Bearer" in response
    assert "_api_key" in response


@pytest.mark.parametrize("path", ["/v1/files", "/v1/chat/completions"])
def test_a_body_of_unknown_length_without_a_key_is_refused_while_it_arrives(base_url: str, path: str) -> None:
    caller = Caller(base_url, path, "Transfer-Encoding: chunked")
    caller.socket.sendall(f"{128 * 1024:x}\r\n".encode() + b"x" * 128 * 1024 + b"\r\n")

    assert caller.response().startswith("HTTP/1.1 401 ")


def test_a_client_that_sends_a_large_body_without_a_key_gets_the_error(base_url: str) -> None:
    response = httpx2.post(f"{base_url}/files", content=(b"x" * MIB for _ in range(150)), trust_env=False)

    assert (response.status_code, response.json()["error"]["code"]) == (401, "missing_api_key")


def test_a_large_body_with_a_valid_key_is_read(base_url: str, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    files = {"file": ("rows.jsonl", b"x" * MIB)}

    response = httpx2.post(
        f"{base_url}/files", data={"purpose": "batch"}, files=files, headers=headers, trust_env=False
    )

    assert (response.status_code, response.json()["bytes"]) == (200, MIB)


def test_the_console_reads_a_large_body_only_for_a_user_who_has_signed_in(base_url: str) -> None:
    path = "/admin/files/file/add/"
    refused = Caller(base_url, path, f"Content-Length: {LARGE}", "Cookie: sessionid=wrong").response()
    assert refused.startswith("HTTP/1.1 401 ")

    client = Client()
    client.force_login(User.objects.create_user("operator", is_staff=True, is_superuser=True))
    cookies = {"sessionid": client.cookies["sessionid"].value}
    url = base_url.removesuffix("/v1") + path
    admitted = httpx2.post(url, content=b"x" * MIB, cookies=cookies, trust_env=False)
    assert admitted.status_code == 403, "the body has been read, and it lacks the form's token"
