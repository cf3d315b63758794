"""Executes validated requests for uploads."""

from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.data.uploads.models import Upload
from control.data.uploads.schemas import UploadInput
from control.data.uploads.services import upload_create
from control.tenants.accounts.models import Organization


def create_from(organization: Organization, body: UploadInput) -> Upload:
    """Raises: ApiError: 413, the file would be too large; otherwise as `upload_create`."""
    if body.bytes > (limit := get_config().max_upload_bytes):
        raise ApiError(413, f"A file must be at most {limit:,} bytes.", "file_too_large", "bytes")
    return upload_create(
        organization=organization,
        filename=body.filename,
        purpose=body.purpose,
        mime_type=body.mime_type,
        size_bytes=body.bytes,
        file_expires_after=None if body.expires_after is None else body.expires_after.delta,
    )
