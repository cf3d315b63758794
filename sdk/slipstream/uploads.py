"""Uploads of large files in parts. An interrupted upload can be continued, even by another process."""

import hashlib
from pathlib import Path
from typing import Any, BinaryIO

from slipstream.drivers import Items, Page, Steps, collected, listing, procedure
from slipstream.errors import APIResponseError, UploadError
from slipstream.http import D, Resource, path_of
from slipstream.types import File, Upload, UploadPart

PART_BYTES = 64 << 20  # OpenAI's limit for one part


class Uploads(Resource[D]):
    @procedure
    def create(
        self,
        *,
        filename: str,
        num_bytes: int,
        purpose: str,
        mime_type: str,
        expires_after_seconds: int | None = None,
    ) -> Steps[Upload]:
        """Args: expires_after_seconds: lifetime of the completed file."""
        body: dict[str, Any] = {"filename": filename, "bytes": num_bytes, "purpose": purpose, "mime_type": mime_type}
        if expires_after_seconds is not None:
            body["expires_after"] = {"anchor": "created_at", "seconds": expires_after_seconds}
        return self.http.post(Upload, "uploads", body)

    @procedure
    def retrieve(self, upload_id: str) -> Steps[Upload]:
        return self.http.get(Upload, path_of("uploads", upload_id))

    @listing
    def parts(self, upload_id: str) -> Items[Page[UploadPart]]:
        """Yield the parts in the order in which they arrived."""
        return self._parts(upload_id)

    @procedure
    def add_part(self, upload_id: str, data: bytes) -> Steps[UploadPart]:
        return self._add_part(upload_id, data)

    @procedure
    def complete(self, upload_id: str, *, part_ids: list[str], md5: str | None = None) -> Steps[Upload]:
        """Make the file from the parts, in the order of `part_ids`."""
        body = {"part_ids": part_ids, "md5": md5}
        return self.http.post(Upload, path_of("uploads", upload_id, "complete"), body)

    @procedure
    def cancel(self, upload_id: str) -> Steps[Upload]:
        return self.http.post(Upload, path_of("uploads", upload_id, "cancel"))

    @procedure
    def send(self, upload_id: str, source: Path | str, *, part_bytes: int = PART_BYTES) -> Steps[File]:
        """Send the parts of the file that the service does not have yet, and complete the upload.

        After a failure, the same call, even in another process, continues after the last complete part.

        Raises: UploadError: the file has the wrong size, or is shorter than the parts already sent.
        """
        upload = yield from self.http.get(Upload, path_of("uploads", upload_id))
        if upload.file is not None:
            return upload.file
        with Path(source).open("rb") as opened:
            if (num_bytes := opened.seek(0, 2)) != upload.bytes:
                raise UploadError(f"upload {upload_id} is for a file of {upload.bytes} bytes, {source} has {num_bytes}")
            opened.seek(0)
            digest = hashlib.md5(usedforsecurity=False)
            part_ids = yield from self._sent_part_ids(upload_id, opened, digest)
            while data := opened.read(part_bytes):
                digest.update(data)
                part_ids.append((yield from self._add_part(upload_id, data)).id)
        body = {"part_ids": part_ids, "md5": digest.hexdigest()}
        done = yield from self.http.post(Upload, path_of("uploads", upload_id, "complete"), body)
        if done.file is None:
            raise APIResponseError(f"upload {upload_id} is {done.status} and has no file")
        return done.file

    def _sent_part_ids(self, upload_id: str, opened: BinaryIO, digest: "hashlib._Hash") -> Steps[list[str]]:
        """Returns the ids of the parts that were already sent, and adds their bytes, read from the file, to the digest.

        The service compares the final digest with the digest of the received parts, which detects parts of another
        file.
        """
        pages = yield from collected(self._parts(upload_id))
        parts = [part for page in pages for part in page.data]
        for part in parts:
            data = opened.read(part.bytes)
            if len(data) < part.bytes:
                raise UploadError(f"the parts of upload {upload_id} have more bytes than the file")
            digest.update(data)
        return [part.id for part in parts]

    def _parts(self, upload_id: str) -> Items[Page[UploadPart]]:
        return self.http.pages(UploadPart, path_of("uploads", upload_id, "parts"), {"order": "asc"})

    def _add_part(self, upload_id: str, data: bytes) -> Steps[UploadPart]:
        return self.http.upload(UploadPart, path_of("uploads", upload_id, "parts"), {}, {"data": ("part", data)})
