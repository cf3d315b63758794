"""Selectors for uploads."""

from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from control.core.api.errors import ApiError
from control.data.uploads.models import Upload, UploadPart
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible


def upload_get(organization: Organization, upload_id: str) -> Upload:
    """Raises: ApiError: 404, also for another organization's upload."""
    upload = Upload.objects.filter(visible(organization), pk=upload_id).select_related("file").first()
    if upload is None:
        raise ApiError(404, f"No such Upload object: {upload_id[:80]}", "upload_not_found", "upload_id")
    return upload


def parts_list(upload: Upload) -> QuerySet[UploadPart]:
    return UploadPart.objects.filter(upload=upload)


def is_open() -> Q:
    return Q(status=Upload.Status.PENDING, expires_at__gt=Now())


def uploads_overdue() -> QuerySet[Upload]:
    return Upload.objects.filter(status=Upload.Status.PENDING, expires_at__lte=Now())


def uploads_untidy() -> QuerySet[Upload]:
    """Returns uploads that have ended but may still have parts, whose bytes are not needed any more."""
    return Upload.objects.exclude(status=Upload.Status.PENDING).filter(has_parts=True).order_by("pk")
