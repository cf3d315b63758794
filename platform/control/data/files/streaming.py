"""Sends a stored object in chunks."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import BinaryIO

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse
from django.utils.http import content_disposition_header

from control.core.storage.backends import get_storage
from control.core.storage.staging import CHUNK_BYTES


class StoredFileResponse(StreamingHttpResponse):
    """Streams the object under WSGI, and also under ASGI, where Django would read a synchronous iterator into memory
    completely."""

    def __init__(
        self,
        storage_key: str,
        *,
        filename: str,
        content_type: str,
        size_bytes: int | None = None,
        part: range | None = None,
    ) -> None:
        """Args: part: positions of the bytes to send, with status 206; requires `size_bytes`. None: all bytes."""
        self._source = _Source(get_storage().open(storage_key, start=part.start if part else 0), part)
        super().__init__(_Chunks(self._source), content_type=content_type, status=206 if part else 200)
        if part is not None:
            self["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size_bytes}"
            self["Content-Length"] = str(len(part))
        elif size_bytes is not None:
            self["Content-Length"] = str(size_bytes)
        if disposition := content_disposition_header(as_attachment=True, filename=filename):
            self["Content-Disposition"] = disposition
        self["X-Content-Type-Options"] = "nosniff"  # browsers must not render a customer's file as a page of this site

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = sync_to_async(self._source.read, thread_sensitive=False)
        while chunk := await read(CHUNK_BYTES):
            yield chunk


class _Source:
    """Reads the object to its end, or to the end of the part."""

    def __init__(self, stream: BinaryIO, part: range | None) -> None:
        self.close = stream.close
        self._stream = stream
        self._bytes_left = None if part is None else len(part)

    def read(self, size: int) -> bytes:
        if self._bytes_left is None:
            return self._stream.read(size)
        chunk = self._stream.read(min(size, self._bytes_left))
        self._bytes_left -= len(chunk)
        return chunk


class _Chunks:
    """The iterator of the response. Django calls `close` when the response ends, even after an error."""

    def __init__(self, source: _Source) -> None:
        self.close = source.close
        self._read = partial(source.read, CHUNK_BYTES)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._read, b"")
