"""Gives an organization a row in every table and an object under every storage key, and lists what is stored."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.apps import apps
from django.db import models
from django.utils import timezone

from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.models.adapters.services import WEIGHTS
from control.queue.jobs.models import Job
from control.serving.captures.models import CapturedRequest, CaptureKey
from control.serving.captures.sealing import Sealer, new_key
from control.tenants.accounts.models import Organization, User
from control.workflows.offboarding.exporting import exports_continue
from control.workflows.offboarding.models import OrganizationExport
from control.workflows.offboarding.tables import owned_tables
from tests.control.factories import make_file
from tests.control.tenants.row_security.any_row import make_any_row
from workers.kinds import LORA

CONTENT = b"the bytes of an object\n"
PROMPT = "a captured prompt"


def fill(organization: Organization) -> None:
    """Creates rows of every table, with stored objects under the keys that they contain, and some other objects."""
    for table in owned_tables():
        make_any_row(table.model, organization)
    seal(organization)
    for number, (row, column) in enumerate(storage_columns(organization)):
        key = f"{organization.pk}/{row._meta.model_name}/{number}"
        sizes = {"size_bytes": len(CONTENT)} if isinstance(row, File) else {}
        type(row)._base_manager.filter(pk=row.pk).update(**{column: key}, **sizes)
        put(f"{key}/object" if column.endswith("prefix") else key)
    for name in ("batches/b/rows.jsonl", "pipelines/p/held_out.jsonl"):
        put(f"{organization.pk}/{name}")
    for job in Job.objects.filter(organization=organization):
        put(f"jobs/{job.pk}/1/checkpoint")
        put(f"jobs/{job.pk}/checkpoints/00000007.1/{WEIGHTS}")
    Job.objects.filter(organization=organization).update(params={"method": LORA})
    make_file(organization)
    end_work(organization)


def seal(organization: Organization) -> None:
    CaptureKey.objects.filter(organization=organization).update(encrypted=new_key())
    sealer = Sealer.of(organization.pk)
    for row in CapturedRequest.objects.filter(organization=organization):
        sealed = sealer.seal({"prompt": PROMPT}, deployment_id=row.deployment_id)
        CapturedRequest.objects.filter(pk=row.pk).update(sealed=sealed, body=None)


def end_work(organization: Organization) -> None:
    """Ends all jobs an hour ago."""
    ended = timezone.now() - dt.timedelta(hours=1)
    Job.objects.filter(organization=organization).update(status=Job.Status.SUCCEEDED, finished_at=ended)


def storage_columns(organization: Organization) -> Iterator[tuple[Any, str]]:
    """Yields each row of the organization with each of its columns that contains a storage key."""
    for table in owned_tables():
        for column in key_columns(table.model):
            for row in table.rows(organization.pk):
                yield row, column


def key_columns(model: type[models.Model]) -> list[str]:
    names = [field.name for field in model._meta.concrete_fields if isinstance(field, models.CharField)]
    return [name for name in names if name.endswith(("_key", "_prefix"))]


def put(key: str) -> None:
    path = Path(get_storage().root) / key  # type: ignore[attr-defined]  # tests store objects in a folder
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(CONTENT)


def stored_keys() -> set[str]:
    root = Path(get_storage().root)  # type: ignore[attr-defined]
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


def ids_of(organization: Organization) -> set[str]:
    """Returns the text ids of all of the organization's rows, and the names of its people."""
    rows = (pk for table in owned_tables() for pk in table.rows(organization.pk).values_list("pk", flat=True))
    people = User.objects.filter(memberships__organization=organization).values_list("username", flat=True)
    return {organization.pk, organization.name, *people, *(pk for pk in rows if isinstance(pk, str) and len(pk) > 7)}


def texts_of_all_rows() -> Iterator[tuple[str, str]]:
    """Yields the label of the table and the text of each row in the whole database."""
    for model in apps.get_models(include_auto_created=True):
        for values in model._base_manager.values_list():
            yield model._meta.label, repr(values)


def counts_of(organization: Organization) -> dict[str, int]:
    return {table.label: table.rows(organization.pk).count() for table in owned_tables()}


def complete(export: OrganizationExport) -> OrganizationExport:
    for _ in range(1_000):
        export = OrganizationExport.objects.get(pk=export.pk)
        if export.status == OrganizationExport.Status.COMPLETED:
            return export
        exports_continue()
    raise AssertionError("the export does not end")
