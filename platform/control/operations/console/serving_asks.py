"""What operators can ask for of speculators: the API's requests, and the services its views call."""

from typing import Any

from django.db.models import Model

from control.data.files.selectors import file_get, files_list
from control.models.catalog.models import Speculator
from control.models.catalog.selectors import base_model_get, speculator_get
from control.operations.console.asking import Ask
from control.operations.console.offers import checked, ids, models
from control.tenants.accounts.models import Organization
from control.workflows.speculators.serializers import ExportInput, ImportInput
from control.workflows.speculators.services import speculator_export, speculator_import


def _import_speculator(organization: Organization, body: dict[str, Any]) -> Speculator:
    values = checked(ImportInput, body)
    return speculator_import(
        organization=organization,
        file=file_get(organization, values["file_id"]),
        form=values["format"],
        base_model=base_model_get(organization, values["model"]),
        name=values["name"],
    )


IMPORT_SPECULATOR = Ask(
    title="Import a speculator",
    request=ImportInput,
    run=_import_speculator,
    choices=lambda organization: {"file_id": ids(files_list(organization)), "model": models(organization)},
)


def _export_speculator(row: Speculator, body: dict[str, Any]) -> Model:
    values = checked(ExportInput, body)
    return speculator_export(speculator=speculator_get(row.organization, row.pk), form=values["format"])


EXPORT_SPECULATOR = Ask(title="Export", request=ExportInput, run=_export_speculator, choices=lambda organization: {})
