"""Upload and download of files. Interrupted downloads can be continued."""

import hashlib
import io
import re
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import httpx2

from slipstream.drivers import Exchange, ExchangeResult, Items, Page, Read, Steps, listing, procedure
from slipstream.errors import APIResponseError, APIStatusError
from slipstream.http import D, Http, Resource, connection_error, path_of, pause
from slipstream.types import File

_SHA256 = re.compile(r'"([0-9a-f]{64})"')


class Files(Resource[D]):
    @procedure
    def upload(
        self,
        source: Path | str | bytes,
        *,
        purpose: str = "batch",
        filename: str | None = None,
        expires_after_seconds: int | None = None,
    ) -> Steps[File]:
        """Send a file from a path, or from bytes under `filename`.

        The file is sent in one request; `uploads` sends larger files in parts.

        Args: expires_after_seconds: 3,600 to 2,592,000; None keeps the file until it is deleted.
        """
        fields = {"purpose": purpose}
        if expires_after_seconds is not None:
            fields |= {"expires_after[anchor]": "created_at", "expires_after[seconds]": str(expires_after_seconds)}
        if isinstance(source, bytes):
            return (yield from self._upload(io.BytesIO(source), fields, filename or "upload.jsonl"))
        path = Path(source)
        with path.open("rb") as opened:
            return (yield from self._upload(opened, fields, filename or path.name))

    def _upload(self, source: BinaryIO, fields: dict[str, str], filename: str) -> Steps[File]:
        return self.http.upload(File, "files", fields, {"file": (filename, source)})

    @procedure
    def retrieve(self, file_id: str) -> Steps[File]:
        return self.http.get(File, path_of("files", file_id))

    @listing
    def list(self, *, purpose: str | None = None) -> Items[Page[File]]:
        return self.http.pages(File, "files", {"purpose": purpose})

    @procedure
    def delete(self, file_id: str) -> Steps[None]:
        return self.http.delete(path_of("files", file_id))

    @procedure
    def content(self, file_id: str) -> Steps[bytes]:
        whole = io.BytesIO()
        yield from fetch(self.http, path_of("files", file_id, "content"), whole)
        return whole.getvalue()

    @procedure
    def download(self, file_id: str, to: Path | str) -> Steps[Path]:
        """Write the content to `to`; the file appears there complete or not at all.

        An interrupted download leaves its data next to `to`. The same call, even in another process, then continues
        the download.

        Raises: APIResponseError: the received bytes have the wrong hash; they are discarded.
        """
        return save(self.http, path_of("files", file_id, "content"), Path(to), identity=file_id)


def save(http: Http, path: str, to: Path, *, identity: str | None = None) -> Steps[Path]:
    """Write the body of a GET into a temporary file next to `to`, then rename it to `to`.

    Args: identity: the id of the content, if it never changes. An interrupted download is then continued, and
        concurrent calls are safe, because they write the same bytes to the same offsets. With None, every download
        starts at the first byte.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}.{identity or 'new'}.part")
    part.touch()
    try:
        with part.open("r+b") as written:
            if identity is None:
                written.truncate()
            # One byte is requested again, because the range after a complete file would be empty, which is an error.
            written.seek(max(0, part.stat().st_size - 1))
            expected = yield from fetch(http, path, written)
            written.flush()
            written.seek(0)
            if expected is not None and hashlib.file_digest(written, "sha256").hexdigest() != expected:
                written.truncate(0)
                raise APIResponseError(f"GET {path}: the received bytes do not have the SHA-256 {expected}; try again")
    except BaseException:
        if part.exists() and not part.stat().st_size:
            part.unlink(missing_ok=True)
        raise
    with suppress(FileNotFoundError):  # a concurrent call has just renamed it
        part.replace(to)
    return to


def fetch(http: Http, path: str, to: BinaryIO) -> Steps[str | None]:
    """Write the body of a GET to `to`, from the stream's position on. If the connection breaks, the rest is requested
    again.

    If the service does not support ranges, or its content is shorter than this position, the whole body is requested
    and replaces the content of `to`.

    Returns: the SHA-256 of the whole body, if the service sends it.
    Raises: APIConnectionError: the connection broke more than `max_retries` times in a row without a new byte.
    """
    failures, furthest, version = 0, 0, ""
    while True:
        begin = to.tell()
        headers = {"Range": f"bytes={begin}-", "Accept-Encoding": "identity"}
        if version:
            headers["If-Range"] = version  # without this header, bytes of changed content could be appended
        options = {"headers": headers} if begin else {}
        exchange = Exchange(method="GET", path=path, options=options, stream=True)
        try:
            result: ExchangeResult = yield from http.send(exchange)
        except APIStatusError as error:
            if error.status != httpx2.codes.RANGE_NOT_SATISFIABLE or not begin:
                raise
            to.seek(0)
            continue
        version = result.response.headers.get("etag", "")
        if not begin or not result.response.headers.get("content-range", "").startswith(f"bytes {begin}-"):
            to.seek(0)
            to.truncate()
        try:
            while (piece := (yield Read(result))) is not None:
                to.write(piece)
            etag_hash = _SHA256.fullmatch(version)
            return etag_hash[1] if etag_hash else None
        except httpx2.TransportError as error:
            failures = 1 if to.tell() > furthest else failures + 1
            furthest = max(furthest, to.tell())
            if failures > http.max_retries:
                raise connection_error(exchange, error) from error
            yield pause(failures - 1, {}, f"GET {path}: {error!r}")
