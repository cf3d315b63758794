"""Files: prompts in, answers out."""

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from slipstream.http import Http, path_of
from slipstream.types import File, record


class Files:
    def __init__(self, http: Http) -> None:
        self._http = http

    def upload(self, source: Path | str | bytes, *, purpose: str = "batch", filename: str | None = None) -> File:
        """Send a file from a path, or from bytes under `filename`."""
        if isinstance(source, bytes):
            return self._upload(io.BytesIO(source), purpose, filename or "upload.jsonl")
        path = Path(source)
        with path.open("rb") as opened:
            return self._upload(opened, purpose, filename or path.name)

    def _upload(self, source: BinaryIO, purpose: str, filename: str) -> File:
        return record(File, self._http.upload("files", {"purpose": purpose}, filename, source))

    def retrieve(self, file_id: str) -> File:
        return record(File, self._http.get(path_of("files", file_id)))

    def list(self) -> Iterator[File]:
        return (record(File, values) for values in self._http.pages("files"))

    def delete(self, file_id: str) -> None:
        self._http.delete(path_of("files", file_id))

    def content(self, file_id: str) -> bytes:
        with self._http.stream(path_of("files", file_id, "content")) as pieces:
            return b"".join(pieces)

    def download(self, file_id: str, to: Path | str) -> Path:
        """Write the content to `to`; the file appears there whole or not at all."""
        return save(self._http, path_of("files", file_id, "content"), Path(to))


def save(http: Http, path: str, to: Path) -> Path:
    """Stream the body of a GET into a file beside `to`, then rename it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with http.stream(path) as pieces, part.open("wb") as written:
            written.writelines(pieces)
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)
    return to
