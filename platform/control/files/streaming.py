"""Sends an object of storage in chunks."""

from collections.abc import AsyncIterator
from typing import BinaryIO

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse
from django.http.response import content_disposition_header

from control.files.staging import CHUNK_BYTES
from control.storage import get_storage


class StoredFileResponse(StreamingHttpResponse):
    """Streams under ASGI as well: there Django would first read a synchronous iterator to its end, into memory."""

    def __init__(self, storage_key: str, *, filename: str, content_type: str, size_bytes: int | None = None) -> None:
        self._source: BinaryIO = get_storage().open(storage_key)
        super().__init__(iter(lambda: self._source.read(CHUNK_BYTES), b""), content_type=content_type)
        self._resource_closers.append(self._source.close)
        if size_bytes is not None:
            self["Content-Length"] = str(size_bytes)
        if disposition := content_disposition_header(as_attachment=True, filename=filename):
            self["Content-Disposition"] = disposition
        self["X-Content-Type-Options"] = "nosniff"  # a customer's bytes are never a page of ours

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = sync_to_async(self._source.read, thread_sensitive=False)
        while chunk := await read(CHUNK_BYTES):
            yield chunk
