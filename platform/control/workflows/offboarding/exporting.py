"""Makes the archives of exports, part by part, and deletes expired ones. Workers call both as chores."""

import secrets
import time
from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models.functions import Now

from control.core.database_clock import from_now
from control.core.storage.backends import get_storage
from control.core.storage.staging import StagedFile, staged_writer
from control.workflows.offboarding.archive import ArchiveWriter, Position
from control.workflows.offboarding.models import OrganizationExport, OrganizationExportPart

log = structlog.get_logger(__name__)

PART_BYTES = 32 << 20
KEPT = timedelta(days=7)  # how long a complete archive is kept, and how long an export may take
SECONDS_A_ROUND = 5.0  # during a round, the worker runs no other chore
EXPORTS_A_ROUND = 20
PARTS_A_ROUND = 200

_Status = OrganizationExport.Status


def exports_continue() -> None:
    """Adds parts to unfinished archives. Several processes may call this at once: of two equal parts, one is kept."""
    deadline = time.monotonic() + SECONDS_A_ROUND
    unfinished = OrganizationExport.objects.filter(status=_Status.RUNNING, expires_at__gt=Now()).order_by("pk")
    for found in unfinished[:EXPORTS_A_ROUND]:
        export: OrganizationExport | None = found
        try:
            while export is not None and export.status == _Status.RUNNING and time.monotonic() < deadline:
                export_add_part(export)
                export = OrganizationExport.objects.filter(pk=export.pk).first()
        except Exception:  # an error in one export must not stop the others; the next round tries again
            log.exception("could not continue an export", export_id=found.pk)


def export_add_part(export: OrganizationExport) -> None:
    """Writes the next part, stores it and then records it, so a part that is recorded is complete.

    If the process dies before the part is recorded, its object stays in storage until the archive is deleted.
    """
    with staged_writer() as writer:
        position = Position.of(export.position)
        archive = ArchiveWriter(export.organization_id, position, writer, part_bytes=PART_BYTES)
        archive.write_part()
        staged = writer.finish()
        key = f"{export.prefix}/{export.num_parts:06}-{secrets.token_hex(8)}.part"
        get_storage().put_file(key, staged.path)
    if not _record(export, key, staged, archive.position):
        get_storage().delete(key)


@transaction.atomic
def _record(export: OrganizationExport, key: str, staged: StagedFile, position: Position) -> bool:
    """Returns False if another process has recorded a part since `export` was read."""
    changes: dict[str, object] = {
        "position": position.as_json(),
        "num_parts": export.num_parts + 1,
        "size_bytes": export.size_bytes + staged.size_bytes,
    }
    if position.stage == "end":
        changes |= {"status": _Status.COMPLETED, "finished_at": Now(), "expires_at": from_now(KEPT.total_seconds())}
    unchanged = OrganizationExport.objects.filter(pk=export.pk, num_parts=export.num_parts, expires_at__gt=Now())
    if not unchanged.filter(status=_Status.RUNNING).update(**changes):
        return False
    OrganizationExportPart.objects.create(
        export=export,
        number=export.num_parts,
        start=export.size_bytes,
        size_bytes=staged.size_bytes,
        storage_key=key,
    )
    return True


def exports_expire() -> None:
    """Deletes expired archives, some parts at a time."""
    storage = get_storage()
    for export in OrganizationExport.objects.filter(expires_at__lte=Now()).order_by("expires_at")[:EXPORTS_A_ROUND]:
        names = storage.some(export.prefix, limit=PARTS_A_ROUND)
        for name in names:
            storage.delete(f"{export.prefix}/{name}")
        if len(names) < PARTS_A_ROUND:
            storage.delete_folder(export.prefix)
            with transaction.atomic():
                OrganizationExportPart.objects.filter(export=export).delete()
                OrganizationExport.objects.filter(pk=export.pk).delete()
