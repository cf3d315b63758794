"""Files: prompts in, answers out. What is large goes up in parts, and what was cut off is taken up again."""

import io
import os
import threading
from pathlib import Path
from typing import BinaryIO

import httpx2

from slipstream.drivers import Answer, Exchange, Items, Read, Steps, iteration, procedure
from slipstream.http import D, Http, Resource, connection_error, path_of, pause
from slipstream.types import File


class Files(Resource[D]):
    @procedure
    def upload(self, source: Path | str | bytes, *, purpose: str = "batch", filename: str | None = None) -> Steps[File]:
        """Send a file from a path, or from bytes under `filename`."""
        if isinstance(source, bytes):
            return (yield from self._upload(io.BytesIO(source), purpose, filename or "upload.jsonl"))
        path = Path(source)
        with path.open("rb") as opened:
            return (yield from self._upload(opened, purpose, filename or path.name))

    def _upload(self, source: BinaryIO, purpose: str, filename: str) -> Steps[File]:
        return self.http.upload(File, "files", {"purpose": purpose}, {"file": (filename, source)})

    @procedure
    def retrieve(self, file_id: str) -> Steps[File]:
        return self.http.get(File, path_of("files", file_id))

    @iteration
    def list(self, *, purpose: str | None = None) -> Items[File]:
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
        """Write the content to `to`; the file appears there whole or not at all."""
        return save(self.http, path_of("files", file_id, "content"), Path(to))


def save(http: Http, path: str, to: Path) -> Steps[Path]:
    """Write the body of a GET into a file beside `to`, then rename it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with part.open("wb") as written:
            yield from fetch(http, path, written)
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)
    return to


def fetch(http: Http, path: str, to: BinaryIO) -> Steps[None]:
    """Write the body of a GET to the empty `to`. After a break it goes on where it was, if the service lets it.

    A service without ranges sends the whole again, which then replaces what is there.
    Raises: APIConnectionError: broken more than `max_retries` times without a byte in between.
    """
    failures, furthest, version = 0, 0, ""
    while True:
        begin = to.tell()
        headers = {"Range": f"bytes={begin}-", "Accept-Encoding": "identity"}
        if version:
            headers["If-Range"] = version  # else a part of other content could follow what is here
        options = {"headers": headers} if begin else {}
        exchange = Exchange(method="GET", path=path, options=options, stream=True)
        answer: Answer = yield from http.send(exchange)
        version = answer.response.headers.get("etag", "")
        if begin and not answer.response.headers.get("content-range", "").startswith(f"bytes {begin}-"):
            to.seek(0)
            to.truncate()
        try:
            while (piece := (yield Read(answer))) is not None:
                to.write(piece)
            return
        except httpx2.TransportError as error:
            failures = 1 if to.tell() > furthest else failures + 1
            furthest = max(furthest, to.tell())
            if failures > http.max_retries:
                raise connection_error(exchange, error) from error
            yield pause(failures - 1, {}, f"GET {path}: {error!r}")
