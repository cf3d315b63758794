"""Takes the file of a multipart form from the socket to the staging folder, without holding it in memory."""

from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler, SkipFile

from control.files.staging import StagedFile, StagedWriter, new_staging_path
from control.settings.config import get_config

FILE_FIELD = "file"


class StagedUpload(UploadedFile):
    """What the form holds under `file`. Django closes it at the request's end, which deletes the staged bytes."""

    def __init__(self, writer: StagedWriter, name: str) -> None:
        super().__init__(name=name, size=writer.size_bytes)
        self._writer = writer
        self.staged: StagedFile = writer.finish()

    def close(self) -> None:
        self._writer.discard()


class StagingUploadHandler(FileUploadHandler):
    file: StagedWriter  # type: ignore[assignment]  # Django's parser closes `handler.file` when a form breaks off

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        if self.field_name != FILE_FIELD:
            raise SkipFile
        self.file = _ClosingWriter(new_staging_path(), limit_bytes=get_config().max_upload_bytes)

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self.file.write(raw_data)

    def file_complete(self, file_size: int) -> StagedUpload:
        return StagedUpload(self.file, self.file_name or "file")


class _ClosingWriter(StagedWriter):
    def close(self) -> None:
        self.discard()
