"""A stored file is sent in chunks and is never in memory as a whole."""

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from control.core.storage.backends import get_storage
from control.core.storage.staging import CHUNK_BYTES
from control.data.files.streaming import StoredFileResponse

NUM_CHUNKS = 16


@pytest.fixture
def storage_key(db: None, tmp_path: Path) -> str:
    path = tmp_path / "large"
    with path.open("wb") as file:
        for number in range(NUM_CHUNKS):
            file.write(bytes([number]) * CHUNK_BYTES)
    get_storage().put_file("tests/large", path)
    return "tests/large"


def make_response(key: str) -> StoredFileResponse:
    return StoredFileResponse(key, filename='naïve "name".jsonl', content_type="application/octet-stream")


def test_under_asgi_a_large_object_is_sent_in_chunks(storage_key: str) -> None:
    async def consume() -> list[tuple[int, int]]:
        """Returns the first byte, which is the chunk's number, and the length of each chunk."""
        response = make_response(storage_key)
        chunks = [(chunk[0], len(chunk)) async for chunk in aiter(response)]
        response.close()
        return chunks

    tracemalloc.start()
    try:
        chunks = asyncio.run(consume())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert chunks == [(number, CHUNK_BYTES) for number in range(NUM_CHUNKS)]
    assert peak_bytes < 6 * CHUNK_BYTES  # much less than the 16 chunks of the object


def test_the_name_is_quoted_so_that_it_cannot_add_a_header(storage_key: str) -> None:
    response = make_response(storage_key)
    response.close()

    assert response["Content-Disposition"] == "attachment; filename*=utf-8''na%C3%AFve%20%22name%22.jsonl"
    assert response["X-Content-Type-Options"] == "nosniff"
