"""Selectors for files. They do not return deleted or expired files."""

from django.db.models import Q, QuerySet
from django.utils import timezone

from control.core.api.errors import ApiError
from control.data.files.models import File
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible


def files_list(organization: Organization, *, purpose: str | None = None) -> QuerySet[File]:
    files = File.objects.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), deleted_at=None)
    files = files.filter(visible(organization))
    return files if purpose is None else files.filter(purpose=purpose)


def batch_file_check(file: File, *, param: str) -> File:
    """Returns the file. Raises: ApiError: 400, the purpose of the file is not `batch`."""
    if file.purpose != File.Purpose.BATCH:
        message = f"{param} must name a file with purpose 'batch', got one with purpose {file.purpose!r}"
        raise ApiError(400, message, "invalid_value", param)
    return file


def file_get(organization: Organization, file_id: str, *, param: str = "file_id") -> File:
    """Raises: ApiError: 404, also for another organization's file."""
    file = files_list(organization).filter(pk=file_id).first()
    if file is None:
        raise ApiError(404, f"No such File object: {file_id[:80]}", "file_not_found", param)
    return file
