"""What an export contains: the tables, their columns, and the stored objects to which rows refer.

A test fails for a table or a column with storage keys that is neither exported nor excluded here with a reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from control.workflows.offboarding.tables import OwnedTable, owned_tables
from workers.kinds import LORA

NOT_EXPORTED: Mapping[str, str] = {
    "captures.CaptureKey": "a key of the installation; captured requests are exported in the clear",
    "devices.DeviceLease": "which device of the installation runs a job at the moment",
    "devices.EndpointLease": "which device of the installation runs a replica at the moment",
    "deployments.Replica": "processes of the installation, with their machines and tokens",
    "idempotency.IdempotencyKey": "protects requests of the last day from being repeated",
    "jobs.JobShard": "a working table of unfinished jobs",
    "jobs.Share": "a figure of the scheduler",
    "offboarding.OrganizationExport": "describes the archive itself",
    "offboarding.OrganizationExportPart": "describes the archive itself",
    "spending.SpendReservation": "exists only while a request runs",
    "tenancy.StorageReservation": "exists only while an object is being stored",
    "webhooks.WebhookSecret": "a secret, which is shown only once",
}
# Columns that are left out of the exported rows.
SECRET_COLUMNS: Mapping[str, frozenset[str]] = {
    "accounts.ApiKey": frozenset({"secret_sha256"}),
    "captures.CapturedRequest": frozenset({"sealed"}),  # `body` has the request in the clear
}


@dataclass(frozen=True, slots=True)
class StoredObjects:
    """Objects in storage to which the rows of a table refer."""

    label: str
    column: str  # contains a key, or the prefix of several keys
    is_folder: bool

    @property
    def name(self) -> str:
        return f"{self.label}.{self.column}"


STORED_OBJECTS = (
    StoredObjects("adapters.Adapter", "storage_prefix", is_folder=True),
    StoredObjects("batches.Batch", "tokens_key", is_folder=False),
    StoredObjects("catalog.Speculator", "plot_key", is_folder=False),
    StoredObjects("catalog.Speculator", "storage_prefix", is_folder=True),
    StoredObjects("evaluations.Evaluation", "plots_prefix", is_folder=True),
    StoredObjects("files.File", "storage_key", is_folder=False),
    StoredObjects("jobs.Job", "checkpoint_key", is_folder=True),  # adapters only; the other files are working files
)
OBJECTS_NOT_EXPORTED: Mapping[str, str] = {
    "catalog.BaseSpeculator.storage_prefix": "published by operators, and not a customer's",
    "jobs.JobShard.storage_key": "working files of unfinished jobs",
    "offboarding.OrganizationExportPart.storage_key": "the archive itself",
    "tenancy.StorageReservation.storage_key": "an object that is still being stored",
    "uploads.UploadPart.storage_key": "parts of unfinished uploads; a completed upload is a file",
}


def exported_tables() -> list[OwnedTable]:
    return [table for table in owned_tables() if table.label not in NOT_EXPORTED]


def rows_with_objects(table: OwnedTable, source: StoredObjects, organization_id: str) -> QuerySet[Any]:
    rows = table.rows(organization_id).exclude(**{source.column: ""})
    if source.label == "jobs.Job":
        return rows.filter(params__method=LORA, finished_at__isnull=False)
    return rows.filter(deleted_at=None) if source.label == "files.File" else rows
