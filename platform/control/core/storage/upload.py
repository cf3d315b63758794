"""Writes the file of a multipart form from the socket to the staging folder, without holding it in memory."""

from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler, SkipFile

from control.core.storage.staging import StagedFile, StagedWriter, new_staging_path


class StagedUpload(UploadedFile):  # type: ignore[type-arg]  # generic only in its stubs
    """The value of the file's field in the form."""

    def __init__(self, writer: StagedWriter, name: str) -> None:
        super().__init__(name=name, size=writer.size_bytes)
        self.staged: StagedFile = writer.finish()

    def close(self) -> None:
        """Does nothing: no file is open, and the handler deletes the bytes."""


class StagingUploadHandler(FileUploadHandler):
    """Writes the file of one form field to the staging folder and skips other files.

    A view that uses this handler must call `discard`, because Django does not clean up after an incomplete form.
    """

    def __init__(self, request: Any, *, field: str, limit_bytes: int) -> None:
        super().__init__(request)
        self._field = field
        self._limit_bytes = limit_bytes
        self._writers: list[StagedWriter] = []

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        if self.field_name != self._field:
            raise SkipFile
        self._writers.append(StagedWriter(new_staging_path(), limit_bytes=self._limit_bytes))

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self._writers[-1].write(raw_data)

    def file_complete(self, file_size: int) -> StagedUpload:
        return StagedUpload(self._writers[-1], self.file_name or "file")

    def discard(self) -> None:
        for writer in self._writers:
            writer.discard()
