"""Carries out requests to import and export speculators that come from the API or the console."""

from control.core.api.forms import ConsoleForm, row_choices
from control.data.files.models import File
from control.data.files.selectors import file_get, files_list
from control.models.catalog.choices import base_models
from control.models.catalog.models import Speculator
from control.models.catalog.selectors import base_model_get, speculator_get
from control.tenants.accounts.models import Organization
from control.workflows.speculators.archives import speculator_archive
from control.workflows.speculators.schemas import ArchiveInput, ExportInput, ImportInput
from control.workflows.speculators.services import speculator_export, speculator_import


def import_from(organization: Organization, body: ImportInput) -> Speculator:
    """Raises: ApiError: 404, no such file or model; or as `speculator_import`."""
    return speculator_import(
        organization=organization,
        file=file_get(organization, body.file_id),
        form=body.format,
        base_model=base_model_get(organization, body.model),
        name=body.name,
    )


def export_from(speculator: Speculator, body: ExportInput) -> File:
    return speculator_export(speculator=speculator, form=body.format)


def archive_from(speculator: Speculator, body: ArchiveInput) -> File:
    return speculator_archive(speculator=speculator, evaluation_id=body.evaluation_id)


IMPORT_SPECULATOR = ConsoleForm(
    title="Import a speculator",
    request=ImportInput,
    run=import_from,
    choices=lambda organization: {
        "file_id": row_choices(files_list(organization)),
        "model": base_models(organization),
    },
)

EXPORT_SPECULATOR = ConsoleForm(
    title="Export",
    request=ExportInput,
    run=lambda row, body: export_from(speculator_get(row.organization, row.pk), body),
)

ARCHIVE_SPECULATOR = ConsoleForm(
    title="Make an archive with evidence",
    request=ArchiveInput,
    run=lambda row, body: archive_from(speculator_get(row.organization, row.pk), body),
)
