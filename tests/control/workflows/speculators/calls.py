"""Requests to the API of speculators and files."""

from typing import Any

from django.test import Client


def post(client: Client, path: str, body: dict[str, Any], *, status: int = 201) -> Any:
    response = client.post(path, body, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json()


def content(client: Client, file_id: str) -> bytes:
    return b"".join(client.get(f"/v1/files/{file_id}/content"))
