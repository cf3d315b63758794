"""Executes validated requests for files, from the API and the console."""

import json
from typing import BinaryIO, cast

from control.core.api.forms import ConsoleForm
from control.core.storage.upload import StagedUpload
from control.data.files.models import File
from control.data.files.schemas import FileForm
from control.data.files.services import file_create
from control.tenants.accounts.models import Organization

EXPIRY_CHOICES = [
    (json.dumps({"anchor": "created_at", "seconds": days * 86400}), f"after {days} days") for days in (1, 7, 30)
]


def create_from(organization: Organization, body: FileForm) -> File:
    """Raises: as `file_create`."""
    return file_create(
        organization=organization,
        filename=body.file.name or "file",
        purpose=body.purpose,
        source=body.file.staged if isinstance(body.file, StagedUpload) else cast(BinaryIO, body.file),
        expires_after=None if body.expires_after is None else body.expires_after.delta,
    )


UPLOAD_FILE = ConsoleForm(
    title="Upload a file",
    request=FileForm,
    run=create_from,
    choices=lambda organization: {"expires_after": EXPIRY_CHOICES},
)
