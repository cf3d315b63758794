"""Sends the archive of an export, or a range of its bytes."""

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse

from control.core.api.operation import BINARY
from control.core.storage.backends import get_storage
from control.core.storage.staging import CHUNK_BYTES
from control.workflows.offboarding.models import OrganizationExport


class ArchiveResponse(StreamingHttpResponse):
    def __init__(self, export: OrganizationExport, part: range | None = None) -> None:
        """Args: part: positions of the bytes to send, with status 206; None: all bytes."""
        sent = range(export.size_bytes) if part is None else part
        self._chunks = _chunks(_pieces(export, sent))
        super().__init__(self._chunks, content_type=BINARY, status=200 if part is None else 206)
        if part is not None:
            self["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{export.size_bytes}"
        self["Content-Length"] = str(len(sent))
        self["Content-Disposition"] = f'attachment; filename="{export.pk}.tar"'
        self["X-Content-Type-Options"] = "nosniff"
        self["ETag"] = etag_of(export)
        self["Accept-Ranges"] = "bytes"

    async def __aiter__(self) -> AsyncIterator[bytes]:  # ASGI, where Django would read all chunks into memory
        read = sync_to_async(lambda: next(self._chunks, b""), thread_sensitive=False)
        while chunk := await read():
            yield chunk


def etag_of(export: OrganizationExport) -> str:
    return f'"{export.pk}"'


def _pieces(export: OrganizationExport, sent: range) -> list[tuple[str, int, int]]:
    """Returns the storage key, the start and the length of the bytes to send of each part, in order."""
    overlapping = export.parts.filter(start__lt=sent.stop).order_by("number")
    pieces = []
    for part in overlapping.values("storage_key", "start", "size_bytes"):
        start = max(0, sent.start - part["start"])
        stop = min(part["size_bytes"], sent.stop - part["start"])
        if start < stop:
            pieces.append((part["storage_key"], start, stop - start))
    return pieces


def _chunks(pieces: list[tuple[str, int, int]]) -> Iterator[bytes]:
    for key, start, num_bytes in pieces:
        with get_storage().open(key, start=start) as stream:
            while num_bytes > 0 and (chunk := stream.read(min(CHUNK_BYTES, num_bytes))):
                num_bytes -= len(chunk)
                yield chunk
