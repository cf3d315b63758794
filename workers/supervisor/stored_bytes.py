"""Recounts the stored bytes of all organizations, because processes of older releases store bytes without counting
them."""

from django.db.models import F

from control.data.files.models import File
from control.data.uploads.models import UploadPart
from control.models.adapters.models import Adapter
from control.serving.captures.models import CapturedRequest
from control.tenants.accounts.models import Organization
from control.tenants.quotas.models import StoredPart
from control.tenants.quotas.storage import storage_recount
from control.workflows.fine_tuning.models import FineTuningJob


def stored_bytes_recount() -> None:
    for organization_id in Organization.objects.values_list("pk", flat=True):
        storage_recount(
            organization_id,
            {
                StoredPart.FILES: File.objects.filter(organization_id=organization_id, deleted_at=None),
                StoredPart.UPLOADS: UploadPart.objects.filter(upload__organization_id=organization_id),
                StoredPart.ADAPTERS: Adapter.objects.filter(organization_id=organization_id),
                StoredPart.CAPTURES: CapturedRequest.objects.filter(organization_id=organization_id),
                StoredPart.CHECKPOINTS: FineTuningJob.objects.filter(organization_id=organization_id).annotate(
                    size_bytes=F("checkpoint_bytes")
                ),
            },
        )
